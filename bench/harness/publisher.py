"""Publishes a workload as fast as one client can, in a process of its own: ``python -m bench.harness.publisher JSON``.

Timer ``i`` is due at ``first_due_s + i % spread_s``. Its callback is ``i`` as 8 bytes and a filler, its key ``i`` in
digits: the checker finds from these alone what was lost, doubled, early or altered.
"""

from __future__ import annotations

import json
import struct
import sys
import time
from dataclasses import asdict, dataclass

from confluent_kafka import Producer

from bench.harness.cluster import quiet
from timers.v1.future_pb2 import Future

ID = struct.Struct(">Q")
CHUNK = 2_500
"""Timers handed to the client at once, to one partition: small enough that partitions fill evenly."""
IN_FLIGHT = 400_000


@dataclass(frozen=True)
class Publication:
    """What to publish, and where."""

    brokers: str
    topic: str
    target: str
    timers: int
    first_due_s: int
    spread_s: int
    payload_bytes: int
    partitions: int
    partitioner: str
    """``spread``: the publisher picks the partition, in turn. Anything else: a librdkafka partitioner over the key."""


def key(number: int) -> bytes:
    return b"%012d" % number


def filler(payload_bytes: int) -> bytes:
    """What follows the id in every payload."""
    return bytes(32 + index % 95 for index in range(payload_bytes - ID.size))


def due_s(publication: Publication, number: int) -> int:
    return publication.first_due_s + number % publication.spread_s


def _template(publication: Publication) -> tuple[bytes, bytes, bytes]:
    """The serialized Future around its key and its id: serialized once, since only these two change."""
    mark_key, mark_id = key(999_999_999_999), b"\xff" * ID.size
    whole = Future(
        callBackTopic=publication.target,
        callBackKey=mark_key.decode(),
        callBack=mark_id + filler(publication.payload_bytes),
    ).SerializeToString()
    before, rest = whole.split(mark_key)
    between, after = rest.split(mark_id)
    return before, between, after


def publish(publication: Publication) -> tuple[float, float]:
    """Publish and wait for every acknowledgement; epoch times of begin and end.

    Raises:
        RuntimeError: the broker refused a record.
    """
    failed: list[str] = []
    settings: dict[str, object] = {
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": 20,
        "batch.num.messages": 10_000,
        "batch.size": 1_000_000,
        "queue.buffering.max.messages": 2 * IN_FLIGHT,
        "queue.buffering.max.kbytes": 1 << 20,
    }
    explicit = publication.partitioner == "spread"
    if not explicit:
        settings["partitioner"] = publication.partitioner
    producer = Producer(quiet(publication.brokers, error_cb=lambda error: failed.append(str(error)), **settings))
    producer.list_topics(publication.topic, timeout=15)
    before, between, after = _template(publication)
    keys = [str(publication.first_due_s + second).encode() for second in range(publication.spread_s)]
    spread, pack = publication.spread_s, ID.pack
    begin = time.time()
    for chunk, low in enumerate(range(0, publication.timers, CHUNK)):
        messages = [
            {"key": keys[i % spread], "value": before + b"%012d" % i + between + pack(i) + after}
            for i in range(low, min(low + CHUNK, publication.timers))
        ]
        while len(producer) > IN_FLIGHT:
            producer.poll(0.01)
        partition = chunk % publication.partitions if explicit else -1
        if producer.produce_batch(publication.topic, messages, partition=partition) != len(messages):
            raise RuntimeError(f"the client refused records: {[m['_error'] for m in messages if '_error' in m][:1]}")
        producer.poll(0)
    left = producer.flush(60)
    if left:
        raise RuntimeError(f"{left} records were not acknowledged: {failed[-1:]}")
    return begin, time.time()


def argument(publication: Publication) -> str:
    return json.dumps(asdict(publication))


if __name__ == "__main__":
    begin_at, end_at = publish(Publication(**json.loads(sys.argv[1])))
    print(f"published {begin_at:.3f} {end_at:.3f}", flush=True)
