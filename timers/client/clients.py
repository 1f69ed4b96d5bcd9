"""The clients: :class:`TimersClient`, and :class:`AsyncTimersClient` for programs with an event loop.

They differ in how they wait for the brokers.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Literal, Self, TypeVar, overload

from timers.client.by_id import ById
from timers.client.calls import TimerCalls, TimerId
from timers.client.config import DEFAULT_TIMEOUT_S, Connection
from timers.client.publish import Publisher, left_s
from timers.client.request import TimerRequest
from timers.client.retry import DEFAULT_BACKOFF, Backoff, plan
from timers.core.operation import ABSENT
from timers.errors import PublishError
from timers.threads import BoundedThreads, call_in_thread, result_of, tell_of_forks
from timers.wire.verdict import VerdictMessage

_T = TypeVar("_T")

_CONNECTING_S = 0.5

FULL_QUEUE_WAIT_S = 0.01
"""Time between two tries to submit to a full queue."""


def refuse_if_full(timeout_s: float, deadline: float) -> None:
    """Raise PublishError if the producer's queue had no room until the deadline, for ``timeout_s``."""
    if time.monotonic() > deadline:
        raise PublishError(f"the producer's queue stayed full for {timeout_s:.3g} s")


class ClientParts:
    """The connection, the publisher, and the part for timers with an id, which is created at its first use."""

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

    def _deadline(self, timeout_s: float | None = None) -> float:
        """When a call that begins now must have ended, by the monotonic clock."""
        return time.monotonic() + (self._publisher.timeout_s if timeout_s is None else timeout_s)

    def _connecting_deadline(self, timeout_s: float) -> float:
        """Until when a call that may take ``timeout_s`` may connect. A short one may take a little longer for this."""
        return self._deadline(min(timeout_s, self._publisher.timeout_s) + _CONNECTING_S)

    def _disconnect(self, deadline: float) -> None:
        self._publisher.close(deadline)
        if self._ids is not None:
            self._ids.close(deadline)

    def _by_id(self) -> ById:
        with self._lock:
            self._publisher.refuse_if_closed()
            if self._ids is None:
                self._ids = ById(self._kafka)
            return self._ids

    def _next_try(
        self, message: Any, attempt: int | None, backoff: Backoff, topic: str | None, dead_letter_topic: str | None
    ) -> tuple[Callable[[], Future[str]], bool]:
        """A function that submits the next try of a message or its dead letter, and whether it is a dead letter."""
        record = plan(message, attempt, backoff, topic, dead_letter_topic or self._kafka.settings.dead_letter_topic)
        if isinstance(record, TimerRequest):
            return partial(self._publisher.schedule, record), False
        return partial(self._publisher.write, *record), True


