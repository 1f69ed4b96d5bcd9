"""The partitions of a process whose messages are not delivered yet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from time import monotonic
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException

from timers.core.lineage import Lineage
from timers.queue.ledger import Ledger
from timers.queue.lineage import Loaded, Verification
from timers.queue.loading import Log, check_parted, load
from timers.queue.settling import Partition
from timers.queue.state import State
from timers.wire import topics

_RETRY_S = 0.5
_MAX_PAUSE_S = 5.0
_log = logging.getLogger("timers.queue")


class Reading(Log, Protocol):
    """What this module uses of the transport."""

    def start(self, positions: Mapping[Partition, tuple[int, int]]) -> None: ...
    def stop(self, partitions: Iterable[Partition]) -> None: ...
    def ask(self, partition: Partition, epoch: int) -> bool: ...


class NewPartitions:
    """Loads the ledgers of new partitions, and verifies that their logs are those of before. Then it lets the state own
    them. Only the thread of the queue uses it, and only :meth:`add` and :meth:`forget` are called in callbacks of
    rebalances, because a failed request must be repeated.

    Args:
        wait_for_commit: waits for the commit under way.
    """

    def __init__(self, state: State, transport: Reading, wait_for_commit: Callable[[], None]) -> None:
        self._state = state
        self._wait_for_commit = wait_for_commit
        self._transport = transport
        self._waiting: set[Partition] = set()
        self._verifying: dict[Partition, Verification] = {}
        self._noted: set[Partition] = set()
        self._unasked: set[Partition] = set()
        self._parted: dict[Partition, tuple[int, int]] = {}
        self._next_load, self._pause_s = 0.0, _RETRY_S
        self._count()

    def __contains__(self, partition: Partition) -> bool:
        """Whether what is read of a partition verifies its log."""
        return partition in self._verifying

    def add(self, partitions: Iterable[Partition]) -> None:
        """Load these partitions soon."""
        self._waiting |= set(partitions)
        self._next_load, self._pause_s = 0.0, _RETRY_S
        self._count()

    def forget(self, partitions: Collection[Partition]) -> set[Partition]:
        """Forget partitions that have another owner; return those of them that are read."""
        read = set(partitions) - self._waiting
        self._waiting -= set(partitions)
        for partition in partitions:
            self._verifying.pop(partition, None)
            self._parted.pop(partition, None)
        self._count()
        return read

    def note(self, partition: Partition, record: Any) -> None:
        """Note a record or an event of a partition whose log is verified."""
        if partition not in self._noted and self._verifying[partition].note(record):
            self._noted.add(partition)
        elif record.error() is None or record.error().code() == KafkaError._PARTITION_EOF:
            self._unasked.add(partition)  # only now it is known that the former position is not read any more

    def verify(self, partition: Partition, ledger: Ledger, end: int) -> bool:
        """Verify the log of a partition that is read, because a leader epoch began or its leader says that it lost
        records. The caller holds the lock. Returns False if no epoch is known.

        Args:
            end: the log is known to have records below it.
        """
        verification = Verification.of(Loaded(ledger.saved(), None, 0, end))
        if verification is None:
            return False
        self._verifying[partition] = verification
        self._noted.add(partition)
        return True

    def _part(self, partition: Partition, ledger: Ledger, parted: tuple[int, int]) -> None:
        """End all deliveries of a partition, and load it again."""
        self._check(partition, ledger.lineage, parted[0])
        with self._state.lock:
            self._state.totals.leases_lost += self._state.settler.revoke([partition])
        self._wait_for_commit()  # else it is loaded without what this process has committed
        self._parted[partition] = parted
        self.add([partition])

    def _check(self, partition: Partition, lineage: Lineage, at: int) -> None:
        check_parted(topics.partition_name(*partition), lineage, at, accept_loss=self._state.terms.accept_loss)

    def work(self) -> set[Partition]:
        """Do what is to be done now. Returns the partitions that are read from another position on.

        Raises:
            QueueError: messages are lost, or a log is another one, and this is not accepted; or another version wrote
                the metadata.
        """
        noted, self._noted = self._noted, set()
        noted &= self._verifying.keys()
        for partition in noted:
            self._end_verification(partition)
        self._ask()
        if self._waiting and monotonic() >= self._next_load:
            self._load()
        return noted

    def _end_verification(self, partition: Partition) -> None:
        verification = self._verifying[partition]
        self._transport.stop([partition])
        if not verification.is_over:
            self._begin(partition, verification)
            return
        del self._verifying[partition]
        with self._state.lock:
            ledger = self._state.settler.ledgers.get(partition)
        parted = verification.parted
        if ledger is not None and parted is None:
            ledger.verify()
            self._transport.start({partition: ledger.place})
        elif ledger is not None and parted is not None:
            self._part(partition, ledger, parted)
        else:
            if parted is not None and partition not in self._parted:
                self._check(partition, verification.loaded.saved.lineage, parted[0])
            self._own(partition, verification.loaded, parted)
        self._count()

    def _begin(self, partition: Partition, verification: Verification) -> None:
        """Begin the next step of a verification."""
        self._verifying[partition] = verification
        self._transport.start({partition: verification.position})
        self._unasked.discard(partition)

    def _ask(self) -> None:
        """Ask where leader epochs end, for the partitions that are read by now."""
        epochs = {each: self._verifying[each].question for each in self._unasked & self._verifying.keys()}
        self._unasked = {
            each for each, epoch in epochs.items() if epoch is not None and not self._transport.ask(each, epoch)
        }

    def _load(self) -> None:
        """Load the waiting partitions, except those whose leaders do not answer."""
        try:
            loaded = load(self._transport, self._waiting, accept_loss=self._state.terms.accept_loss)
        except KafkaException as error:
            self._load_later(error.args[0].str())
            return
        self._waiting -= loaded.keys()
        for partition, each in loaded.items():
            verification = Verification.of(each)
            if verification is None:
                self._own(partition, each)
            else:
                self._begin(partition, verification)
        self._state.load_error = ""
        if self._waiting:
            names = ", ".join(topics.partition_name(*each) for each in sorted(self._waiting))
            self._load_later(f"no leader of {names} answers")
        self._count()

    def _own(self, partition: Partition, loaded: Loaded, parted: tuple[int, int] | None = None) -> None:
        """Deliver the messages of a partition from now on. ``parted``: where its log parts from the one of before."""
        loaded = loaded.cut(parted, self._parted.pop(partition, None))
        ledger = loaded.ledger(self._state.brokers_clock)
        with self._state.lock:
            self._state.totals.crashes += ledger.crash_count
            self._state.settler.assign(partition, ledger, self._transport.log_tag(partition[0]), loaded.commit)
        self._transport.start({partition: ledger.place})

    def _load_later(self, reason: str) -> None:
        _log.warning("the queue %s loads its partitions later: %s", self._state.terms.name, reason)
        self._state.load_error = reason
        self._next_load = monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)

    def _count(self) -> None:
        self._state.loading = len(self._waiting) + len(self._verifying)
