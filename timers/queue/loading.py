"""Loads the ledgers of new partitions from what the group committed, and checks that their logs are those of before."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from confluent_kafka import KafkaError

from timers.errors import QueueError
from timers.queue.brokers_clock import BrokersClock
from timers.queue.ledger import Ledger
from timers.queue.lineage import MAX_EPOCHS, Last, parted_at
from timers.queue.metadata import DeletedLogError, ForeignMetadataError, OtherVersionError, Saved, decode
from timers.queue.settling import Commit, Partition
from timers.wire import topics

_log = logging.getLogger("timers.queue")


class Log(Protocol):
    """What this module asks the brokers."""

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, Commit | None]: ...
    def copies(self) -> dict[Partition, Commit]: ...
    def bounds(self, partitions: Iterable[Partition]) -> dict[Partition, tuple[int, int]]: ...
    def log_tag(self, topic: str) -> str: ...


class Loaded(NamedTuple):
    """What is committed for a partition, and the offsets that its log has: from ``low`` to before ``high``."""

    saved: Saved
    commit: Commit | None
    low: int
    high: int

    def ledger(self, clock: BrokersClock) -> Ledger:
        """Return the ledger."""
        ledger = Ledger(self.saved, log_end=self.high, clock=clock)
        ledger.pass_holes(self.low)
        return ledger


def load(transport: Log, partitions: Iterable[Partition], *, accept_loss: bool) -> dict[Partition, Loaded]:
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
        is_cut = saved.offset > high and saved.lineage.last is None  # else it is asked where the log parts
        if saved.offset < low or is_cut:
            gone = (
                f"the messages from {saved.offset} on are not done, and the log has {low} to {high}: retention deleted "
                "messages, or the topic was recreated"
            )
            if not accept_loss:
                raise QueueError(f"{name}: {gone}. Queue(accept_loss=True) goes on without them")
            _log.error("%s: %s. The queue goes on with the messages from %d on", name, gone, low)
            saved = saved if saved.offset < low else saved.cut(low)
        loaded[partition] = Loaded(saved, commit, low, high)
    return loaded


def check_parted(name: str, last: Last | None, at: int, *, accept_loss: bool) -> None:
    """Say that a log parts at an offset from the one that was read.

    Raises:
        QueueError: that is not accepted.
    """
    read = "" if last is None else f", which was read to {last.offset}"
    parted = (
        f"from {at} on, the log is not the one of before{read}: a leader without its newest records was elected, or a "
        f"disk has lost them. The messages of before that were not done from {at} on are gone"
    )
    if not accept_loss:
        raise QueueError(f"{name}: {parted}. Queue(accept_loss=True) delivers all messages that are there from {at} on")
    _log.error("%s: %s. The queue delivers all messages that are there from %d on", name, parted, at)


class Verification:
    """Finds out whether a log is the one that was read, by its records. Pure.

    First the last record that was read is read again. If it is there, so is all below it: two logs which have a record
    in common are equal below it. Else the first record that is another one is searched: epochs of records never fall.
    librdkafka may ask the broker where an epoch ends before it reads, and may not; its answer only shortens the search.

    Attributes:
        loaded: what is to be verified.
        at: where the log parts; None if it does not.
        is_over: whether ``at`` is the answer.
        is_stale: retention has deleted records meanwhile, so the partition must be loaded again.
    """

    def __init__(self, loaded: Loaded, last: Last) -> None:
        self.loaded = loaded
        self.at: int | None = None
        self.is_over = self.is_stale = False
        self._lineage = loaded.saved.lineage
        self._last = last
        first = self._lineage.epochs[0][1] if self._lineage.epochs else 0
        self._first = self._agrees_below = max(loaded.low, first)
        self._parts_at: int | None = None

    @classmethod
    def of(cls, loaded: Loaded) -> Verification | None:
        """Return a new verification; None if nothing can be verified: no record is known, or retention deleted it."""
        last = loaded.saved.lineage.last
        return None if last is None or last.epoch < 0 or last.offset < loaded.low else cls(loaded, last)

    @property
    def position(self) -> tuple[int, int]:
        """Where to read next, and the leader epoch before it; -1 if its end is not to be asked for."""
        if self._parts_at is None:
            return self._last.offset, self._last.epoch
        return (self._agrees_below + self._parts_at) // 2, -1

    def note(self, record: Any) -> bool:
        """Note a record or an event of the partition; True if it is over, or to be read from another position on."""
        if self.is_over or self.is_stale:
            return False
        error = record.error()
        if error is None:
            self._note_record(last_of(record))
        elif error.code() == KafkaError._PARTITION_EOF:
            if self._parts_at is not None:
                self._narrow(self.position[0])
            elif record.offset() > self._last.offset:  # the last record is not there
                self._narrow(self._last.offset)
            elif self.loaded.high <= self._last.offset:
                self._narrow(self.loaded.high)
            else:
                return False  # the leader does not know yet that its last records are committed
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            answer = parted_at(error.str())
            if answer is not None:
                self._narrow(min(self._last.offset, self._lineage.parted_from(answer)))
            elif self._parts_at is None and self.loaded.high <= self._last.offset:
                self._narrow(self.loaded.high)
            else:
                self.is_stale = True
        else:
            return False
        return True

    def _note_record(self, found: Last) -> None:
        if self._parts_at is None:
            parted = self._lineage.parted_by(found)
            if parted is None:
                self.is_over = True
            elif found.epoch == self._last.epoch:  # its number was given a second time, so no record proves anything
                self._end(parted)
            else:
                self._narrow(parted)
        elif found.offset < self._parts_at and found.epoch == self._lineage.epoch_before(found.offset + 1):
            self._agrees_below = found.offset + 1
            self._narrow(self._parts_at)
        else:
            self._narrow(self.position[0])

    def _narrow(self, parts_at: int) -> None:
        """Note that the log parts at an offset or below it."""
        known = self.loaded.high if self._parts_at is None else self._parts_at
        self._parts_at = min(parts_at, known)
        if self._parts_at <= self._agrees_below:
            self._end(self._parts_at)

    def _end(self, at: int) -> None:
        is_known = at > self._first or len(self._lineage.epochs) < MAX_EPOCHS
        self.at, self.is_over = at if is_known else self.loaded.low, True


def last_of(record: Any) -> Last:
    """Return what is kept of the last record that was read."""
    epoch = record.leader_epoch()
    return Last(record.offset(), -1 if epoch is None else epoch, record.timestamp()[1])


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
