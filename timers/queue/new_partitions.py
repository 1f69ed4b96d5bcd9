"""The partitions of a process whose messages are not delivered yet: loads what the group committed for them, says what
is lost, and finds out whether their logs are still those that the queue has read."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable
from time import monotonic
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_END, KafkaError, KafkaException

from timers.core.lineage import Batch, EpochEnd, Lineage, Parted, PassedBatch, next_question, parted_inside
from timers.errors import QueueError
from timers.queue.ledger import BrokersClock, Ledger
from timers.queue.metadata import (
    MAX_EPOCHS,
    NOTHING,
    DeletedLogError,
    ForeignMetadataError,
    OtherVersionError,
    Saved,
    decode,
)
from timers.queue.settling import Commit, Partition
from timers.queue.state import State
from timers.queue.transport import NO_OFFSET, Transport
from timers.wire import topics

_log = logging.getLogger("timers.queue")

_ANSWER = re.compile(r"broker end offset is (-?\d+) \(offset leader epoch (-?\d+)\)")


def passed(record: Any) -> PassedBatch:
    """Return what is kept of a record that was read."""
    offset, epoch = record.offset(), record.leader_epoch()
    return -1 if epoch is None else epoch, Batch(offset, offset, record.timestamp()[1], 0)


def epoch_end(event: str) -> EpochEnd | None:
    """Return a leader's answer in the text of librdkafka's event; None if there is none."""
    found = _ANSWER.search(event)
    return None if found is None else EpochEnd(int(found[2]), int(found[1]))


class Loaded(NamedTuple):
    """What is committed for a partition, and the offsets that its log has: from ``low`` to before ``high``."""

    saved: Saved
    commit: Commit | None
    low: int
    high: int

    def cut(self, found: tuple[int, int] | None, own: tuple[int, int] | None) -> Loaded:
        """Return what counts if the log parted, by what is committed or by what this process itself has read: perhaps
        that is not committed. What ran in it has not ended a process."""
        known = [each for each in (found, own) if each is not None]
        if not known:
            return self
        saved = self.saved.cut(*min(known, key=lambda each: (each[0], -each[1])))
        return self._replace(saved=saved if own is None else saved._replace(start=NOTHING))

    def ledger(self, clock: BrokersClock, kind: type[Ledger] = Ledger) -> Ledger:
        """Return the ledger. What is committed above the last record that was read is not known to be in this log."""
        known = self.saved if self.saved.lineage.batch is None else self.saved.below(self.saved.lineage.end)
        ledger = kind(known, log_end=self.high, clock=clock)
        ledger.pass_holes(self.low)
        return ledger


class Verification:
    """Compares one log with the lineage of what was loaded, by the records and events that are read. Pure.

    The rules are those of workers (:mod:`timers.core.lineage`). What a queue knows and how it asks are different,
    because confluent-kafka shows records and no batches, and has no call that asks where a leader epoch ends:

    * Each record counts as a batch without a CRC. If an epoch number was given twice, the time of the record shows it.
    * Markers and aborted transactions are not seen. So what is known ends after the last record, and a process that
      verified its log reads on from there: a message that has the offset of a lost marker is read. For the same reason
      an epoch counts from the end of the last record before it.
    * The last record is read first. If it is there, the logs are equal below it, and no epoch must be asked for.
    * To ask where an epoch ends, a process seeks with this epoch an offset that no log has. librdkafka asks the leader
      before it reads there, and its event holds the answer.

    Attributes:
        loaded: what is to be verified.
        question: leader epoch whose end must be asked for; None: the last record must be read.
        parted: where the log parts, and the leader epoch that it has below, -1 if it is not known; None if it does not.
        is_over: whether ``parted`` is the answer.
    """

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self.question: int | None = None
        self.parted: tuple[int, int] | None = None
        self.is_over = False
        self._lineage = loaded.saved.lineage
        self._ends: dict[int, EpochEnd] = {}
        self._last = self._lineage.end - 1
        self._is_other = False
        self._reads = self._lineage.batch is not None and self._last >= loaded.low  # else retention has deleted it
        if not self._reads:
            self._go_on()

    @classmethod
    def of(cls, loaded: Loaded) -> Verification | None:
        """Return a new verification; None if no leader epoch is known."""
        return cls(loaded) if loaded.saved.lineage.epochs else None

    @property
    def position(self) -> tuple[int, int]:
        """Where to read: the end of the log before a question is asked. No epoch, so that librdkafka asks nothing."""
        return self._last if self.question is None else OFFSET_END, -1

    def note(self, record: Any) -> bool:
        """Note a record or an event of the partition; True if it is over, or the next step follows."""
        error = record.error()
        if self.is_over:
            return False
        if error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._note_reset(epoch_end(error.str()))
        elif self.question is not None:
            return False
        elif error is None:
            epoch, batch = passed(record)
            self.is_over = epoch < 0 or (epoch, batch) == (self._lineage.epochs[-1][0], self._lineage.batch)
            self._is_other = not self.is_over
        elif error.code() == KafkaError._PARTITION_EOF:
            self._is_other = record.offset() > self._last or self.loaded.high <= self._last
        else:
            return False
        if not self.is_over:
            self._go_on()
        return True

    def _note_reset(self, answer: EpochEnd | None) -> None:
        """Note that librdkafka does not read at the position."""
        if self.question is not None:  # without an answer the brokers do not know the request: as if the logs agreed
            self._ends[self.question] = answer or EpochEnd(self.question, NO_OFFSET)
        else:
            self._is_other, self._reads = self.loaded.high <= self._last, False

    def _go_on(self) -> None:
        """Find the next question, or the answer."""
        found, epochs = next_question(self._lineage, self._ends), self._lineage.epochs
        is_inside = found is None and self._is_other
        if is_inside:
            found = parted_inside(self._lineage, self._ends, None)
        self.question = found if isinstance(found, int) else None
        if isinstance(found, Parted):
            at = found.offset or 0
            # Former epochs were not kept, or the first record that was read is not the first one of its epoch.
            is_unknown = at <= epochs[0][1] and (is_inside or len(epochs) >= MAX_EPOCHS)
            self._end(self.loaded.low if is_unknown else at)
        elif found is None:  # the record may be there, and its leader does not know yet that it is committed
            self.is_over = not self._reads
            self._ends = {}

    def _end(self, at: int) -> None:
        self.is_over = True
        self.parted = at, next((found.epoch for found in self._ends.values() if found.end == at > 0), -1)


def load(transport: Transport, partitions: Iterable[Partition], *, accept_loss: bool) -> dict[Partition, Loaded]:
    """Return what counts for each partition whose leader answers.

    A partition without a committed offset begins where its newest copy says, or with its first message.

    Raises:
        QueueError: messages that are not done are not in the log, or another version wrote the metadata.
        KafkaException: the brokers do not answer.
    """
    committed = transport.committed(partitions)
    copies = transport.copies() if None in committed.values() else {}
    loaded = {}
    bounds = transport.bounds(committed)
    for partition, (low, high) in bounds.items():
        commit = committed[partition]
        name = topics.partition_name(*partition)
        saved, lost = saved_by(name, commit, copies.get(partition), transport.log_tag(partition[0]))
        if lost:
            _log.error("%s: %s", name, lost)
        if saved is None:
            saved = Saved(low)
        is_cut = saved.offset > high and not saved.lineage.epochs  # else it is asked where the log parts
        if saved.offset < low or is_cut:
            gone = (
                f"the messages from {saved.offset} on are not done, and the log has {low} to {high}: retention deleted "
                "messages, or the topic was recreated"
            )
            if not accept_loss:
                raise QueueError(f"{name}: {gone}. Queue(accept_loss=True) goes on without them")
            _log.error("%s: %s. The queue goes on with the messages from %d on", name, gone, low)
            saved = saved if saved.offset < low else saved.cut(low, -1)
        loaded[partition] = Loaded(saved, commit, low, high)
    return loaded


def saved_by(name: str, commit: Commit | None, copy: Commit | None, log: str) -> tuple[Saved | None, str]:
    """Return what a commit or else its copy says, None if the first message of the log is the next one; and in a
    sentence what was lost, if anything was.

    Raises:
        QueueError: another version wrote the metadata.
    """
    found = commit or copy
    if found is None:
        return None, ""
    try:
        saved = decode(found.metadata, log, found.offset)
    except OtherVersionError as error:
        raise QueueError(f"{name}: {error}") from error
    except DeletedLogError:
        return None, "the topic was deleted and created again, so all its messages are delivered"
    except ForeignMetadataError as error:
        if commit is None:
            return None, ""
        return Saved(commit.offset), (
            f"the metadata of the committed offset is not this queue's ({error}). A tool or another program of the "
            f"group committed it. Messages below {commit.offset} count as done; those from there on that were done are "
            "delivered again"
        )
    if commit is None:
        return saved, "the group has no offset, so the copy of its last commits counts, up to a minute old"
    return saved, ""


_RETRY_S = 0.5
_MAX_PAUSE_S = 5.0


class NewPartitions:
    """Loads the ledgers of new partitions, and verifies that their logs are those of before. Then it lets the state own
    them. Only the thread of the queue uses it, and only :meth:`add` and :meth:`forget` are called in callbacks of
    rebalances, because a failed request must be repeated.

    Args:
        wait_for_commit: waits for the commit under way.
    """

    def __init__(self, state: State, transport: Transport, wait_for_commit: Callable[[], None]) -> None:
        self._state = state
        self._wait_for_commit = wait_for_commit
        self._transport = transport
        self._waiting: set[Partition] = set()
        self._verifying: dict[Partition, Verification] = {}
        self._noted: set[Partition] = set()
        self._unasked: set[Partition] = set()
        self._parted: dict[Partition, tuple[int, int]] = {}
        self._next_load, self._pause_s = 0.0, _RETRY_S

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
        """Say that a log parts at an offset from the one that was read.

        Raises:
            QueueError: that is not accepted.
        """
        name = topics.partition_name(*partition)
        read = "" if lineage.batch is None else f", which was read to {lineage.batch.last_offset}"
        parted = (
            f"from {at} on, the log is not the one of before{read}: a leader without its newest records was elected, "
            f"or a disk has lost them. The messages of before that were not done from {at} on are gone"
        )
        delivers = f"delivers all messages that are there from {at} on"
        if not self._state.terms.accept_loss:
            raise QueueError(f"{name}: {parted}. Queue(accept_loss=True) {delivers}")
        _log.error("%s: %s. The queue %s", name, parted, delivers)

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
        self._count()
        return noted

    def _count(self) -> None:
        self._state.loading = len(self._waiting) + len(self._verifying)

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
