"""One of three brokers is frozen, so it answers nothing: which timers wait for it, and for how long."""

import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from tests.harness.cluster import client_settings
from tests.harness.printer import Printer
from tests.harness.scrape import health
from tests.harness.system import System
from tests.harness.three_brokers import (
    CONSUMER_OFFSETS,
    COORDINATING,
    NODES,
    TRANSACTION_STATE,
    ThreeBrokers,
    coordinating_partition,
)
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.core.timer import TopicPartition
from timers.kafka.own_topics import own_topics
from timers.wire import future, topics

PARTITIONS = 12
PER_S = 500
AHEAD_S = 3
"""A timer is due so many seconds after it was given to the producer."""
BEFORE_S, AFTER_S = 10.0, 20.0
LIMIT_MS = 15_000
"""Longest lag of timers that do not need the frozen broker."""


def properties(request_timeout_s: int) -> dict[str, str]:
    """Return the properties of the brokers.

    Args:
        request_timeout_s: so long a coordinator of transactions waits for a silent broker before it sends the end of a
            transaction to the new leader; Kafka's default is 30 s.
    """
    return {
        "offsets.topic.num.partitions": str(PARTITIONS),
        "transaction.state.log.num.partitions": str(PARTITIONS),
        "broker.session.timeout.ms": "9000",  # Kafka's default: so long a silent broker stays in the cluster
        "broker.heartbeat.interval.ms": "2000",
        "request.timeout.ms": str(request_timeout_s * 1000),
    }


@dataclass(frozen=True)
class Figures:
    """What a freeze did. Lags count from the due second, or from the acknowledgement if that was later."""

    frozen: int
    worst_before_ms: int
    """Before the freeze. If this is seconds, the computer is too busy for this trial."""
    elsewhere: int
    """Timers whose partitions and coordinators are not on the frozen broker."""
    worst_elsewhere_ms: int
    others: int
    worst_others_ms: int
    lost: int
    twice: int
    sentences: tuple[str, ...]
    """Those that blame a clock, and those with which the worker ended."""

    @property
    def passed(self) -> bool:
        return not (self.lost or self.twice or self.sentences) and self.worst_elsewhere_ms < LIMIT_MS

    def __str__(self) -> str:
        return (
            f"{'passed' if self.passed else 'FAILED'}  broker {self.frozen} frozen: worst lag "
            f"{self.worst_before_ms:,} ms before, {self.worst_elsewhere_ms:,} ms of {self.elsewhere:,} timers "
            f"elsewhere, {self.worst_others_ms:,} ms of {self.others:,} others; lost {self.lost}, twice {self.twice}, "
            f"sentences {list(self.sentences)}"
        )


