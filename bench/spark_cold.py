"""``python -m bench.spark_cold``: the cold tables, and how fast timers come back from them.

It counts the files of small micro-batches. Then it fills the table with timers over three years, of which many are due
within one hour, clusters it, searches it, and promotes those of the hour to a broker, while a job of a user changes the
tables. Each copy must be in the request topic once, before its timer is due.
"""

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

from confluent_kafka import Consumer
from delta.tables import DeltaTable
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from bench import machine
from bench.session import RESULTS
from tests.harness import kafka_version
from tests.harness.cluster import APPEND_TIME, Cluster, client_settings
from timers.cli.broker import EmbeddedBroker
from timers.kafka.records import headers_of
from timers.process.config.settings import Settings
from timers.spark import cold
from timers.spark.cold import DAY_S, HELD_SCHEMA, ColdTables
from timers.spark.jobs.hold import MAX_RECORDS
from timers.spark.jobs.promote import Logs, Promote, run
from timers.spark.session import Launch, start
from timers.spark.storage import retried
from timers.wire import headers as h

YEARS_S = 3 * 365 * DAY_S
PARTITIONS = 4
PAYLOAD_BYTES = 100
DUE_DIGITS = 10
"""The value begins with the due second."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_cold", description=__doc__)
    parser.add_argument("--stored", type=int, default=20_000_000, help="timers in the table")
    parser.add_argument("--due", type=int, default=5_000_000, help="those that are due within the next hour")
    parser.add_argument("--micro-batches", type=int, default=100, help="small ones, whose files are counted (100)")
    parser.add_argument("--rate", type=int, default=5000, help="of `timers spark promote`")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--memory", default="3g", help="of Spark's Java process (3g)")
    parser.add_argument("--alone", action="store_true", help="without the job of a user")
    parser.add_argument("--publish", action="store_true", help="also write bench/results/spark_cold.json")
    kafka_version.add_option(parser)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="bench-cold-") as directory:
        broker = EmbeddedBroker(Path(directory) / "broker", port=0)
        conf = (("spark.driver.memory", options.memory), ("spark.scheduler.mode", "FAIR"))
        spark = start(Launch("bench", Path(directory) / "spark.log", options.master, conf))
        try:
            result = {"machine": machine.describe(), **_measure(spark, broker.start(), Path(directory), options)}
        finally:
            spark.stop()
            broker.stop()
    text = json.dumps(result, indent=2)
    if options.publish:
        (RESULTS / "spark_cold.json").write_text(f"{text}\n")
    print(text)
    return 0 if result["each_once"] and not result["after_due"] else 1


def _measure(spark: SparkSession, brokers: str, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    cluster, settings = Cluster(brokers), Settings.load({"TIMERS_BROKERS": brokers, "TIMERS_ID_TOPIC": ""})
    cluster.create(settings.request_topic, PARTITIONS, APPEND_TIME)
    found: dict[str, Any] = {"stored": options.stored, "due": options.due, "rate": options.rate}
    for parts in (1, options.micro_batches):
        tables = ColdTables((directory / f"parts-{parts}").as_uri())
        tables.create(spark)
        for part in range(parts):
            _hold(spark, tables, range(3000 // parts * part, 3000 // parts * (part + 1)), _spread(int(time.time())))
        before = _files(spark, tables)
        cold.compact(spark, tables)
        found[f"files_of_{parts}_micro_batches"] = {"before_upkeep": before, "after_upkeep": _files(spark, tables)}
    tables = ColdTables((directory / "cold").as_uri())
    tables.create(spark)
    first_s = int(time.time())
    for ids in _micro_batches(0, options.stored - options.due):
        _hold(spark, tables, ids, _spread(first_s + DAY_S))
    found["filled_s"] = round(time.time() - first_s)
    found["before_upkeep"] = {"files": _files(spark, tables), **_search(spark, tables)}
    began = time.monotonic()
    cold.compact(spark, tables)
    found["after_upkeep"] = {
        "took_s": round(time.monotonic() - began),
        "files": _files(spark, tables),
        **_search(spark, tables),
    }
    hour_s = int(time.time()) + 3600
    for ids in _micro_batches(options.stored - options.due, options.stored):
        _hold(spark, tables, ids, F.pmod(F.hash("id"), F.lit(3600)) + hour_s)
    return {**found, **_promote(spark, settings, tables, hour_s, options)}


def _micro_batches(first: int, end: int) -> list[range]:
    return [range(begin, min(begin + MAX_RECORDS, end)) for begin in range(first, end, MAX_RECORDS)]


def _spread(first_s: int) -> Column:
    return F.pmod(F.hash("id"), F.lit(YEARS_S)) + first_s


def _hold(spark: SparkSession, tables: ColdTables, ids: range, due: Column) -> None:
    """What `hold` does with one micro-batch."""
    due_s, id = due.cast("long"), F.col("id").cast("string")
    partition = F.pmod("id", F.lit(PARTITIONS)).cast("int")
    rows = spark.range(ids.start, ids.stop).select(
        F.timestamp_seconds(due_s).alias("due"),
        due_s.alias("due_s"),
        F.concat(F.lit("timer-request/"), partition.cast("string"), F.lit("/"), id).alias("source"),
        F.lit("timer-request").alias("topic"),
        partition.alias("partition"),
        F.unix_millis(F.current_timestamp()).alias("append_ms"),
        F.unix_millis(F.current_timestamp()).alias("held_ms"),
        F.substring(F.sha2(id, 256), 1, 32).cast("binary").alias("seal"),
        F.concat(F.lit("key-"), id).cast("binary").alias("key"),
        F.rpad(F.concat(due_s.cast("string"), F.sha2(id, 256)), PAYLOAD_BYTES, "x").cast("binary").alias("value"),
        F.lit(None).cast(HELD_SCHEMA["headers"].dataType).alias("headers"),
        cold.day_of(due_s).alias("due_day"),
    )
    cold.append(rows.repartition(1), tables.held, HELD_SCHEMA)


def _files(spark: SparkSession, tables: ColdTables) -> int:
    (about,) = DeltaTable.forPath(spark, tables.held).detail().select("numFiles").collect()
    return int(about.numFiles)


def _search(spark: SparkSession, tables: ColdTables) -> dict[str, Any]:
    near = cold.unpromoted(spark, tables, int(time.time()) + DAY_S + 3600, F.lit(True))
    began = time.monotonic()
    rows = near.toArrow().num_rows
    took_s = time.monotonic() - began
    return {"found": rows, "opened": cold.files_scanned(near, tables.held), "search_s": round(took_s, 2)}


def _promote(
    spark: SparkSession, settings: Settings, tables: ColdTables, hour_s: int, options: argparse.Namespace
) -> dict[str, Any]:
    stop, rounds, nights = Event(), list[float](), list[int]()
    nightly = Thread(target=_nightly, args=(spark, tables, stop, nights))
    if not options.alone:
        nightly.start()
    began, left = time.monotonic(), options.due

    def ended(rows: int, took_s: float) -> None:
        nonlocal left
        left -= rows
        rounds.append(took_s)
        if left <= 0:
            stop.set()

    job = Promote(tables, lead_s=2 * 3600, rate_per_s=options.rate)
    promoted = run(spark, job, Logs(spark, settings), lambda: int(time.time()), print, 1, stop, ended)
    took_s = time.monotonic() - began
    if not options.alone:
        nightly.join()
    copies, after_due = _copies(settings, promoted)
    return {
        "promoted": promoted,
        "took_s": round(took_s),
        "per_s": round(promoted / took_s),
        "longest_round_s": round(max(rounds), 1),
        "nights": len(nights),
        "each_once": len(copies) == options.due and set(copies.values()) == {1},
        "after_due": after_due,
        "ended_before_hour": time.time() < hour_s,
    }


def _nightly(spark: SparkSession, tables: ColdTables, stop: Event, nights: list[int]) -> None:
    """A job of a user. It has a pool of its own: as a program of its own it would share the cores with the rounds, and
    these would not wait behind its tasks."""
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", "nightly")
    while not stop.wait(20):
        for path in (tables.held, tables.promoted):
            for change in (
                f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('nights' = '{len(nights)}')",
                f"OPTIMIZE delta.`{path}`",
                f"VACUUM delta.`{path}`",
            ):
                retried(partial(_run, spark, change))
        nights.append(1)


def _run(spark: SparkSession, statement: str) -> None:
    spark.sql(statement).collect()


def _copies(settings: Settings, count: int) -> tuple[Counter[bytes], int]:
    """How often a plain consumer sees each request, and how many copies were appended after their due second."""
    consumer = Consumer(
        {
            **client_settings(settings.brokers),
            "group.id": f"count-{os.getpid()}",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([settings.request_topic])
    copies, after_due, quiet_s = Counter[bytes](), 0, time.monotonic()
    while copies.total() < count or time.monotonic() - quiet_s < 10:
        messages = consumer.consume(1000, 1)
        if not messages:
            assert time.monotonic() - quiet_s < 60, f"{copies.total()} copies of {count}"
            continue
        quiet_s = time.monotonic()
        for message in messages:
            copies[dict(headers_of(message))[h.TIMER_PROMOTED] or b""] += 1
            after_due += message.timestamp()[1] > int((message.value() or b"")[:DUE_DIGITS]) * 1000
    consumer.close()
    return copies, after_due


if __name__ == "__main__":
    raise SystemExit(main())
