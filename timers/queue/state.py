"""What the threads of a queue share: the terms, the ledgers, the counters, and one lock for them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TypeAlias, TypeVar

from timers.client import Backoff
from timers.client.publish import forked
from timers.errors import QueueError, TimersError
from timers.process.clock import Clock
from timers.queue.ledger import BrokersClock, Entry, Ledger
from timers.queue.records import Signing
from timers.queue.sending import Guard, Guards
from timers.queue.settling import Partition, Settler
from timers.wire import topics


@dataclass
class Counters:
    """Totals since the queue was opened, and the present state, of one process.

    Attributes:
        received: deliveries to receivers.
        acked: calls of ``ack`` that counted.
        retried: retries, of messages and of handlers that failed.
        dead: code of dead letters -> how many.
        leases_lost: deliveries that ended because the lease was over, or because the partition moved.
        crashes: messages whose process ended while it ran alone, or whose child process ended.
        handling_s: sum of the seconds between each delivery and the call that settled it.
        in_flight: messages with receivers now.
        ready: messages that wait for receivers now.
        depth: messages of the process's partitions that are not done.
        oldest_ms: epoch milliseconds at which the oldest of these came to its topic, as far as it was read; None if
            there is none.
        partitions: partitions of the process now, also those of the returns topic.
        ledger_bytes: longest metadata of their last commits.
    """

    received: int = 0
    acked: int = 0
    retried: int = 0
    dead: Counter[str] = field(default_factory=Counter)
    leases_lost: int = 0
    crashes: int = 0
    handling_s: float = 0.0
    in_flight: int = 0
    ready: int = 0
    depth: int = 0
    oldest_ms: int | None = None
    partitions: int = 0
    ledger_bytes: int = 0


_CLOCK = Clock()

_STUCK_S = 90.0
"""Longer than the longest call to the brokers, which is 30 s."""

_STALLED_S = 10.0
"""Longer than a transaction of a producer should be open, or a partition without a leader."""

_UNSETTLED_S = 10.0
"""Longer than a transaction whose process was killed holds back its partitions."""


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
    session_timeout_s: float


M = TypeVar("M")

Deliver: TypeAlias = Callable[["State", Partition, Ledger, Entry, float], M | None]
"""Begins a delivery at a time of the state's clock; see :meth:`timers.queue.message.Message.deliver`."""


