"""``python -m bench.spark_audit``: time and memory of an audit of many requests.

The benchmark writes requests and callbacks as an engine does; one request of ten is pending. Then it runs
``timers spark audit``, which must find no fault and count all records.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer

from bench import machine
from bench.session import RESULTS
from tests.harness import kafka_version
from tests.harness.cluster import APPEND_TIME, Cluster, client_settings
from timers.cli.broker import EmbeddedBroker
from timers.wire import future, topics
from timers.wire import headers as h

REQUESTS = 10_000_000
PARTITIONS = 4
SPREAD_S = 3600
PENDING = 10
"""One request of this many is due tomorrow."""
PAYLOAD = b"x" * 100


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
    first_s = int(time.time()) - 2 * SPREAD_S
    begun = time.monotonic()
    write(brokers, topics.REQUEST, requests(options.requests, first_s, target))
    write(brokers, target, firings(options.requests, first_s))
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


def _due_s(number: int, first_s: int) -> int:
    return first_s + number * 7919 % SPREAD_S + (number % PENDING == 0) * 86_400


def requests(count: int, first_s: int, target: str) -> Iterator[dict[str, Any]]:
    value = future.encode(target, "key", PAYLOAD)
    for number in range(count):
        yield {"partition": number % PARTITIONS, "key": b"%d" % _due_s(number, first_s), "value": value}


def firings(count: int, first_s: int) -> Iterator[dict[str, Any]]:
    """The callbacks. Offsets of requests are known, because one producer writes each partition from offset 0."""
    for number in range(count):
        if number % PENDING:
            due_s = _due_s(number, first_s)
            headers = [
                (h.TIMER_ID, topics.source(topics.REQUEST, number % PARTITIONS, number // PARTITIONS)),
                (h.TIMER_DUE, b"%d" % due_s),
                (h.TIMER_FIRED, b"%d" % (due_s * 1000 + 20)),
            ]
            yield {"partition": number % PARTITIONS, "key": b"key", "value": PAYLOAD, "headers": headers}


def write(brokers: str, topic: str, records: Iterator[dict[str, Any]]) -> None:
    config = {"enable.idempotence": True, "linger.ms": 20, "batch.num.messages": 20_000, "compression.type": "lz4"}
    producer = Producer({**client_settings(brokers), **config})
    produce: Callable[..., None] = producer.produce
    for number, record in enumerate(records):
        while True:
            try:
                produce(topic, **record)
                break
            except BufferError:
                producer.poll(0.05)
        if not number % 10_000:
            producer.poll(0)
    if producer.flush(600):
        raise RuntimeError(f"the broker did not take all records of {topic}")


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
