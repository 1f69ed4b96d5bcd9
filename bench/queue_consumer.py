"""The consumer processes of :mod:`bench.queues`: ``python -m bench.queue_consumer KIND TOPIC BROKERS COUNT``.

Each prints ``ready`` when it has its first message, and at its end one line: ``figures`` and a JSON object.
"""

import argparse
import json
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer

from timers.queue import Backoff, Queue
from timers.queue.member import COMMIT_INTERVAL_S

BATCH = 500

LEASE_S = 5.0
NOT_ACKNOWLEDGED = 10
"""Of so many messages one is not acknowledged at its first delivery, in the run ``leases``."""

UNCOUNTED = 25_000
"""The latency of the first messages is not counted: a broker that has just started compiles its code."""

IDLE_S = 3.0
QUIET_S = 10.0
START_S = 20.0
"""A consumer ends after so long without a message, or without a first message: others may have consumed all. In a run
that measures latency, other messages may come later."""


def sent_value(number: int) -> bytes:
    """A message of 100 bytes: its number, and the time at which it is sent."""
    return b"%050d%050d" % (number, time.time_ns())


class Progress:
    """Counts messages, and notes the times of the first and of the last one.

    Args:
        count: messages after which the consumer ends.
        idle_s: seconds without a message after which it ends, too.
    """

    def __init__(self, count: int, idle_s: float = IDLE_S) -> None:
        self._count, self._idle_s = count, idle_s
        self._first = self._cpu_s = 0.0
        self._last = time.time()
        self.received = 0

    @property
    def is_over(self) -> bool:
        idle_s = time.time() - self._last
        return self.received >= self._count or idle_s > (self._idle_s if self.received else START_S)

    def add(self, messages: int) -> None:
        if messages:
            self._last = time.time()
            if not self._first:
                self._first, self._cpu_s = self._last, _cpu_s()
                print("ready", flush=True)
            self.received += messages

    def figures(self) -> dict[str, float]:
        """Received messages, times in epoch seconds, CPU seconds since the first message, and peak MB."""
        last = time.time() if self.received >= self._count else self._last
        cpu_s = _cpu_s() - self._cpu_s
        return {"received": self.received, "first": self._first, "last": last, "cpu_s": cpu_s, "peak_mb": _peak_mb()}


def queue(topic: str, brokers: str, count: int) -> dict[str, Any]:
    """Acknowledge each message by itself."""
    progress = Progress(count)
    with Queue(topic, brokers=brokers) as messages:
        while not progress.is_over:
            received = messages.receive(BATCH, wait_s=0.5)
            progress.add(len(received))
            for message in received:
                message.ack()
        messages.settle()
        return progress.figures()


def plain(topic: str, brokers: str, count: int) -> dict[str, Any]:
    """Read with a plain consumer, and commit an offset for each batch."""
    progress = Progress(count)
    consumer = _plain_consumer(topic, brokers)
    while not progress.is_over:
        records = consumer.consume(BATCH, 0.5)
        progress.add(len(records))
        if records:
            for record in records:
                record.value()
            consumer.commit(asynchronous=False)
    consumer.close()
    return progress.figures()


def _plain_consumer(topic: str, brokers: str) -> Consumer:
    options = {
        "bootstrap.servers": brokers,
        "group.id": f"plain-{topic}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    }
    consumer = Consumer(options)
    consumer.subscribe([topic])
    return consumer


def latency(topic: str, brokers: str, count: int) -> dict[str, Any]:
    """Note the time from sending to delivery of each message."""
    progress = Progress(count, QUIET_S)
    waited_ms: list[float] = []
    with Queue(topic, brokers=brokers) as messages:
        while not progress.is_over:
            received = messages.receive(BATCH, wait_s=0.5)
            _note(waited_ms, [message.value or b"" for message in received])
            progress.add(len(received))
            for message in received:
                message.ack()
        messages.settle()
        return {**progress.figures(), "waited_ms": waited_ms}


def plain_latency(topic: str, brokers: str, count: int) -> dict[str, Any]:
    """As ``latency``, with a plain consumer that commits as often as a queue does."""
    progress = Progress(count, QUIET_S)
    waited_ms: list[float] = []
    consumer = _plain_consumer(topic, brokers)
    commit_s = 0.0
    while not progress.is_over:
        records = [*consumer.consume(1, 0.5), *consumer.consume(BATCH, 0)]
        _note(waited_ms, [record.value() or b"" for record in records])
        progress.add(len(records))
        if records and time.monotonic() >= commit_s:
            consumer.commit(asynchronous=False)
            commit_s = time.monotonic() + COMMIT_INTERVAL_S
    consumer.close()
    return {**progress.figures(), "waited_ms": waited_ms}


def _note(waited_ms: list[float], values: Sequence[bytes]) -> None:
    now_ns = time.time_ns()
    waited_ms += [(now_ns - int(value[50:])) / 1e6 for value in values if int(value[:50]) >= UNCOUNTED]


def leases(topic: str, brokers: str, count: int) -> dict[str, Any]:
    """Leave some messages without an acknowledgement, and note how long after their leases they come again."""
    first_s: dict[int, float] = {}
    late_ms: list[float] = []
    progress = Progress(count + count // NOT_ACKNOWLEDGED)
    with Queue(topic, brokers=brokers, lease_s=LEASE_S, backoff=Backoff(first_s=0)) as messages:
        end_s = time.monotonic() + 60
        while progress.received < count + count // NOT_ACKNOWLEDGED and time.monotonic() < end_s:
            received = messages.receive(BATCH, wait_s=0.5)
            now_s = time.monotonic()
            progress.add(len(received))
            for message in received:
                number = int((message.value or b"")[:50])
                if number % NOT_ACKNOWLEDGED or number in first_s:
                    message.ack()
                else:
                    first_s[number] = now_s
                if number in first_s and first_s[number] != now_s:
                    late_ms.append((now_s - first_s[number] - LEASE_S) * 1000)
        messages.settle()
        return {**progress.figures(), "waited_ms": late_ms}


def _peak_mb() -> float:
    """Peak memory. ``getrusage`` counts that of the process which started this one, too."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


KINDS: Mapping[str, Callable[[str, str, int], dict[str, Any]]] = {
    each.__name__.replace("_", "-"): each for each in (queue, plain, latency, plain_latency, leases)
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.queue_consumer", description=(__doc__ or "").split(":")[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("topic")
    parser.add_argument("brokers")
    parser.add_argument("count", type=int)
    given = parser.parse_args(argv)
    print("figures", json.dumps(KINDS[given.kind](given.topic, given.brokers, given.count)), flush=True)


if __name__ == "__main__":
    main()
