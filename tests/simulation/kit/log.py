"""Kafka's log in memory: offsets with holes, append times, transactions, fencing.

It models the behaviour of Kafka on which a machine depends. Each record gets the broker's append time. Markers that end
transactions, and aborted records, take offsets too, so readers see holes. A reader of committed records stops at the
first offset of the oldest open transaction. A producer that takes a new epoch of a transactional id aborts the open
transaction of the former owner and fences it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from zlib import crc32

from timers import testing
from timers.core.lineage import Batch, EpochEnd, PassedBatch
from timers.core.timer import Fetched, TopicPartition
from timers.errors import Fenced
from timers.testing.sim_timers import EPOCH_S
from timers.wire.dead_letter import size
from timers.wire.headers import Header


class SimClock(testing.SimClock):
    """The brokers' clock. It can move in both directions.

    Attributes:
        boot_ms: milliseconds that have passed; steps do not change it.
    """

    def __init__(self, now_s: float = EPOCH_S) -> None:
        super().__init__(now_s)
        self.boot_ms = 0

    def advance_ms(self, milliseconds: int) -> None:
        """Move the clock forward."""
        if milliseconds < 0:
            raise ValueError(f"time passes forward, not by {milliseconds} ms: step_ms() sets the clock back")
        self.now_ms += milliseconds
        self.boot_ms += milliseconds

    def step_ms(self, milliseconds: int) -> None:
        """Step the clock, as an operator or an NTP server does; negative: back."""
        self.now_ms += milliseconds


@dataclass(eq=False, slots=True)
class SimTransaction:
    transactional_id: str
    epoch: int
    committed: bool | None = None
    """None while it is open."""
    records: list[SimRecord] = field(default_factory=list)
    offsets: dict[tuple[str, TopicPartition], tuple[int, str]] = field(default_factory=dict)
    """(group, partition) -> offset and metadata that the group gets with the commit."""


@dataclass(eq=False, slots=True)
class SimRecord:
    """One record, or the marker that ends a transaction."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp_ms: int
    seq: int
    """Number of the event in this log."""
    transaction: SimTransaction | None = None
    marker: bool = False
    created_ms: int | None = None
    """The producer's time, in a topic of type ``CreateTime``."""
    compacted: bool = False
    """Whether compaction removed it."""
    epoch: int = 0
    """Leader epoch in which it was appended."""
    delete_after_ms: int | None = None
    """Of a tombstone: the time after which compaction removes it; None: not compacted yet."""
    unreadable: bool = False
    """Whether it is in a record batch, of its own, that no worker reads: its bytes are damaged."""

    @property
    def committed(self) -> bool:
        """Whether readers of committed records see it."""
        is_there = not (self.marker or self.compacted or self.unreadable)
        return is_there and (self.transaction is None or self.transaction.committed is True)

    @property
    def timestamp(self) -> int:
        """The timestamp that readers get, in epoch milliseconds; request formats use this name."""
        return self.timestamp_ms if self.created_ms is None else self.created_ms

    @property
    def timestamp_type(self) -> int:
        """Kafka's: 1 if the broker set the timestamp, 0 if the producer did."""
        return int(self.created_ms is None)

    @property
    def passed(self) -> PassedBatch:
        """It as a record batch of its own."""
        return self.epoch, Batch(self.offset, self.offset, self.timestamp_ms, self.seq)

    @property
    def source(self) -> str:
        """``<topic>/<partition>/<offset>``."""
        return f"{self.topic}/{self.partition}/{self.offset}"


class TooLarge(Exception):
    """A record is larger than the limit of its topic."""

    def __init__(self, topic: str, limit: int) -> None:
        super().__init__(f"{topic} takes no record of more than {limit} bytes")
        self.limit = limit


class RecordRefused(Exception):
    """A compacted topic refuses a record without a key."""