class TimersClient(ClientParts, TimerCalls[TimerId, VerdictMessage]):
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
        timeout_s: how long one call may wait for the broker.
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

    def schedule_request(
        self, request: TimerRequest, *, if_absent: bool = False, timeout_s: float | None = None
    ) -> TimerId:
        if if_absent:
            return TimerId.told(self.update_if(request, ABSENT, timeout_s=timeout_s))
        part = self._publisher if request.id is None else self._by_id()
        return TimerId(self._publish(part, partial(part.schedule, request), timeout_s))

    def retry_later(
        self,
        message: Any,
        attempt: int | None = None,
        *,
        backoff: Backoff = DEFAULT_BACKOFF,
        topic: str | None = None,
        dead_letter_topic: str | None = None,
    ) -> str | None:
        """Send a message that could not be handled to its topic again, after a delay that grows with each attempt.

        Its key, value and headers are unchanged, with ``retry-attempt`` added to the headers. Commit the message's
        offset after this method has returned.

        Args:
            message: the message of a consumer: confluent-kafka's ``Message``, aiokafka's ``ConsumerRecord``, Faust's
                event, or anything with ``topic``, ``partition``, ``offset``, ``key``, ``value`` and ``headers``.
            attempt: number of the next try, from 1; None takes it from the message's headers.
            backoff: delays and number of retries.
            topic: topic of the next retry; None for the message's own topic.
            dead_letter_topic: topic for the message after the last retry, with the code ``retries-exhausted``; None
                takes ``TIMERS_DEAD_LETTER_TOPIC``, where ``timers dead-letters`` lists it.

        Returns:
            The timer id; None if there is no further try and the message is a dead letter now.

        Raises:
            InvalidTimerError: the message cannot be sent again, such as one without a value.
            PublishError: the broker did not take it within ``timeout_s``.
        """
        submit, is_dead_letter = self._next_try(message, attempt, backoff, topic, dead_letter_topic)
        timer_id = self._publish(self._publisher, submit)
        return None if is_dead_letter else timer_id

    def update_if(
        self, request: TimerRequest, condition: str | None, *, timeout_s: float | None = None
    ) -> VerdictMessage:
        return self._await_verdict(lambda ids: ids.update(request, condition), timeout_s)

    def _await_verdict(
        self, submit: Callable[[ById], Future[VerdictMessage]], timeout_s: float | None
    ) -> VerdictMessage:
        timeout_s = self._publisher.timeout_s if timeout_s is None else timeout_s
        deadline, ids = self._deadline(timeout_s), self._by_id()
        ids.listen(self._connecting_deadline(timeout_s))
        return ids.wait(self._retry_while_full(partial(submit, ids), deadline), deadline, timeout_s)

    def cancel(self, id: str, *, if_source: str | None = None, timeout_s: float | None = None) -> VerdictMessage:
        return self._await_verdict(lambda ids: ids.cancel(id, if_source), timeout_s)

    def _publish(
        self, part: Publisher | ById, submit: Callable[[], Future[str]], timeout_s: float | None = None
    ) -> str:
        deadline = self._deadline(timeout_s)
        part.open(deadline)
        future = self._retry_while_full(submit, deadline)
        try:
            return future.result(left_s(deadline))
        except TimeoutError:
            raise self._kafka.unreachable_error(timeout_s=timeout_s) from None

    def _retry_while_full(self, submit: Callable[[], _T], deadline: float) -> _T:
        timeout_s = left_s(deadline)
        while True:
            with suppress(BufferError):
                return submit()
            refuse_if_full(timeout_s, deadline)
            time.sleep(FULL_QUEUE_WAIT_S)

    @overload
    def schedule_many(self, requests: Iterable[TimerRequest], *, ids: Literal[True] = True) -> list[str]: ...
    @overload
    def schedule_many(self, requests: Iterable[TimerRequest], *, ids: Literal[False]) -> int: ...
    @overload
    def schedule_many(self, requests: Iterable[TimerRequest], *, ids: bool) -> list[str] | int: ...
    def schedule_many(self, requests: Iterable[TimerRequest], *, ids: bool = True) -> list[str] | int:
        """Schedule any number of timers, fast. Returns once the broker has them all.

        Args:
            requests: read one by one while the queue has room, so it may be a generator of any length.
            ids: whether to return the ids; ``ids=False`` is faster and holds nothing in memory.

        Returns:
            What :meth:`schedule` returns, in the order of the requests; or with ``ids=False`` their number.

        Raises:
            InvalidTimerError: a request is wrong; it is named by its number, and those before it are scheduled.
            PartlyPublishedError: the broker did not take all of them; its ``ids`` say which.
            PublishError: no broker answers, or the request topic does not exist.
            SettingsError: a request has an id, and ``TIMERS_ID_TOPIC`` is empty.
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

_MAX_BULKS = 64
"""Calls of ``schedule_many`` that run at the same time."""


class AsyncTimersClient(ClientParts, TimerCalls[Coroutine[Any, Any, TimerId], Coroutine[Any, Any, VerdictMessage]]):
    """Schedules timers from a coroutine: ``async with AsyncTimersClient() as client: await client.schedule(...)``.

    Any number of coroutines may schedule at once; their requests share batches. They may be of several event loops, in
    several threads or one after the other: a thread passes the answers on, so no loop waits for another one. Arguments
    are those of :class:`~timers.client.TimersClient`. Nothing here blocks the event loop.
    """

    def after_fork(self) -> None:
        super().after_fork()
        self._openings: dict[Callable[[float], None], Future[None]] = {}
        self._bulks = BoundedThreads("timers-client-bulk", _MAX_BULKS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def schedule_request(
        self, request: TimerRequest, *, if_absent: bool = False, timeout_s: float | None = None
    ) -> TimerId:
        """Schedule the timer of a request. If the awaiting task is cancelled, the broker may still get the request."""
        if if_absent:
            return TimerId.told(await self.update_if(request, ABSENT, timeout_s=timeout_s))
        part = self._publisher if request.id is None else self._by_id()
        return TimerId(await self._publish(part, partial(part.schedule, request), timeout_s))

    async def retry_later(
        self,
        message: Any,
        attempt: int | None = None,
        *,
        backoff: Backoff = DEFAULT_BACKOFF,
        topic: str | None = None,
        dead_letter_topic: str | None = None,
    ) -> str | None:
        """Send a message again later; see :meth:`TimersClient.retry_later`."""
        submit, is_dead_letter = self._next_try(message, attempt, backoff, topic, dead_letter_topic)
        timer_id = await self._publish(self._publisher, submit)
        return None if is_dead_letter else timer_id

    async def update_if(
        self,
        request: TimerRequest,
        condition: str | None,
        *,
        request_hash: bytes | None = None,
        timeout_s: float | None = None,
    ) -> VerdictMessage:
        """Publish a request with an id, and await the verdict.

        Args:
            condition: ``absent``, or the source of the version that the request was made for; None: none.
            request_hash: value of the header ``timer-request-hash``, by which a repeated request is known.
        """
        return await self._await_verdict(lambda ids: ids.update(request, condition, request_hash), timeout_s)

    async def cancel(self, id: str, *, if_source: str | None = None, timeout_s: float | None = None) -> VerdictMessage:
        return await self._await_verdict(lambda ids: ids.cancel(id, if_source), timeout_s)

    async def _await_verdict(
        self, submit: Callable[[ById], Future[VerdictMessage]], timeout_s: float | None
    ) -> VerdictMessage:
        timeout_s = self._publisher.timeout_s if timeout_s is None else timeout_s
        deadline, connecting, ids = self._deadline(timeout_s), self._connecting_deadline(timeout_s), self._by_id()
        if not ids.listening:
            await self._connect(ids.listen, connecting)
        future = await self._retry_while_full(partial(submit, ids), deadline)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), left_s(deadline))
        except TimeoutError:
            raise ids.no_verdict_error(future, timeout_s) from None

    async def _connect(self, connect: Callable[[float], None], deadline: float) -> None:
        """Connect in a thread. Calls that begin meanwhile, in whatever event loop, wait for the same attempt."""
        with self._lock:
            opening = self._openings.get(connect)
            if opening is None or opening.done():
                opening = self._openings[connect] = call_in_thread("timers-client-connect", connect, deadline)
        try:
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(opening)), left_s(deadline) + _LAST_ANSWER_S)
        except TimeoutError:
            raise self._kafka.unreachable_error() from None

    async def _retry_while_full(self, submit: Callable[[], _T], deadline: float) -> _T:
        timeout_s = left_s(deadline)
        while True:
            with suppress(BufferError):
                return submit()
            refuse_if_full(timeout_s, deadline)
            await asyncio.sleep(FULL_QUEUE_WAIT_S)

    async def _publish(
        self, part: Publisher | ById, submit: Callable[[], Future[str]], timeout_s: float | None = None
    ) -> str:
        deadline = self._deadline(timeout_s)
        if not part.is_open:
            await self._connect(part.open, deadline)
        future = await self._retry_while_full(submit, deadline)
        try:
            async with asyncio.timeout(left_s(deadline)):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise self._kafka.unreachable_error(timeout_s=timeout_s) from None

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
            raise PublishError(f"{_MAX_BULKS} other calls of schedule_many run: nothing was sent") from None

    async def close(self, timeout_s: float | None = None) -> None:
        """Wait for the answers to requests under way, and disconnect; see :meth:`TimersClient.close`."""
        closing = call_in_thread("timers-client-close", self._disconnect, self._deadline(timeout_s))
        await asyncio.shield(asyncio.wrap_future(closing))
