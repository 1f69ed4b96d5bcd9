"""One bucket in a micro-batch: it gives the arriving and the due timers of its partitions to their machines.

A bucket has some partitions of the request topic, and gets each tick. Its state is a cache of the log. What has fired
is in the progress of the partitions, which their transactions commit (:mod:`timers.spark.engine.machines`). So the same
rules cover a micro-batch that Spark repeats, a checkpoint that is lost or old, and workers that ran in between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import NamedTuple

import msgpack

from timers.core.clock_guard import ClockGuard, Clocks, Seen
from timers.core.limits import Limits
from timers.core.lineage import Lineage
from timers.core.timer import Tick, latest_tick
from timers.errors import CheckpointMismatch, HistoryMismatch
from timers.spark.engine.machines import Known, PartitionRun, Partitions, Producer, Through
from timers.spark.engine.timer_batches import Arrivals, Group
from timers.spark.engine.waiting import ChunkKey, Chunks, Filled, Slot, Waiting
from timers.wire import progress as progress_record
from timers.wire import topics

FORMAT = 8
"""Version of the encoded state. A checkpoint of another version is not read: the log has all of it."""

STEP_BYTES = 32 * 1024 * 1024
"""Bytes of packed timers that a bucket has in memory while it fires. A larger backlog fires in steps of time."""

LONGEST_S = 10.0
"""After this time a backlog continues in the next micro-batch, so that new requests are read meanwhile."""

HELD = -1
"""Level of the entries with arrivals that are not accepted yet; their number is the partition."""


ANCHORS = 32
"""Number of machines whose anchors and agreed times a bucket keeps."""


class Held(NamedTuple):
    """The arrivals of one partition that are not accepted yet: there is no tick, or it is behind [I10]."""

    number: int
    first_offset: int
    end: int
    """Where the whole record batches end that have them,"""
    epochs: tuple[tuple[int, int], ...]
    """and the leader epochs up to there. The progress has a lineage of what was accepted only [I28]."""


@dataclass
class BucketState:
    """The state of a bucket, without its timer batches."""

    tick: Tick | None = None
    """The newest tick that counts."""
    slots: dict[Slot, Filled] = field(default_factory=dict)
    anchors: dict[str, Seen] = field(default_factory=dict)
    """The anchor of the clock guard on each machine [I20]. The key names one run of a machine: its clock since boot
    continues only there. A single anchor would be lost with each change of the machine, and leaps would add up."""
    agreed: dict[str, Seen] = field(default_factory=dict)
    """The agreed time on each machine, when a micro-batch last ran there: the last tick with which a second clock or an
    operator agreed, and the time that has passed since by clocks since boot. Ticks without agreement do not move it."""
    known: dict[int, Known] = field(default_factory=dict)
    """What the bucket knows of each of its partitions."""
    held: dict[int, Held] = field(default_factory=dict)
    """What waits of each partition."""

    def encode(self) -> bytes:
        """Inverse: :meth:`decode`."""
        tick_ms = None if self.tick is None else self.tick.append_ms
        slots = [(*slot, *filled) for slot, filled in self.slots.items()]
        known = [
            (
                number,
                each.applied,
                progress_record.encode(each.progress, each.topic_id),
                each.producer,
                each.committed_s,
            )
            for number, each in self.known.items()
        ]
        return bytes(msgpack.packb((FORMAT, tick_ms, slots, self.anchors, self.agreed, known, self.held)))

    @classmethod
    def decode(cls, data: bytes) -> BucketState:
        """Read the bytes that :meth:`encode` wrote."""
        version, *rest = msgpack.unpackb(data, strict_map_key=False)
        if version != FORMAT:
            raise CheckpointMismatch(f"the checkpoint has format {version}, not {FORMAT}")
        tick_ms, slots, anchors, agreed, known, held = rest
        return cls(
            None if tick_ms is None else Tick(tick_ms),
            {Slot(level, number): Filled(*filled) for level, number, *filled in slots},
            {boot_id: Seen(*seen) for boot_id, seen in anchors.items()},
            {boot_id: Seen(*seen) for boot_id, seen in agreed.items()},
            {number: _decode(*each) for number, *each in known},
            {
                number: Held(count, first, end, tuple((epoch, offset) for epoch, offset in epochs))
                for number, (count, first, end, epochs) in held.items()
            },
        )


def _newest(machines: dict[str, Seen]) -> dict[str, Seen]:
    """Those of the :data:`ANCHORS` machines with the newest times."""
    return dict(sorted(machines.items(), key=lambda item: item[1].time_s)[-ANCHORS:])


def _decode(applied: int, record: bytes, producer: tuple[int, int], committed_s: int) -> Known:
    return Known(applied, *progress_record.decode(record), Producer(*producer), committed_s)


class Done(NamedTuple):
    """What a bucket did in a micro-batch."""

    fired: int = 0
    dead_lettered: int = 0
    retried: int = 0
    """Timers that went to the retry topic."""
    pending: int = 0
    is_complete: bool = True
    """Whether all due timers have fired; if not, the next micro-batch continues."""


class Bucket:
    """Runs the machines of a bucket's partitions, one micro-batch at a time.

    Args:
        topic: the request topic.
        phase_s: of the wheel; see :class:`timers.spark.engine.waiting.Waiting`.
        run: one partition in a micro-batch. Tests replace it by a broken one.

    Attributes:
        state: complete after :meth:`process`.
    """

    def __init__(
        self,
        topic: str,
        state: BucketState,
        chunks: Chunks,
        partitions: Partitions,
        limits: Limits,
        phase_s: int = 0,
        run: type[PartitionRun] = PartitionRun,
    ) -> None:
        self.state = state
        self._run = run
        self._topic = topic
        self._chunks = chunks
        self._partitions = partitions
        self._limits = limits
        self._waiting = Waiting(state.slots, chunks, phase_s)
        self._through = Through()
        self._runs: dict[int, PartitionRun] = {}

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
            guard: a new guard.
            clocks: of the machine.
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
        ends: Mapping[int, int],
        tick: Tick | None,
        lineages: Mapping[int, Lineage],
    ) -> Done:
        """Process one micro-batch: accept requests, fire the due timers, and store the others.

        Args:
            arrivals: requests that the query has read.
            ends: partition -> offset up to which the query has read.
            tick: the newest one that counts, if there is one.
            lineages: partition -> which log was read up to its end.
        """
        if tick is not None:
            self.state.tick = latest_tick(self.state.tick, tick)
        now = self.state.tick
        arrived: dict[int, list[Arrivals]] = {}
        for each in arrivals:
            arrived.setdefault(each.partition, []).append(each)
        if now is None:
            for number, some in arrived.items():
                self._hold(number, some, lineages[number])
            return Done(pending=self._waiting.count)
        self._accept(arrived, ends, now, lineages)
        reached_s = self._fire(now)
        runs = self._runs.values()
        self._partitions.run([run.commit for run in runs])
        self.state.known.update({number: run.known() for number, run in self._runs.items()})
        self._waiting.move_ahead(now.second)
        self._waiting.store()
        fired, dead_lettered, retried = (sum(each) for each in zip((0, 0, 0), *(run.done for run in runs), strict=True))
        return Done(fired, dead_lettered, retried, self._waiting.count, reached_s >= now.second)

    def _accept(
        self,
        arrived: Mapping[int, list[Arrivals]],
        ends: Mapping[int, int],
        now: Tick,
        lineages: Mapping[int, Lineage],
    ) -> None:
        known = self.state.known
        new = {number for number, end in ends.items() if end > self._position(number)}
        self._open({*new, *(number for number, each in known.items() if each.is_idle(now.second))}, now)
        calls = []
        for number in new:
            run, arrivals = self._runs[number], arrived.get(number, [])
            name = topics.partition_name(self._topic, number)
            if not run.was_decoded_alike(arrivals):
                raise HistoryMismatch(f"new requests of {name} were decoded with other settings than its progress has")
            if run.may_accept:
                held = self._take_held(number, lineages[number])
                if not run.was_decoded_alike(held):
                    raise CheckpointMismatch(f"the checkpoint has requests of {name} decoded with other settings")
                all_arrived = held + arrivals
                assert all(each.first_offset < ends[number] for each in all_arrived), (
                    "Spark has read further than it says"
                )
                calls.append(partial(run.accept, all_arrived, ends[number], lineages[number]))
            else:
                self._hold(number, arrivals, lineages[number])
        self._partitions.run(calls)
        for run in self._runs.values():
            self._waiting.add(run.store.take_accepted(), now.second)

    def _position(self, number: int) -> int:
        known = self.state.known.get(number)
        return self._start(number) if known is None else known.applied

    def _start(self, number: int) -> int:
        """The first offset that a bucket without knowledge of a partition accepts. The log may have lost records since
        the arrivals that wait were read."""
        start, held = self._partitions.start_of(number), self.state.held.get(number)
        return start if held is None else min(start, held.first_offset)

    def _open(self, numbers: Collection[int], now: Tick) -> None:
        known = {number: self.state.known.get(number) for number in numbers if number not in self._runs}
        for number, opened in self._partitions.open(known).items() if known else ():
            self._runs[number] = self._run(
                topics.partition_name(self._topic, number),
                number,
                known[number],
                opened,
                self._partitions,
                self._limits,
                now,
                self._through,
                self._start(number),
            )

    def _fire(self, now: Tick) -> int:
        """Fire what is due. Returns the second up to which it is done."""
        began_s, reached_s = monotonic(), -1
        kept: list[Group] = []
        # A partition that is read again fires nothing [I15], and the others of the bucket wait for it.
        while not any(run.machine.recovering for run in self._runs.values()):
            due, reached_s = self._waiting.take_due(now.second, STEP_BYTES)
            by_partition: dict[int, list[Group]] = {}
            for group in due:
                by_partition.setdefault(group.partition, []).append(group)
            self._open(by_partition.keys(), now)
            for number, groups in by_partition.items():
                if self._runs[number].machine.recovering:
                    kept += groups
                else:
                    self._runs[number].store.add_due(groups)
            self._through.reached_s = reached_s
            self._partitions.run([run.fire for run in self._runs.values()])
            if reached_s >= now.second or monotonic() > began_s + LONGEST_S:
                break
        self._waiting.add(kept, now.second)
        return reached_s

    # ---- arrivals that are not accepted yet ---------------------------------------------------------------------

    def _hold(self, number: int, arrivals: Sequence[Arrivals], lineage: Lineage) -> None:
        if not arrivals:
            return
        count, first, *_ = self._held(number, lineage) or (0, min(each.first_offset for each in arrivals))
        for index, each in enumerate(arrivals, count):
            self._chunks.put(ChunkKey(Slot(HELD, number), index), each.pack())
        self.state.held[number] = Held(count + len(arrivals), first, lineage.end, lineage.epochs)

    def _take_held(self, number: int, lineage: Lineage) -> list[Arrivals]:
        held = self._held(number, lineage)
        self.state.held.pop(number, None)
        keys = [ChunkKey(Slot(HELD, number), index) for index in range(held.number if held else 0)]
        return [Arrivals.unpack(self._chunks.take(key)) for key in keys]

    def _held(self, number: int, lineage: Lineage) -> Held | None:
        """What waits of a partition, if anything does; it is of the log that is read now."""
        held = self.state.held.get(number)
        if held is not None:
            known = lineage.before(held.end).epochs
            if lineage.end < held.end or held.epochs[-len(known) :] != known:
                name = topics.partition_name(self._topic, number)
                raise CheckpointMismatch(f"the checkpoint has requests of {name} that its log has lost")
        return held
