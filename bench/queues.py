"""``python -m bench.queues``: messages a second through a queue, beside share groups and a plain consumer.

All messages are in the topic before a consumer starts. Each is acknowledged by itself; the consumer ends when all are
settled. Kafka's share groups (Java) acknowledge each record, or all records of a poll. The plain consumer is the limit:
it reads the same records with the same client, and commits an offset for each 500 of them.

More runs measure times: ``latency`` from sending to delivery at 5,000 messages a second, without those of the first 5
s; ``plain-latency`` is the same with a plain consumer, and in ``joining`` a second process joins at 5 s. ``leases`` is
from the end of a lease to the next delivery, when one of ten messages is not acknowledged.
"""

import argparse
import json
import threading
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from bench import machine
from bench.queue_consumer import UNCOUNTED, sent_value
from bench.report import table
from bench.session import RESULTS, RunNames, Session, measuring
from tests.harness import kafka_version
from tests.harness.process import ROOT, Process, clean_environment, python
from timers.cli.broker import jars

MESSAGES = 1_000_000
TIMED_MESSAGES = 100_000
RATE = 5_000
"""Messages a second in the runs that measure times."""

PARTITIONS = 8
END_S = 300.0
SHARE_GROUP = {"share-record": "record", "share-batch": "batch"}
KINDS = ("queue", *SHARE_GROUP, "plain")
TIMED = ("latency", "plain-latency", "joining", "leases")
SPEEDS = {
    "kind": "kind",
    "processes": "processes",
    "messages/s": "per_s",
    "CPU µs a message": "cpu_us",
    "peak MB": "mb",
    "repeated": "repeated",
}
TIMES = {"kind": "kind", "measured": "measured", "p50 ms": "p50_ms", "p99 ms": "p99_ms", "max ms": "max_ms"}
"""Title of each column -> its figure."""

SHARE_CONSUMERS = Path(__file__).parent / "peers" / "ShareConsumers.java"


def publish(brokers: str, topic: str, count: int, per_s: float | None = None, first: int = 0) -> None:
    """Publish messages of 100 bytes with the numbers from ``first`` on, as fast as possible or ``per_s`` a second."""
    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 1, "queue.buffering.max.messages": 2 * count})
    producer.list_topics(topic, timeout=END_S)  # connects
    begun_s = time.monotonic()
    for number in range(count):
        if per_s and number % 5 == 0:
            time.sleep(max(0.0, begun_s + number / per_s - time.monotonic()))
        producer.produce(topic, sent_value(first + number))
        producer.poll(0)
    producer.flush()


def consumer(session: Session, kind: str, names: RunNames, number: int, count: int) -> Process:
    """Start a consumer of any kind; it prints its figures at its end."""
    brokers = session.cluster.brokers
    if kind in SHARE_GROUP:
        class_path = ":".join(map(str, jars.KAFKA.ensure(None)))
        arguments = [brokers, names.target, str(count), SHARE_GROUP[kind]]
        command = ["java", "-cp", class_path, str(SHARE_CONSUMERS), *arguments]
    else:
        command = python("bench.queue_consumer", kind, names.target, brokers, str(count))
    environment = clean_environment(TIMERS_ID_TOPIC="")
    return Process(f"{kind}-{number}", command, environment, ROOT, names.directory / f"{number}.log").start()


def figures_of(process: Process) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(process.wait_for(r"^figures (.+)$", END_S)[1])
    process.exit_code(END_S)
    return figures


def measure_speed(session: Session, kind: str, processes: int, count: int) -> dict[str, Any]:
    """Run consumers until all messages are settled."""
    names = session.names(f"{kind}-{processes}")
    session.cluster.create(names.target, PARTITIONS)
    with session.printer.doing(f"publishing {count:,} messages"):
        publish(session.cluster.brokers, names.target, count)
    with session.printer.doing(f"{kind}, {processes} processes"):
        started = [consumer(session, kind, names, number, count) for number in range(processes)]
        figures = [figures_of(each) for each in started]
    session.clear(names)
    took_s = max(each["last"] for each in figures) - min(each["first"] for each in figures if each["received"])
    received = sum(each["received"] for each in figures)
    row = {
        "kind": kind,
        "processes": processes,
        "messages": count,
        "per_s": received / took_s,
        "cpu_us": sum(each["cpu_s"] for each in figures) / received * 1e6,
        "mb": max(each["peak_mb"] for each in figures),
        "repeated": received - count,
    }
    session.printer.line(f"  {' '.join(f'{name} {value:,.5g}' for name, value in row.items() if name != 'kind')}")
    return row


