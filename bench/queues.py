"""``python -m bench.queues``: messages a second through a queue, beside a plain consumer that commits per batch.

All messages are in the topic before a consumer starts. Each is acknowledged by itself; the consumer ends when all are
settled. The plain consumer is the limit: it reads the same records with the same client, and commits an offset for each
500 of them.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, Producer

from bench.session import RESULTS, Session, measuring
from tests.harness.process import ROOT, Process, clean_environment, python
from timers.queue import Queue

MESSAGES = 1_000_000
PARTITIONS = 8
BATCH = 500
END_S = 300.0
IDLE_S = 3.0
"""A consumer ends after so long without a message, in a run with several consumers."""


def consume(kind: str, topic: str, brokers: str, count: int) -> dict[str, float]:
    """Consume up to ``count`` messages, and return the figures of this process."""
    figures = plain(topic, brokers, count) if kind == "plain" else queued(topic, brokers, count)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = usage.ru_utime + usage.ru_stime
    return {**figures, "cpu_s": cpu_s, "peak_mb": usage.ru_maxrss / 1024}


def queued(topic: str, brokers: str, count: int) -> dict[str, float]:
    received, first, last = 0, 0.0, time.time()
    with Queue(topic, brokers=brokers) as queue:
        while received < count and (not received or time.time() - last < IDLE_S):
            messages = queue.receive(BATCH, wait_s=0.5)
            if messages:
                last = time.time()
                first = first or last
                received += len(messages)
            for message in messages:
                message.ack()
        queue.settle()
        last = time.time() if received == count else last
    return {"received": received, "first": first, "last": last}


def plain(topic: str, brokers: str, count: int) -> dict[str, float]:
    received, first, last = 0, 0.0, time.time()
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": f"plain-{topic}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([topic])
    while received < count and (not received or time.time() - last < IDLE_S):
        records = consumer.consume(BATCH, 0.5)
        if records:
            last = time.time()
            first = first or last
            received += len(records)
            for record in records:
                record.value()
            consumer.commit(asynchronous=False)
    consumer.close()
    return {"received": received, "first": first, "last": last}


def fill(brokers: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 50, "queue.buffering.max.messages": 2 * count})
    for number in range(count):
        producer.produce(topic, b"%0100d" % number)
    producer.flush()


def measure(session: Session, kind: str, processes: int, count: int) -> dict[str, Any]:
    """Run consumers until all messages are settled."""
    names = session.names(f"{kind}-{processes}")
    session.cluster.create(names.target, PARTITIONS)
    with session.console.doing(f"publishing {count:,} messages"):
        fill(session.cluster.brokers, names.target, count)
    arguments = ["--consume", kind, names.target, session.cluster.brokers, str(count)]
    started = [
        Process(
            f"{kind}-{number}",
            python("bench.queues", *arguments),
            clean_environment(),
            ROOT,
            names.directory / f"{number}.log",
        ).start()
        for number in range(processes)
    ]
    figures = [json.loads(each.wait_for(r"^figures (.+)$", END_S)[1]) for each in started]
    for each in started:
        each.exit_code(END_S)
    session.clear(names)
    took_s = max(each["last"] for each in figures) - min(each["first"] for each in figures if each["received"])
    received = sum(each["received"] for each in figures)
    cpu_us = sum(each["cpu_s"] for each in figures) / received * 1e6
    per_s, peak_mb = received / took_s, max(each["peak_mb"] for each in figures)
    session.console.line(
        f"  {kind}, {processes} processes: {per_s:,.0f} messages/s, {cpu_us:.1f} µs CPU a message, {peak_mb:.0f} MB, "
        f"{received - count:+,} deliveries"
    )
    return {"kind": kind, "processes": processes, "messages": count, "per_s": per_s, "cpu_us": cpu_us, "mb": peak_mb}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.queues", description=(__doc__ or "").split(":")[0])
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2], help="numbers of consumers (1 2)")
    parser.add_argument("--plain", action=argparse.BooleanOptionalAction, default=True, help="measure the limit too")
    parser.add_argument("--consume", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.consume:
        kind, topic, brokers, count = given.consume
        print("figures", json.dumps(consume(kind, topic, brokers, int(count))), flush=True)
        return
    with measuring("queues-") as session:
        kinds = ["queue", "plain"] if given.plain else ["queue"]
        rows = [measure(session, kind, number, given.messages) for number in given.processes for kind in kinds]
    local = RESULTS / "local"
    local.mkdir(parents=True, exist_ok=True)
    (local / time.strftime("queues-%Y%m%d-%H%M%S.json")).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
