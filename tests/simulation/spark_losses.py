"""The engine on Spark whose request logs lose their end and grow again [I28].

Micro-batches, tasks and checkpoints are those of the other simulated runs; the driver's comparisons are the product's
own. What a machine does that finds another log, its store and its dead letters, is simulated for workers
(:mod:`tests.simulation.loss_simulator`). An operator accepts each loss, after some time. The oracle follows from the
logs: at the end each token whose record is in a log has fired once, and no other one twice.
"""

from collections.abc import Callable
from functools import partial

from tests.simulation.edits import Mutation, changed
from tests.simulation.kit.faults import Violation
from tests.simulation.kit.log import SimRecord
from tests.simulation.loss_simulator import Fate
from tests.simulation.sim_leaders import SimLineages, at_once
from tests.simulation.spark_checkpoint import PARTITIONS
from tests.simulation.spark_simulator import SimSpark
from timers.core.lineage import Answer, Lineage
from timers.core.progress import Progress
from timers.core.rescue import cut_below
from timers.core.timer import TopicPartition
from timers.errors import CheckpointMismatch, LogMismatch
from timers.spark.engine.query import ReadLogs
from timers.v1.future_pb2 import Future
from timers.wire import future
from timers.wire import headers as h
from timers.wire.dead_letter import LOST_FROM_LOG

TARGET = "orders"
LAST_DUE_S = 30


class LosingSpark(SimSpark):
    """One random run."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.fates: dict[bytes, Fate] = {}
        self._read_before: object = None
        """What the driver had compared when a log last lost its end."""
        self._is_stopped = False
        """Whether the engine has ended because a log is another one."""
        self.accepts = False
        """Whether the operator has accepted the losses for this run of the engine."""
        self._noted: set[int] = set()
        """Numbers of the committed records that were looked at."""
        self._start_process()

    # ---- a run ------------------------------------------------------------------------------------------------------

    def run(self, steps: int = 120) -> None:
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
                self._accept_losses()
            self._check()
        self._judge()

    def _request(self) -> None:
        self._send()

    def _send(self) -> None:
        token = b"token-%d" % len(self.fates)
        due_s = self.log.clock.now_s + self.random.choice([-2, 0, 1, 2, 5, 9, LAST_DUE_S])
        partition = self.random.randrange(PARTITIONS)
        request = future.encode(TARGET, token.decode(), b"value")
        topic = self.settings.request_topic
        record = self.log.append(topic, b"%d" % due_s, request, partition=partition)
        self.fates[token] = Fate(record, due_s)
        # The tasks may still read it in the micro-batch that was compared before: it fires again once that is noticed.
        self.fates[token].unsure = bool(self._read) and self._read is self._read_before

    def _work(self, *, faults: bool = True) -> None:
        if not self._is_stopped:
            self._guarded(partial(self._micro_batch, faults=faults))

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except CheckpointMismatch:  # the driver plans anew
            self.checkpoint.done.clear()
            self._guarded(self._lose_checkpoint)
        except LogMismatch:
            self.happened["stopped"] += 1
            if not self.log.was_cut:
                raise Violation("the engine stopped, and its logs are whole") from None
            self._is_stopped = True

    def _start_process(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """The engine starts again: what its driver knew is gone, and the acceptance was for one start."""
        self.accepts = False
        self._begin_process(meanwhile)

    def _begin_process(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self._is_stopped = False
        for each in self._executors:
            each.accepted = set(self._requests) if self.accepts else set()
        self.read_logs = ReadLogs(SimLineages(self.log), at_once)
        self._guarded(meanwhile)
        self._guarded(self._start_again)

    def _accept_losses(self) -> None:
        self.accepts = True
        self.happened["accepted"] += 1
        self._begin_process()

    # ---- what the driver does before a query ------------------------------------------------------------------------

    def _progress_of(self, tp: TopicPartition) -> Progress:
        """The committed progress, compared with its log as :class:`timers.kafka.progress_log.ProgressLog` does."""
        progress = super()._progress_of(tp)
        cut = cut_below(progress.next_offset, self._parted(tp, progress.lineage), 0, self.log.end(*tp))
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

    def own_between(self, machine: TopicPartition) -> None:
        """No worker runs here."""

    # ---- logs that lose their end -----------------------------------------------------------------------------------

    def _elect(self) -> None:
        self.log.elect(*self.random.choice(self._requests[:PARTITIONS]))

    def _lose_end(self) -> None:
        """An unclean election; then the log may grow again, to and past its former end."""
        tp = self.random.choice(self._requests[:PARTITIONS])
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
        self._read_before = self._read
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
        for token, fate in self.fates.items():
            if not fate.lost and fate.fired != 1 and not (fate.unsure and fate.fired):
                raise Violation(f"{token!r} is in the log and fired {fate.fired} times: {fate}")
            if (fate.fired > 1 and not fate.unsure) or fate.letters > 1 or (fate.letters and not fate.lost):
                raise Violation(f"{token!r}: {fate}")


# ---- engines that are broken on purpose ----------------------------------------------------------------------------


class ComparesTheEndOnly(LosingSpark):
    """A start looks at the ends of the logs only."""

    def _parted(self, tp: TopicPartition, lineage: Lineage) -> Answer:
        return None


GIVEN = "each._replace(lineage=lineage and lineage.before(each.to_offset))"

MUTATIONS: dict[str, Mutation] = {
    "T1 the progress has no lineage": changed((GIVEN, "each._replace(lineage=None)")),
    "T1 what is read again has no lineage": changed(
        (GIVEN, f"{GIVEN} if each.from_offset >= start else each._replace(lineage=None)")
    ),
    # The logs are extended in each micro-batch, and compared in none.
    "T1 no comparison in micro-batches": changed(
        (
            "self._ask({tp: ends[tp] for tp in asked})",
            "self._lineages.extended({tp: (self._known(tp), ends[tp]) for tp in asked})",
        ),
        (
            "asked = self._submit(coroutine).result(2 * LINEAGE_WAIT_S)",
            "self._read.update(self._submit(coroutine).result(2 * LINEAGE_WAIT_S)); asked = set()",
        ),
    ),
    "T2 the end only": changed(simulator=ComparesTheEndOnly),
    "T2 what was known of the log before": changed(
        ("known if known is not None and known.progress.cuts[: len(cuts)] == cuts else None", "known"),
    ),
}
