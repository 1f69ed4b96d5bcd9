"""Simulated runs of the engine on Spark whose request logs lose their end and grow again [I28].

Micro-batches, tasks and checkpoints are those of the other simulated runs; the driver's comparisons and the dead
letters are the product's own. An operator accepts each loss, after some time. The oracle follows from the logs: at the
end each token whose record is in a log has fired once, and each one that only the checkpoint held is one dead letter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tests.simulation.kit.faults import Crashed, Faults, Violation
from tests.simulation.kit.log import SimRecord
from tests.simulation.loss_simulator import Fate
from tests.simulation.sim_leaders import SimLineages, at_once
from tests.simulation.spark_checkpoint import PARTITIONS, Chunks
from tests.simulation.spark_simulator import LIMITS, SimPartitions, SimSpark
from timers.core.lineage import Lineage
from timers.core.progress import LOG_CUT, Progress
from timers.core.rescue import LOST_FROM_LOG, cut_below
from timers.core.timer import TopicPartition
from timers.errors import CheckpointMismatch, LogMismatch
from timers.kafka.log_lineage import Answer
from timers.spark.engine import timer_batches
from timers.spark.engine.bucket import HELD, Bucket, BucketState, Held
from timers.spark.engine.machines import Known, Opened, PartitionRun, write_dead_letters
from timers.spark.engine.read_logs import ReadLogs
from timers.spark.engine.timer_batches import Arrivals, Group
from timers.v1.future_pb2 import Future
from timers.wire import future
from timers.wire import headers as h

TARGET = "orders"
LAST_DUE_S = 30


class LosingSpark(SimSpark):
    """One random run. Mutations replace some of its parts."""

    def __init__(
        self,
        seed: int,
        partitions: type[SimPartitions] = SimPartitions,
        run: type[PartitionRun] = PartitionRun,
        read_logs: type[ReadLogs] = ReadLogs,
        bucket: type[Bucket] = Bucket,
    ) -> None:
        super().__init__(seed, partitions, run)
        self._bucket_of = bucket
        self._read_logs_of = read_logs
        self.fates: dict[bytes, Fate] = {}
        self._is_stopped = False
        """Whether the engine has ended because a log is another one."""
        self.accepts = False
        """Whether the operator has accepted the losses for this run of the engine."""
        self._cuts: dict[int, int] = {}
        self._noted: set[int] = set()
        """Numbers of the committed records that were looked at."""
        self._start_process()

    # ---- a run ------------------------------------------------------------------------------------------------------

    def go(self, steps: int = 120) -> None:
        actions: list[tuple[Callable[[], None], int]] = [
            (self._work, 40),
            (self._send, 30),
            (self._pass_time, 15),
            (partial(self._start_process, self._lose_checkpoint), 1),
            (partial(self._start_process, self._restore_checkpoint), 1),
            (self._start_process, 5),
            (self._elect, 3),
            (self._lose_end, 3),
        ]
        for _ in range(steps):
            self.random.choices([action for action, _ in actions], [weight for _, weight in actions])[0]()
            if self._is_stopped and self.random.random() < 0.2:
                self._accept_losses()
            self._check()
        for _ in range(60):
            self._pass_time(5)
            self._work(faults=False)
            if self._is_stopped:
                self._accept_losses(faults=False)
            self._check()
        self._judge()

    def _send(self) -> None:
        token = b"token-%d" % len(self.fates)
        due_s = self.log.clock.now_s + self.random.choice([-2, 0, 1, 2, 5, 9, LAST_DUE_S])
        partition = self.random.randrange(PARTITIONS)
        self.happened["requests"] += 1
        request = future.encode(TARGET, token.decode(), b"value")
        topic = self.settings.request_topic
        record = self.log.append(topic, b"%d" % due_s, request, partition=partition)
        self.fates[token] = Fate(record, due_s)

    def _work(self, *, faults: bool = True) -> None:
        if self._is_stopped:
            return
        try:
            self._micro_batch(faults=faults)
        except CheckpointMismatch:  # the driver plans anew
            self._guarded(partial(self._plan_anew, faults=faults))
        except LogMismatch:
            self._stop()

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except LogMismatch:
            self._stop()
        except Crashed:
            self.happened["crashes"] += 1
            self._is_stopped = True

    def _stop(self) -> None:
        self.happened["stopped"] += 1
        if not self.log.was_cut:
            raise Violation("the engine stopped, and its logs are whole")
        self._is_stopped = True

    def _start_process(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """The engine starts again: what its driver knew is gone, and the acceptance was for one start."""
        meanwhile()
        self.accepts = False
        if meanwhile in (self._lose_checkpoint, self._restore_checkpoint):
            for fate in self.fates.values():  # what held it may be gone
                fate.held &= fate.letters > 0
        self._begin_process()

    def _begin_process(self) -> None:
        self._is_stopped = False
        self.read_logs = self._read_logs_of(self.settings.request_topic, SimLineages(self.log), at_once)
        self._guarded(self._start_again)

    def _accept_losses(self, *, faults: bool = True) -> None:
        self.accepts = True
        self.happened["accepted"] += 1
        self._begin_process()

    # ---- what the driver does before a query ------------------------------------------------------------------------

    def _plan(self) -> None:
        self._rescue_all(Faults())
        self._begin_query()

    def _begin_query(self) -> None:
        super()._plan()
        progress = {number: self.read_progress(number) for number in range(PARTITIONS)}
        self.read_logs.begin(progress)
        self._cuts = {number: each.largest(LOG_CUT) for number, each in progress.items()}

    def task_progress(self, partition: int) -> Progress:
        progress = super().task_progress(partition)
        if progress.largest(LOG_CUT) != self._cuts[partition]:
            raise CheckpointMismatch("a log was cut since the query began")
        return progress

    def _plan_anew(self, *, faults: bool) -> None:
        armed = Faults()
        if faults and self.random.random() < 0.3:
            armed.crash_after(self.random.randrange(12))
        if not self._rescue_all(armed):
            self._lose_checkpoint()
        self._begin_query()

    def _rescue_all(self, faults: Faults) -> bool:
        """As :func:`timers.spark.engine.start.plan` does. Returns whether the checkpoint was dropped."""
        self._cuts = {number: self.read_progress(number).largest(LOG_CUT) for number in range(PARTITIONS)}
        is_old = False
        for encoded, held in self.checkpoint.states:
            state = BucketState() if encoded is None else BucketState.decode(encoded)
            for number, known in state.known.items():
                progress = self.read_progress(number)
                if not progress.rescues:
                    continue
                is_old |= known.progress.cuts != progress.cuts
                if known.holds_lost(progress):
                    self._rescue(number, state, Chunks(dict(held)), faults)
        if is_old:
            self._lose_checkpoint()
        return is_old

    def _rescue(self, number: int, state: BucketState, chunks: Chunks, faults: Faults) -> None:
        groups = _groups(state, chunks, number)
        progress = self.read_progress(number)
        for group in groups:
            for row in group.rows:
                fate = self.fates[str(row[2]).encode()]
                fate.held |= fate.lost and not fate.fired and row[0] >= progress.rescues[-1].from_offset
        self._write(number, state, groups, faults)

    def _write(self, number: int, state: BucketState, groups: list[Group], faults: Faults) -> None:
        assert state.tick is not None
        partitions = self._partitions(self, faults)
        write_dead_letters(partitions, number, state.known[number], groups, LIMITS, state.tick)

    def read_progress(self, partition: int) -> Progress:
        """The committed progress, compared with its log as :class:`timers.kafka.progress_log.ProgressLog` does."""
        progress, tp = super().read_progress(partition), (self.settings.request_topic, partition)
        answer = self._parted(tp, progress.lineage)
        cut = cut_below(progress.next_offset, answer, 0, self.log.end(*tp))
        if cut is None:
            return progress
        if not self.accepts:
            raise LogMismatch(f"{tp} has lost its records from {cut} on")
        return progress.shortened(cut)

    def _parted(self, tp: TopicPartition, lineage: Lineage) -> Answer:
        if not lineage.end:
            return None
        answers: dict[TopicPartition, list[Answer]] = at_once(SimLineages(self.log).parted({tp: [lineage]})).result()
        return answers[tp][0]

    def own_between(self, partition: int) -> None:
        """No worker runs here."""

    # ---- logs that lose their end -----------------------------------------------------------------------------------

    def _elect(self) -> None:
        self.log.elect(*self.random.choice(self._requests))

    def _lose_end(self) -> None:
        """An unclean election; then the log may grow again, to and past its former end."""
        tp = self.random.choice(self._requests)
        end = self.log.end(*tp)
        if end < 2 or self.happened["cuts"] > 3:
            return
        cut = self.random.randint(max(0, end - 9), end - 1)
        gone = {id(each) for each in self.log.elect(*tp, cut)}
        for fate in self.fates.values():
            fate.lost |= id(fate.record) in gone
            # What a query has read may fire again if its log loses it while losses are accepted: the design says so.
            fate.unsure |= self.accepts and id(fate.record) in gone
        self.happened["cuts"] += 1
        grow = self.random.choice([0, 0, 1, end - cut, end - cut + 3])
        for _ in range(200):
            if self.log.end(*tp) >= cut + grow:
                break
            self._send()

    # ---- the oracle -------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        for record in self.log.committed:
            if record.seq not in self._noted:
                self._noted.add(record.seq)
                self._look(record)

    def _look(self, record: SimRecord) -> None:
        headers = dict(record.headers)
        if record.topic == TARGET:
            fate = self.fates[record.key or b""]
            fate.fired += 1
            fate.sources.append((headers[h.TIMER_ID] or b"").decode())
        elif record.topic == self.settings.dead_letter_topic:
            if headers[h.TIMER_ERROR] != LOST_FROM_LOG.encode():
                raise Violation(f"another dead letter: {headers}")
            self.fates[Future.FromString(record.value or b"").callBackKey.encode()].letters += 1
            self.happened["letters"] += 1

    def _judge(self) -> None:
        sources = [source for fate in self.fates.values() if not fate.unsure for source in fate.sources]
        if len(set(sources)) < len(sources):
            raise Violation("two timers fired with one id")
        for token, fate in self.fates.items():
            if not fate.lost and fate.fired != 1:
                raise Violation(f"{token!r} is in the log and fired {fate.fired} times: {fate}")
            if (fate.fired > 1 and not fate.unsure) or fate.letters > 1 or (fate.letters and not fate.lost):
                raise Violation(f"{token!r}: {fate}")
            if fate.held and (fate.fired, fate.letters) != (0, 1):
                raise Violation(f"only the checkpoint held {token!r}: {fate}")


def _groups(state: BucketState, chunks: Chunks, partition: int) -> list[Group]:
    found: list[Group] = []
    for key, timer_batch in chunks.held.items():
        if key.slot.level != HELD:
            found += [each for each in timer_batches.unpack(timer_batch) if each.partition == partition]
    return found


# ---- engines that are broken on purpose ----------------------------------------------------------------------------


class WithoutLineage(PartitionRun):
    """The progress has no lineage: only the driver that has read a log knows it."""

    def accept(self, arrivals: Sequence[Arrivals], end: int, lineage: Lineage) -> None:
        super().accept(arrivals, end, Lineage())


class ComparesNothing(ReadLogs):
    """Micro-batches read on without a comparison."""

    def through(self, ends: Mapping[int, int]) -> dict[int, Lineage]:
        known = {(self._topic, number): (self._known(number), end) for number, end in ends.items()}
        found: dict[tuple[str, int], Lineage] = at_once(self._lineages.extended(known)).result()
        self._read.update({number: lineage for (_, number), lineage in found.items()})
        return {number: self._read[number] for number in ends}


class TrustsWhatWaits(Bucket):
    """Accepts what waits in the checkpoint without a look at its log."""

    def _held(self, number: int, lineage: Lineage) -> Held | None:
        return self.state.held.get(number)


class WithoutCuts(SimPartitions):
    """Sources above a cut do not have its number."""

    def _open(self, partition: int, before: Known | None) -> Opened:
        return super()._open(partition, before)._replace(bind=lambda _: None)


class ComparesTheEndOnly(LosingSpark):
    """A start looks at the ends of the logs only."""

    def _parted(self, tp: TopicPartition, lineage: Lineage) -> Answer:
        return None


class RescuesNothing(LosingSpark):
    """The checkpoint is deleted before its timers are dead letters."""

    def _write(self, number: int, state: BucketState, groups: list[Group], faults: Faults) -> None:
        """Write nothing."""


BROKEN: dict[str, Callable[[int], SimSpark]] = {
    "T1 the progress has no lineage": partial(LosingSpark, run=WithoutLineage),
    "T1 no comparison in micro-batches": partial(LosingSpark, read_logs=ComparesNothing),
    "T1 what waits is not compared": partial(LosingSpark, bucket=TrustsWhatWaits),
    "T2 the end only": ComparesTheEndOnly,
    "T8 the checkpoint is deleted first": RescuesNothing,
    "T9 sources without the number of the cut": partial(LosingSpark, partitions=WithoutCuts),
}


def losses_find(rule: str, seed: int) -> bool:
    """Whether a simulated run finds a mutation."""
    try:
        BROKEN[rule](seed).go()
    except Violation:
        return True
    return False
