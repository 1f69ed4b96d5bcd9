"""The partitions of a process whose messages are not delivered yet."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from time import monotonic
from typing import Any, Protocol

from confluent_kafka import KafkaException

from timers.queue.ledger import Ledger
from timers.queue.lineage import EpochEnd
from timers.queue.loading import Loaded, Log, Verification, check_parted, load
from timers.queue.metadata import Saved
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


class NewPartitions:
    """Loads the ledgers of new partitions, and verifies that their logs are those of before. Then it lets the state own
    them. Only the thread of the queue uses it, and only :meth:`add` and :meth:`forget` are called in callbacks of
    rebalances, because a failed request must be repeated.
    """

    def __init__(self, state: State, transport: Reading) -> None:
        self._state = state
        self._transport = transport
        self._waiting: set[Partition] = set()
        self._verifying: dict[Partition, Verification] = {}
        self._noted: set[Partition] = set()
        self._parted: dict[Partition, int] = {}
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

    def verify(self, partition: Partition, saved: Saved, end: int) -> None:
        """Verify the log of a partition that is read, because a leader epoch began: its log may be another one. The
        caller holds the lock.

        Args:
            end: the log is known to have records below it.
        """
        verification = Verification.of(Loaded(saved, None, 0, end))
        if verification is not None:
            self._verifying[partition] = verification
            self._noted.add(partition)

    def part(self, partition: Partition, answer: EpochEnd) -> None:
        """Load a partition again whose log has lost records that were read, by a broker's answer.

        Raises:
            QueueError: the loss is not accepted.
        """
        with self._state.lock:
            ledger = self._state.settler.ledgers.get(partition)
        if ledger is not None:
            self._transport.stop([partition])
            self._part(partition, ledger, ledger.lineage.parted_from(answer))

    def _part(self, partition: Partition, ledger: Ledger, at: int) -> None:
        """End all deliveries of a partition, and load it again."""
        last, accept_loss = ledger.lineage.last, self._state.terms.accept_loss
        check_parted(topics.partition_name(*partition), last, at, accept_loss=accept_loss)
        with self._state.lock:
            self._state.totals.leases_lost += self._state.settler.revoke([partition])
        self._parted[partition] = at
        self.add([partition])

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
        if self._waiting and monotonic() >= self._next_load:
            self._load()
        return noted

    def _end_verification(self, partition: Partition) -> None:
        verification = self._verifying[partition]
        self._transport.stop([partition])
        if not verification.is_over and not verification.is_stale:
            self._transport.start({partition: verification.position})
            return
        del self._verifying[partition]
        with self._state.lock:
            ledger = self._state.settler.ledgers.get(partition)
        if ledger is not None and (verification.is_stale or verification.at is None):  # the log is that of before
            ledger.is_verified = True
            self._transport.start({partition: (ledger.position, ledger.lineage.epoch_before(ledger.position))})
        elif ledger is not None:
            self._part(partition, ledger, verification.at or 0)
        elif verification.is_stale:
            self._waiting.add(partition)
        else:
            if verification.at is not None and partition not in self._parted:
                last, accept_loss = verification.loaded.saved.lineage.last, self._state.terms.accept_loss
                check_parted(topics.partition_name(*partition), last, verification.at, accept_loss=accept_loss)
            self._own(partition, verification.loaded, verification.at)
        self._count()

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
                self._verifying[partition] = verification
                self._transport.start({partition: verification.position})
        self._state.load_error = ""
        if self._waiting:
            names = ", ".join(topics.partition_name(*each) for each in sorted(self._waiting))
            self._load_later(f"no leader of {names} answers")
        self._count()

    def _own(self, partition: Partition, loaded: Loaded, at: int | None = None) -> None:
        """Deliver the messages of a partition from now on. ``at``: where its log parts from the one of before."""
        known = [each for each in (at, self._parted.pop(partition, None)) if each is not None]
        if known:  # what was read last may not be committed, so what is committed may fit
            loaded = loaded._replace(saved=loaded.saved.cut(min(known)))
        ledger = loaded.ledger(self._state.brokers_clock)
        with self._state.lock:
            self._state.totals.crashes += ledger.crash_count
            self._state.settler.assign(partition, ledger, self._transport.log_tag(partition[0]), loaded.commit)
        self._transport.start({partition: (ledger.position, ledger.lineage.epoch_before(ledger.position))})

    def _load_later(self, reason: str) -> None:
        _log.warning("the queue %s loads its partitions later: %s", self._state.terms.name, reason)
        self._state.load_error = reason
        self._next_load = monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)

    def _count(self) -> None:
        self._state.loading = len(self._waiting) + len(self._verifying)
