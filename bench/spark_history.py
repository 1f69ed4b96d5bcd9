"""``python -m bench.spark_history``: how fast ``timers spark history`` reads, and what an audit of a day from it costs.

The benchmark writes requests and callbacks as an engine does; one request of ten is pending.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import machine
from bench.spark_audit import Peak
from tests.harness import kafka_version
from tests.harness.cluster import APPEND_TIME, Cluster
from tests.harness.past_timers import PARTITIONS, PENDING, SPREAD_S, PastTimers, write
from timers.cli.broker import EmbeddedBroker
from timers.wire import topics

REQUESTS = 1_000_000


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_history", description=__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS)
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
    return 0


def _measure(brokers: str, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    cluster = Cluster(brokers)
    target, table = "bench-target", directory / "table"
    for topic in (topics.REQUEST, target):
        cluster.create(topic, PARTITIONS, APPEND_TIME)
    timers, numbers = PastTimers(int(time.time()) - 2 * SPREAD_S), range(options.requests)
    write(brokers, topics.REQUEST, timers.requests(numbers, target))
    write(brokers, target, timers.firings(numbers))
    history = _run(brokers, directory, options, "history", "--table", str(table), "--once")
    again = _run(brokers, directory, options, "history", "--table", str(table), "--once")
    kept = [each for each in table.rglob("*.parquet") if "_delta_log" not in each.parts]
    return {
        "machine": machine.describe(),
        "requests": options.requests,
        "records": 2 * options.requests - options.requests // PENDING,
        "history": history,
        "again": again,
        "files": len(kept),
        "table_kb": round(sum(each.stat().st_size for each in kept) / 1000),
    }


def _run(brokers: str, directory: Path, options: argparse.Namespace, *command: str) -> dict[str, Any]:
    words = [sys.executable, "-m", "timers.cli.main", "spark", *command, "-o", "json", "--master", options.master]
    words += ["--log-file", str(directory / "spark.log"), "--conf", f"spark.driver.memory={options.memory}"]
    begun = time.monotonic()
    environment = {**os.environ, "TIMERS_BROKERS": brokers, "TIMERS_ID_TOPIC": ""}
    job = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    peak = Peak(job.pid)
    output, lines = job.communicate()
    if job.returncode not in (0, 3):
        raise RuntimeError(f"{command[0]} ended with {job.returncode}: {lines}")
    took = {"seconds": round(time.monotonic() - begun, 1), "peak_mb": round(peak.stop() / 1e6)}
    return {**took, "result": json.loads(output), "lines": lines.splitlines()}


if __name__ == "__main__":
    sys.exit(main())
