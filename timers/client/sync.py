"""The client for programs without an event loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

from timers.client.by_id import ById
from timers.client.config import DEFAULT_TIMEOUT_S, Connection
from timers.client.publish import CLOSED, Answer, Publisher, queue_stayed_full
from timers.client.request import HeadersLike, TimerRequest
from timers.client.retry import DEFAULT_BACKOFF, Backoff, plan
from timers.errors import PublishError, TimersError
from timers.wire.verdict import VerdictMessage

_T = TypeVar("_T")

_FULL_QUEUE_WAIT_S = 0.01
_POLL_S = 0.1


class TimersClient:
    """Schedules timers: ``with TimersClient() as client: client.schedule("orders", "o-1", b"expired", delay=900)``.

    Thread-safe; keep one for the life of the process. It connects when first used.

    Args:
        brokers: bootstrap servers ``host:port,...``; None takes ``TIMERS_BROKERS``, else this project's running broker.
        request_topic: where requests go; None takes ``TIMERS_REQUEST_TOPIC`` (``timer-request``).
        id_topic: where requests with an id go; None takes ``TIMERS_ID_TOPIC``.
        producer_config: further librdkafka properties, such as ``compression.type``. With ``security.protocol`` among
            them they say all of how to log in, and ``TIMERS_SECURITY_PROTOCOL``, ``_SASL_`` and ``_SSL_`` say nothing.
        timeout_s: how long one call may wait for the broker.
        max_request_bytes: largest request that the workers accept; None takes ``TIMERS_MAX_REQUEST_BYTES``.

    Raises:
        SettingsError: an environment variable or a property is wrong.
        AccessError: when first used, if the brokers do not let us in.
    """

    def __init__(
        self,
        brokers: str | None = None,
        *,
        request_topic: str | None = None,
        id_topic: str | None = None,
        producer_config: Mapping[str, Any] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_request_bytes: int | None = None,
    ) -> None:
        self._to = Connection.resolve(brokers, request_topic, producer_config, timeout_s, max_request_bytes, id_topic)
        self._publisher = Publisher(self._to)
        self._ids: ById | None = None
        self._lock = threading.Lock()
        self._poller: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def schedule(
        self,
        topic: str,
        key: str | bytes | None,
        value: str | bytes,
        *,
        at: datetime | float | None = None,
        delay: timedelta | float | None = None,
        headers: HeadersLike = (),
        token: str | None = None,
        id: str | None = None,
    ) -> str:
        """Have ``value`` sent to ``topic`` at the due second. Returns once the broker has the request.

        Args:
            topic: where the callback goes.
            key: record key of the callback; None for none, so that callbacks are spread over its topic's partitions.
            value: record value of the callback; a str is sent as UTF-8.
            at: when: an aware datetime or epoch seconds, rounded up to a whole second. The past fires at once.
            delay: how long from now: a timedelta or seconds. Give ``at`` or ``delay``.
            headers: record headers of the callback, in order; values may be None. ``timer-*`` is reserved.
            token: sent in the header ``callback-token``, for a receiver that may cancel (:mod:`timers.client.tokens`).
            id: the timer's own, by which it is replaced, found and cancelled (``docs/timers-with-an-id.md``). A timer
                of the same id is replaced; :meth:`update` says what became of it.

        Returns:
            The id that was given, or the timer id ``<topic>/<partition>/<offset>``; the callback carries it in its
            header ``timer-id``.

        Raises:
            InvalidTimerError: an argument is wrong; the sentence says which and what it should be.
            PublishError: the broker did not take it within ``timeout_s``.
        """
        request = TimerRequest(topic, key, value, at, delay, headers, token)
        if id is None:
            return self._publish(partial(self._publisher.submit, request))
        ids = self._by_id()
        ids.open()
        return self._room(partial(ids.schedule, id, request)).result()

    def send_later(
        self,
        key: str | bytes | None,
        value: str | bytes,
        topic: str,
        when: datetime | timedelta | float,
        *,
        headers: HeadersLike = (),
    ) -> str:
        """Have ``value`` sent to ``topic`` at an instant, seconds or years ahead: kafka-scheduler's ``sendLater``.

        Args:
            key: record key of the callback: any bytes, a str as UTF-8, or None for none.
            value: record value of the callback; a str is sent as UTF-8.
            topic: where the callback goes.
            when: an aware datetime, epoch seconds, or a timedelta from now; rounded up to a whole second.
            headers: record headers of the callback.

        Returns:
            The timer id.

        Raises:
            InvalidTimerError, PublishError: as :meth:`schedule`.
        """
        at, delay = (None, when) if isinstance(when, timedelta) else (when, None)
        return self.schedule(topic, key, value, at=at, delay=delay, headers=headers)

    def retry_later(
        self,
        message: Any,
        attempt: int | None = None,
        *,
        backoff: Backoff = DEFAULT_BACKOFF,
        topic: str | None = None,
        dead_letter_topic: str | None = None,
    ) -> str | None:
        """Have a message that could not be handled sent to its topic again, later each time, and give it up in the end.

        Its key, value and headers come back as they are, with ``retry-attempt`` among the headers. Commit the message's
        offset after this returns.

        Args:
            message: what a consumer handed over: confluent-kafka's ``Message``, aiokafka's ``ConsumerRecord``, Faust's
                event, or anything with ``topic``, ``partition``, ``offset``, ``key``, ``value`` and ``headers``.
            attempt: which try comes next, the first being 1; None takes it from the message's headers.
            backoff: how long to wait, and how often to try.
            topic: where it is sent again; None: where it came from.
            dead_letter_topic: where it goes when all tries are used up, with the code ``retries-exhausted``; None takes
                ``TIMERS_DEAD_LETTER_TOPIC``, where ``timers dead-letters`` lists it.

        Returns:
            The timer id; None if it was given up, and is a dead letter now.

        Raises:
            InvalidTimerError: the message cannot be sent again, such as one without a value.
            PublishError: the broker did not take it within ``timeout_s``.
        """
        planned = plan(message, attempt, backoff, topic, dead_letter_topic or self._to.settings.dead_letter_topic)
        if isinstance(planned, TimerRequest):
            return self._publish(partial(self._publisher.submit, planned))
        self._publish(partial(self._publisher.submit_record, *planned))
        return None

    def update(
        self,
        id: str,
        topic: str,
        key: str | bytes | None,
        value: str | bytes,
        *,
        at: datetime | float | None = None,
        delay: timedelta | float | None = None,
        headers: HeadersLike = (),
        token: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> VerdictMessage:
        """Set a timer anew, and wait for what became of the one before. Arguments as :meth:`schedule`.

        Returns:
            ``replaced``, ``already-fired``, or ``unknown``: there was none. In each case the new version is set. It
            costs one record more, by which ``unknown`` is known.

        Raises:
            NoVerdictError: nobody said within ``timeout_s``; the update counts as soon as a worker reads it.
            SettingsError: no topic of ids is set.
        """
        request = TimerRequest(topic, key, value, at, delay, headers, token)
        ids = self._by_id()
        ids.listen()
        return ids.wait(self._room(partial(ids.update, id, request)), timeout_s)

    def cancel(self, id: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> VerdictMessage:
        """Cancel a timer that has an id, and wait for what came of it.

        Returns:
            ``cancelled``, ``already-fired`` or ``unknown``.

        Raises:
            NoVerdictError: nobody said within ``timeout_s``; the cancel counts as soon as a worker reads it.
            SettingsError: no topic of ids is set.
        """
        ids = self._by_id()
        ids.listen()
        return ids.wait(self._room(partial(ids.cancel, id)), timeout_s)

    def _by_id(self) -> ById:
        with self._lock:
            if self._publisher.closed:
                raise PublishError(CLOSED)
            if self._ids is None:
                self._ids = ById(self._to)
            return self._ids

    def _publish(self, submit: Callable[[Answer], None]) -> str:
        self._publisher.open()
        self._start_polling()
        future: Future[str] = Future()
        self._room(partial(submit, partial(_settle, future)))
        return future.result()

    def _room(self, hand_over: Callable[[], _T]) -> _T:
        """Hand something over once the producer's queue has room for it."""
        deadline = time.monotonic() + self._publisher.timeout_s
        while True:
            try:
                return hand_over()
            except BufferError:
                if time.monotonic() > deadline:
                    raise queue_stayed_full(self._publisher.timeout_s) from None
                time.sleep(_FULL_QUEUE_WAIT_S)

    def _start_polling(self) -> None:
        with self._lock:
            if self._poller is None:
                self._poller = threading.Thread(target=self._poll, name="timers-client", daemon=True)
                self._poller.start()

    def _poll(self) -> None:
        while self._publisher.poll(_POLL_S):
            pass

    @overload
    def schedule_many(self, requests: Iterable[TimerRequest], *, ids: Literal[True] = True) -> list[str]: ...
    @overload
    def schedule_many(self, requests: Iterable[TimerRequest], *, ids: Literal[False]) -> int: ...
    @overload
    def schedule_many(self, requests: Iterable[TimerRequest], *, ids: bool) -> list[str] | int: ...
    def schedule_many(self, requests: Iterable[TimerRequest], *, ids: bool = True) -> list[str] | int:
        """Schedule any number of timers, fast. Returns once the broker has them all.

        Args:
            requests: taken one by one as there is room, so it may be a generator of any length.
            ids: whether to return the ids; ``ids=False`` is faster and holds nothing in memory.

        Returns:
            The timer ids in the order of the requests, or with ``ids=False`` their number.

        Raises:
            InvalidTimerError: a request is wrong; it is named by its number, and those before it are scheduled.
            PartlyPublishedError: the broker did not take all of them; its ``ids`` say which.
            PublishError: no broker answers, or the request topic does not exist.
        """
        return self._publisher.publish_many(requests, ids=ids)

    def close(self) -> None:
        """Wait for what is on its way and let go of the broker. May be called twice."""
        self._publisher.close()
        if self._ids is not None:
            self._ids.close()
        if self._poller is not None:
            self._poller.join()


def _settle(future: Future[str], answer: str | TimersError) -> None:
    if isinstance(answer, TimersError):
        future.set_exception(answer)
    else:
        future.set_result(answer)
