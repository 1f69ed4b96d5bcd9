"""The oscillator of the engine: it writes ticks from the driver. Other oscillators may run too: ticks may repeat."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from time import monotonic
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from timers.core.clock_guard import ClockGuard
from timers.core.ticking import TICK_TIMEOUT_S, TICK_VALUE, Phase
from timers.core.timer import Tick, latest_tick
from timers.kafka import connection
from timers.kafka.clients import flush
from timers.kafka.lost_brokers import LOST_BROKERS, LostBrokers
from timers.process.clock import Clock
from timers.process.config.settings import Settings

logger = logging.getLogger(__name__)

PARTITION_UA = -1
"""librdkafka chooses the partition."""


class Oscillator:
    """Writes a tick just after the broker's next second begins, in its own thread.

    Attributes:
        tick: the newest of its ticks that counts; None: none yet.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._topic = settings.oscillator_topic
        self._clock = clock
        self._guard = ClockGuard(settings.max_clock_leap_s, settings.accept_time_s)
        self._phase = Phase()
        self.tick: Tick | None = None
        self._fired_s: list[int] = []
        self._config: dict[str, Any] = {
            **connection.librdkafka(settings),
            "acks": "all",
            "linger.ms": 0,
            "socket.nagle.disable": True,
            "message.timeout.ms": int(TICK_TIMEOUT_S * 1000),
            "log_level": 0,
        }
        self._open()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="oscillator", daemon=True)

    def _open(self) -> None:
        self._lost = LostBrokers()
        self._producer = Producer({**self._config, **self._lost.properties})

    def __enter__(self) -> Oscillator:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(2 * TICK_TIMEOUT_S)

    def follow(self, tick_ms: int) -> None:
        """A tick counts for the buckets. If the clock of this machine agrees with no tick, as on a new machine long
        after an operator has agreed, the first one that counts here must follow it closely."""
        self._fired_s = [tick_ms // 1000]

    def wake(self) -> None:
        """Write a tick now, so that a micro-batch begins. Any thread."""
        with suppress(KafkaException, BufferError):
            self._producer.produce(self._topic, TICK_VALUE, b"%d" % int(self._clock.now_s()))

    def _run(self) -> None:
        while not self._stop.wait(max(0.0, self._phase.next_second_at(monotonic()) - monotonic())):
            holds = self._guard.holds(self._clock.boot_s())
            for broker, partition in self._one_of_each_leader() if holds else [(None, PARTITION_UA)]:
                self._send(broker, partition)
            flush(self._producer, 2 * TICK_TIMEOUT_S)
            if self._lost.are_all:
                logger.warning("the producer of ticks %s: it is made anew", LOST_BROKERS)
                self._open()
            if self._phase.offset_s is None:
                self._stop.wait(1.0)

    def _send(self, broker: int | None, partition: int) -> None:
        sent_s = monotonic()

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                logger.warning("a tick was not delivered: %s", error)
            elif self._counts(message.timestamp()[1], broker):
                self._phase.observe(sent_s, monotonic(), message.timestamp()[1])
                self.tick = latest_tick(self.tick, Tick(message.timestamp()[1]))

        key = b"%d" % int(self._clock.now_s())
        try:
            self._producer.produce(self._topic, TICK_VALUE, key, partition, on_delivery=delivered)
        except (KafkaException, BufferError) as error:
            logger.warning("a tick was not sent: %s", error)

    def _counts(self, append_ms: int, broker: int | None) -> bool:
        """Judge a tick [I20], as the buckets do with the clocks of their machines."""
        held = bool(self._guard.holds(self._clock.boot_s()))
        counts = self._guard.counts(append_ms, broker, self._clock.read(), self._fired_s)
        holds = self._guard.holds(self._clock.boot_s())
        if holds and not held:
            logger.warning("%s", holds[0].sentence)
        return counts

    def _one_of_each_leader(self) -> list[tuple[int | None, int]]:
        """(broker, one of the partitions that it leads) of each broker, to compare their clocks."""
        try:
            partitions = self._producer.list_topics(self._topic, TICK_TIMEOUT_S).topics[self._topic].partitions
        except KafkaException as error:
            logger.warning("the leaders of %s are not known: %s", self._topic, error)
            return [(None, PARTITION_UA)]
        leaders = {each.leader: each.id for each in partitions.values() if each.leader >= 0}
        return list(leaders.items()) or [(None, PARTITION_UA)]
