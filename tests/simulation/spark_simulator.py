"""The engine on Spark over a simulated log: Spark runs micro-batches, repeats them, and loses its checkpoint.

A run consists of random steps. The buckets are the product's own; only what Spark and the brokers do is simulated: a
micro-batch is planned before it runs, and a restart repeats it with the same offsets and ticks. A bucket's state is
kept when its task ends. A task may fail at any point, and another attempt may run while it is still running. Workers
may take over and give back. :class:`tests.simulation.checkers.Checkers` checks every committed record.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from tests.simulation.checkers import Checkers
from tests.simulation.kit import SimClock, SimLog, SimWorker
from tests.simulation.kit import faults as f
from tests.simulation.kit.faults import Crashed, Faults
from tests.simulation.kit.outbox import PROGRESS_PARTITION, TOPIC_ID, SimTopics, outbox_of
from tests.simulation.sim_leaders import SimLineages, at_once
from tests.simulation.spark_checkpoint import PARTITIONS, Checkpoint, Chunks
from tests.simulation.spark_senders import Senders
from timers.config.settings import Settings
from timers.core.clock_guard import ClockGuard, Clocks
from timers.core.limits import Limits
from timers.core.ports import Lost
from timers.core.progress import MAX_REQUEST_BYTES, Progress
from timers.core.timer import CLOCK_STEP_BACK_S
from timers.errors import CheckpointMismatch, Fenced, HistoryMismatch
from timers.firing.breaker import OpenCircuit
from timers.spark.engine.accepting import Accepting
from timers.spark.engine.bucket import Bucket, BucketState
from timers.spark.engine.machines import Failing, Known, Opened, PartitionRun, Producer
from timers.spark.engine.read_logs import ReadLogs
from timers.spark.engine.timer_batches import Arrivals
from timers.wire import headers as h
from timers.wire import topics

NOW_S = 1_000_000
LIMITS = Limits(chunk_timers=5, chunk_bytes=10_000, max_request_bytes=2_000)


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


class SimPartitions:
    """Implements :class:`timers.spark.engine.machines.Partitions` for one attempt of a task."""

    trusts_any_opening: ClassVar[bool] = False
    """Whether the progress that a bucket knows is used without a look at who has opened the producer since."""

    def __init__(self, engine: SimSpark, faults: Faults) -> None:
        self._engine = engine
        self._faults = faults

    def adopt(self, circuits: list[OpenCircuit]) -> None:
        """The circuits are those of the routes, which all share."""

    had_others = False

    def failing(self) -> Failing:
        return Failing([], [])

    def start_of(self, partition: int) -> int:
        return 0

    def run(self, calls: Sequence[Callable[[], None]]) -> None:
        order = list(calls)
        self._engine.random.shuffle(order)
        for call in order:
            call()

    def open(self, known: Mapping[int, Known | None]) -> dict[int, Opened]:
        return {partition: self._open(partition, before) for partition, before in known.items()}

    def reopen(self, partition: int, error: Lost) -> Opened:
        self._engine.own_between(partition)
        return self._open(partition, None)

    def producer(self, partition: int) -> Producer:
        return self._engine.producer(partition)

    def _open(self, partition: int, before: Known | None) -> Opened:
        engine = self._engine
        tp = engine.settings.request_topic, partition
        outbox = outbox_of(engine.log, engine.settings, tp, self._faults, engine.routes)
        outbox.policy.transaction.open()
        follows = before is not None and before.producer.is_followed_by(self.producer(partition))
        trusted = before is not None and (follows or self.trusts_any_opening)
        progress = before.progress if before is not None and trusted else engine.task_progress(partition)
        bind = partial(outbox.policy.transaction.bind, TOPIC_ID, PROGRESS_PARTITION)
        return Opened(progress, TOPIC_ID, outbox.policy, outbox.counters, bind)


class SimSpark:
    """One random run.

    Args:
        partitions: opens the partitions of a task; run: one partition in a micro-batch. Mutations replace them.
    """

    def __init__(
        self, seed: int, partitions: type[SimPartitions] = SimPartitions, run: type[PartitionRun] = PartitionRun
    ) -> None:
        self.random = random.Random(seed)
        self.settings = Settings(retry_attempts=3, max_request_bytes=LIMITS.max_request_bytes, id_topic="")
        self.log = SimLog(SimClock(NOW_S), PARTITIONS)
        self.log.missing.add("missing")
        self.log.max_message_bytes["narrow"] = 300
        self.routes = SimTopics(self.log)
        self._senders = Senders(self.log, self.settings, self.random)
        self._partitions = partitions
        self._run = run
        self._bucket_of = Bucket
        request, retry = self.settings.request_topic, self.settings.retry_topic
        self._requests = [(request, number) for number in range(PARTITIONS)]
        retries = [(retry, number) for number in range(PARTITIONS)]
        self._limits = LIMITS
        self._accept: Accepting | None = None
        self.read_logs = ReadLogs(request, SimLineages(self.log), at_once)
        self.checkers = Checkers(self.log, self.settings, [*self._requests, *retries])
        self.worker = SimWorker("worker", self.log, self.settings, LIMITS)
        self.worker.assign(retries)
        self.checkpoint = Checkpoint.new(self.random.choice([1, 2, 3]), 0)
        self._old = self.checkpoint.copy()
        self._workers_run = False
        self._seen = 0
        self._stepped_back = False
        self.happened: Counter[str] = Counter()

    # ---- what the brokers hold --------------------------------------------------------------------------------------

    def producer(self, partition: int) -> Producer:
        name = topics.transactional_id(self.settings.app_id, self.settings.request_topic, partition)
        return Producer(7, self.log.epoch(name))

    def read_progress(self, partition: int) -> Progress:
        return self.worker.read_progress((self.settings.request_topic, partition))

    def task_progress(self, partition: int) -> Progress:
        """The progress as a task reads it."""
        return self.read_progress(partition)

    # ---- a run ------------------------------------------------------------------------------------------------------

    def go(self, steps: int = 120) -> None:
        """Take random steps, then fire all that is due, and check."""
        actions: list[tuple[Callable[[], None], int]] = [
            (self._micro_batch, 40),
            (self._senders.request, 30),
            (self._pass_time, 20),
            (self._retry, 15),
            (self._arm, 6),
            (self._change_target, 3),
            (self._senders.aborted, 3),
            (self._lose_checkpoint, 1),
            (self._restore_checkpoint, 1),
            (self._hand_over, 2),
            (self._change_limit, 4),
            (self._start_again, 2),
            (self._step_back, 1),
        ]
        for _ in range(steps):
            self.random.choices([action for action, _ in actions], [weight for _, weight in actions])[0]()
            self._check()
        self._settle()

    def _settle(self) -> None:
        self.log.failing.clear()
        self.worker.faults.clear()
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

    def _arm(self) -> None:
        self.worker.faults.arm(self.random.choice(f.ALL))

    def _change_target(self) -> None:
        if "failing" in self.log.failing:
            self.log.failing.clear()
        else:
            self.log.failing.add("failing")

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
        self.checkpoint = Checkpoint.new(self.random.choice([1, 2, 3]), self._ticks_end)

    def _restore_checkpoint(self) -> None:
        """Spark starts with an old copy of its checkpoint; it may be a while until the next one is made."""
        self.checkpoint, self._old = self._old.copy(), self.checkpoint.copy()

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

    def _plan(self) -> None:
        """Read the progress, as the engine does before it starts its query."""
        limit = self._limits.max_request_bytes
        known = {number: self.read_progress(number) for number in range(PARTITIONS) if self.random.random() < 0.9}
        history = {number: each.with_setting(MAX_REQUEST_BYTES, limit) for number, each in known.items()}
        new = Progress().with_setting(MAX_REQUEST_BYTES, limit)
        self.read_logs.begin(known)
        self._accept = Accepting(range(self.checkpoint.buckets), limit, history, new)

    def own_between(self, partition: int) -> None:
        """Maybe let a worker own a partition until Spark opens it again after a lost transaction."""
        if self.random.random() < 0.5:
            return
        self.happened["owners between"] += 1
        machine = self.settings.request_topic, partition
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

    def _micro_batch(self, *, faults: bool = True) -> None:
        if self._workers_run:
            return
        query = self.checkpoint
        if query.planned is None:
            ends = {
                number: self.random.choice([end, min(end, query.ends[number] + 3)])
                for number, end in ((number, self.log.last_stable(*tp)) for number, tp in enumerate(self._requests))
            }
            query.planned = {number: max(end, query.ends[number]) for number, end in ends.items()}, self._ticks_end
        for number in range(query.buckets):
            if number in query.done and self.random.random() < 0.8:
                continue  # a restart repeats all tasks, and a lost executor only its own
            point = Point()
            if faults and self.random.random() < 0.1:
                point.crash_after(self.random.randrange(25))
            if faults and self.random.random() < 0.1:
                point.other = partial(self._attempt, number, Faults())
                point.other_after = self.random.randrange(20)
            if faults and self.random.random() < 0.1:
                point.arm(self.random.choice(f.ALL))
            if not self._attempt(number, point):
                if self.random.random() < 0.5:
                    query.done.clear()  # the driver failed too
                return
        query.states = [query.done[number] for number in range(query.buckets)]
        (query.ends, query.ticks_read), query.planned, query.done = query.planned, None, {}
        if self.random.random() < 0.1:
            self._old = query.copy()

    def _attempt(self, number: int, faults: Faults) -> bool:
        """One attempt of the task of a bucket. Returns whether it ended well."""
        query = self.checkpoint
        assert query.planned is not None
        ends, ticks_end = query.planned
        encoded, held = query.states[number]
        chunks = Chunks(dict(held))
        state = BucketState() if encoded is None else BucketState.decode(encoded)
        partitions = self._partitions(self, faults)
        bucket = self._bucket_of(
            self.settings.request_topic, state, chunks, partitions, self._limits, number * 17, self._run
        )
        mine = {partition: end for partition, end in ends.items() if partition % query.buckets == number}
        arrivals = [each for partition in mine for each in self._arrivals(partition, query.ends[partition], ends)]
        self.random.shuffle(arrivals)
        ticks = self.log.fetch(self.settings.oscillator_topic, 0, query.ticks_read, committed=False).records
        ticks_ms = [tick.timestamp_ms for tick in ticks if tick.offset < ticks_end][-1:]
        try:
            if not ticks_ms and not arrivals:
                query.done[number] = encoded, held  # Spark does not call the function of a key without rows
                return True
            clocks = Clocks(self.log.clock.boot_ms / 1000, self.log.clock.now_ms / 1000)
            guard = ClockGuard(self.settings.max_clock_leap_s)
            tick = bucket.counted(ticks_ms, guard, clocks, self.random.choice(["one machine", "another"]), None)
            bucket.process(arrivals, mine, tick, self.read_logs.through(ends))
            faults.point("before the state is committed")
        except (Crashed, Fenced):
            self.happened["failed tasks"] += 1
            return False
        except HistoryMismatch:
            self.happened["old histories"] += 1
            self._plan()
            return False
        except CheckpointMismatch as error:
            if "decoded with other settings" not in str(error):
                raise
            self.happened["old arrivals"] += 1
            self._lose_checkpoint()
            return False
        finally:
            self._check()
        self.happened["held"] += bool(state.held)
        query.done[number] = state.encode(), chunks.held
        return True

    def _arrivals(self, partition: int, start: int, ends: Mapping[int, int]) -> list[Arrivals]:
        """What the first step of the engine makes of a range of requests."""
        if self._accept is None:
            self._plan()
        assert self._accept is not None
        found: list[Arrivals] = []
        records = self.log.fetch(self.settings.request_topic, partition, start, ends[partition] - start).records
        size = self.random.choice([1, 4, 1000])
        for first in range(0, len(records), size):
            read = self._accept.read(partition, records[first : first + size])
            found += [Arrivals.unpack(each.pack()) for each in read]
        return found
