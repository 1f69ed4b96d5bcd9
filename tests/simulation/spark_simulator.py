"""The engine on Spark over a simulated log: Spark runs micro-batches, repeats them, and loses its checkpoint.

A run consists of random steps. The buckets are the product's own; only what Spark and the brokers do is simulated: a
micro-batch is planned before it runs, and a restart repeats it with the same offsets and ticks. A bucket's state is
kept when its task ends. A task may run on any executor, each with a disk of its own, may fail at any point, and another
attempt may run while it is still running. Workers may take over and give back.
:class:`tests.simulation.checkers.Checkers` checks every committed record.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar

from tests.simulation.checkers import Checkers
from tests.simulation.kit import SimClock, SimLog, SimWorker
from tests.simulation.kit import faults as f
from tests.simulation.kit.faults import Crashed, Faults
from tests.simulation.kit.outbox import TOPIC_ID
from tests.simulation.kit.worker import SimRunner
from tests.simulation.sim_leaders import SimLineages, at_once
from tests.simulation.spark_checkpoint import PARTITIONS, Checkpoint
from tests.simulation.workload import Workload
from timers.core.clock_guard import ClockGuard, Clocks
from timers.core.limits import Limits
from timers.core.progress import Cuts, Progress
from timers.core.timer import CLOCK_STEP_BACK_S, Fetched, TopicPartition
from timers.errors import CheckpointMismatch, Fenced, LogMismatch
from timers.machines.firing.policy import Policy
from timers.machines.opener import Known as OfStore
from timers.process.config.settings import Settings
from timers.process.partition_metrics import PartitionMetrics
from timers.spark.columns import RECORD_SCHEMA, record_batch
from timers.spark.engine.bucket import Arrivals, Bucket, BucketState, pack
from timers.spark.engine.machines import Failing, Known, MachineRun, Openings, ProducerOpening, Read, RunningMachine
from timers.spark.engine.query import ReadLogs
from timers.wire import headers as h
from timers.wire.topics import transactional_id

NOW_S = 1_000_000
LIMITS = Limits(chunk_timers=5, chunk_bytes=10_000, max_request_bytes=2_000)
MOST = 20
"""Largest number of requests of a micro-batch."""


class Point(Faults):
    """Faults that may also start another attempt of the running task at a point."""

    def __init__(self) -> None:
        super().__init__()
        self.other: Callable[[], object] | None = None
        self.other_after = 0

    def point(self, name: str) -> None:
        if self.other is not None:
            self.other_after -= 1
            if self.other_after < 0:
                other, self.other = self.other, None
                other()
        super().point(name)

    def clear(self) -> None:
        super().clear()
        self.other = None


class SimExecutor(SimWorker):
    """A process of Spark, and its disk: it opens machines as a worker does.

    Attributes:
        known: what a bucket knows of a partition.
    """

    trusts_any_opening: ClassVar[bool] = False
    """Whether the progress that a bucket knows is used without a look at who has opened the producer since."""

    known: Known | None = None

    def fence(self, machine: TopicPartition, policy: Policy) -> None:
        super().fence(machine, policy)
        self.opening = ProducerOpening(7, self.log.epoch(transactional_id(self.settings.app_id, *machine)))

    def known_of(self, machine: TopicPartition) -> OfStore | None:
        known = self.known
        is_mine = known is not None and (self.trusts_any_opening or known.producer.is_followed_by(self.opening))
        return known.of_store if known is not None and is_mine else None


class SimPartitions(Openings):
    """Opens the partitions of one attempt of a task, in memory."""

    def __init__(self, engine: SimSpark, executor: SimExecutor) -> None:
        self._engine = engine
        self._executor = executor
        self.snapshots: Any = SimpleNamespace(asks=lambda tp: engine.asks())
        self.had_others = False

    def run(self, runs: Collection[MachineRun]) -> Failing:
        """What fails is known to all: they share their routes."""
        order = list(runs)
        self._engine.random.shuffle(order)
        for each in order:
            each.go()
        return Failing()

    def has_time(self) -> bool:
        """Whether a machine may take another step in this micro-batch."""
        return self._engine.random.random() < 0.97

    def open(self, tp: TopicPartition, known: Known | None) -> RunningMachine:
        executor = self._executor
        executor.known = known
        executor.assign([tp])
        if not executor.alive:
            raise Crashed("while a partition was opened")
        if tp in executor.stopped:
            raise executor.stopped[tp]
        if tp not in executor.runners:
            raise LogMismatch(f"{tp} cannot be opened")
        runner = executor.runners[tp]
        transaction, metrics = runner.outbox.policy.transaction, PartitionMetrics()
        metrics.counters = runner.outbox.counters
        close, answer = partial(executor.revoke, tp), partial(self._engine.answer, executor, runner)
        return RunningMachine(runner.loop, transaction, TOPIC_ID, executor.opening, metrics, close, answer)

    def look(self, tp: TopicPartition, known: Known) -> RunningMachine | None:
        """No queries come."""
        return None

    def log_end(self, tp: TopicPartition) -> int | None:
        self._engine.happened["ends asked again"] += 1
        return self._executor.end_of(tp)

    def reopen(self, tp: TopicPartition, error: Exception) -> RunningMachine:
        self._engine.own_between(tp)
        return self.open(tp, None)

    def read(self, tp: TopicPartition, start: int, end: int) -> Generator[Fetched, None, None]:
        self._engine.happened["read again"] += 1
        while start < end:
            size = self._engine.random.choice([1, 4, 1000])
            fetched = self._executor.log.fetch(*tp, start, min(size, end - start))
            if start == fetched.to_offset:
                raise CheckpointMismatch("the log has lost its end")
            start = fetched.to_offset
            yield fetched._replace(passed=(), connection=0)  # librdkafka shows no record batches


class SimRun(MachineRun):
    """Has no time at random."""

    def _has_time(self, until: float) -> bool:
        assert isinstance(self._partitions, SimPartitions)
        return self._partitions.has_time()


class SimSpark:
    """One random run.

    Args:
        executor: opens the partitions of a task. Mutations replace it.
    """

    schedule_topics: ClassVar[tuple[str, ...]] = ()
    checkers_of: ClassVar[type[Checkers]] = Checkers
    worker_of: ClassVar[type[SimWorker]] = SimWorker

    def __init__(
        self,
        seed: int,
        executor: type[SimExecutor] = SimExecutor,
    ) -> None:
        self.random = random.Random(seed)
        self.settings = Settings(
            retry_attempts=3, max_request_bytes=LIMITS.max_request_bytes, schedule_topics=self.schedule_topics
        )
        self.log = SimLog(SimClock(NOW_S), PARTITIONS)
        self.log.missing.add("missing")
        self._topics = [self.settings.request_topic, self.settings.id_topic, *self.schedule_topics]
        self._requests = [(topic, number) for topic in self._topics for number in range(PARTITIONS)]
        retries = [(self.settings.retry_topic, number) for number in range(PARTITIONS)]
        self._workload = Workload(self.random, self.log, *self._topics, large=True, condition_random=self.random)
        self._limits = LIMITS
        self.read_logs = ReadLogs(SimLineages(self.log), at_once)
        self.checkers = self.checkers_of(self.log, self.settings, [*self._requests, *retries])
        self.worker = self.worker_of("worker", self.log, self.settings, LIMITS)
        self.worker.assign(retries)
        self._executors = [executor(f"executor-{each}", self.log, self.settings, LIMITS) for each in range(2)]
        for each in self._executors:
            each.faults = Point()
        self._starts = dict.fromkeys(self._requests, 0)
        self._cuts: dict[TopicPartition, Cuts] = {}
        self.checkpoint = Checkpoint.new(self.random.choice([1, 2, 3]), self._starts, 0)
        self._old = self.checkpoint.copy()
        self._workers_run = False
        self._seen = 0
        self._stepped_back = False
        self._read: dict[TopicPartition, Read] = {}
        self.happened: Counter[str] = Counter()

    # ---- a run ------------------------------------------------------------------------------------------------------

    def run(self, steps: int = 120) -> None:
        """Take random steps, then fire all that is due, and check."""
        actions: list[tuple[Callable[[], None], int]] = [
            (self._micro_batch, 40),
            (self._request, 30),
            (self._pass_time, 20),
            (self._retry, 15),
            (self._arm, 6),
            (self._change_target, 3),
            (self._lose_checkpoint, 1),
            (self._lose_disk, 1),
            (self._restore_checkpoint, 1),
            (self._hand_over, 2),
            (self._change_limit, 4),
            (self._start_again, 2),
            (self._step_back, 1),
            *self._more_actions(),
        ]
        for _ in range(steps):
            self.random.choices([action for action, _ in actions], [weight for _, weight in actions])[0]()
            self._check()
        self._settle()

    @property
    def counts(self) -> Counter[str]:
        """What happened, to the engine and to timers."""
        return self.happened + self.checkers.counts

    def _more_actions(self) -> list[tuple[Callable[[], None], int]]:
        return []

    def _settle(self) -> None:
        self.log.failing.clear()
        self.worker.faults.clear()
        self._workload.end_all_transactions()
        if self._workers_run:
            self._hand_over()
        for _ in range(60):
            self._pass_time(5)
            self._micro_batch(faults=False)
            self._retry()
            self._check()
        self.checkers.check_end(self.log.clock.now_s - 1)

    def _check(self) -> None:
        """Check the new records; no timer may be early. After the clock went back, only its outcome is checked."""
        for record in self.log.committed[self._seen :]:
            headers = dict(record.headers)
            if h.TIMER_FIRED in headers and not self._stepped_back:
                due_s = int(headers[h.TIMER_DUE] or 0)
                assert due_s * 1000 <= record.timestamp_ms, record
                # A tick may be this far behind the second up to which others have fired [I10].
                assert due_s - CLOCK_STEP_BACK_S <= int(headers[h.TIMER_FIRED] or 0) // 1000, record
        self._seen = len(self.log.committed)
        self.checkers.check()

    def _step_back(self) -> None:
        """The clock of the brokers goes back."""
        self.happened["steps back"] += 1
        self._stepped_back = True
        self.log.clock.step_ms(-self.random.choice([1, 3, 20]) * 1000)
        self._pass_time(0)

    def _pass_time(self, seconds: int | None = None) -> None:
        seconds = self.random.choice([1, 1, 1, 2, 7, 70]) if seconds is None else seconds
        self.log.clock.advance_ms(seconds * 1000)
        if seconds in (0, 5) or self.random.random() < 0.9:
            self.log.append(self.settings.oscillator_topic, b"", b"1", partition=0)
            self.checkers.times.note_tick(self.log.clock.now_s)

    def _request(self) -> None:
        for _ in range(self.random.choice([1, 1, 3])):
            self._workload.produce()

    def _arm(self) -> None:
        self.worker.faults.arm(self.random.choice(f.ALL))

    def _change_target(self) -> None:
        if "flaky" in self.log.failing:
            self.log.failing.clear()
        else:
            self.log.failing.add("flaky")

    def _retry(self) -> None:
        """The driver's machines for the retry topic do some steps."""
        self.worker.poll_ticks()
        for machine in list(self.worker.runners):
            fetched = self.worker.poll_requests(machine)
            if fetched is not None:
                self.worker.runners[machine].loop.add_fetch(fetched)
            for _ in range(3):
                if machine in self.worker.runners:
                    self.worker.step(machine)

    def _lose_checkpoint(self) -> None:
        """Spark starts with a new checkpoint, and maybe another number of buckets."""
        self.happened["lost checkpoints"] += 1
        self._plan()
        self.checkpoint = Checkpoint.new(self.random.choice([1, 2, 3]), self._starts, self._ticks_end)

    def _lose_disk(self) -> None:
        """An executor gets another disk."""
        self.happened["lost disks"] += 1
        self.random.choice(self._executors).disk.wipe()

    def _restore_checkpoint(self) -> None:
        """Spark starts with an old copy of its checkpoint; it may be a while until the next one is made."""
        self.checkpoint, self._old = self._old.copy(), self.checkpoint.copy()
        self._start_again()

    def _hand_over(self) -> None:
        """Workers take over all partitions from Spark, or give them back."""
        self._workers_run = not self._workers_run
        self.happened["takeovers"] += 1
        for machine in self._requests:
            if self._workers_run:
                self._assign(machine)
            else:
                self.worker.revoke(machine)

    def _assign(self, machine: tuple[str, int]) -> None:
        """Let workers own a partition. They may have another limit than the engine."""
        self.worker.limits = self._some_limits()
        self.worker.assign([machine])
        self.worker.limits = LIMITS  # of the machines of the retry topic

    def asks(self) -> bool:
        """Whether a partition is opened for its snapshots, although nothing else is to do."""
        return False

    def answer(self, executor: SimExecutor, runner: SimRunner, record_bytes: float | None) -> None:
        """Work on the snapshots of an open machine that has nothing left to do."""

    def _some_limits(self) -> Limits:
        return replace(LIMITS, max_request_bytes=self.random.choice([LIMITS.max_request_bytes, 300]))

    def _change_limit(self) -> None:
        """The engine starts again with another limit."""
        self._limits = self._some_limits()
        self._start_again()

    def _start_again(self) -> None:
        """The engine starts again, and plans the micro-batch again that has not ended."""
        self.checkpoint.planned = None
        self.checkpoint.done.clear()
        self._plan()
        self._starts = {}  # the query began at others

    def _plan(self) -> None:
        """Read the progress, as the engine does before it starts its query."""
        progress = {tp: self._progress_of(tp) for tp in self._requests}
        self._starts = {tp: each.next_offset for tp, each in progress.items()}
        self._cuts = {tp: each.cuts for tp, each in progress.items()}
        self._begin_query(progress)
        for each in self._executors:
            each.limits = self._limits

    def _begin_query(self, progress: Mapping[TopicPartition, Progress] = MappingProxyType({})) -> None:
        self.read_logs.begin(progress)
        self._read = {}

    def _progress_of(self, tp: TopicPartition) -> Progress:
        return self.worker.read_progress(tp)

    def own_between(self, machine: TopicPartition) -> None:
        """Maybe let a worker own a partition until Spark opens it again after a lost transaction."""
        if self.random.random() < 0.5:
            return
        self.happened["owners between"] += 1
        self._pass_time()
        self._assign(machine)
        self.worker.poll_ticks()
        for _ in range(self.random.choice([1, 3, 8])):
            if machine in self.worker.runners:
                fetched = self.worker.poll_requests(machine, self.random.choice([1, 3, 50]))
                if fetched is not None:
                    self.worker.runners[machine].loop.add_fetch(fetched)
                self.worker.step(machine)
        self.worker.revoke(machine)

    # ---- Spark ------------------------------------------------------------------------------------------------------

    @property
    def _ticks_end(self) -> int:
        return self.log.end(self.settings.oscillator_topic, 0)

    def _plan_micro_batch(self, meanwhile: Callable[[], None]) -> tuple[dict[TopicPartition, int], int]:
        """Ask for the end of the ticks, and then for the ends of the requests; meanwhile others are written."""
        ticks_end = self._ticks_end
        if self.random.random() < 0.3:
            meanwhile()
        return self._ends_of_requests(), ticks_end

    def _ends_of_requests(self) -> dict[TopicPartition, int]:
        read, ends = self.checkpoint.ends, {tp: self.log.last_stable(*tp) for tp in self._requests}
        sizes = {tp: end - read[tp] for tp, end in ends.items()}
        if min(sizes.values()) < 0:
            raise CheckpointMismatch("some data may have been lost")  # as Spark's source does
        total = sum(sizes.values())
        if total > MOST:  # as Spark's source does with maxOffsetsPerTrigger
            self.happened["limited"] += 1
            sizes = {tp: min(size, max(1, MOST * size // total)) for tp, size in sizes.items()}
        return {tp: read[tp] + size for tp, size in sizes.items()}

    def _micro_batch(self, *, faults: bool = True) -> None:
        if self._workers_run:
            return
        query = self.checkpoint
        if query.planned is None:
            query.planned = self._plan_micro_batch(meanwhile=self._request if faults else lambda: None)
        if not self._read:  # an executor that is lost starts no other call of the driver
            ends, _ = query.planned
            lineages, log_ends = self.read_logs.through(ends), self._log_ends(ends)
            self._read = {tp: Read(end, log_ends.get(tp), lineages[tp]) for tp, end in ends.items()}
        for number in range(len(query.states)):
            if number in query.done and self.random.random() < 0.8:
                continue  # a restart repeats all tasks, and a lost executor only its own
            executor, other = self.random.sample(self._executors, 2)
            point = executor.faults
            assert isinstance(point, Point)
            if faults and self.random.random() < 0.1:
                point.crash_after(self.random.randrange(25))
            if faults and self.random.random() < 0.1:
                point.other = partial(self._attempt, number, other)
                point.other_after = self.random.randrange(20)
            if faults and self.random.random() < 0.1:
                point.arm(self.random.choice(f.ALL))
            if not self._attempt(number, executor):
                if self.random.random() < 0.5:
                    query.done.clear()  # the driver failed too
                    self._begin_query()
                return
        query.states = [query.done[number] for number in range(len(query.states))]
        (query.ends, query.ticks_read), query.planned, query.done = query.planned, None, {}
        self._read = {}
        if self.random.random() < 0.1:
            self._old = query.copy()

    def _attempt(self, number: int, executor: SimExecutor) -> bool:
        """One attempt of the task of a bucket. Returns whether it ended well."""
        query = self.checkpoint
        assert query.planned is not None
        ends, ticks_end = query.planned
        encoded, buckets = query.states[number], len(query.states)
        state = BucketState() if encoded is None else BucketState.decode(encoded)
        bucket = Bucket(state, SimPartitions(self, executor), self._starts, self._cuts, SimRun)
        mine = {tp: each for tp, each in self._read.items() if tp[1] % buckets == number}
        arrivals = [each for tp in mine for each in self._arrivals(tp, query.ends[tp], ends)]
        self.random.shuffle(arrivals)
        ticks = self.log.fetch(self.settings.oscillator_topic, 0, query.ticks_read, committed=False).records
        ticks_ms = [tick.timestamp_ms for tick in ticks if tick.offset < ticks_end][-1:]
        try:
            if not ticks_ms and not arrivals:
                query.done[number] = encoded  # Spark does not call the function of a key without rows
                return True
            clocks = Clocks(self.log.clock.boot_ms / 1000, self.log.clock.now_ms / 1000)
            guard = ClockGuard(self.settings.max_clock_leap_s)
            tick = bucket.counted(ticks_ms, guard, clocks, executor.name, None)
            bucket.process(arrivals, mine, tick)
            executor.faults.point("before the state is committed")
        except (Crashed, Fenced):
            self.happened["failed tasks"] += 1
            executor.crash()
            executor.disk.kill()
            executor.start()
            return False
        finally:
            executor.faults.clear()
            self._check()
        query.done[number] = state.encode()
        return True

    def _log_ends(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return self.read_logs.log_ends(ends, self._topics[1:], MOST)

    def _arrivals(self, tp: TopicPartition, start: int, ends: Mapping[TopicPartition, int]) -> list[Arrivals]:
        """What the first step of the engine makes of a range of requests."""
        found: list[Arrivals] = []
        rows = [
            (*tp, each.offset, each.timestamp, each.timestamp_type, each.key, each.value, each.headers)
            for each in self.log.fetch(*tp, start, ends[tp] - start).records
        ]
        size = self.random.choice([1, 4, 1000])
        for first in range(0, len(rows), size):
            found.append(Arrivals.unpack(pack(record_batch(rows[first : first + size], RECORD_SCHEMA))))
        return found


class SchedulingSpark(SimSpark):
    """A run with schedules: their machines write to their own logs, and so hold back the ends of these [I17]."""

    schedule_topics = ("schedules",)

    def _more_actions(self) -> list[tuple[Callable[[], None], int]]:
        return [(self._slow_markers, 5), (self.log.write_markers, 5)]

    def _slow_markers(self) -> None:
        """The markers of transactions in some logs come late from now on."""
        logs = [tp for tp in self._requests if tp[0] in self.schedule_topics]
        self.log.slow_markers = {tp for tp in logs if self.random.random() < 0.5}

    def _settle(self) -> None:
        self.log.slow_markers.clear()
        self.log.write_markers()
        super()._settle()
