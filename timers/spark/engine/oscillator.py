"""The engine's own ticks, from the driver. Several oscillators cost nothing, so it does not matter who else ticks."""

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
"""A tick that was not acknowledged by then is given up: the next one says all that it would have said."""


class Oscillator:
    """Ticks just after each turn of the broker's second, in a thread of its own.

    Args:
        settings: where to.
        now_s: epoch seconds, for the key of a tick, which decides nothing.
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
