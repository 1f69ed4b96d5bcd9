"""One bucket in a micro-batch: it runs the machines of its partitions that have something to do.

A bucket has the same partitions of all request topics, and gets each tick. What has fired is in the progress of the
partitions, which their transactions commit (:mod:`timers.spark.engine.machines`). So the same rules cover a micro-batch
that Spark repeats, a checkpoint that is lost or old, and workers that ran in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

import msgpack

from timers.core.clock_guard import ClockGuard, Clocks, Seen
from timers.core.counters import added
from timers.core.index import Swept
from timers.core.progress import Cuts
from timers.core.timer import Tick, TopicPartition, latest_tick
from timers.errors import CheckpointMismatch
from timers.spark.engine.machines import Known, MachineRun, Producer, Read
from timers.spark.engine.packing import Arrivals
from timers.spark.engine.questions import Answering, Question
from timers.spark.totals import Total
from timers.wire import progress as progress_record
from timers.wire.formats import RequestRecord

if TYPE_CHECKING:
    from timers.spark.engine.openings import Openings

FORMAT = 11
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
        state = (FORMAT, tick_ms, self.anchors, self.agreed, known, list(self.read_to.items()))
        return bytes(msgpack.packb(state))

    @classmethod
    def decode(cls, data: bytes) -> BucketState:
        """Read the bytes that :meth:`encode` wrote."""
        version, *rest = msgpack.unpackb(data, strict_map_key=False, use_list=False)
        if version != FORMAT:
            raise CheckpointMismatch(f"the checkpoint has format {version}, not {FORMAT}")
        tick_ms, anchors, agreed, known, read_to = rest
        return cls(
            None if tick_ms is None else Tick(tick_ms),
            {boot_id: Seen(*seen) for boot_id, seen in anchors.items()},
            {boot_id: Seen(*seen) for boot_id, seen in agreed.items()},
            {
                tp: Known(applied, *progress_record.decode(record), Producer(*producer), Swept(*swept), *rest)
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
        run: one partition in a micro-batch. Tests replace it by a broken one.

    Attributes:
        state: complete after :meth:`process`.
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
        read: Mapping[TopicPartition, Read],
        tick: Tick | None,
        questions: Iterable[tuple[TopicPartition, Question]] = (),
    ) -> Total:
        """Process one micro-batch: accept requests, and fire the due timers.

        Args:
            arrivals: requests that the query has read.
            read: partition -> what was read of it.
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
            self._partitions.run([run.go for run in part.values()])
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
        known = self._known(tp)
        return known is None or known.has_work(end, now.second) or self._partitions.asks(tp)

    def _known(self, tp: TopicPartition) -> Known | None:
        """What the state knows of a partition; None if it knew it before a loss was accepted: of another log [I28]."""
        known, cuts = self.state.known.get(tp), self._cuts.get(tp, ())
        return known if known is not None and known.progress.cuts[: len(cuts)] == cuts else None
