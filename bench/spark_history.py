"""``python -m bench.spark_history``: how fast ``timers spark history`` reads, and what an audit of a day from it costs.

The benchmark writes requests and callbacks of some days as an engine does; one request of ten is pending. The audit of
one of the days must count its timers and find no fault. Spark's event log says how many rows it reads from the table.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import machine
from bench.spark_audit import Peak
from tests.harness import kafka_version
from tests.harness.cluster import APPEND_TIME, Cluster
from tests.harness.past_timers import PARTITIONS, PENDING, PastTimers, write
from timers.cli.broker import EmbeddedBroker
from timers.wire import topics

REQUESTS = 5_000_000
DAYS = 5
DAY_S = 86_400
REPORT = "report: "
"""Begins the last line of an audit."""

_SQL = "org.apache.spark.sql.execution.ui.SparkListener"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_history", description=__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--days", type=int, default=DAYS, help="of the due seconds, up to yesterday")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--memory", default="2g", help="of Spark's Java process (2g)")
    kafka_version.add_option(parser)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as directory:
        broker = EmbeddedBroker(Path(directory) / "broker", port=0)
        try:
            result = _measure(broker.start(), Path(directory), options)
        finally:
            broker.stop()
    print(json.dumps(result, indent=2))
    return 0 if result["clean"] else 1


def _measure(brokers: str, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    cluster = Cluster(brokers)
    target, table = "bench-target", directory / "table"
    for topic in (topics.REQUEST, target):
        cluster.create(topic, PARTITIONS, APPEND_TIME)
    first_s = (int(time.time()) // DAY_S - options.days) * DAY_S
    timers, numbers = PastTimers(first_s, options.days * DAY_S), range(options.requests)
    write(brokers, topics.REQUEST, timers.requests(numbers, target))
    write(brokers, target, timers.firings(sorted(numbers, key=timers.due_s)))  # in the order in which they are due
    history = _run(brokers, directory, options, "history", "--table", str(table), "--once")
    again = _run(brokers, directory, options, "history", "--table", str(table), "--once")
    day_s = first_s + options.days // 2 * DAY_S
    audit = _audit(brokers, directory, options, table, day_s)
    of_day = sum(day_s <= timers.due_s(number) < day_s + DAY_S for number in numbers)
    kept = [each for each in table.rglob("*.parquet") if "_delta_log" not in each.parts]
    statuses = audit.pop("statuses")
    return {
        "machine": machine.describe(),
        "requests": options.requests,
        "records": 2 * options.requests - len(range(0, options.requests, PENDING)),
        "days": options.days,
        "history": history,
        "again": again,
        "files": len(kept),
        "table_kb": round(sum(each.stat().st_size for each in kept) / 1000),
        "rows_of_day": 2 * of_day,
        "audit_of_day": audit,
        "clean": statuses == {**dict.fromkeys(statuses, 0), "fired": of_day},
    }


def _audit(brokers: str, directory: Path, options: argparse.Namespace, table: Path, day_s: int) -> dict[str, Any]:
    """Audit a day that begins at a second."""
    (log := directory / "events").mkdir()
    day = f"{datetime.fromtimestamp(day_s, UTC):%Y-%m-%d}"
    command = ["--history", str(table), "--day", day, "--output", str(directory / "out")]
    for name, value in {
        "enabled": "true",
        "dir": log.as_uri(),
        "compress": "false",
        "rolling.enabled": "false",
    }.items():
        command += ["--conf", f"spark.eventLog.{name}={value}"]
    found = _run(brokers, directory, options, "audit", *command)
    told = found.pop("result")
    (events,) = log.iterdir()
    scans = [f"{rows:,} rows of {files} files: {what}" for what, files, rows in _scans(events, table / "events")]
    return {**found, "verdict": told["verdict"], "scans": scans, "statuses": told["statuses"]}


def _scans(log: Path, table: Path) -> Iterator[tuple[str, int, int]]:
    """The scans of a table that an event log of Spark shows: the conditions of its partitions; number of files; and of
    rows, without those that Parquet's statistics leave out."""
    scans: dict[int, tuple[str, int]] = {}
    values = Counter[int]()

    def look(node: dict[str, Any]) -> None:
        numbers = {each["name"]: each["accumulatorId"] for each in node["metrics"]}
        about = node["metadata"]
        if f"{table}]" in about.get("Location", "") and "number of output rows" in numbers:
            scans[numbers["number of output rows"]] = about["PartitionFilters"], numbers["number of files read"]
        for child in node["children"]:
            look(child)

    with log.open() as lines:
        for event in map(json.loads, lines):
            if event["Event"] == "SparkListenerTaskEnd":
                for each in event["Task Info"]["Accumulables"]:
                    if str(each.get("Update", "")).isdecimal():
                        values[each["ID"]] += int(each["Update"])
            elif event["Event"] == f"{_SQL}DriverAccumUpdates":
                values.update(dict(event["accumUpdates"]))
            elif "sparkPlanInfo" in event:
                look(event["sparkPlanInfo"])
    for rows, (what, files) in scans.items():
        if values[files]:
            yield what, values[files], values[rows]


def _run(brokers: str, directory: Path, options: argparse.Namespace, *command: str) -> dict[str, Any]:
    words = [sys.executable, "-m", "timers.cli.main", "spark", *command, "-o", "json", "--master", options.master]
    words += ["--log-file", str(directory / "spark.log"), "--conf", f"spark.driver.memory={options.memory}"]
    begun = time.monotonic()
    environment = {**os.environ, "TIMERS_BROKERS": brokers, "TIMERS_ID_TOPIC": ""}
    with (directory / "result.json").open("w+") as output:
        job = subprocess.Popen(words, env=environment, stdout=output, stderr=subprocess.PIPE, text=True)
        peak, lines, before_s, said_s = Peak(job.pid), list[str](), begun, begun
        for line in job.stderr or ():
            if not line.startswith(REPORT):
                lines.append(line.rstrip().replace(str(directory), "..."))
                before_s = time.monotonic()
            said_s = time.monotonic()
        if job.wait() not in (0, 3):
            raise RuntimeError(f"{command[0]} ended with {job.returncode}: {lines}")
        output.seek(0)
        told = json.load(output)
    took = {"seconds": round(time.monotonic() - begun, 1), "peak_mb": round(peak.stop() / 1e6)}
    report = {"report_s": round(said_s - before_s, 1)} if command[0] == "audit" else {}
    return {**took, **report, "result": told, "lines": lines}


if __name__ == "__main__":
    sys.exit(main())