class State:
    """Receivers take messages from the ledgers and settle them there; the queue's threads read and commit.

    Attributes:
        lock: held for each use of the other attributes, and never during I/O.
        signing: the keys of the queue. The queue's thread sets it before it delivers.
        brokers_clock: the brokers' time, as of the last transaction.
        failure: why the queue ended.
        ends: ends of the partitions' logs, as of the last fetches.
        joined: whether the group has given this process its partitions, which may be none.
        loading: number of this process's partitions whose ledgers are not loaded yet.
        strangers: who else is in the group, a sentence; empty: no other program; None: that is not known.
        load_error: why the ledgers of new partitions cannot be loaded; empty if they can.
        round_began_s: when the queue's thread began its present round of work, or its present commit.
        settled_s: when the last commit ended after which nothing was left to commit.
        confirmed_s: when the last accepted commit began. The brokers accept commits only from members of the group, so
            the process owned its partitions then.

    Args:
        now_s: the clock of leases and of the times above, in seconds; by default one that counts the sleep of the
            machine, because the brokers do not sleep.
    """

    def __init__(self, terms: Terms, guards: Guards, now_s: Callable[[], float] = _CLOCK.boot_s) -> None:
        self.terms = terms
        self.now_s = now_s
        self.guards = guards
        self.lock = threading.Condition()  # reentrant
        self._turn = 0
        self.settler = Settler()
        self.signing: Signing
        self.totals = Counters()
        self.brokers_clock = BrokersClock()
        self.closing = False
        self.failure: TimersError | None = None
        self.ends: Mapping[Partition, int] = {}
        self.joined = False
        self.loading = 0
        self.load_error = ""
        self.strangers: str | None = None
        self.round_began_s = self.settled_s = self.confirmed_s = now_s()
        self._is_over = False
        self._receivers = 0
        self._reader_waits = False
        self._is_left = False
        self._asked_s = now_s()
        self._waiting: list[Future[None]] = []
        self._stalls: dict[Partition, tuple[int, float]] = {}

    # ---- receivers -----------------------------------------------------------------------------------------------

    def receive(self, deliver: Deliver[M], limit: int, wait_s: float) -> list[M]:
        """Return up to ``limit`` messages; none if none came within ``wait_s``, or the queue is closed.

        Args:
            deliver: makes a message of an entry that was taken; None if it gave it up instead.

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
                    taken = self._take(deliver, limit)
                    if taken and self._reader_waits:
                        self.lock.notify_all()
                    remaining_s = deadline - monotonic()
                    if taken or remaining_s <= 0 or self.closing:
                        return taken
                    if self._is_left:
                        self.lock.notify_all()
                    self.lock.wait(remaining_s)
            finally:
                self._receivers -= 1
                self._asked_s = self.now_s()

    def _take(self, deliver: Deliver[M], limit: int) -> list[M]:
        """Take messages of all partitions: the same number from each, or fewer if a partition has fewer."""
        messages: list[M] = []
        if self.is_unconfirmed:
            return messages
        now_s = self.now_s()
        until_s = now_s + self.terms.lease_s
        partitions = list(self.settler.ledgers.items())
        self._turn = (self._turn + 1) % max(1, len(partitions))
        waiting = [*partitions[self._turn :], *partitions[: self._turn]]
        while len(messages) < limit:
            waiting = [each for each in waiting if each[1].starts.may_start]
            if not waiting:
                break
            share = max(1, (limit - len(messages)) // len(waiting))
            for partition, ledger in waiting[: limit - len(messages)]:
                for _ in range(share):
                    entry = ledger.take(until_s)
                    if entry is None:
                        break
                    message = deliver(self, partition, ledger, entry, now_s)
                    if message is not None:
                        messages.append(message)
        self.totals.received += len(messages)
        return messages

    @property
    def ready_count(self) -> int:
        """How many messages wait for receivers."""
        return sum(ledger.starts.ready_count for ledger in self.settler.ledgers.values())

    def wait_for_takes(self, is_over: Callable[[], bool], wait_s: float) -> None:
        """Wait until ``is_over``, which is asked whenever receivers took messages. The caller holds the lock."""
        self._reader_waits = True
        self.lock.wait_for(is_over, wait_s)
        self._reader_waits = False

    def wake(self) -> None:
        """Let waiting threads look at the state."""
        with self.lock:
            self.lock.notify_all()

    def is_abandoned(self) -> bool:
        """Whether messages wait, all leases are over, and no receiver has asked for messages for as long."""
        with self.lock:
            if self._receivers or self.now_s() - self._asked_s <= self.terms.lease_s:
                return False
            return self.ready_count > 0 and not any(each.held_count for each in self.settler.ledgers.values())

    def wait_for_receiver(self, *, is_settled: bool) -> bool:
        """Drop all ledgers, and wait until a receiver asks for messages; False if the queue is closed.

        Args:
            is_settled: whether all earlier calls on messages are committed.
        """
        with self.lock:
            self._is_left = True
            self.settler.revoke(list(self.settler.ledgers))
            self._answer(self._waiting, None if is_settled else self._not_settled())
            self.lock.wait_for(lambda: self._receivers or self.closing)
            self._is_left = False
            return not self.closing

    def counters(self) -> Counters:
        """Return a copy of the counters, with the present state."""
        with self.lock:
            owned = self.settler.ledgers
            ledgers = owned.values()
            oldest = [item.timestamp()[1] for ledger in ledgers if (item := ledger.oldest_item) is not None]
            return replace(
                self.totals,
                dead=copy(self.totals.dead),
                in_flight=sum(ledger.held_count for ledger in ledgers),
                ready=sum(ledger.starts.ready_count for ledger in ledgers),
                depth=sum(ledger.undone_count(self.ends.get(each, 0)) for each, ledger in owned.items()),
                oldest_ms=min(oldest, default=None),
                partitions=len(ledgers),
                ledger_bytes=self.settler.metadata_bytes(),
            )

    def stuck(self) -> list[str]:
        """Return why the process should be started again: a sentence, or nothing."""
        if self.failure is not None:
            return [str(self.failure)]
        silent_s = self.now_s() - self.round_began_s
        if self.joined and not (self.closing or self._is_left) and silent_s > _STUCK_S:
            return [f"the thread of the queue {self.terms.name!r} has made no progress for {silent_s:.0f} s"]
        return []

    def unready(self) -> list[str]:
        """Return why this process does not work on messages now: sentences, or nothing."""
        reasons = self.stuck()
        if self.closing:
            reasons.append(f"the queue {self.terms.name!r} is closed")
        elif self.strangers:
            reasons.append(self.strangers)
        elif not self.joined:
            reasons.append(f"group {topics.queue_group(self.terms.name)!r} has not given this process partitions yet")
        elif self._is_left:
            reasons.append(
                "it gave its partitions away, because no handler asked for a message for the time of a lease"
            )
        elif self.load_error:
            reasons.append(f"partitions cannot be loaded ({self.load_error}): is a transaction open for long?")
        elif self.loading:
            reasons.append(f"partitions are being loaded: {self.loading} to go")
        elif (unsettled_s := self.now_s() - self.settled_s) > _UNSETTLED_S:
            reasons.append(f"not all that was settled could be committed for {unsettled_s:.0f} s")
        for partition, (position, since_s) in self._stalls.items():
            if (stalled_s := self.now_s() - since_s) > _STALLED_S:
                reasons.append(
                    f"{topics.partition_name(*partition)} could not be read from {position} on for {stalled_s:.0f} s: "
                    "a producer's transaction is open, or the partition's leader is away"
                )
        return reasons

    def note_ends(self, ends: Mapping[Partition, int], paused: Collection[Partition]) -> None:
        """Note the ends of the logs, and since when partitions have records that cannot be read.

        Args:
            ends: with records of open transactions.
            paused: partitions that are not to be read now.
        """
        with self.lock:
            self.ends = ends
            stalls = {}
            for partition, ledger in self.settler.ledgers.items():
                if ledger.position < ends.get(partition, 0) and partition not in paused:
                    position, since_s = self._stalls.get(partition, (-1, 0.0))
                    is_same = position == ledger.position
                    stalls[partition] = ledger.position, since_s if is_same else self.now_s()
            self._stalls = stalls

    # ---- membership ----------------------------------------------------------------------------------------------

    @property
    def is_unconfirmed(self) -> bool:
        """Whether other processes may own the partitions, because the brokers have accepted no commit for longer than
        the session time-out.

        A process that was stopped, by SIGSTOP for example, works on before its thread hears of the rebalance.
        """
        return self.now_s() - self.confirmed_s > self.terms.session_timeout_s

    def confirm(self, began_s: float) -> None:
        """Note that the brokers accepted a commit that was planned at ``began_s``."""
        with self.lock:
            self.confirmed_s = began_s
            self.lock.notify_all()

    def wait_until_confirmed(self, partition: Partition, ledger: Ledger) -> bool:
        """Return whether the brokers accept a commit that is planned from now on. The caller holds the lock."""
        called_s = self.now_s()

        def is_confirmed() -> bool:
            return self.confirmed_s >= called_s and not self.is_unconfirmed

        self.lock.wait_for(lambda: is_confirmed() or not self.settler.owns(partition, ledger), self.guards.timeout_s)
        return is_confirmed()

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
                self._answer([future])
            else:
                self._waiting.append(future)
        return future

    def waiting(self) -> list[Future[None]]:
        """Return the futures of calls that wait for the next commit."""
        with self.lock:
            return list(self._waiting)

    def committed(self, waiting: list[Future[None]]) -> None:
        """Set the results of futures whose commit is done."""
        with self.lock:
            self._answer(waiting)

    def _answer(self, waiting: list[Future[None]], error: TimersError | None = None) -> None:
        """Set the results of futures: an error if calls before them were not committed. The caller holds the lock."""
        if error is None and self.settler.has_dropped:
            error = self._not_settled()
        if waiting:
            self.settler.has_dropped = False
        self._waiting = [each for each in self._waiting if each not in waiting]
        for future in waiting:
            future.set_result(None) if error is None else future.set_exception(error)
        self.lock.notify_all()

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

    def after_fork(self) -> None:
        """End the queue in a process that was forked: its messages are those of the other process."""
        self.lock = threading.Condition()
        self.failure = QueueError(forked("queue"))
        self._waiting, self._is_over = [], True
        self.settler.revoke(list(self.settler.ledgers))

    def close(self) -> None:
        """Let receivers return, and the queue's thread end."""
        with self.lock:
            self.closing = True
            self.lock.notify_all()

    def fail(self, failure: TimersError) -> None:
        """Let all calls raise an error."""
        with self.lock:
            self.failure = failure
            self._answer(self._waiting, failure)

    def end(self) -> None:
        """Note that the queue's thread has ended: no message can be settled any more."""
        with self.lock:
            self._is_over = True
            self.settler.revoke(list(self.settler.ledgers))
            has_dropped = self.settler.has_dropped
            self._answer(self._waiting, self._not_settled())
            self.settler.has_dropped = has_dropped  # calls of other threads that wait later must know it, too

    def _not_settled(self) -> QueueError:
        return QueueError(
            f"the queue {self.terms.name!r} lost partitions before all earlier calls on their messages were committed: "
            "these messages are delivered again"
        )
