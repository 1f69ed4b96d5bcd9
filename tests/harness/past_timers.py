"""Many native timers of the past, with what an engine would have written of them: for tests and benchmarks of Spark."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Producer

from tests.harness.cluster import client_settings
from timers.wire import future, topics
from timers.wire import headers as h

PARTITIONS = 4
PENDING = 10
"""One timer of this many is not due yet."""

SPREAD_S = 3600
PAYLOAD = b"x" * 100
_DAY_S = 86_400


@dataclass(frozen=True)
class PastTimers:
    """Timers with the numbers 0, 1, ..., each of which has one request; a fixed number has a fixed second.

    Attributes:
        first_s: the first due second. Those that are pending are due a day after the last one, or later.
        spread_s: seconds of the others.
    """

    first_s: int
    spread_s: int = SPREAD_S
    request_topic: str = topics.REQUEST

    def due_s(self, number: int) -> int:
        return self.first_s + number * 7919 % self.spread_s + (not number % PENDING) * (self.spread_s + _DAY_S)

    def source(self, number: int) -> str:
        """The name of a request. Its offset is known, because one producer writes each partition from offset 0."""
        return topics.source(self.request_topic, number % PARTITIONS, number // PARTITIONS)

    def requests(self, numbers: Iterable[int], target: str) -> Iterator[dict[str, Any]]:
        value = future.encode(target, "key", PAYLOAD)
        for number in numbers:
            yield {"partition": number % PARTITIONS, "key": b"%d" % self.due_s(number), "value": value}

    def firings(self, numbers: Iterable[int]) -> Iterator[dict[str, Any]]:
        """The callbacks of those that are not pending."""
        for number in numbers:
            if number % PENDING:
                due_s = self.due_s(number)
                headers = [
                    (h.TIMER_ID, self.source(number)),
                    (h.TIMER_DUE, b"%d" % due_s),
                    (h.TIMER_FIRED, b"%d" % (due_s * 1000 + 20)),
                ]
                yield {"partition": number % PARTITIONS, "key": b"key", "value": PAYLOAD, "headers": headers}


def write(brokers: str, topic: str, records: Iterator[dict[str, Any]]) -> None:
    """Write records with one producer, and wait for the brokers, also while they start again."""
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
