"""The oscillator of the engine: it writes ticks from the driver. Other oscillators may run too: ticks may repeat."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from timers.config.settings import Settings
from timers.core.ticking import Phase
from timers.kafka import connection

logger = logging.getLogger(__name__)

TICK_VALUE = b"1"

TICK_TIMEOUT_S = 5.0
"""After this time an unacknowledged tick is dropped: the next tick replaces it."""


class Oscillator:
    """Writes a tick just after the broker's next second begins, in its own thread.

    Args:
        settings: brokers and topic.
        now_s: returns epoch seconds, for the key of a tick. No decision depends on the key.
    """

    def __init__(self, settings: Settings, now_s: Callable[[], float]) -> None:
        self._topic = settings.oscillator_topic
        self._now_s = now_s
        self._phase = Phase()
        config: dict[str, Any] = {
            **connection.librdkafka(settings),
            "acks": "all",
            "linger.ms": 0,
            "socket.nagle.disable": True,
            "message.timeout.ms": int(TICK_TIMEOUT_S * 1000),
            "log_level": 0,
        }
        self._producer = Producer(config)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="oscillator", daemon=True)

    def __enter__(self) -> Oscillator:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(2 * TICK_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stop.wait(max(0.0, self._phase.next_turn(monotonic()) - monotonic())):
            sent_s = monotonic()

            def delivered(error: KafkaError | None, message: Message, sent_s: float = sent_s) -> None:
                if error is None:
                    self._phase.observe(sent_s, monotonic(), message.timestamp()[1])
                else:
                    logger.warning("a tick was not delivered: %s", error)

            try:
                self._producer.produce(self._topic, TICK_VALUE, b"%d" % int(self._now_s()), on_delivery=delivered)
            except (KafkaException, BufferError) as error:
                logger.warning("a tick was not sent: %s", error)
            self._producer.flush(2 * TICK_TIMEOUT_S)
            if self._phase.offset_s is None:
                self._stop.wait(1.0)
