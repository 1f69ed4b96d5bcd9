"""The clients: :class:`TimersClient`, and :class:`AsyncTimersClient` for programs with an event loop.

They differ in how they wait for the brokers.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from typing import Any, Literal, Self, TypeVar, overload

from timers.client.by_id import ById, Call
from timers.client.calls import MakeRetry, TimerCalls, TimerId
from timers.client.config import DEFAULT_TIMEOUT_S, LONGEST_WAIT_S, Connection, seconds
from timers.client.publish import Publisher, left_s
from timers.client.request import TimerRequest
from timers.core.operation import ABSENT
from timers.errors import PublishError, UnreachableError
from timers.process.threads import BoundedThreads, call_in_thread, result_of, tell_of_forks
from timers.wire.verdict import VerdictMessage

_T = TypeVar("_T")
_IdResult = TypeVar("_IdResult")
_VerdictResult = TypeVar("_VerdictResult")
_RetryResult = TypeVar("_RetryResult")

_LONGER_S = 0.5
"""A short call may take so much longer to connect, and again for the brokers' acknowledgement of what it has sent."""

FULL_QUEUE_WAIT_S = 0.01
"""Time between two tries to submit to a full queue."""


def refuse_if_full(timeout_s: float, deadline: float) -> None:
    """Raise PublishError if the producer's queue had no room until the deadline, for ``timeout_s``."""
    if time.monotonic() > deadline:
        raise PublishError(f"the producer's queue stayed full for {timeout_s:.3g} s")


class Client(TimerCalls[_IdResult, _VerdictResult, _RetryResult], ABC):
    """Both clients: what a call does, step by step. They differ in what runs the steps, and in how they wait."""

    def __init__(
        self,
        brokers: str | Sequence[str] | None = None,
        *,
        request_topic: str | None = None,
        id_topic: str | None = None,
        producer_config: Mapping[str, Any] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_request_bytes: int | None = None,
        keep_order: bool = False,
    ) -> None:
        arguments = brokers, request_topic, producer_config, timeout_s, max_request_bytes, id_topic
        self._kafka = Connection.resolve(*arguments)
        self._publisher = Publisher(self._kafka, thread="timers-client", keep_order=keep_order)
        self._ids: ById | None = None
        self.after_fork()
        tell_of_forks(self)

    def after_fork(self) -> None:
        """Begin with no lock held."""
        self._lock = threading.Lock()

    @abstractmethod
    def _run(self, steps: Coroutine[Any, Any, Any]) -> Any:
        """Take the steps of a call, and return what they return; or return a coroutine that takes them."""

    @abstractmethod
    async def _sleep(self, seconds: float) -> None: ...

    @abstractmethod
    async def _connect(self, connect: Callable[[float], None], deadline: float) -> None:
        """Call a function that blocks until a deadline."""

    @abstractmethod
    async def _result(self, future: Future[_T], deadline: float) -> _T:
        """Return a future's result. Raises TimeoutError after the deadline."""

    def schedule_request(
        self, request: TimerRequest, *, if_absent: bool = False, timeout_s: float | None = None
    ) -> _IdResult:
        id: _IdResult = self._run(self._schedule(request, if_absent, timeout_s))
        return id

    async def _schedule(self, request: TimerRequest, if_absent: bool, timeout_s: float | None) -> TimerId:
        if if_absent:
            return TimerId.told(await self._update(request, ABSENT, None, timeout_s))
        if timeout_s is not None:
            seconds("timeout_s", timeout_s, 0, self._publisher.timeout_s, self._publisher.timeout_s)
        part = self._publisher if request.id is None else self._by_id()
        return TimerId(await self._publish(part, partial(part.schedule, request), timeout_s))

    def _send_again(self, retry: MakeRetry) -> _RetryResult:
        id: _RetryResult = self._run(self._publish_retry(retry))
        return id

    async def _publish_retry(self, retry: MakeRetry) -> str | None:
        record = retry(self._kafka.settings.dead_letter_topic)
        if isinstance(record, TimerRequest):
            return await self._publish(self._publisher, partial(self._publisher.schedule, record))
        await self._publish(self._publisher, partial(self._publisher.write, *record))
        return None

    def update_if(
        self,
        request: TimerRequest,
        condition: str | None,
        *,
        request_hash: bytes | None = None,
        timeout_s: float | None = None,
    ) -> _VerdictResult:
        """As :meth:`TimerCalls.update_if`. ``request_hash``: value of the header ``timer-request-hash``."""
        verdict: _VerdictResult = self._run(self._update(request, condition, request_hash, timeout_s))
        return verdict

    async def _update(
        self, request: TimerRequest, condition: str | None, request_hash: bytes | None, timeout_s: float | None
    ) -> VerdictMessage:
        return await self._await_verdict(lambda ids: ids.update(request, condition, request_hash), timeout_s)

    def cancel(self, id: str, *, if_source: str | None = None, timeout_s: float | None = None) -> _VerdictResult:
        verdict: _VerdictResult = self._run(self._await_verdict(lambda ids: ids.cancel(id, if_source), timeout_s))
        return verdict

    async def _await_verdict(self, submit: Callable[[ById], Call], timeout_s: float | None) -> VerdictMessage:
        timeout_s = self._publisher.timeout_s if timeout_s is None else timeout_s
        deadline, ids = self._deadline(timeout_s), self._by_id()
        if not ids.listening:
            await self._connect(ids.listen, self._deadline(min(timeout_s, self._publisher.timeout_s) + _LONGER_S))
        call = await self._retry_while_full(partial(submit, ids), deadline)
        with suppress(TimeoutError):
            return await self._result(call.future, deadline)
        with suppress(TimeoutError):  # without it the request may be in no log
            await self._result(call.acknowledged, self._deadline(_LONGER_S))
            with suppress(CancelledError):  # the first wait of an event loop ends the future
                return call.future.result(0)  # the verdict may have come meanwhile
        raise ids.no_verdict_error(call, timeout_s)

    async def _publish(self, part: Publisher, submit: Callable[[], Future[str]], timeout_s: float | None = None) -> str:
        deadline = self._deadline(timeout_s)
        if not part.is_open:
            await self._connect(part.open, deadline)
        future = await self._retry_while_full(submit, deadline)
        try:
            return await self._result(future, deadline)
        except TimeoutError:
            raise self._kafka.unreachable_error(timeout_s=timeout_s) from None

    async def _retry_while_full(self, submit: Callable[[], _T], deadline: float) -> _T:
        timeout_s = left_s(deadline)
        while True:
            with suppress(BufferError):
                return submit()
            refuse_if_full(timeout_s, deadline)
            await self._sleep(FULL_QUEUE_WAIT_S)

    def _by_id(self) -> ById:
        with self._lock:
            self._publisher.refuse_if_closed()
            if self._ids is None:
                self._ids = ById(self._kafka)
            return self._ids

    def _deadline(self, timeout_s: float | None = None) -> float:
        """When a call that begins now must have ended, by the monotonic clock.

        Raises:
            SettingsError: the time is no number of seconds.
        """
        if timeout_s is not None:
            seconds("timeout_s", timeout_s, 0, LONGEST_WAIT_S, DEFAULT_TIMEOUT_S)
        return time.monotonic() + (self._publisher.timeout_s if timeout_s is None else timeout_s)

    def _disconnect(self, deadline: float) -> None:
        self._publisher.close(deadline)
        if self._ids is not None:
            self._ids.close(deadline)