class SimLog:
    """All topics of one cluster.

    Attributes:
        clock: the brokers' clock; records get their append time from it.
        seq: number of the last event.
        committed: all visible records, in the order in which they became visible.
        group_offsets: (group, partition) -> committed offset, and its metadata.
        failing: topics whose broker refuses records; a transaction with one for them fails.
        missing: topics that do not exist. All others do.
        is_silent: whether no broker says which topics exist.
        leaderless: partitions that take no records because they have no leader.
        compacted: topics that refuse records without a key in a transaction.
        lists_refused: whether a broker says which records it refuses.
        slow_above_records: the brokers take no transaction of more records in time.
        restarts: how often the brokers were restarted; each time, readers connect again.
        was_cut: whether a log has lost records.
        max_message_bytes: topic with a limit -> size of its largest record.
        wrongly_compacted: topics that are compacted now and must not be.
        lost: partition -> records that it has lost in its middle.
        takes_damaged: whether records that are appended now, outside of transactions, are damaged.
        damaged: all damaged records. Later versions of workers may read some of them.
        slow_markers: partitions whose leader writes no marker of a commit before the producer begins, or is opened,
            again: the coordinator answers a commit before the markers are written.
    """

    def __init__(self, clock: SimClock, partitions: int = 2) -> None:
        self.clock = clock
        self.partitions = partitions
        self.seq = 0
        self.committed: list[SimRecord] = []
        self.group_offsets: dict[tuple[str, TopicPartition], tuple[int, str]] = {}
        self.failing: set[str] = set()
        self.missing: set[str] = set()
        self.is_silent = False
        self.leaderless: set[TopicPartition] = set()
        self.max_message_bytes: dict[str, int] = {}
        self.compacted: set[str] = set()
        self.wrongly_compacted: set[str] = set()
        self.lost: dict[TopicPartition, list[SimRecord]] = {}
        self.lists_refused = True
        self.slow_above_records = 1_000_000
        self.was_cut = False
        self.restarts = 0
        self._logs: dict[TopicPartition, list[SimRecord]] = {}
        self._epochs: dict[str, int] = {}
        self.takes_damaged = False
        self.damaged: list[SimRecord] = []
        self.slow_markers: set[TopicPartition] = set()
        self._open: list[SimTransaction] = []
        self._unmarked: list[tuple[SimTransaction, TopicPartition]] = []
        self._leader_epochs: dict[TopicPartition, int] = {}
        self._starts: dict[TopicPartition, int] = {}

    # ---- appending ----------------------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        transaction: SimTransaction | None = None,
        timestamp_ms: int | None = None,
    ) -> SimRecord:
        """Append one record; ``partition`` None picks one by key, ``timestamp_ms`` None is the append time."""
        if partition is None:
            partition = crc32(key or b"") % self.partitions
        record = self._append(topic, partition, key, value, tuple(headers), transaction, marker=False)
        record.created_ms = timestamp_ms
        if self.takes_damaged and transaction is None:
            record.unreadable = True
            self.damaged.append(record)
        elif transaction is None:
            self.committed.append(record)
        else:
            transaction.records.append(record)
        return record

    def _append(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[Header, ...],
        transaction: SimTransaction | None,
        *,
        marker: bool,
    ) -> SimRecord:
        self.seq += 1
        records = self._logs.setdefault((topic, partition), [])
        record = SimRecord(
            topic,
            partition,
            len(records),
            key,
            value,
            headers,
            self.clock.now_ms,
            self.seq,
            transaction,
            marker,
            epoch=self._leader_epochs.get((topic, partition), 0),
        )
        records.append(record)
        return record

    # ---- transactions -------------------------------------------------------------------------------------------

    def new_epoch(self, transactional_id: str) -> int:
        """Fence the former producer with ``transactional_id`` and abort its open transaction."""
        epoch = self._epochs.get(transactional_id, -1) + 1
        self._epochs[transactional_id] = epoch
        for transaction in [t for t in self._open if t.transactional_id == transactional_id]:
            self.finish(transaction, commit=False)
        self.write_markers(transactional_id)
        return epoch

    def epoch(self, transactional_id: str) -> int:
        """The present epoch, -1 if there is none yet."""
        return self._epochs.get(transactional_id, -1)

    def begin(self, transactional_id: str, epoch: int) -> SimTransaction:
        self.check_epoch(transactional_id, epoch)
        self.write_markers(transactional_id)
        transaction = SimTransaction(transactional_id, epoch)
        self._open.append(transaction)
        return transaction

    def check_epoch(self, transactional_id: str, epoch: int) -> None:
        """Refuse a producer whose transactional id was taken over."""
        if epoch != self._epochs.get(transactional_id):
            raise Fenced(f"{transactional_id} was taken over by another worker")

    def finish(self, transaction: SimTransaction, *, commit: bool) -> None:
        """Commit or abort a transaction, and write its markers, those of slow partitions later."""
        assert transaction.committed is None, "a transaction ends once"
        transaction.committed = commit
        self._open.remove(transaction)
        for tp in dict.fromkeys((record.topic, record.partition) for record in transaction.records):
            if commit and tp in self.slow_markers:
                self._unmarked.append((transaction, tp))
            else:
                self._append(*tp, None, None, (), transaction, marker=True)
        if commit:
            self.committed.extend(transaction.records)
            self.group_offsets.update(transaction.offsets)

    def write_markers(self, transactional_id: str | None = None) -> None:
        """Write the late markers: those of a producer, or of all."""
        late, self._unmarked = self._unmarked, []
        for transaction, tp in late:
            if transactional_id in (None, transaction.transactional_id):
                self._append(*tp, None, None, (), transaction, marker=True)
            else:
                self._unmarked.append((transaction, tp))

    def compact(self, topic: str, partition: int, to_offset: int, delete_retention_ms: int) -> list[SimRecord]:
        """Keep the newest record of each key below ``to_offset``, and tombstones until their deletion time. Returns the
        records that are removed."""
        removed = []
        end = min(to_offset, self.last_stable(topic, partition))
        newest: dict[bytes | None, SimRecord] = {}
        for record in self._logs.get((topic, partition), ())[:end]:
            if not record.committed or record.key is None:
                continue
            if record.key in newest:
                newest[record.key].compacted = True
                removed.append(newest[record.key])
            newest[record.key] = record
        for record in newest.values():
            if record.value is None and record.delete_after_ms is None:
                record.delete_after_ms = self.clock.now_ms + delete_retention_ms
            elif record.value is None and self.clock.now_ms > (record.delete_after_ms or 0):
                record.compacted = True
                removed.append(record)
        return removed

    def take_back(self, topic: str, partition: int, from_offset: int) -> None:
        """Put back what a compaction has removed from an offset on."""
        for record in self._logs.get((topic, partition), ())[from_offset:]:
            record.compacted = False

    def lose_middle(self, topic: str, partition: int, offsets: Sequence[int]) -> None:
        """Lose some records. No records are there until :meth:`put_back`."""
        self.lost[topic, partition] = lost = [self._logs[topic, partition][offset] for offset in offsets]
        for record in lost:
            record.compacted = True

    def put_back(self, topic: str, partition: int) -> None:
        """Put back what :meth:`lose_middle` has taken."""
        for record in self.lost.pop((topic, partition)):
            record.compacted = False

    # ---- leaders and losses -------------------------------------------------------------------------------------

    def elect(self, topic: str, partition: int, end: int | None = None, *, epoch: int | None = None) -> list[SimRecord]:
        """Elect another leader. Returns the records that it does not have.

        Args:
            end: the end of its log, if the election is unclean; None: it has all records.
            epoch: the new leader epoch, if the brokers' disks were restored from an old copy; None: the next one.
        """
        tp = topic, partition
        lost = [] if end is None else self.lose_end(topic, partition, end)
        if lost:
            self.was_cut = True
            gone = set(map(id, lost))
            self.committed = [each for each in self.committed if id(each) not in gone]
        self._leader_epochs[tp] = self._leader_epochs.get(tp, 0) + 1 if epoch is None else epoch
        return lost

    def leader_epoch(self, topic: str, partition: int) -> int:
        return self._leader_epochs.get((topic, partition), 0)

    def epoch_end(self, topic: str, partition: int, epoch: int) -> EpochEnd:
        """The leader's answer to ``OffsetForLeaderEpoch``; a leader knows the epochs in which records were appended."""
        records = self._logs.get((topic, partition), [])
        newest = records[-1].epoch if records else -1
        if epoch > newest:
            return EpochEnd(-1, -1)
        end = next((each.offset for each in records if each.epoch > epoch), len(records))
        return EpochEnd(records[end - 1].epoch if end else epoch, end)

    def batch_at(self, topic: str, partition: int, offset: int) -> Batch | None:
        """The record batch at an offset; None behind the end."""
        records = self._logs.get((topic, partition), [])
        return records[offset].passed[1] if offset < len(records) else None

    def lose_end(self, topic: str, partition: int, from_offset: int) -> list[SimRecord]:
        """Lose the records from an offset on, and return them. The log grows again from there."""
        records = self._logs.setdefault((topic, partition), [])
        lost = records[from_offset:]
        del records[from_offset:]
        gone = set(map(id, lost))
        for transaction in self._open:
            transaction.records = [each for each in transaction.records if id(each) not in gone]
        return lost

    def append_ms(self, topic: str, partition: int, offset: int) -> int:
        """The append time of a record."""
        return self._logs[topic, partition][offset].timestamp_ms

    def offset_at(self, topic: str, partition: int, append_ms: int) -> int:
        """The first offset whose append time is after ``append_ms``; the end if there is none."""
        records = self._logs.get((topic, partition), [])
        return next((r.offset for r in records if r.timestamp_ms > append_ms), len(records))

    # ---- deletion from the start ----------------------------------------------------------------------------------

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Delete the records before an offset. Checks still read them; workers get no record from before the start.

        Brokers refuse an offset behind the end of a log.
        """
        if offset <= self.end(topic, partition):
            self._starts[topic, partition] = max(self.start(topic, partition), offset)

    def start(self, topic: str, partition: int) -> int:
        """The first offset that was not deleted."""
        return self._starts.get((topic, partition), 0)

    # ---- reading ------------------------------------------------------------------------------------------------

    def end(self, topic: str, partition: int) -> int:
        """High watermark: the offset that the next record gets."""
        return len(self._logs.get((topic, partition), ()))

    def last_stable(self, topic: str, partition: int, without: str | None = None) -> int:
        """The last stable offset: the first offset of the oldest open transaction, or the end.

        Args:
            without: as if the transactions whose ids begin with this had ended.
        """
        end = self.end(topic, partition)
        for transaction in (*self._open, *(each for each, tp in self._unmarked if tp == (topic, partition))):
            if without is not None and transaction.transactional_id.startswith(without):
                continue
            for record in transaction.records:
                if record.partition == partition and record.topic == topic:
                    end = min(end, record.offset)
                    break
        return end

    def fetch(
        self, topic: str, partition: int, from_offset: int, max_offsets: int = 1_000_000, *, committed: bool = True
    ) -> Fetched:
        """The visible records from ``from_offset`` on. The offset range of the fetch includes holes."""
        end = self.last_stable(topic, partition) if committed else self.end(topic, partition)
        to_offset = max(from_offset, min(end, from_offset + max_offsets))
        records = self._logs.get((topic, partition), [])[from_offset:to_offset]
        visible = [r for r in records if r.committed or not (committed or r.marker or r.compacted)]
        return Fetched(from_offset, to_offset, visible, 0, [each.passed for each in records], self.restarts)

    def newest(self, topic: str, partition: int, key: bytes) -> SimRecord | None:
        """The newest committed record with a key, also after an open transaction; None if there is none."""
        records = reversed(self._logs.get((topic, partition), []))
        return next((record for record in records if record.key == key and record.committed), None)


class SimProducer:
    """A transactional producer."""

    def __init__(self, log: SimLog, transactional_id: str) -> None:
        self._log = log
        self._transactional_id = transactional_id
        self._epoch = -1
        self._transaction: SimTransaction | None = None
        self._begun = False

    @property
    def epoch(self) -> int:
        """Epoch of its opening."""
        return self._epoch

    @property
    def is_fenced(self) -> bool:
        """Whether another producer has taken over the transactional id."""
        return self._log.epoch(self._transactional_id) != self._epoch

    def init_transactions(self) -> None:
        self._epoch = self._log.new_epoch(self._transactional_id)
        self._transaction = None
        self._begun = False

    def begin(self) -> None:
        """Begin a transaction. The brokers open it at the first record."""
        assert self.is_fenced or not self._begun, "a transaction is open already"
        self._begun = True
        self._transaction = None

    def produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Append to the open transaction."""
        if key is None and topic in self._log.compacted:
            raise RecordRefused
        limit = self._log.max_message_bytes.get(topic)
        if limit is not None and size(key, value, headers) > limit:
            raise TooLarge(topic, limit)
        self._log.append(topic, key, value, headers, partition, self._opened(), timestamp_ms)

    def send_offset(self, group: str, partition: TopicPartition, offset: int, metadata: str = "") -> None:
        """Commit an offset of the group with this transaction."""
        self._opened().offsets[group, partition] = offset, metadata

    def _opened(self) -> SimTransaction:
        assert self._begun, "begin() comes first"
        self._log.check_epoch(self._transactional_id, self._epoch)
        if self._transaction is None:
            self._transaction = self._log.begin(self._transactional_id, self._epoch)
        return self._transaction

    def abort(self) -> None:
        self._end(commit=False)

    def commit(self) -> None:
        """Commit. It may be repeated after an unknown outcome."""
        self._end(commit=True)

    def _end(self, *, commit: bool) -> None:
        self._log.check_epoch(self._transactional_id, self._epoch)
        if self._transaction is not None and self._transaction.committed is None:
            self._log.finish(self._transaction, commit=commit)
        self._begun = False
