"""Publishes many timers as fast as one client can.

``python -m tests.harness.publication JSON`` publishes in a process of its own.

The callback of timer ``i`` has ``i`` as 8 bytes and a filler as its value and ``i`` in digits as its key;
:func:`dues` returns the due seconds. The judge needs only these to find lost, duplicate, early and altered callbacks.
"""

import json
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from confluent_kafka import KafkaError, Message, Producer
from numpy.typing import NDArray

from tests.harness.cluster import client_settings
from tests.harness.process import ROOT, Process, clean_environment, python
from timers.v1.future_pb2 import Future

ID = struct.Struct(">Q")
CHUNK = 2_500
"""Timers in one call of the client, for one partition; a small number fills the partitions evenly."""
ROUNDS = 10
"""Minimum number of chunks for each partition."""
IN_FLIGHT = 400_000
CONNECT_S = 120
"""The first kill may be that of the broker: a start takes a quarter of a minute on a busy machine."""
FLUSH_S = 240
"""Partitions may have no leader for a minute if a broker starts again on a busy machine."""


@dataclass(frozen=True)
class Publication:
    """The timers to publish, and their topics."""

    brokers: str
    topic: str
    target: str
    timers: int
    first_due_s: int
    spread_s: int
    payload_bytes: int
    partitions: int
    partitioner: str
    """``spread``: the publisher chooses the partitions in turn. Anything else is a partitioner of librdkafka."""
    pace_s: int = 0
    """0: publish all timers at once. Else publish them evenly over this many seconds from ``first_due_s`` on; then
    ``spread_s`` has no effect, and a timer is due after a delay from the moment at which it is published."""
    delays_s: Sequence[int] = (0,)
    """Delays in seconds; timer ``i`` has entry ``i`` modulo their number."""
    burst_every_s: int = 1
    """Seven of eight timers are due in bursts: at the next multiple of this number of seconds after ``first_due_s``."""
    first: int = 0
    """Number of the first timer to publish; those below were published earlier."""
    at_random: bool = False
    """Due at random over ``spread_s`` from ``first_due_s`` on."""


def key(number: int) -> bytes:
    return b"%012d" % number


def filler(payload_bytes: int) -> bytes:
    """The bytes after the id in every payload."""
    return bytes(32 + index % 95 for index in range(payload_bytes - ID.size))


def dues(publication: Publication) -> NDArray[np.int64]:
    """Due second of each timer."""
    numbers = np.arange(publication.timers, dtype=np.int64)
    if publication.at_random:
        return publication.first_due_s + np.random.default_rng(0).integers(0, publication.spread_s, len(numbers))
    if not publication.pace_s:
        return publication.first_due_s + numbers % publication.spread_s
    after_s = numbers * publication.pace_s // publication.timers + np.resize(publication.delays_s, len(numbers))
    gathered = -(-after_s // publication.burst_every_s) * publication.burst_every_s
    due_s: NDArray[np.int64] = publication.first_due_s + np.where(numbers % 8 > 0, gathered, after_s)
    return due_s


def _template(publication: Publication) -> tuple[bytes, bytes, bytes]:
    """The constant bytes of a Future: before, between and after its key and its id."""
    mark_key, mark_id = key(999_999_999_999), b"\xff" * ID.size
    whole = Future(
        callBackTopic=publication.target,
        callBackKey=mark_key.decode(),
        callBack=mark_id + filler(publication.payload_bytes),
    ).SerializeToString()
    before, rest = whole.split(mark_key)
    between, after = rest.split(mark_id)
    return before, between, after


def _producer(publication: Publication) -> Producer:
    """A producer that knows the topic and reports only failures, because a million reports of success are slow."""
    settings: dict[str, object] = {
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": 20,
        "batch.num.messages": 10_000,
        "batch.size": 1_000_000,
        "queue.buffering.max.messages": 2 * IN_FLIGHT,
        "queue.buffering.max.kbytes": 1 << 20,
        "delivery.report.only.error": True,
        "error_cb": lambda error: None,
    }
    if publication.partitioner != "spread":
        settings["partitioner"] = publication.partitioner
    producer = Producer({**client_settings(publication.brokers), **settings})
    producer.list_topics(publication.topic, timeout=CONNECT_S)
    return producer


def publish(publication: Publication) -> tuple[float, float]:
    """Publish, wait for every acknowledgement, and return the epoch times of begin and end.

    Raises:
        RuntimeError: the broker refused a record.
    """
    failed: list[str] = []

    def refused(error: KafkaError | None, message: Message) -> None:
        failed.append(f"a record was not acknowledged: {error}")

    explicit = publication.partitioner == "spread"
    producer = _producer(publication)
    before, between, after = _template(publication)
    due = dues(publication)
    timers, pace_s, pack = publication.timers, publication.pace_s, ID.pack
    size = min(CHUNK, max(1, timers // ((pace_s * 2 or ROUNDS) * publication.partitions)))
    begin = time.time()
    for chunk, low in enumerate(range(publication.first, timers, size)):
        messages = [
            {"key": b"%d" % second, "value": before + b"%012d" % i + between + pack(i) + after}
            for i, second in enumerate(due[low : low + size].tolist(), low)
        ]
        while len(producer) > IN_FLIGHT:
            producer.poll(0.01)
        while pace_s and (wait_s := publication.first_due_s + low * pace_s / timers - time.time()) > 0:
            producer.poll(min(wait_s, 0.1))
        partition = chunk % publication.partitions if explicit else -1
        if producer.produce_batch(publication.topic, messages, partition=partition, on_delivery=refused) != len(
            messages
        ):
            raise RuntimeError(f"the client refused records: {[m['_error'] for m in messages if '_error' in m][:1]}")
        producer.poll(0)
    left = producer.flush(FLUSH_S)
    if left or failed:
        raise RuntimeError(f"{left + len(failed)} records were not acknowledged, such as: {failed[:1]}")
    return begin, time.time()


def start_publisher(publication: Publication, directory: Path) -> Process:
    """Start a process that publishes; its log is in ``directory``."""
    command = python("tests.harness.publication", json.dumps(asdict(publication)))
    return Process("publisher", command, clean_environment(), ROOT, directory / "publisher.log").start()


def wait_published(publisher: Process, deadline_s: float) -> tuple[float, float]:
    """Wait until all timers are acknowledged; return the epoch times of begin and end."""
    published = publisher.wait_for(r"^published ([0-9.]+) ([0-9.]+)$", deadline_s)
    return float(published[1]), float(published[2])


def publish_in_process(publication: Publication, directory: Path, deadline_s: float = 120.0) -> None:
    """Publish in a process of its own and wait for its end."""
    publisher = start_publisher(publication, directory)
    try:
        wait_published(publisher, deadline_s)
    finally:
        publisher.end(5)


if __name__ == "__main__":
    begin_at, end_at = publish(Publication(**json.loads(sys.argv[1])))
    print(f"published {begin_at:.3f} {end_at:.3f}", flush=True)
