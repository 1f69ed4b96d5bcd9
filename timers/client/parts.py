"""The parts that both clients share. The clients differ in how they wait for the brokers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from timers.client.by_id import ById
from timers.client.config import DEFAULT_TIMEOUT_S, Connection
from timers.client.publish import OnResult, Publisher
from timers.client.request import TimerRequest
from timers.client.retry import Backoff, plan
from timers.errors import PublishError
from timers.threads import tell_of_forks

_T = TypeVar("_T")

_CONNECTING_S = 0.5

FULL_QUEUE_WAIT_S = 0.01
"""Time between two tries to submit to a full queue."""


class Submission(Generic[_T]):
    """Submits a request again and again while the producer's queue is full. The caller waits between two tries.

    Attributes:
        result: what ``submit`` returned; set as soon as :meth:`is_done` returns True.
    """

    result: _T

    def __init__(self, submit: Callable[[], _T], timeout_s: float) -> None:
        self._submit = submit
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s

    def is_done(self) -> bool:
        """Try once, and return whether the queue had room.

        Raises:
            PublishError: it had none for ``timeout_s``.
        """
        try:
            self.result = self._submit()
        except BufferError:
            if time.monotonic() > self._deadline:
                raise PublishError(f"the producer's queue stayed full for {self._timeout_s:.3g} s") from None
            return False
        return True


class ClientParts:
    """The connection, the publisher, and the part for timers with an id, which is created at its first use."""

    polling_thread: ClassVar[str] = ""
    """Name of a thread that polls the publisher; empty: the client polls."""

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
        self._publisher = Publisher(self._kafka, thread=self.polling_thread, keep_order=keep_order)
        self._ids: ById | None = None
        self._lock = threading.Lock()
        tell_of_forks(self)

    def after_fork(self) -> None:
        """Leave no lock held."""
        self._lock = threading.Lock()

    def _deadline(self, timeout_s: float | None = None) -> float:
        """When a call that begins now must have ended, by the monotonic clock."""
        return time.monotonic() + (self._publisher.timeout_s if timeout_s is None else timeout_s)

    def _connecting_deadline(self, timeout_s: float) -> float:
        """Until when a call that may take ``timeout_s`` may connect. A short one may take a little longer for this."""
        return self._deadline(min(timeout_s, self._publisher.timeout_s) + _CONNECTING_S)

    def _by_id(self) -> ById:
        with self._lock:
            self._publisher.refuse_if_closed()
            if self._ids is None:
                self._ids = ById(self._kafka)
            return self._ids

    def _next_try(
        self, message: Any, attempt: int | None, backoff: Backoff, topic: str | None, dead_letter_topic: str | None
    ) -> tuple[Callable[[OnResult], None], bool]:
        """A function that submits the next try of a message or its dead letter, and whether it is a dead letter."""
        record = plan(message, attempt, backoff, topic, dead_letter_topic or self._kafka.settings.dead_letter_topic)
        if isinstance(record, TimerRequest):
            return partial(self._publisher.submit, record), False
        return partial(self._publisher.submit_record, *record), True
