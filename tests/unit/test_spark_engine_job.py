"""The engine on Spark stops between two micro-batches, and starts a query again that failed, if this may help."""

import threading
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

pytest.importorskip("pyspark", reason="needs the extra 'spark'")

from pyspark.errors import StreamingQueryException

from tests.harness.constants import Constants
from timers.core.backoff import Pauses, ReopenBackoff
from timers.core.lineage import Batch, Lineage
from timers.errors import NameTakenError, SparkError, TimersError
from timers.machines.firing.breaker import OpenCircuit
from timers.process.config.settings import Settings
from timers.spark.engine import query as engine
from timers.spark.engine.bucket import Said, Told
from timers.spark.engine.machines import Failing, Read
from timers.spark.engine.query import Plan
from timers.spark.engine.query import _Cause as Cause
from timers.spark.engine.questions import Question
from timers.spark.monitoring import EngineCounts
from timers.spark.totals import Snapshot, Total

CLUSTER: Any = SimpleNamespace(partitions={}, topic_ids={})


class Query:
    """A query that is always in a micro-batch. At each call of ``status`` ``batches`` more of them have ended."""

    def __init__(self, reporter: engine.Reporter, batches: int) -> None:
        self._reporter = reporter
        self._batches = batches
        self.looks = 0
        self.stopped = threading.Event()

    @property
    def status(self) -> dict[str, bool]:
        self.looks += 1
        self._reporter.ended += self._batches
        return {"isTriggerActive": True}

    def stop(self) -> None:
        self.stopped.set()


def test_stop_waits_for_the_end_of_a_micro_batch() -> None:
    said: list[str] = []
    reporter = engine.Reporter(1, [], said.append)
    query: Any = Query(reporter, batches=1)
    engine._stop_between_micro_batches(query, reporter)
    assert query.stopped.is_set() and query.looks == 1 and said == []


def test_stop_interrupts_a_micro_batch_that_does_not_end(constants: Constants) -> None:
    constants(engine, STOP_S=0.01)
    said: list[str] = []
    reporter = engine.Reporter(1, [], said.append)
    query: Any = Query(reporter, batches=0)
    engine._stop_between_micro_batches(query, reporter)
    assert query.stopped.is_set() and query.looks > 1
    assert len(said) == 1 and "is interrupted: the next start repeats it" in said[0]


DAMAGED = "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] x"
TOO_LARGE = "OversizedAllocationException: Memory required for vector is (4000000000)"
OUT_OF_MEMORY = "Lost task 20.0 in stage 4.0 (TID 27): java.lang.OutOfMemoryError: Java heap space"
IN_SPARK = "\n\tat java.base/java.nio.ByteBuffer.allocate(ByteBuffer.java:363)\n\tat org.apache.spark.x.Y.z(Y.scala:1)"
IN_RECORDS = (
    "\n\tat java.base/java.nio.HeapByteBuffer.<init>(HeapByteBuffer.java:64)"
    "\n\tat java.base/java.nio.ByteBuffer.allocate(ByteBuffer.java:363)"
    "\n\tat org.apache.kafka.common.record.DefaultRecord.readFrom(DefaultRecord.java:280)"
)
FAILED = "[STREAM_FAILED] Query [id = 7] terminated with exception: Job aborted"
TRACEBACK = "pyspark.errors.PythonException: Traceback (most recent call last):\n  File x\n    raise"

HANDLING = (
    f"{FAILED}: {TRACEBACK}\ntimers.core.ports.Unanswered: no answer in time\n\n"
    "During handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n"
)


