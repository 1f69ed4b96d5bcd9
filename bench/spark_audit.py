"""``python -m bench.spark_audit``: time and memory of an audit of many requests.

The benchmark writes requests and callbacks as an engine does; one request of ten is pending. Then it runs
``timers spark audit``, which must find no fault and count all records.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from bench import machine
from bench.session import RESULTS
from tests.harness import kafka_version
from tests.harness.cluster import APPEND_TIME, Cluster
from tests.harness.past_timers import PARTITIONS, PENDING, SPREAD_S, PastTimers, write
from timers.cli.broker import EmbeddedBroker
from timers.wire import topics

REQUESTS = 10_000_000


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_audit", description=__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--memory", default="2g", help="of Spark's Java process (2g)")
    parser.add_argument(
        "--publish", action="store_true", help="also write bench/results/spark_audit.json, which is tracked"
    )
    kafka_version.add_option(parser)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as directory:
        broker = EmbeddedBroker(Path(directory) / "broker", port=0)
        try:
            result = _measure(broker.start(), Path(directory), options)
        finally:
            broker.stop()
    text = json.dumps(result, indent=2)
    if options.publish:
        (RESULTS / "spark_audit.json").write_text(f"{text}\n")
    print(text)
    return 0 if result["clean"] else 1


def _measure(brokers: str, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    cluster = Cluster(brokers)
    target = "bench-target"
    for topic in (topics.REQUEST, target):
        cluster.create(topic, PARTITIONS, APPEND_TIME)
    timers, numbers = PastTimers(int(time.time()) - 2 * SPREAD_S), range(options.requests)
    begun = time.monotonic()
    write(brokers, topics.REQUEST, timers.requests(numbers, target))
    write(brokers, target, timers.firings(numbers))
    written_s = time.monotonic() - begun
    command = [sys.executable, "-m", "timers.cli.main", "spark", "audit", "-o", "json", "--master", options.master]
    command += ["--output", str(directory / "out"), "--log-file", str(directory / "spark.log")]
    command += ["--conf", f"spark.driver.memory={options.memory}"]
    audit_begun = time.monotonic()
    audit = subprocess.Popen(
        command,
        env={**os.environ, "TIMERS_BROKERS": brokers, "TIMERS_ID_TOPIC": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    peak = Peak(audit.pid)
    output, stages = audit.communicate()
    took_s = time.monotonic() - audit_begun
    if audit.returncode not in (0, 3):
        raise RuntimeError(f"the audit ended with {audit.returncode}: {stages}")
    totals = json.loads(output)
    pending = options.requests // PENDING
    counted = totals["statuses"] == {
        **dict.fromkeys(totals["statuses"], 0),
        "fired": options.requests - pending,
        "pending": pending,
    }
    return {
        "machine": machine.describe(),
        "requests": options.requests,
        "records": 2 * options.requests - pending,
        "written_s": round(written_s, 1),
        "audit_s": round(took_s, 1),
        "requests_per_s": round(options.requests / took_s),
        "peak_mb": round(peak.stop() / 1e6),
        "report_kb": round((directory / "out" / "report.html").stat().st_size / 1000),
        "tables_kb": round(sum(each.stat().st_size for each in (directory / "out" / "tables").rglob("*")) / 1000),
        "stages": stages.splitlines(),
        "clean": audit.returncode == 0 and counted,
    }


class Peak:
    """Measures the peak memory of a process and its children."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._peak_bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.5):
            held = 0
            try:
                for process in (self._root, *self._root.children(recursive=True)):
                    held += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
            self._peak_bytes = max(self._peak_bytes, held)

    def stop(self) -> int:
        """End the measurement, and return the peak in bytes."""
        self._ended.set()
        self._thread.join()
        return self._peak_bytes


if __name__ == "__main__":
    sys.exit(main())
