"""What the threads of a queue share: the terms, the ledgers, the counters, and one lock for them."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass, replace
from time import monotonic

from timers.client import Backoff
from timers.errors import QueueError, TimersError
from timers.queue.counters import Counters
from timers.queue.message import Message
from timers.queue.settling import Settler


@dataclass(frozen=True)
class Terms:
    """The arguments of a queue that its messages and its thread need."""

    name: str
    topic: str
    returns_topic: str
    backoff: Backoff
    lease_s: float
    ordered: bool
    accept_loss: bool
    max_request_bytes: int


class State:
    """Receivers take messages from the ledgers and settle them there; the queue's thread reads and commits.

    Attributes:
        lock: held for each use of the other attributes, and never during I/O.
        failure: why the queue ended.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.lock = threading.Condition()  # reentrant
        self.settler = Settler()
        self.totals = Counters()
        self.closing = False
        self.failure: TimersError | None = None
        self._is_over = False
        self._waiting: list[Future[None]] = []

    # ---- receivers -----------------------------------------------------------------------------------------------

    def receive(self, limit: int, wait_s: float) -> list[Message]:
        """Return up to ``limit`` messages; none if none came within ``wait_s``, or the queue is closed.

        Raises:
            QueueError: the queue ended.
        """
        deadline = monotonic() + wait_s
        with self.lock:
            while True:
                if self.failure is not None:
                    raise self.failure
                messages = self._take(limit)
                remaining_s = deadline - monotonic()
                if messages or remaining_s <= 0 or self.closing:
                    return messages
                self.lock.wait(remaining_s)

    def _take(self, limit: int) -> list[Message]:
        messages: list[Message] = []
        now_s = monotonic()
        for partition, ledger in self.settler.ledgers.items():
            returned = partition[0] == self.terms.returns_topic
            while len(messages) < limit and (entry := ledger.take(now_s + self.terms.lease_s)) is not None:
                message = Message(self, partition, ledger, entry, now_s, returned=returned)
                if message.attempt > self.terms.backoff.attempts + 1:
                    message.retry(error="the lease of the last attempt ended")
                else:
                    messages.append(message)
        self.totals.received += len(messages)
        return messages

    def counters(self) -> Counters:
        """Return a copy of the counters, with the present state."""
        with self.lock:
            ledgers = self.settler.ledgers.values()
            return replace(
                self.totals,
                dead=copy(self.totals.dead),
                in_flight=sum(ledger.held_count() for ledger in ledgers),
                ready=sum(ledger.ready_count for ledger in ledgers),
                partitions=len(ledgers),
                ledger_bytes=self.settler.metadata_bytes(),
            )

    # ---- calls that wait for a commit ----------------------------------------------------------------------------

    def wait_for_commit(self) -> Future[None]:
        """Return a future that is done when all earlier calls on messages are committed.

        Raises:
            QueueError: the queue failed.
        """
        future: Future[None] = Future()
        with self.lock:
            if self.failure is not None:
                raise self.failure
            if self._is_over:
                future.set_result(None)
            else:
                self._waiting.append(future)
        return future

    def waiting(self) -> list[Future[None]]:
        """Return the futures of calls that wait for the next commit."""
        with self.lock:
            return list(self._waiting)

    def committed(self, waiting: list[Future[None]]) -> None:
        """The commit that these futures wait for is done."""
        with self.lock:
            self._waiting = [each for each in self._waiting if each not in waiting]
        for future in waiting:
            future.set_result(None)

    # ---- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let receivers return, and the queue's thread end."""
        with self.lock:
            self.closing = True
            self.lock.notify_all()

    def fail(self, failure: TimersError) -> None:
        """Let all calls raise an error."""
        with self.lock:
            self.failure = failure
            self._end_waiting(failure)

    def end(self) -> None:
        """The queue's thread ended: no message can be settled any more."""
        with self.lock:
            self._is_over = True
            self.settler.revoke(list(self.settler.ledgers))
            self._end_waiting(QueueError(f"the queue {self.terms.name!r} was closed before it was settled"))

    def _end_waiting(self, error: TimersError) -> None:
        for future in self._waiting:
            future.set_exception(error)
        self._waiting = []
        self.lock.notify_all()
