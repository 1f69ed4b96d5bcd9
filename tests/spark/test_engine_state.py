"""The state of the engine in Spark itself, over days that pass at once: no Kafka, each step another run of the query.

A micro-batch is a file of rows that come to the buckets. Every run begins from the checkpoint, as after a restart.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.harness.spark_files import FilePartitions, transactions
from timers.config.settings import Settings
from timers.core.levels import FIRST
from timers.core.limits import Limits
from timers.core.lineage import Lineage
from timers.core.reading import ReadSettings
from timers.spark.engine import processor, query, timer_batches
from timers.spark.engine.processor import Buckets, Told
from timers.spark.engine.timer_batches import Arrivals

pytestmark = [pytest.mark.spark]

NOW_S = 1_800_000_000
DAY_S = 86_400
BUCKETS = 2
PARTITIONS = 4
ANY_LEAP_S = str(10 * 365 * DAY_S)
"""Time passes at once here: the clock of this machine agrees with all ticks."""
LIMITS = Limits(1000, 10**6, 10**6)
READ = ReadSettings(LIMITS.max_request_bytes, FIRST, rejects_overdue=False)
"""The settings of all requests."""
SCHEMA = processor.INPUT.replace("arrivals binary", "arrivals string")
"""As JSON has it: hexadecimal."""


class Engine:
    """The stateful part of the query over files instead of topics.

    Attributes:
        pending: number of waiting timers of each bucket, as its last micro-batch says.
    """

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        for name, value in query.session_settings(BUCKETS).items():
            if name.startswith("spark.sql."):
                spark.conf.set(name, value)
        self._spark = spark
        self._numbers = itertools.count()
        self._input = directory / "input"
        self._input.mkdir()
        self._fired = directory / "fired"
        self._fired.mkdir()
        self._ends: list[dict[int, int]] = []
        self.checkpoint = directory / "checkpoint"
        self.keys = query.bucket_keys(spark, BUCKETS)
        settings = Settings.load({"TIMERS_MAX_CLOCK_LEAP_S": ANY_LEAP_S})
        self._buckets = Buckets(settings, LIMITS, self.keys, partial(FilePartitions, self._fired))
        self.pending: dict[int, int] = {}

    def batch(self, requests: Iterable[tuple[int, str]] = (), ticks: Iterable[tuple[int, int, float]] = ()) -> Engine:
        """Write one micro-batch.

        Args:
            requests: (due second, name) of each.
            ticks: (partition, offset, epoch second) of each.
        """
        lines = []
        ends = dict(self._ends[-1]) if self._ends else dict.fromkeys(range(PARTITIONS), 0)
        for number, (due_s, name) in zip(itertools.cycle(range(PARTITIONS)), requests, strict=False):
            rows = {due_s: [(ends[number], "target", name, b"", None, None)]}
            groups = timer_batches.groups(number, rows)  # type: ignore[arg-type]
            arrivals = Arrivals(number, ends[number], ends[number] + 1, READ, groups, [])
            lines.append({"bucket": self.keys[number % BUCKETS], "arrivals": arrivals.pack().hex()})
            ends[number] += 1
        for bucket in self.keys:
            for partition, offset, second in ticks:
                row = {"tick_partition": partition, "tick_offset": offset, "tick_ms": int(second * 1000)}
                lines.append({"bucket": bucket, **row})
        self._ends.append(ends)
        number = next(self._numbers)
        path = self._input / f"{number:06d}.json"
        hidden = path.with_name(f".{path.name}")
        hidden.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        os.utime(hidden, (NOW_S + number, NOW_S + number))  # Spark reads the files in the order of these times
        hidden.rename(path)
        return self

    def run(self) -> Counter[str]:
        """Run all micro-batches that exist; returns the names that fired, and how often."""
        before = Counter(name for _, name, _ in self.fired)
        files = self._spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1").json(str(self._input))
        arriving = files.selectExpr("bucket", "unhex(arrivals) arrivals", "tick_partition", "tick_offset", "tick_ms")

        def take(rows: DataFrame, number: int) -> None:
            ends = self._ends[number]
            told = Told(ends, [], dict.fromkeys(ends, Lineage()))
            rows.sparkSession.sparkContext.setLocalProperty(processor.TOLD, told.encode())
            self.pending |= {row["bucket"]: row["pending"] for row in rows.collect()}

        running = (
            query.process(arriving, self._buckets)
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        running.awaitTermination()
        return Counter(name for _, name, _ in self.fired) - before

    @property
    def fired(self) -> list[tuple[int, str, int]]:
        """(due second, name, tick in ms) of all that has fired."""
        return [
            each
            for number in range(PARTITIONS)
            for fired, _ in transactions(self._fired / f"{number}.jsonl")
            for each in fired
        ]

    def forget_last_commit(self) -> None:
        """Do what a driver does that ends before it notes the end of the last micro-batch."""
        commits = sorted(
            (path for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda p: int(p.name)
        )
        commits[-1].unlink()
        (self.checkpoint / "commits" / f".{commits[-1].name}.crc").unlink(missing_ok=True)


@pytest.fixture
def engine(spark: SparkSession, tmp_path: Path) -> Engine:
    return Engine(spark, tmp_path)


def test_a_day_of_downtime_loses_nothing(engine: Engine) -> None:
    """Timers wait; a day passes in which requests and ticks pile up; then all of it comes at once."""
    ahead = {f"ahead-{n}": NOW_S + 1 + n * 300 for n in range(3 * 288)}  # three days, one every five minutes
    ahead |= {f"{n}-{'large' * 40_000}": NOW_S + 77 for n in range(3)}  # many pieces in the state
    engine.batch([(due_s, name) for name, due_s in ahead.items()], [(0, 0, NOW_S)])
    assert engine.run() == Counter()
    assert sum(engine.pending.values()) == len(ahead)

    # What is read first after the absence need not be what is oldest: requests come after the ticks, and before.
    back_s = NOW_S + DAY_S
    missed = [(0, 1 + n, NOW_S + 1 + n) for n in range(0, DAY_S, 7)]  # and six of seven ticks are missing
    within = {f"within-{n}": NOW_S + n * 500 for n in range(170)}
    future = {f"future-{n}": back_s + 1 + n * 1000 for n in range(50)}
    engine.batch([(due_s, name) for name, due_s in list(within.items())[:80]], missed[: len(missed) // 2])
    engine.batch([(due_s, name) for name, due_s in {**within, **future}.items() if name not in list(within)[:80]])
    engine.batch(ticks=[*missed[len(missed) // 2 :], (0, DAY_S + 1, back_s)])
    due = {name for name, due_s in {**ahead, **within, **future}.items() if due_s <= back_s}
    assert engine.run() == Counter(due)
    waiting = {**ahead, **within, **future}
    assert sum(engine.pending.values()) == len(waiting) - len(due)

    # Two more days in one tick: the rest, each once.
    engine.batch(ticks=[(0, DAY_S + 2, back_s + 2 * DAY_S + 1)])
    assert engine.run() == Counter(waiting.keys() - due)
    assert sum(engine.pending.values()) == 0
    assert all(due_s * 1000 <= tick_ms for due_s, _, tick_ms in engine.fired)


def test_a_repeated_micro_batch_fires_nothing_again(engine: Engine) -> None:
    engine.batch([(0, "epoch"), (NOW_S + 5, "soon")])
    assert engine.run() == Counter()  # there is no time yet
    engine.batch([(NOW_S + n % 90, f"t{n}") for n in range(300)])
    engine.batch([(NOW_S + 1, "late")], [(0, 0, NOW_S + 40)])
    fired = engine.run()
    assert fired["epoch"] == fired["late"] == fired["soon"] == 1 and len(fired) > 100
    engine.forget_last_commit()
    assert engine.run() == Counter()
    engine.batch(ticks=[(0, 1, NOW_S + 100)])
    rest = engine.run()
    assert len(fired) + len(rest) == 303 and set(rest.values()) == {1}


def test_the_state_of_fired_timers_is_deleted(engine: Engine, spark: SparkSession) -> None:
    """The chunks' own column family is empty when no timer waits: read by Spark's own reader of states."""
    engine.batch([(NOW_S + n, f"t{n}") for n in range(0, 100_000, 999)], [(0, 0, NOW_S - 1)])
    engine.run()

    def chunks() -> int:
        state = spark.read.format("statestore").option("stateVarName", "chunks")
        return state.load(str(engine.checkpoint)).count()

    assert 0 < chunks() <= BUCKETS * 3 * 64
    engine.batch(ticks=[(0, 1, NOW_S + 100_000)])
    assert sum(engine.run().values()) == 101
    assert chunks() == 0