@pytest.mark.parametrize(
    ("message", "sentence", "cause"),
    [
        (
            f"{FAILED}: {TRACEBACK}\ntimers.errors.Fenced: app-t-0 was taken over\n\n\tat a.b",
            "app-t-0 was taken over",
            Cause.OTHER,
        ),
        (f"{FAILED}: {TRACEBACK}\ntimers.errors.StoreInUse: in use\n\tat a.b", "in use", Cause.OTHER),
        (
            f"{FAILED}: {TRACEBACK}\ntimers.errors.StoreError: the disk is full\n\tat a.b",
            "the disk is full",
            Cause.OTHER,
        ),
        (f"{FAILED}: {TRACEBACK}\ntimers.errors.CheckpointMismatch: it is old\n\tat a.b", "it is old", Cause.MISMATCH),
        (f"{HANDLING}timers.errors.Fenced: taken over\n\tat a.b", "taken over", Cause.OTHER),
        (f"{HANDLING}timers.errors.CheckpointMismatch: it is old\n\tat a.b", "it is old", Cause.MISMATCH),
        (f"{FAILED}: {TRACEBACK}\ntimers.core.ports.Unanswered: no answer\n\tat a.b", "no answer", Cause.OTHER),
        (f"{FAILED}: {TRACEBACK}\ntimers.core.ports.DeliveryFailed: t: gone\n\tat a.b", "t: gone", Cause.OTHER),
        (f"{FAILED}: [KAFKA_DATA_LOSS.X] Some data", f"{FAILED}: [KAFKA_DATA_LOSS.X] Some data", Cause.MISMATCH),
        (f"{FAILED}: [{DAMAGED}", f"{FAILED}: [{DAMAGED}", Cause.NOT_LOADED),
        (f"{FAILED}: failOnDataLoss = true, no leader", f"{FAILED}: failOnDataLoss = true, no leader", Cause.OTHER),
        (f"{FAILED}: {TOO_LARGE}", f"{FAILED}: {TOO_LARGE}", Cause.TOO_LARGE),
        (
            f"{FAILED}: {TRACEBACK}\npy4j.protocol.Py4JJavaError: An error occurred while calling o3.collectToPython.\n"
            ": org.apache.spark.SparkException: Job aborted: the executor was lost\n\tat a.b: c",
            "SparkException: Job aborted: the executor was lost",
            Cause.OTHER,
        ),
    ],
)
def test_most_failures_are_no_reason_to_end(message: str, sentence: str, cause: Cause) -> None:
    assert engine._restartable(StreamingQueryException(message)) == (sentence, cause)


def test_a_record_that_claims_too_much_memory_is_told_from_a_micro_batch_that_needs_it() -> None:
    for stack, expected in ((IN_SPARK, Cause.TOO_LARGE), (IN_RECORDS, Cause.UNREADABLE)):
        _, cause = engine._restartable(StreamingQueryException(f"{FAILED}: {OUT_OF_MEMORY}{stack}"))
        assert cause is expected


def test_an_engine_that_must_not_run_ends() -> None:
    message = f"{FAILED}: {TRACEBACK}\ntimers.errors.LogMismatch: the log is shorter\n\tat a.b"
    with pytest.raises(SparkError, match=r"^the log is shorter$"):
        engine._restartable(StreamingQueryException(message))
    assert engine._restartable(None)[0] == "without a reason"


def test_an_engine_that_a_newer_one_has_replaced_ends_with_an_exit_code_of_its_own() -> None:
    message = f"{FAILED}: {TRACEBACK}\ntimers.errors.NameTakenError: another engine was started\n\tat a.b"
    with pytest.raises(NameTakenError, match=r"^another engine was started$") as taken:
        engine._restartable(StreamingQueryException(message))
    assert taken.value.exit_code == 6


class Ended:
    """A query that has failed."""

    isActive = False

    def __init__(self, message: str) -> None:
        self._message = message

    def exception(self) -> StreamingQueryException:
        return StreamingQueryException(self._message)


class Working(Ended):
    """A query that works until it is stopped."""

    status: ClassVar = {"isTriggerActive": False}

    def __init__(self) -> None:
        super().__init__("")
        self.isActive = True

    def stop(self) -> None:
        self.isActive = False


