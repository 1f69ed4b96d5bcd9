"""One bucket in a micro-batch: it runs the machines of its partitions that have something to do.

A bucket has the same partitions of all request topics, and gets each tick. What has fired is in the progress of the
partitions, which their transactions commit (:mod:`timers.spark.engine.machines`). So the same rules cover a micro-batch
that Spark repeats, a checkpoint that is lost or old, and workers that ran in between.

The first step of the engine packs the records of a partition for its bucket, as they were read. A record as a row of a
pandas frame costs more than to decode it, so a row has many of them, which stay in columns of Arrow until the bucket
reads them. transformWithStateInPandas gives the bucket its state: one variable, ``memory``, the encoded
:class:`BucketState`. A checkpoint contains this name.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import msgpack
import pandas as pd
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, ValueState

from timers.core.clock_guard import ClockGuard, Clocks, Seen
from timers.core.counters import added
from timers.core.fired import Command
from timers.core.index import Swept
from timers.core.progress import Cuts
from timers.core.timer import Tick, TopicPartition, latest_tick
from timers.errors import CheckpointMismatch
from timers.machines.firing.breaker import OpenCircuit
from timers.process.clock import Clock, boot_id
from timers.process.config.settings import Settings
from timers.spark.columns import Batches, batchwise, bounds, headers_of, record_batch, schema
from timers.spark.engine.machines import Failing, Known, MachineRun, Openings, ProducerOpening, Read
from timers.spark.engine.questions import Answering, Question
from timers.spark.totals import Total
from timers.wire import progress as progress_record
from timers.wire.formats import RequestRecord

# ---- what the tasks read --------------------------------------------------------------------------------------------

SCHEMA = schema("bucket int, arrivals binary")
"""Columns of the result."""


class Arrivals(NamedTuple):
    """Records of one partition that one task has read, in ascending offset."""

    tp: TopicPartition
    records: Sequence[RequestRecord]

    @classmethod
    def unpack(cls, data: bytes) -> Arrivals:
        """Read the bytes that :func:`pack` has returned."""
        with pa.ipc.open_stream(data) as stream:
            batch = stream.read_next_batch()
        offset, key, value, at, kind = (
            batch[name].to_pylist() for name in ("offset", "key", "value", "timestamp_ms", "timestamp_type")
        )
        columns = zip(offset, key, value, headers_of(batch["headers"]), at, kind, strict=True)
        # As RequestRecord._make does, without a call of Python for each record.
        records = list(map(tuple.__new__, repeat(RequestRecord), columns))
        place = batch.schema.metadata
        return cls((place[b"topic"].decode(), int(place[b"partition"])), records)


def pack(batch: pa.RecordBatch) -> bytes:
    """Returns the requests of one partition as bytes. Inverse: :meth:`Arrivals.unpack`."""
    place = {name: str(batch[name][0].as_py()) for name in ("topic", "partition")}
    part = batch.drop_columns(list(place)).replace_schema_metadata(place)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, part.schema) as stream:
        stream.write_batch(part)
    return bytes(sink.getvalue())


def packing(buckets: Sequence[int]) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """The function for ``mapInArrow``: of each batch of requests (:data:`timers.spark.columns.RECORD_SCHEMA`) it yields
    a row for each partition, and one more if other partitions are in between."""

    def packed(batch: pa.RecordBatch) -> pa.RecordBatch:
        parts = [batch.slice(first, end - first) for first, end in pairwise(bounds(batch))]
        rows = [(buckets[part["partition"][0].as_py() % len(buckets)], pack(part)) for part in parts]
        return record_batch(rows, SCHEMA)

    return batchwise(packed)


# ---- a bucket --------------------------------------------------------------------------------------------------------

STATE_FORMAT = 12
"""Version of the encoded state. A checkpoint of another version is not read: the log has all of it."""

ANCHORS = 32
"""Number of machines whose anchors and agreed times a bucket keeps."""


@dataclass
class BucketState:
    """The state of a bucket."""

    tick: Tick | None = None
    """The newest tick that counts."""
    anchors: dict[str, Seen] = field(default_factory=dict)
    """The anchor of the clock guard on each machine [I20]. The key names one run of a machine: its clock since boot
    continues only there. A single anchor would be lost with each change of the machine, and leaps would add up."""
    agreed: dict[str, Seen] = field(default_factory=dict)
    """The agreed time on each machine, when a micro-batch last ran there: the last tick with which a second clock or an
    operator agreed, and the time that has passed since by clocks since boot. Ticks without agreement do not move it."""
    known: dict[TopicPartition, Known] = field(default_factory=dict)
    """What the bucket knows of each of its partitions."""
    read_to: dict[TopicPartition, int] = field(default_factory=dict)
    """Offset up to which the query has read each partition."""

    def encode(self) -> bytes:
        """Inverse: :meth:`decode`."""
        tick_ms = None if self.tick is None else self.tick.append_ms
        known = [
            (tp, (each.applied, progress_record.encode(each.progress, each.topic_id), *each[3:]))
            for tp, each in self.known.items()
        ]
        state = (STATE_FORMAT, tick_ms, self.anchors, self.agreed, known, list(self.read_to.items()))
        return bytes(msgpack.packb(state))

    @classmethod
    def decode(cls, data: bytes) -> BucketState:
        """Read the bytes that :meth:`encode` wrote."""
        version, *rest = msgpack.unpackb(data, strict_map_key=False, use_list=False)
        if version != STATE_FORMAT:
            raise CheckpointMismatch(f"the checkpoint has format {version}, not {STATE_FORMAT}")
        tick_ms, anchors, agreed, known, read_to = rest
        return cls(
            None if tick_ms is None else Tick(tick_ms),
            {boot_id: Seen(*seen) for boot_id, seen in anchors.items()},
            {boot_id: Seen(*seen) for boot_id, seen in agreed.items()},
            {
                tp: Known(applied, *progress_record.decode(record), ProducerOpening(*producer), Swept(*swept), *rest)
                for tp, (applied, record, producer, swept, *rest) in known
            },
            dict(read_to),
        )


def _newest(machines: dict[str, Seen]) -> dict[str, Seen]:
    """Those of the :data:`ANCHORS` machines with the newest times."""
    return dict(sorted(machines.items(), key=lambda item: item[1].time_s)[-ANCHORS:])


class Bucket:
    """Runs the machines of a bucket's partitions, one micro-batch at a time.

    Args:
        starts: partition -> the first offset that the query has read. If neither these nor the state say it, the
            machine reads the log by itself.
        cuts: partition -> the cuts of its log when the query started.
        run: one partition in a micro-batch.

    Attributes:
        state, failing: complete after :meth:`process`.
    """

    def __init__(
        self,
        state: BucketState,
        partitions: Openings,
        starts: Mapping[TopicPartition, int],
        cuts: Mapping[TopicPartition, Cuts],
        run: type[MachineRun] = MachineRun,
    ) -> None:
        self.state = state
        self.failing = Failing()
        self._partitions = partitions
        self._starts = starts
        self._cuts = cuts
        self._run = run

    def counted(
        self, ticks_ms: Iterable[int], guard: ClockGuard, clocks: Clocks, boot_id: str, fired_s: int | None
    ) -> Tick | None:
        """Judge ticks [I20], and return the newest one that counts.

        Each micro-batch may run on another machine, so the guard is new each time and gets its anchor from the state.
        On a machine without an anchor, the agreed time is the anchor. Ticks do not change it, so the leaps on several
        machines do not add up. Time that passes on a machine does: otherwise all ticks would be held on new machines if
        the clocks of the machines are wrong and an operator agreed long ago.

        Args:
            ticks_ms: the last tick of each partition.
            boot_id: names the present run of the machine; empty if the system has no name.
            fired_s: second up to which the app had fired when the query started; None: nothing had.
        """
        state = self.state
        agreed_s = self._agreed_s(boot_id, clocks.boot_s)
        guard.anchor = state.anchors.get(boot_id)
        if guard.anchor is None and agreed_s is not None:
            guard.anchor = Seen(agreed_s, clocks.boot_s)
        if state.tick is not None:
            fired_s = state.tick.second
        before = None if fired_s is None else [fired_s]
        # The broker is not known: Spark does not say which one leads a partition.
        counted = [tick_ms for tick_ms in ticks_ms if guard.counts(tick_ms, None, clocks, before)]
        if guard.agreed is not None:
            state.agreed = {boot_id: guard.agreed}  # without the others, which may be ahead: a clock may go back
        elif agreed_s is not None:
            state.agreed[boot_id] = Seen(agreed_s, clocks.boot_s)
            state.agreed = _newest(state.agreed)
        if counted and guard.anchor is not None and boot_id:
            state.anchors[boot_id] = guard.anchor
            state.anchors = _newest(state.anchors)
        return Tick(max(counted)) if counted else None

    def _agreed_s(self, boot_id: str, boot_s: float) -> float | None:
        """The agreed time: at least what it was in an earlier micro-batch, and on a machine that ran one, with the time
        that has passed there since. On a system without names of its runs no time passes."""
        agreed = self.state.agreed
        times_s = [seen.time_s for seen in agreed.values()]
        if boot_id in agreed and boot_id:
            times_s.append(agreed[boot_id].at(boot_s))
        return max(times_s, default=None)

    def process(
        self,
        arrivals: Iterable[Arrivals],
        read: Mapping[TopicPartition, Read],
        tick: Tick | None,
        questions: Iterable[tuple[TopicPartition, Question]] = (),
    ) -> Total:
        """Process one micro-batch: accept requests, and fire the due timers.

        Args:
            tick: the newest one that counts, if there is one.
            questions: about partitions, also of other buckets.
        """
        state = self.state
        asked: dict[TopicPartition, list[Question]] = {}
        for tp, question in questions:
            asked.setdefault(tp, []).append(question)
        if tick is not None:
            state.tick = latest_tick(state.tick, tick)
        records: dict[TopicPartition, list[RequestRecord]] = {}
        for each in arrivals:
            records.setdefault(each.tp, []).extend(each.records)
        parts = () if state.tick is None else self._runs(records, read, state.tick, asked)
        for part in parts:
            self.failing = self._partitions.run(part.values())
        runs = {tp: run for part in parts for tp, run in part.items()}
        state.known.update({tp: run.known for tp, run in runs.items() if run.known is not None})
        state.read_to.update({tp: each.end for tp, each in read.items()})
        done = [run.done for run in runs.values()]
        waiting = {tp: (each.pending, each.oldest_due_s) for tp, each in state.known.items()}
        return Total(
            reduce(added, (each.numbers for each in done), {}),
            waiting,
            all(each.is_complete for each in done),
            {tp: run.done.snapshot for tp, run in runs.items() if run.done.snapshot is not None},
            [answer for each in done for answer in each.answers],
        )

    def _runs(
        self,
        records: Mapping[TopicPartition, list[RequestRecord]],
        read: Mapping[TopicPartition, Read],
        now: Tick,
        asked: Mapping[TopicPartition, Sequence[Question]],
    ) -> Sequence[dict[TopicPartition, MachineRun]]:
        """Those that have something to do. Then those that are only asked, the oldest question first: what is due does
        not wait until their stores are open."""
        state, answering = self.state, Answering()

        def run(tp: TopicPartition, *, only_asked: bool) -> MachineRun:
            mine = sorted(records.get(tp, ()), key=lambda record: record.offset)
            start = state.read_to.get(tp, self._starts.get(tp, read[tp].end))
            given = read[tp]._replace(start=start, records=mine)
            what = tp, self._known(tp), given, now, self._partitions, asked.get(tp, ()), answering
            return self._run(*what, only_asked=only_asked)

        working = {tp: run(tp, only_asked=False) for tp, each in read.items() if self._has_work(tp, each.end, now)}
        return working, {tp: run(tp, only_asked=True) for tp in asked if tp in read and tp not in working}

    def _has_work(self, tp: TopicPartition, end: int, now: Tick) -> bool:
        known, partitions = self._known(tp), self._partitions
        return known is None or known.has_work(end, now.second, partitions.commands) or partitions.snapshots.asks(tp)

    def _known(self, tp: TopicPartition) -> Known | None:
        """What the state knows of a partition; None if it knew it before a loss was accepted: of another log [I28]."""
        known, cuts = self.state.known.get(tp), self._cuts.get(tp, ())
        return known if known is not None and known.progress.cuts[: len(cuts)] == cuts else None


# ---- its task --------------------------------------------------------------------------------------------------------

OUTPUT = "said binary"
"""The output row of a bucket: a pickled :class:`Said`."""

TOLD_PROPERTY = "timers.told"
"""Local property of a micro-batch, by which the driver tells the tasks something: an encoded :class:`Told`."""


class Told(NamedTuple):
    """What the driver tells the tasks of a micro-batch."""

    read: dict[TopicPartition, Read]
    circuits: list[OpenCircuit]
    """Failing targets."""
    questions: Sequence[tuple[TopicPartition, Question]] = ()
    commands: Sequence[Command] = ()
    """About targets, ascending by number."""

    def encode(self) -> str:
        """Inverse: :meth:`decode`."""
        return base64.b64encode(pickle.dumps(self)).decode()

    @staticmethod
    def decode(text: str) -> Told:
        told: Told = pickle.loads(base64.b64decode(text))
        return told


class Said(NamedTuple):
    """What a bucket tells the driver of a micro-batch."""

    bucket: int
    tick_ms: int | None
    """Its newest tick that counts."""
    held: str | None
    """Why a tick did not count."""
    had_others: bool
    """Whether partitions had other owners."""
    failing: Failing
    total: Total


@dataclass(eq=False)
class TimerProcessor(StatefulProcessor):
    """Runs the bucket of a key on the rows of a micro-batch.

    A row has ``arrivals`` (:func:`packing`), or ``tick_partition``, ``tick_offset`` and ``tick_ms``.

    Args:
        partitions: as :meth:`Openings.of`, without its places.
        starts, cuts: as those of :class:`Bucket`.
        fired_s: as that of :meth:`Bucket.counted`.
    """

    settings: Settings
    keys: Sequence[int]
    partitions: Callable[[list[OpenCircuit], Tick | None, Sequence[Command]], Openings]
    starts: Mapping[TopicPartition, int]
    cuts: Mapping[TopicPartition, Cuts]
    fired_s: int | None

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state: ValueState = handle.getValueState("memory", "data binary")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        arrivals: list[Arrivals] = []
        newest: dict[int, tuple[int, int]] = {}
        for frame in rows:
            arrivals += [Arrivals.unpack(data) for data in frame["arrivals"] if data is not None]
            ticks = frame[frame["tick_ms"].notna()]
            for partition, offset, tick_ms in zip(
                ticks["tick_partition"], ticks["tick_offset"], ticks["tick_ms"], strict=True
            ):
                newest[partition] = max(newest.get(partition, (-1, 0)), (int(offset), int(tick_ms)))
        (number,) = key
        told = _told()
        read = {tp: each for tp, each in told.read.items() if self.keys[tp[1] % len(self.keys)] == number}
        value = self._state.get()
        state = BucketState() if value is None else BucketState.decode(bytes(value[0]))
        partitions = self.partitions(told.circuits, state.tick, told.commands)
        bucket = Bucket(state, partitions, self.starts, self.cuts)
        # The last of each partition: had a clock gone back within a batch, an earlier record would show the old time.
        ticks_ms = [tick_ms for _, tick_ms in newest.values()]
        guard = ClockGuard(self.settings.max_clock_leap_s, self.settings.accept_time_s)
        clocks = Clock().read()
        tick = bucket.counted(ticks_ms, guard, clocks, boot_id(), self.fired_s)
        held = next((hold.sentence for hold in guard.holds(clocks.boot_s)), None)
        done = bucket.process(arrivals, read, tick, told.questions)
        self._state.update((bucket.state.encode(),))
        newest_ms = None if bucket.state.tick is None else bucket.state.tick.append_ms
        said = Said(int(number), newest_ms, held, partitions.had_others, bucket.failing, done)
        yield pd.DataFrame({"said": [pickle.dumps(said)]})

    def close(self) -> None:
        """Do nothing: the producers serve the next micro-batch."""


def _told() -> Told:
    context = TaskContext.get()
    assert context is not None
    text = context.getLocalProperty(TOLD_PROPERTY)
    return Told.decode(text) if text else Told({}, [])