class Freeze:
    """A system on three brokers, with three replicas of everything."""

    def __init__(self, brokers: ThreeBrokers, directory: Path, printer: Printer) -> None:
        self._brokers, self._printer = brokers, printer
        address = brokers.start()
        for topic, config in COORDINATING.items():
            brokers.create(topic, _spread(PARTITIONS), config)
        self._system = System(address, directory, TIMERS_PARTITIONS=str(PARTITIONS), TIMERS_REPLICATION="3")
        for own in own_topics(self._system.settings):
            brokers.create(own.name, _spread(PARTITIONS), own.config)
        self._target = brokers.create(f"target-{self._system.app_id}", _spread(PARTITIONS))
        self._due_s: dict[int, int] = {}
        self._acked_at: dict[int, float] = {}
        self._sentences: set[str] = set()
        self._frozen_ms = 0.0

    def run(self, frozen_s: float) -> Figures:
        """Freeze a broker for ``frozen_s`` under load, and return the figures."""
        try:
            return self._run(frozen_s)
        finally:
            self._system.close()

    def _run(self, frozen_s: float) -> Figures:
        worker = self._system.worker().start().ready()
        group = coordinating_partition(self._system.app_id, PARTITIONS)
        leads = {node: self._brokers.led_by(node) for node in NODES}
        # The first broker is the active controller. Without the group's coordinator, no timer is elsewhere.
        frozen = next(node for node in NODES[1:] if (CONSUMER_OFFSETS, group) not in leads[node])
        stop = threading.Event()
        threads = [threading.Thread(target=run, args=(stop,)) for run in (self._publish, self._watch)]
        for thread in threads:
            thread.start()
        try:
            with self._printer.doing(
                f"broker {frozen} is frozen for {frozen_s:.0f} s", lambda: f"{len(self._due_s):,} timers"
            ):
                time.sleep(BEFORE_S)
                self._frozen_ms = time.time() * 1000
                self._brokers.freeze(frozen)
                time.sleep(frozen_s)
                self._brokers.thaw(frozen)
                time.sleep(AFTER_S)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        self._sentences |= {line for line in worker.log.splitlines() if "clock" in line.lower()}
        with self._printer.doing("waiting until all timers have fired"):
            figures = self._figures(frozen, leads[frozen])
        worker.end()
        return figures

    def _publish(self, stop: threading.Event) -> None:
        producer = Producer({**client_settings(self._system.address), "acks": "all", "enable.idempotence": True})
        began, number = time.monotonic(), 0

        def delivered(of: int) -> None:
            self._acked_at[of] = time.time()

        while not stop.wait(0.02):
            for each in range(number, int((time.monotonic() - began) * PER_S)):
                due_s = self._due_s[each] = int(time.time()) + AHEAD_S
                value = future.encode(self._target, f"key-{each}", b"%d" % each)

                def report(error: KafkaError | None, message: Message, of: int = each) -> None:
                    assert error is None, error
                    delivered(of)

                producer.produce(
                    self._system.request_topic, value, b"%d" % due_s, each % PARTITIONS, on_delivery=report
                )
                number = each + 1
            producer.poll(0)
        assert producer.flush(2 * DEADLINE_S) == 0, "the brokers did not take all requests"

    def _watch(self, stop: threading.Event) -> None:
        """Collect sentences that blame a clock, and start the worker again if it ends, as a supervisor does."""
        worker = self._system.workers[0]
        while not stop.wait(1.0):
            if not worker.running:
                self._sentences |= {*worker.sentences} or {f"the worker ended with {worker.exit_code()}"}
                worker.start()
            with suppress(OSError, ValueError):  # it starts or ends just now
                said = [
                    *health(worker.port, "ready")[1]["reasons"],
                    *health(worker.port, "partitions")[1]["red"].values(),
                ]
                self._sentences |= {sentence for sentence in said if "clock" in sentence.lower()}

    def _figures(self, frozen: int, led: set[tuple[str, int]]) -> Figures:
        reader = self._system.reader(self._target)
        records = []

        def all_fired() -> bool:
            records.extend(reader.rest(3 * DEADLINE_S))
            return len({record.value for record in records}) >= len(self._due_s)

        try:
            wait_until(all_fired, "all timers have fired", 3 * DEADLINE_S)
        except AssertionError as error:
            self._printer.line(f"    {error}")
        needed = [self._needs(number) & led for number in range(PARTITIONS)]
        counts: Counter[int] = Counter()
        lags: dict[bool, list[int]] = {True: [0], False: [0]}
        before = [0]
        for record in records:
            number = int(record.value or b"-1")
            counts[number] += 1
            from_ms = 1000 * max(self._due_s[number], self._acked_at[number])
            is_elsewhere = not needed[number % PARTITIONS] and (self._target, record.partition) not in led
            lags[is_elsewhere].append(int(record.append_ms - from_ms))
            if record.append_ms < self._frozen_ms:
                before.append(lags[is_elsewhere][-1])
        return Figures(
            frozen=frozen,
            worst_before_ms=max(before),
            elsewhere=len(lags[True]) - 1,
            worst_elsewhere_ms=max(lags[True]),
            others=len(lags[False]) - 1,
            worst_others_ms=max(lags[False]),
            lost=sum(not counts[number] for number in self._due_s),
            twice=sum(count > 1 for count in counts.values()),
            sentences=tuple(sorted(self._sentences)),
        )

    def _needs(self, partition: int) -> set[TopicPartition]:
        """Partitions that a machine needs besides the callback's: its requests, its progress, and its coordinator."""
        settings = self._system.settings
        name = topics.transactional_id(settings.app_id, settings.request_topic, partition)
        return {
            (settings.request_topic, partition),
            (settings.progress_topic, partition),
            (TRANSACTION_STATE, coordinating_partition(name, PARTITIONS)),
        }


def _spread(partitions: int) -> list[tuple[int, ...]]:
    """Replicas on all brokers; each broker leads every third partition."""
    return [tuple(NODES[(number + turn) % len(NODES)] for turn in range(len(NODES))) for number in range(partitions)]