def test_a_query_without_partitions_ends_if_workers_run(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> None:
    working = Working()

    def start(spark: Any, settings: Settings, plan: Plan, driver: Any, done: Any) -> Ended:
        for number, had_others in enumerate([False, True, False]):
            total = Total({"fired": 2}, {("t", 0): (3, 9)}, True, {("t", 0): Snapshot(5, 70, 512, 8)}, [])
            idle, nothing_failed = Total({}, {}, True, {}, []), Failing([], [])
            done(
                number,
                [
                    Said(0, None, None, False, nothing_failed, idle),
                    Said(9, 10 + number, None, had_others, nothing_failed, total),
                ],
            )
        return working

    def check_no_workers(settings: Settings) -> None:
        raise TimersError("2 workers have taken over")

    monkeypatch.setattr(engine, "start", start)
    constants(engine, POLL_S=0.0)
    monkeypatch.setattr(engine, "check_no_workers", check_no_workers)
    spark: Any = SimpleNamespace(streams=SimpleNamespace(addListener=id, removeListener=id))
    ticks_ms: list[int] = []
    counts = EngineCounts()
    driver: Any = SimpleNamespace(failure=None)
    with pytest.raises(TimersError, match="2 workers have taken over"):
        engine.run(spark, Settings(), Plans(), driver, print, threading.Event(), ticks_ms.append, counts.add)
    assert not working.isActive and ticks_ms == [10, 11, 12]
    assert (counts.numbers(), counts.waiting) == ({"fired": 6}, {("t", 0): (3, 9)})
    assert counts.snapshots == {("t", 0): Snapshot(5, 70, 512, 8)}


class Plans:
    """Makes plans, and notes for each whether the log is read from its start."""

    def __init__(self) -> None:
        self.anew: list[bool] = []
        self.starts: dict[tuple[str, int], int] = {}

    def __call__(self, anew: bool) -> Plan:
        self.anew.append(anew)
        return Plan(f"plan {len(self.anew)}", 2, 100_000, CLUSTER, self.starts)


def test_a_query_that_failed_starts_again_with_a_new_plan_if_the_old_one_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    stop = threading.Event()
    messages = [
        f"{FAILED}: the executor was lost",
        f"{FAILED}: {TRACEBACK}\ntimers.errors.CheckpointMismatch: it is old",
        f"{FAILED}: the executor was lost",
    ]
    started: list[str] = []

    def start(spark: Any, settings: Settings, plan: Plan, *_: object) -> Ended:
        started.append(plan.checkpoint)
        if len(started) == len(messages):
            stop.set()
        return Ended(messages[len(started) - 1])

    monkeypatch.setattr(engine, "start", start)
    monkeypatch.setattr(engine, "check_no_workers", lambda _: None)
    constants(engine, AFTER_UNFORESEEN=ReopenBackoff(Pauses(0.0, 0.0), 0.0))
    lines: list[str] = []
    spark: Any = SimpleNamespace(streams=SimpleNamespace(addListener=id, removeListener=id))
    driver: Any = SimpleNamespace(failure=None)
    plans = Plans()
    engine.run(spark, Settings(), plans, driver, lines.append, stop, print, print)
    assert (started, plans.anew) == (["plan 1", "plan 1", "plan 2"], [False, True])
    assert len(lines) == 2 and all(line.startswith("the query ended and starts again: ") for line in lines)


def test_the_log_is_read_again_if_the_checkpoint_cannot_be_loaded_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = iter([100.0, 150.0, 200.0, 300.0, 100 + 200 + engine.UNLOADED_S])
    monkeypatch.setattr(engine, "monotonic", lambda: next(now_s))
    plans = Plans()
    planning = engine._Planning(Settings(), plans, print)
    for cause in (Cause.NOT_LOADED, Cause.OTHER, Cause.NOT_LOADED, Cause.NOT_LOADED):
        planning.after(cause, has_worked=False)
    assert plans.anew == [False]
    planning.after(Cause.NOT_LOADED, has_worked=False)
    assert plans.anew == [False, True]


def test_a_partition_that_spark_cannot_read_is_read_by_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "Received exception when fetching the next record from timer-request-12. If needed, please seek past"
    failure = StreamingQueryException(f"{FAILED}: KafkaException: {words} the record to continue consumption.")
    sentence, cause = engine._restartable(failure)
    assert cause is Cause.UNREADABLE
    asked: list[Any] = []

    def reader(_: object) -> Any:
        def ends(partition: Any, timeout: float) -> tuple[int, int]:
            asked.append((partition.topic, partition.partition))
            return 3, 77

        return SimpleNamespace(get_watermark_offsets=ends, close=lambda: None)

    monkeypatch.setattr(engine, "reader", reader)
    plans = Plans()
    planning = engine._Planning(Settings(), plans, print)
    planning.after(cause, has_worked=True, sentence=sentence)
    assert (plans.anew, asked) == ([False, True], [("timer-request", 12)])
    assert planning.plan.starts == {("timer-request", 12): 77}
    plans.starts = {("timer-request", 12): 5, ("by-id", 0): 9}
    planning.after(cause, has_worked=True, sentence="java.lang.OutOfMemoryError: Java heap space")
    assert planning.plan.starts == {("timer-request", 12): 77, ("by-id", 0): 77}, "the text names no partition"
    assert planning.plan.max_requests == 100_000
    planning.after(cause, has_worked=False, sentence="java.lang.OutOfMemoryError: Java heap space")
    planning.after(cause, has_worked=False, sentence="java.lang.OutOfMemoryError: Java heap space")
    assert planning.plan.max_requests == 25_000, "perhaps the memory is too small for all of them"
    plans.starts = {}
    planning.after(Cause.MISMATCH, has_worked=True, sentence="it is old")
    assert planning.plan.starts == {}


def test_failures_to_load_with_work_between_them_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = iter([100.0, 10_000.0])
    monkeypatch.setattr(engine, "monotonic", lambda: next(now_s))
    plans = Plans()
    planning = engine._Planning(Settings(), plans, print)
    for _ in range(2):
        planning.after(Cause.NOT_LOADED, has_worked=True)
    assert plans.anew == [False]


def test_a_micro_batch_that_is_too_large_is_planned_again_with_fewer_requests() -> None:
    lines: list[str] = []
    plans = Plans()
    planning = engine._Planning(Settings(), plans, lines.append)
    for cause, has_worked in [
        (Cause.TOO_LARGE, False),
        (Cause.OTHER, False),  # a machine of the cluster was lost
        (Cause.TOO_LARGE, False),
        (Cause.TOO_LARGE, True),
    ]:
        planning.after(cause, has_worked=has_worked)
    assert plans.anew == [False] and planning.plan.max_requests == 100_000
    for _ in range(2):
        planning.after(Cause.TOO_LARGE, has_worked=False)
    assert plans.anew == [False, False] and planning.plan.max_requests == 25_000
    for _ in range(10):
        planning.after(Cause.TOO_LARGE, has_worked=False)
    assert planning.plan.max_requests == engine.LEAST_REQUESTS
    planning.after(Cause.MISMATCH, has_worked=False)
    assert planning.plan.max_requests == engine.LEAST_REQUESTS
    assert lines[0] == "from now on, a micro-batch has at most 25000 requests: it needs less memory"


def test_the_tasks_get_what_the_driver_tells_them() -> None:
    read = Lineage(((0, 0), (3, 4)), Batch(5, 6, 1_000, 2**31), 7)
    circuit = OpenCircuit("t", "target-failing", "why", 2, 3.5, -1.0, 4.0)
    told = Told(
        {("r", 0): Read(7, 6, read), ("ids", 12): Read(9, None, Lineage())},
        [circuit],
        [(("r", 0), Question(3, b"pickled"))],
    )
    assert Told.decode(told.encode()) == told
