"""The client for programs without an event loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, overload

from timers.client.config import DEFAULT_TIMEOUT_S
from timers.client.publish import Publisher
from timers.client.request import HeadersLike, TimerRequest
from timers.errors import PublishError, TimersError

_FULL_QUEUE_WAIT_S = 0.01
_POLL_S = 0.1


class TimersClient:
    """Schedules timers: ``with TimersClient() as client: client.schedule("orders", "o-1", b"expired", delay=900)``.

    Thread-safe; keep one for the life of the process. It connects when first used.

    Args:
        brokers: bootstrap servers ``host:port,...``; None takes ``TIMERS_BROKERS``, else this project's running broker.
        request_topic: where requests go; None takes ``TIMERS_REQUEST_TOPIC`` (``timer-request``).
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
        producer_config: Mapping[str, Any] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_request_bytes: int | None = None,
    ) -> None:
        self._publisher = Publisher(
            brokers,
            request_topic=request_topic,
            producer_config=producer_config,
            timeout_s=timeout_s,
            max_request_bytes=max_request_bytes,
        )
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
        key: str | bytes,
        value: str | bytes,
        *,
        at: datetime | float | None = None,
        delay: timedelta | float | None = None,
        headers: HeadersLike = (),
        token: str | None = None,
    ) -> str:
        """Have ``value`` sent to ``topic`` at the due second. Returns once the broker has the request.

        Args:
            topic: where the callback goes.
            key: record key of the callback, valid UTF-8.
            value: record value of the callback; a str is sent as UTF-8.
            at: when: an aware datetime or epoch seconds, rounded up to a whole second. The past fires at once.
            delay: how long from now: a timedelta or seconds. Give ``at`` or ``delay``.
            headers: record headers of the callback, in order; values may be None. ``timer-*`` is reserved.
            token: sent in the header ``callback-token``, for a receiver that may cancel (:mod:`timers.client.tokens`).

        Returns:
            The timer id ``<topic>/<partition>/<offset>``, which the callback carries in its header ``timer-id``.

        Raises:
            InvalidTimerError: an argument is wrong; the sentence says which and what it should be.
            PublishError: the broker did not take it within ``timeout_s``.
        """
        request = TimerRequest(topic, key, value, at, delay, headers, token)
        publisher = self._publisher
        publisher.open()
        self._start_polling()
        deadline = time.monotonic() + publisher.timeout_s
        future: Future[str] = Future()
        while True:
            try:
                publisher.submit(request, partial(_settle, future))
            except BufferError:
                if time.monotonic() > deadline:
                    raise PublishError(f"the producer's queue stayed full for {publisher.timeout_s:g} s") from None
                time.sleep(_FULL_QUEUE_WAIT_S)
            else:
                return future.result()

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
        if self._poller is not None:
            self._poller.join()


def _settle(future: Future[str], answer: str | TimersError) -> None:
    if isinstance(answer, TimersError):
        future.set_exception(answer)
    else:
        future.set_result(answer)
