"""Publishes a workload as fast as one client can, in a process of its own: ``python -m bench.harness.publisher JSON``.

The callback of timer ``i`` is ``i`` as 8 bytes and a filler, its key ``i`` in digits, and :func:`dues` says when it is
due: the checker finds from these alone what was lost, doubled, early or altered.
"""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from confluent_kafka import KafkaError, Message, Producer
from numpy.typing import NDArray

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
    pace_s: int = 0
    """0: all at once, as fast as it goes. Else evenly over so many seconds, beginning with ``first_due_s``; then
    ``spread_s`` counts for nothing, and each timer is due some time after its turn:"""
    delays_s: Sequence[int] = (0,)
    """timer ``i`` by entry ``i`` modulo their number; ..."""
    gather_s: int = 1
    """... and then, but for every eighth timer, at the next multiple of this after ``first_due_s``: bursts."""
    first: int = 0
    """Timers before this one were published by another publication of the same workload."""


def key(number: int) -> bytes:
    return b"%012d" % number


def filler(payload_bytes: int) -> bytes:
    """What follows the id in every payload."""
    return bytes(32 + index % 95 for index in range(payload_bytes - ID.size))


def dues(publication: Publication) -> NDArray[np.int64]:
    """Due second of each timer."""
    numbers = np.arange(publication.timers, dtype=np.int64)
    if not publication.pace_s:
        return publication.first_due_s + numbers % publication.spread_s
    after_s = numbers * publication.pace_s // publication.timers + np.resize(publication.delays_s, len(numbers))
    gathered = -(-after_s // publication.gather_s) * publication.gather_s
    return publication.first_due_s + np.where(numbers % 8 > 0, gathered, after_s)


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
    # Only refusals are reported: a million calls for what went well would be the publisher's main work.
    settings["delivery.report.only.error"] = True

    def refused(error: KafkaError | None, message: Message) -> None:
        failed.append(f"a record was not acknowledged: {error}")

    producer = Producer(quiet(publication.brokers, error_cb=lambda error: None, **settings))
    producer.list_topics(publication.topic, timeout=15)
    before, between, after = _template(publication)
    due = dues(publication)
    keys = {int(second): b"%d" % second for second in np.unique(due)}
    timers, pace_s, pack = publication.timers, publication.pace_s, ID.pack
    size = min(CHUNK, max(1, timers // (pace_s * 2 * publication.partitions))) if pace_s else CHUNK
    begin = time.time()
    for chunk, low in enumerate(range(publication.first, timers, size)):
        messages = [
            {"key": keys[second], "value": before + b"%012d" % i + between + pack(i) + after}
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
    left = producer.flush(60)
    if left or failed:
        raise RuntimeError(f"{left + len(failed)} records were not acknowledged, such as: {failed[:1]}")
    return begin, time.time()


def argument(publication: Publication) -> str:
    return json.dumps(asdict(publication))


if __name__ == "__main__":
    begin_at, end_at = publish(Publication(**json.loads(sys.argv[1])))
    print(f"published {begin_at:.3f} {end_at:.3f}", flush=True)