class TimersClient(Client[TimerId, VerdictMessage, str | None]):
    """Schedules timers: ``with TimersClient() as client: client.schedule("orders", "o-1", b"expired", delay=900)``.

    Thread-safe; keep one for the life of the process. It connects at its first use. After ``os.fork()`` the child needs
    a client of its own: calls of one that was used before raise PublishError.

    Args:
        brokers: bootstrap servers, ``host:port,...`` or a list of them; None takes ``TIMERS_BROKERS``, else this
            project's running broker.
        request_topic: where requests go; None takes ``TIMERS_REQUEST_TOPIC`` (``timer-request``).
        id_topic: where requests with an id go; None takes ``TIMERS_ID_TOPIC``, by default the name of the request topic
            with ``-by-id`` behind it.
        producer_config: further librdkafka properties, such as ``compression.type``. With ``security.protocol`` among
            them they must contain the whole login: ``TIMERS_SECURITY_PROTOCOL``, ``_SASL_`` and ``_SSL_`` are ignored.
        timeout_s: how long one call may wait for the broker. A call may have less, but not more.
        max_request_bytes: largest request that the workers accept; None takes ``TIMERS_MAX_REQUEST_BYTES``.
        keep_order: send requests of one callback key to one partition, so that its callbacks come in the order of their
            due seconds, and within a second in the order of the requests. ``docs/python-client.md`` says what still
            changes the order.

    Raises:
        SettingsError: an environment variable or a property is wrong.
        AccessError: at the first use, if the brokers refuse the login.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, steps: Coroutine[Any, Any, Any]) -> Any:
        try:
            steps.send(None)  # they block instead of waiting for an event loop, so this is their end
        except StopIteration as end:
            return end.value
        raise AssertionError("a step has waited for an event loop")

    async def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def _connect(self, connect: Callable[[float], None], deadline: float) -> None:
        connect(deadline)

    async def _result(self, future: Future[_T], deadline: float) -> _T:
        return future.result(left_s(deadline))

    @overload
    def schedule_many(self, requests: Iterable[TimerRequest], *, ids: Literal[True] = True) -> list[str]: ...
    @overload
    def schedule_many(self, requests: Iterable[TimerRequest], *, ids: Literal[False]) -> int: ...
    @overload
    def schedule_many(self, requests: Iterable[TimerRequest], *, ids: bool) -> list[str] | int: ...
    def schedule_many(self, requests: Iterable[TimerRequest], *, ids: bool = True) -> list[str] | int:
        """Schedule any number of timers, fast. Returns once the broker has them all.

        A client runs one such call at a time. Others wait for it, for up to ``timeout_s`` of the client.

        Args:
            requests: read one by one while the queue has room, so it may be a generator of any length.
            ids: whether to return the ids; ``ids=False`` is faster and holds nothing in memory.

        Returns:
            What :meth:`schedule` returns, in the order of the requests; or with ``ids=False`` their number.

        Raises:
            InvalidTimerError: a request is wrong; it is named by its number. Those before it are scheduled: its ``ids``
                has what this call would have returned for them.
            PartlyPublishedError: the broker did not take all of them, or one cannot be sent; its ``ids`` say which
                were taken, its ``unknown`` which may have been, and its ``read`` how many were read.
            PublishError: no broker answers, the request topic does not exist, or another such call takes too long;
                nothing was sent.
            SettingsError: the first request has an id, and ``TIMERS_ID_TOPIC`` is empty.
            Exception: what ``requests`` raises itself, once the brokers have answered. A note of it says how many
                requests before it they have not taken, if so.
        """
        return self._publisher.publish_many(requests, ids=ids)

    def close(self, timeout_s: float | None = None) -> None:
        """Wait for the answers to requests under way, and disconnect. May be called twice.

        Args:
            timeout_s: how long the call may wait; None takes that of the client.
        """
        self._disconnect(self._deadline(timeout_s))


_LAST_ANSWER_S = 0.3
"""A thread that connects until a deadline may take this much longer."""


class AsyncTimersClient(
    Client[Coroutine[Any, Any, TimerId], Coroutine[Any, Any, VerdictMessage], Coroutine[Any, Any, str | None]]
):
    """Schedules timers from a coroutine: ``async with AsyncTimersClient() as client: await client.schedule(...)``.

    Any number of coroutines may schedule at once; their requests share batches. (Of ``schedule_many`` one call runs at
    a time, and others wait for it.) They may be of several event loops, in
    several threads or one after the other: a thread passes the answers on, so no loop waits for another one. Arguments
    are those of :class:`~timers.client.TimersClient`. Nothing here blocks the event loop.
    """

    def after_fork(self) -> None:
        super().after_fork()
        self._openings: dict[Callable[[float], None], Future[None]] = {}
        self._bulks = BoundedThreads("timers-client-bulk", 1)  # more would wait for each other

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _run(self, steps: Coroutine[Any, Any, Any]) -> Any:
        return steps

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _result(self, future: Future[_T], deadline: float) -> _T:
        """If the awaiting task is cancelled, the broker may still get the request."""
        async with asyncio.timeout(left_s(deadline)):
            return await asyncio.wrap_future(future)

    async def _connect(self, connect: Callable[[float], None], deadline: float) -> None:
        """Connect in a thread. Calls that begin meanwhile, in whatever event loop, wait for the same attempt. It may
        take the client's whole ``timeout_s``, and each call waits until its own deadline: none ends early because
        another call had less time, or began before it."""
        wait_s = round(left_s(deadline), 2)
        while True:
            with self._lock:
                opening = self._openings.get(connect)
                if opening is None or opening.done():
                    opening = call_in_thread("timers-client-connect", connect, self._deadline())
                    self._openings[connect] = opening
            waiting = asyncio.wrap_future(opening)
            try:
                done, _ = await asyncio.wait({waiting}, timeout=left_s(deadline) + _LAST_ANSWER_S)
                if not done:
                    raise self._kafka.unreachable_error(UnreachableError, wait_s)
                return waiting.result()
            except UnreachableError:
                if left_s(deadline) <= _LAST_ANSWER_S:
                    raise
            finally:
                waiting.cancel()  # this caller's part of it: the attempt goes on

    @overload
    async def schedule_many(self, requests: Iterable[TimerRequest], *, ids: Literal[True] = True) -> list[str]: ...
    @overload
    async def schedule_many(self, requests: Iterable[TimerRequest], *, ids: Literal[False]) -> int: ...
    @overload
    async def schedule_many(self, requests: Iterable[TimerRequest], *, ids: bool) -> list[str] | int: ...
    async def schedule_many(self, requests: Iterable[TimerRequest], *, ids: bool = True) -> list[str] | int:
        """Schedule any number of timers; see :meth:`TimersClient.schedule_many`. ``requests`` is read in a thread."""
        call = self._bulks.call(self._publisher.publish_many, requests, ids=ids)
        try:
            return await result_of(call, self._publisher.timeout_s, is_bounded=False)
        except TimeoutError:
            raise self._publisher.busy_error() from None

    async def close(self, timeout_s: float | None = None) -> None:
        """Wait for the answers to requests under way, and disconnect; see :meth:`TimersClient.close`."""
        closing = call_in_thread("timers-client-close", self._disconnect, self._deadline(timeout_s))
        await asyncio.shield(asyncio.wrap_future(closing))