def measure_times(session: Session, kind: str, count: int) -> dict[str, Any]:
    """Publish at a steady rate to a consumer that notes times."""
    names = session.names(kind)
    brokers = session.cluster.brokers
    session.cluster.create(names.target, PARTITIONS)
    of_consumer = "latency" if kind == "joining" else kind
    uncounted = 0 if kind == "leases" else UNCOUNTED
    started = [consumer(session, of_consumer, names, 0, uncounted + count + 1)]
    publish(brokers, names.target, 1, first=1)
    started[0].wait_for("^ready$", END_S)
    with session.printer.doing(f"{kind}: {count:,} messages at {RATE:,} a second"):
        publishing = threading.Thread(target=publish, args=(brokers, names.target, uncounted + count, RATE))
        publishing.start()
        if kind == "joining":
            publishing.join(uncounted / RATE)
            started.append(consumer(session, of_consumer, names, 1, count))
        publishing.join()
        waited_ms = sorted(chain.from_iterable(figures_of(each)["waited_ms"] for each in started))
    session.clear(names)
    rank = len(waited_ms) - 1
    row = {"kind": kind, "messages": count, "measured": len(waited_ms)}
    row |= {name: waited_ms[int(rank * part)] for name, part in (("p50_ms", 0.5), ("p99_ms", 0.99), ("max_ms", 1.0))}
    session.printer.line(
        f"  {kind}: {' '.join(f'{name} {value:,.5g}' for name, value in row.items() if name != 'kind')}"
    )
    return row


def report(about: dict[str, Any], speeds: Sequence[dict[str, Any]], times: Sequence[dict[str, Any]]) -> str:
    """Tables of all runs as Markdown."""
    parts = ["# Queues", f"Measured in one run: {machine.sentence(about)}."]
    for columns, rows in ((SPEEDS, speeds), (TIMES, times)):
        if rows:
            parts.append(table(list(columns), [[_cell(row[name]) for name in columns.values()] for row in rows]))
    return "\n\n".join(parts) + "\n"


def _cell(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if isinstance(value, int) or value >= 1000 else f"{value:,.1f}"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.queues", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--messages", type=int, default=MESSAGES, help=f"in a run that measures speed ({MESSAGES})")
    parser.add_argument("--timed-messages", type=int, default=TIMED_MESSAGES, help=f"in the others ({TIMED_MESSAGES})")
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2], help="numbers of consumers (1 2)")
    parser.add_argument("--kinds", nargs="*", default=[*KINDS, *TIMED], choices=[*KINDS, *TIMED], help="(all)")
    parser.add_argument("--publish", action="store_true", help="also write bench/results/queues.*, which are tracked")
    kafka_version.add_option(parser)
    given = parser.parse_args(argv)
    if kafka_version.chosen().startswith("3."):
        print(f"not measured: share groups, which Kafka {kafka_version.chosen()} does not have", flush=True)
        given.kinds = [kind for kind in given.kinds if kind not in SHARE_GROUP]
    about = machine.describe()
    with measuring("queues-") as session:
        speeds = [
            measure_speed(session, kind, number, given.messages)
            for number in given.processes
            for kind in KINDS
            if kind in given.kinds
        ]
        times = [measure_times(session, kind, given.timed_messages) for kind in TIMED if kind in given.kinds]
    stems = [RESULTS / "local" / f"queues-{about['date'].replace(':', '')}", RESULTS / "queues"]
    for stem in stems if given.publish else stems[:1]:
        stem.parent.mkdir(parents=True, exist_ok=True)
        figures = {"machine": about, "speeds": speeds, "times": times}
        stem.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n")
        stem.with_suffix(".md").write_text(report(about, speeds, times))
        print(f"written: {stem.relative_to(ROOT)}.json, .md")


if __name__ == "__main__":
    main()
