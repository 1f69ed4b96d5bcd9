"""Timers with ids in a storm of :mod:`tests.chaos.spark`: set, and some of them updated or cancelled at random."""

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from confluent_kafka import Producer

from tests.harness.cluster import client_settings
from tests.harness.records import Publisher
from tests.harness.system import System
from timers.core.operation import CANCELLED, REPLACED
from timers.kafka.clients import librdkafka, reader
from timers.kafka.records import read
from timers.wire import future, verdict
from timers.wire.formats import future_by_id
from timers.wire.headers import TIMER_SOURCE

PAUSE_S = 0.05
LONGEST_DELAY_S = 30
CHANGED_SHARE = 0.25
"""Of the timers, so many are updated, and as many others are cancelled. Some of these requests come when the timer is
due, or later."""
READ_S = 60.0


class IdTraffic:
    """Publishes requests with ids beside a storm, and judges what became of each.

    Args:
        system: with a topic of requests with ids.
        target: a topic for their callbacks alone.
        timers: to set, evenly over ``pace_s`` seconds.
    """

    def __init__(self, system: System, target: str, timers: int, pace_s: int, chosen: random.Random) -> None:
        self._system, self._target, self._timers, self._pace_s = system, target, timers, pace_s
        self._random = chosen
        self._failed: list[Exception] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to publish."""
        self._thread.start()

    def _run(self) -> None:
        try:
            self._publish()
        except Exception as error:
            self._failed.append(error)

    def _publish(self) -> None:
        settings = {"linger.ms": 20, "enable.idempotence": True, "queue.buffering.max.messages": 1_000_000}
        producer = Producer({**client_settings(self._system.address), **settings})
        begin, number, later = time.time(), 0, list[tuple[float, int, bool]]()
        while number < self._timers or later:
            now = time.time()
            until = min(self._timers, int((now - begin) / self._pace_s * self._timers))
            for each in range(number, until):
                due_s = self._set(producer, each, now)
                change, at_s = self._random.random(), now + self._random.uniform(0, due_s - now + 1)
                if change < 2 * CHANGED_SHARE:
                    later.append((at_s, each, change < CHANGED_SHARE))
            number = until
            due = [each for each in later if each[0] <= now]
            later = [each for each in later if each[0] > now]
            for _, each, is_update in due:
                if is_update:
                    self._set(producer, each, now)
                else:
                    producer.produce(self._system.settings.id_topic, None, self._key(each))
            producer.poll(0)
            time.sleep(PAUSE_S)
        left = producer.flush(READ_S)
        assert not left, f"{left} requests were not acknowledged"

    def _set(self, producer: Producer, number: int, now_s: float) -> int:
        """Set a timer, and return its due second."""
        due_s = int(now_s) + self._random.randint(1, LONGEST_DELAY_S)
        value, headers = future.encode(self._target, "", b"%d" % number), future_by_id.encode_headers(due_s)
        producer.produce(self._system.settings.id_topic, value, self._key(number), headers=[*headers])
        return due_s

    @staticmethod
    def _key(number: int) -> bytes:
        return b"id-%d" % number

    def wait(self) -> None:
        """Wait until all requests are published, and all timers have fired."""
        self._thread.join()
        if self._failed:
            raise self._failed[0]
        system, fence = self._system, self._system.target()
        publisher, topic = Publisher(system.address, system.settings.id_topic), system.settings.id_topic
        due_s = int(time.time()) + LONGEST_DELAY_S + 2  # a machine fires in the order of due seconds
        partitions = len(system.cluster.ends(topic))
        for partition in range(partitions):
            headers = future_by_id.encode_headers(due_s)
            publisher.send_raw(b"fence-%d" % partition, future.encode(fence, "", b""), headers, partition)
        publisher.flush()
        system.reader(fence).take(partitions, 10 * READ_S)

    def judge(self) -> tuple[str, bool]:
        """Compare each request with its verdict and its callback. Returns a sentence, and whether all agree."""
        told: Counter[str] = Counter()
        verdicts: dict[str, str] = {}
        for message in self._read(self._system.settings.verdict_topic):
            source = dict(message.headers())[TIMER_SOURCE].decode()
            told[source] += 1
            verdicts[source] = verdict.decode(message.value()).verdict
        fired = Counter(dict(each.headers())[TIMER_SOURCE].decode() for each in self._read(self._target))
        by_id: dict[bytes, list[tuple[str, bool]]] = defaultdict(list)
        for message in self._read(self._system.settings.id_topic):
            if not message.key().startswith(b"fence"):
                source = f"{message.topic()}/{message.partition()}/{message.offset()}"
                by_id[message.key()].append((source, message.value() is not None))
        wrong = Counter[str]()
        for requests in by_id.values():
            for (source, sets), (follower, _) in zip(requests, [*requests[1:], ("", False)], strict=True):
                ended = verdicts.get(follower) in (REPLACED, CANCELLED)
                if sets and fired[source] != (not ended):
                    wrong["twice" if fired[source] > 1 else "fired though ended" if ended else "lost"] += 1
        wrong["verdicts twice"] += sum(count - 1 for count in told.values())
        wrong["callbacks without a request"] += len(
            fired.keys() - {each for some in by_id.values() for each, _ in some}
        )
        wrong = +wrong
        sentence = (
            f"{sum(map(len, by_id.values())):,} requests for {len(by_id):,} ids, {sum(fired.values()):,} fired, "
            f"verdicts {dict(Counter(verdicts.values()))}: {dict(wrong) or 'all agree'}"
        )
        return sentence, not wrong and len(by_id) == self._timers

    def _read(self, topic: str) -> Iterator[Any]:
        with closing(reader(librdkafka(self._system.settings), enable_partition_eof=True)) as consumer:
            for partition, end in self._system.cluster.ends(topic, committed=True).items():
                yield from read(consumer, topic, partition, 0, end, timeout_s=READ_S)
