"""What the threads of a queue share: the terms, the ledgers, the counters, and one lock for them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass, replace
from time import monotonic

from timers.client import Backoff
from timers.errors import QueueError, TimersError
from timers.queue.counters import Counters
from timers.queue.guards import Guard, Guards
from timers.queue.ledger import Ledger
from timers.queue.message import Message
from timers.queue.settling import Partition, Settler
from timers.queue.starts import MAX_CRASHES


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

    def __init__(self, terms: Terms, guards: Guards) -> None:
        self.terms = terms
        self.guards = guards
        self.lock = threading.Condition()  # reentrant
        self.settler = Settler()
        self.totals = Counters()
        self.closing = False
        self.failure: TimersError | None = None
        self._is_over = False
        self._turn = 0
        self._receivers = 0
        self._is_left = False
        self._asked_s = monotonic()
        self._waiting: list[Future[None]] = []

    # ---- receivers -----------------------------------------------------------------------------------------------

    def receive(self, limit: int, wait_s: float) -> list[Message]:
        """Return up to ``limit`` messages; none if none came within ``wait_s``, or the queue is closed.

        Raises:
            QueueError: the queue ended.
        """
        deadline = monotonic() + wait_s
        with self.lock:
            self._receivers += 1
            try:
                while True:
                    if self.failure is not None:
                        raise self.failure
                    messages = self._take(limit)
                    remaining_s = deadline - monotonic()
                    if messages or remaining_s <= 0 or self.closing:
                        return messages
                    if self._is_left:
                        self.lock.notify_all()
                    self.lock.wait(remaining_s)
            finally:
                self._receivers -= 1
                self._asked_s = monotonic()

    def is_abandoned(self, now_s: float) -> bool:
        """Whether messages wait, all leases are over, and no receiver has asked for messages for as long."""
        with self.lock:
            if self._receivers or now_s - self._asked_s <= self.terms.lease_s:
                return False
            ledgers = self.settler.ledgers.values()
            return any(ledger.ready_count for ledger in ledgers) and not any(ledger.held_count for ledger in ledgers)

    def wait_for_receiver(self, *, is_settled: bool) -> bool:
        """Drop all ledgers, and wait until a receiver asks for messages; False if the queue is closed.

        Args:
            is_settled: whether all earlier calls on messages are committed.
        """
        with self.lock:
            self._is_left = True
            self.settler.revoke(list(self.settler.ledgers))
            for future in self._waiting:
                future.set_result(None) if is_settled else future.set_exception(self._not_settled())
            self._waiting = []
            self.lock.wait_for(lambda: self._receivers or self.closing)
            self._is_left = False
            return not self.closing

    def _take(self, limit: int) -> list[Message]:
        """Take messages of all partitions, the same number from each as far as they have so many."""
        messages: list[Message] = []
        now_s = monotonic()
        partitions = list(self.settler.ledgers.items())
        self._turn = (self._turn + 1) % max(1, len(partitions))
        waiting = [*partitions[self._turn :], *partitions[: self._turn]]
        while len(messages) < limit:
            waiting = [each for each in waiting if each[1].starts.may_start]
            if not waiting:
                break
            share = max(1, (limit - len(messages)) // len(waiting))
            for partition, ledger in waiting[: limit - len(messages)]:
                self._take_from(partition, ledger, share, now_s, messages)
        self.totals.received += len(messages)
        return messages

    def _take_from(
        self, partition: Partition, ledger: Ledger, most: int, now_s: float, messages: list[Message]
    ) -> None:
        returned = partition[0] == self.terms.returns_topic
        until_s = now_s + self.terms.lease_s
        for _ in range(most):
            entry = ledger.take(until_s)
            if entry is None:
                return
            message = Message(self, partition, ledger, entry, now_s, returned=returned)
            if entry.crashes >= MAX_CRASHES or message.attempt > self.terms.backoff.attempts + 1:
                message.retry(error="the lease of the last attempt ended")
            else:
                messages.append(message)

    def counters(self) -> Counters:
        """Return a copy of the counters, with the present state."""
        with self.lock:
            ledgers = self.settler.ledgers.values()
            return replace(
                self.totals,
                dead=copy(self.totals.dead),
                in_flight=sum(ledger.held_count for ledger in ledgers),
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
            if self._is_over or self._is_left:
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

    # ---- rebalances ----------------------------------------------------------------------------------------------

    def guard(self, partitions: Iterable[Partition]) -> list[Guard]:
        """Set guards for the messages that receivers hold, and return them. They need a commit."""
        guards: list[Guard | None] = []
        if self.guards.are_possible and not self.terms.ordered:
            for partition in partitions:
                ledger = self.settler.ledgers.get(partition)
                guards += [protect() for protect in ledger.holders()] if ledger is not None else []
        return [guard for guard in guards if guard is not None]

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
            self._end_waiting(self._not_settled())

    def _not_settled(self) -> QueueError:
        return QueueError(f"the queue {self.terms.name!r} left its group before it was settled")

    def _end_waiting(self, error: TimersError) -> None:
        for future in self._waiting:
            future.set_exception(error)
        self._waiting = []
        self.lock.notify_all()
