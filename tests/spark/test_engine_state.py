"""The state of the engine in Spark itself, over days that pass at once: no Kafka, each step another run of the query.

A micro-batch is a file of rows that come to the buckets. Every run begins from the checkpoint, as after a restart.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from timers.spark.engine import processor, query, timer_batches

pytestmark = [pytest.mark.spark]

NOW_S = 1_800_000_000
DAY_S = 86_400
BUCKETS = 2
ANY_LEAP_S = 10 * 365 * DAY_S
"""Time passes at once here: the clock of this machine agrees with all ticks."""
SCHEMA = processor.INPUT.replace("timer_batch binary", "timer_batch string")
"""As JSON has it: base 64."""


class Engine:
    """The stateful part of the query over files instead of topics."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        for name, value in query.session_settings(BUCKETS).items():
            if name.startswith("spark.sql."):
                spark.conf.set(name, value)
        self._spark = spark
        self._numbers = itertools.count()
        self._input = directory / "input"
        self._input.mkdir()
        self.checkpoint = directory / "checkpoint"
        self.keys = query.bucket_keys(spark, BUCKETS)
        self.out: list[Any] = []

    def batch(self, requests: Iterable[tuple[int, str]] = (), ticks: Iterable[tuple[int, int, float]] = ()) -> Engine:
        """Write one micro-batch.

        Args:
            requests: (due second, name) of each.
            ticks: (partition, offset, epoch second) of each.
        """
        lines = []
        for bucket, (due_s, name) in zip(itertools.cycle(self.keys), requests, strict=False):
            timer_batch = timer_batches.pack([(due_s, 1, name.encode())])
            lines.append({"bucket": bucket, "timer_batch": timer_batch.hex()})
        for bucket in self.keys:
            for partition, offset, second in ticks:
                row = {"tick_partition": partition, "tick_offset": offset, "tick_ms": int(second * 1000)}
                lines.append({"bucket": bucket, **row})
        path = self._input / f"{next(self._numbers):06d}.json"
        hidden = path.with_name(f".{path.name}")
        hidden.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        hidden.rename(path)
        return self

    def run(self) -> Counter[str]:
        """Run all micro-batches there are; names of what went out, and how often."""
        before = len(self.out)
        files = self._spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1").json(str(self._input))
        arriving = files.selectExpr(
            "bucket", "unhex(timer_batch) timer_batch", "tick_partition", "tick_offset", "tick_ms"
        )

        def take(rows: DataFrame, batch: int) -> None:
            self.out += [(batch, row) for row in rows.collect()]

        running = (
            query.process(arriving, ANY_LEAP_S)
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        running.awaitTermination()
        return Counter(name for _, name in sent(self.out[before:]))

    @property
    def pending(self) -> int:
        """As the last turns of all buckets said."""
        said = [row["pending"] for _, row in self.out if row["pending"] is not None]
        return sum(said[-BUCKETS:])

    def forget_last_commit(self) -> None:
        """As if the driver had died after it had sent what the last micro-batch fires, before it noted so."""
        commits = sorted(
            (path for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda p: int(p.name)
        )
        commits[-1].unlink()
        (self.checkpoint / "commits" / f".{commits[-1].name}.crc").unlink(missing_ok=True)


def sent(out: Iterable[Any]) -> list[tuple[int | None, str]]:
    """(tick ms, name) of what rows send."""
    return [
        (row["tick_ms"], payload.decode())
        for _, row in out
        if row["timer_batch"] is not None
        for _, _, payload in timer_batches.unpack(bytes(row["timer_batch"]))
    ]


@pytest.fixture
def engine(spark: SparkSession, tmp_path: Path) -> Engine:
    return Engine(spark, tmp_path)


def test_a_day_of_downtime_loses_nothing(engine: Engine) -> None:
    """Timers wait; a day passes in which requests and ticks pile up; then all of it comes at once."""
    ahead = {f"ahead-{n}": NOW_S + 1 + n * 300 for n in range(3 * 288)}  # three days, one every five minutes
    ahead |= {f"{n}-{'large' * 40_000}": NOW_S + 77 for n in range(3)}  # many pieces in the state
    engine.batch([(due_s, name) for name, due_s in ahead.items()], [(0, 0, NOW_S)])
    assert engine.run() == Counter()
    assert engine.pending == len(ahead)

    # What is read first after the absence need not be what is oldest: requests come behind the ticks, and before.
    back_s = NOW_S + DAY_S
    missed = [(0, 1 + n, NOW_S + 1 + n) for n in range(0, DAY_S, 7)]  # and six of seven ticks are missing
    within = {f"within-{n}": NOW_S + n * 500 for n in range(170)}
    future = {f"future-{n}": back_s + 1 + n * 1000 for n in range(50)}
    engine.batch([(due_s, name) for name, due_s in list(within.items())[:80]], missed[: len(missed) // 2])
    engine.batch([(due_s, name) for name, due_s in {**within, **future}.items() if name not in list(within)[:80]])
    engine.batch(ticks=missed[len(missed) // 2 :])
    engine.batch(ticks=[(0, DAY_S + 1, back_s)])
    due = {name for name, due_s in {**ahead, **within, **future}.items() if due_s <= back_s}
    assert engine.run() == Counter(due)
    waiting = {**ahead, **within, **future}
    assert engine.pending == len(waiting) - len(due)

    # Two more days in one tick: the rest, each once.
    engine.batch(ticks=[(0, DAY_S + 2, back_s + 2 * DAY_S + 1)])
    assert engine.run() == Counter(waiting.keys() - due)
    assert engine.pending == 0
    for _, row in engine.out:
        for due_s, _, _ in timer_batches.unpack(bytes(row["timer_batch"])) if row["timer_batch"] is not None else ():
            assert due_s * 1000 <= row["tick_ms"]


def test_ticks_may_be_missing_repeated_old_or_wrong(engine: Engine) -> None:
    engine.batch([(NOW_S + n, f"t{n}") for n in range(1, 60)])
    engine.batch(ticks=[(0, 0, NOW_S + 10)])
    assert engine.run() == Counter(f"t{n}" for n in range(1, 11))
    # Twice, from another oscillator, and some that were appended a little before.
    engine.batch(ticks=[(0, 0, NOW_S + 10), (1, 5, NOW_S + 10), (1, 4, NOW_S + 9), (2, 0, NOW_S + 8.5)])
    assert engine.run() == Counter()
    # A clock that was ahead is set back: what it says now is the time, for what comes too.
    engine.batch([(NOW_S + 3, "late"), (NOW_S + 20, "again")], [(0, 1, NOW_S + 30), (0, 2, NOW_S + 15)])
    assert engine.run() == Counter([*(f"t{n}" for n in range(11, 16)), "late"])
    engine.batch([(NOW_S + 12, "early")], [(0, 3, NOW_S + 11)])
    assert engine.run() == Counter()
    engine.batch([(NOW_S + 11, "due")], [(0, 4, NOW_S + 12)])
    assert engine.run() == Counter(["early", "due"])
    engine.batch(ticks=[(0, 5, NOW_S + 60)])
    assert engine.run() == Counter([*(f"t{n}" for n in range(16, 60)), "again"])
    assert engine.pending == 0


def test_what_comes_before_the_first_tick_waits_for_it(engine: Engine) -> None:
    engine.batch([(0, "epoch"), (NOW_S - 5, "past"), (NOW_S + 5, "soon")])
    assert engine.run() == Counter()
    assert engine.pending == 3
    engine.batch(ticks=[(0, 0, NOW_S)])
    assert engine.run() == Counter(["epoch", "past"])


def test_a_micro_batch_that_is_done_again_sends_the_same(engine: Engine) -> None:
    engine.batch([(NOW_S + n % 90, f"t{n}") for n in range(300)])
    engine.batch([(NOW_S + 1, "late")], [(0, 0, NOW_S + 40)])
    engine.run()
    last = max(batch for batch, _ in engine.out)
    first_time = sorted(sent(each for each in engine.out if each[0] == last))
    assert len(first_time) > 100
    engine.forget_last_commit()
    before = len(engine.out)
    engine.run()
    assert sorted(sent(engine.out[before:])) == first_time  # twice, after a failure, and alike to the byte
    engine.batch(ticks=[(0, 1, NOW_S + 100)])
    rest = engine.run()
    assert len(rest) == 301 - len(first_time) and set(rest.values()) == {1}
    assert engine.pending == 0


def test_state_leaves_with_what_fires(engine: Engine, spark: SparkSession) -> None:
    """The chunks' own column family is empty once nothing waits: read by Spark's own reader of states."""
    engine.batch([(NOW_S + n, f"t{n}") for n in range(0, 100_000, 999)], [(0, 0, NOW_S - 1)])
    engine.run()

    def chunks() -> int:
        state = spark.read.format("statestore").option("stateVarName", "chunks")
        return state.load(str(engine.checkpoint)).count()

    assert 0 < chunks() <= BUCKETS * 3 * 64
    engine.batch(ticks=[(0, 1, NOW_S + 100_000)])
    assert sum(engine.run().values()) == 101
    assert chunks() == 0


def test_the_number_of_buckets_is_the_checkpoints(engine: Engine, spark: SparkSession) -> None:
    assert query.buckets_of(spark, str(engine.checkpoint)) is None
    engine.batch([(NOW_S, "t")])
    engine.run()
    assert query.buckets_of(spark, str(engine.checkpoint)) == BUCKETS
    places = spark.createDataFrame([(key,) for key in engine.keys], "key int").selectExpr(f"pmod(hash(key), {BUCKETS})")
    assert {row[0] for row in places.collect()} == set(range(BUCKETS))
