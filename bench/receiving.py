"""Receives callbacks while they fire: how late a ``read_committed`` consumer has them.

``python -m bench.receiving BROKERS TOPIC TIMERS`` receives in a process of its own, until it has all of them.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from confluent_kafka import Consumer, TopicPartition

from tests.harness.cluster import client_settings
from tests.harness.process import ROOT, Process, clean_environment, python
from timers.wire.headers import TIMER_DUE

START_S = 15.0
END_S = 30.0
POLL_S = 0.5
MAX_MESSAGES = 2_000
"""Messages of one call of the consumer."""


def start(brokers: str, topic: str, timers: int, directory: Path) -> Process:
    """Start a process that receives ``timers`` callbacks of a topic; return when it receives."""
    command = python("bench.receiving", brokers, topic, str(timers))
    process = Process("receiver", command, clean_environment(), ROOT, directory / "receiver.log").start()
    process.wait_for(r"^receiving", START_S)
    return process


def percentiles_ms(receiver: Process) -> list[float]:
    """Percentiles 0 to 100 of the milliseconds from the start of its due second until each callback was received."""
    found = receiver.wait_for(r"^received (.*)$", END_S)
    receiver.end(5)
    percentiles: list[float] = json.loads(found[1])
    return percentiles


def main(brokers: str, topic: str, timers: int) -> None:
    consumer = Consumer(
        {
            **client_settings(brokers),
            "group.id": "bench-receiver",  # never joined: the partitions are assigned here
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 500,
        }
    )
    partitions = consumer.list_topics(topic, timeout=START_S).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    print("receiving", flush=True)
    late_ms: list[float] = []
    while len(late_ms) < timers:
        # `consume` alone would wait for its timeout until it has as many messages as it may return.
        first = consumer.poll(POLL_S)
        if first is None:
            continue
        messages = [first, *consumer.consume(MAX_MESSAGES, timeout=0)]
        now_ms = time.time() * 1000
        late_ms += [
            now_ms - 1000 * int(dict(message.headers() or ())[TIMER_DUE] or 0)
            for message in messages
            if message.error() is None
        ]
    print(f"received {json.dumps([float(each) for each in np.percentile(late_ms, np.arange(101))])}", flush=True)
    consumer.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
