"""Ten million timers over three years: bringing back the next hour opens few files."""

from pathlib import Path
from time import monotonic

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.spark.cold_rows import NOW_S, fill
from tests.spark.sim_engine import SimEngine, SimLogs
from timers.spark import cold
from timers.spark.cold import DAY_S, ColdTables
from timers.spark.jobs.promote import Promote, promote_chunk

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(3600)]

COUNT, DAYS = 10_000_000, 3 * 365


def test_the_next_hour_of_three_years(spark: SparkSession, tmp_path: Path) -> None:
    tables = ColdTables(str(tmp_path / "cold"))
    tables.create(spark)
    fill(spark, tables, COUNT, DAYS)
    stored = spark.read.format("delta").load(tables.held)
    assert stored.count() == COUNT
    began = monotonic()
    cold.compact(spark, tables)
    took_s = monotonic() - began
    # Now is the start of a day in the middle of them; nothing before it was left behind.
    now_s = (NOW_S // DAY_S + DAYS // 2) * DAY_S
    cold.append(
        stored.where(F.col("due_s") < now_s).select("due_day", "due_s", "source", F.lit("before").alias("batch")),
        tables.promoted,
        cold.PROMOTED_SCHEMA,
    )
    cold.delete_promoted(spark, tables, now_s)
    near = cold.unpromoted(spark, tables, now_s + 3600 - 1, F.lit(True))
    began = monotonic()
    found = near.toArrow()
    seconds = monotonic() - began
    read = cold.files_scanned(near, tables.held)
    (about,) = DeltaTable.forPath(spark, tables.held).detail().collect()
    print(
        f"\n{COUNT:,} timers, {about.numFiles} files, {about.sizeInBytes / 1e6:,.0f} MB, clustered in {took_s:.0f} s; "
        f"the next hour: {found.num_rows} timers, {read} files, {seconds:.1f} s"
    )
    assert found.num_rows == pytest.approx(COUNT / DAYS / 24, rel=0.02)
    assert read <= 5
    logs = SimLogs(spark, SimEngine(now_s, 60), tmp_path / "copies")
    done = promote_chunk(spark, Promote(tables, lead_s=3600 - 1, rate_per_s=1_000_000), logs, now_s)
    assert (done.promoted, done.files, done.more) == (found.num_rows, read, False)
    print(f"one round: {done.seconds:.1f} s")
