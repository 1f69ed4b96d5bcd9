"""The brokers' time, for records on topics of others, where a record has the time that its producer gives it.

A broker refuses a time that is more than an hour ahead of its own (``message.timestamp.after.max.ms``, Kafka 4), and
deletes a record with an old one too early. No answer of a broker says its time, except that of a topic whose times the
brokers set: the newest tick of the workers has it, within a second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from threading import Lock
from time import monotonic, sleep

from confluent_kafka import KafkaException, TopicPartition

from timers.kafka import connection
from timers.kafka.clients import admin_client
from timers.process.clock import Clock
from timers.process.config.settings import Settings
from timers.wire.checks import PRODUCER_CLOCK_ERROR_MS

logger = logging.getLogger(__name__)

LOOK_S = 60.0
"""Seconds after which the ticks are looked at again: a clock may have been corrected."""

_ANSWER_S = 1.0
_NEXT_TICK_S = 2.5
_POLL_S = 0.1


class BrokersTime:
    """Compares the clock of this machine with the newest tick. Thread-safe. It asks once in :data:`LOOK_S`, and then
    blocks for some milliseconds, or for seconds if the clock is wrong or the brokers are slow.

    A clock that is wrong by up to a minute, :data:`timers.wire.checks.PRODUCER_CLOCK_ERROR_MS`, is used as it is. So is
    one that cannot be compared: no worker writes ticks, or this user has no right Describe on their topic.

    Args:
        newest_ticks_ms: returns the time of the newest tick of each partition that says it. May raise KafkaException.
        own_s: the clock of this machine, in epoch seconds; None: its wall clock.
    """

    def __init__(
        self, newest_ticks_ms: Callable[[], Mapping[int, int]], own_s: Callable[[], float] | None = None
    ) -> None:
        self._newest_ticks_ms = newest_ticks_ms
        self._own_s = own_s or Clock().now_s
        self._ahead_ms = 0
        self._looked_s = float("-inf")
        self._lock = Lock()

    @classmethod
    def of(cls, settings: Settings) -> BrokersTime:
        """The brokers' time from the ticks of this app's workers."""
        return cls(partial(newest_ticks_ms, settings))

    def record_ms(self) -> int:
        """The time for a record that is written now, in epoch milliseconds; 0: the client's own."""
        if monotonic() >= self._looked_s + LOOK_S:
            with self._lock:
                if monotonic() >= self._looked_s + LOOK_S:
                    self._look_again()
        ahead_ms = self._ahead_ms
        return self._own_ms() + ahead_ms if ahead_ms else 0

    def now_s(self) -> int:
        """The same in whole epoch seconds, always a time."""
        return (self.record_ms() or self._own_ms()) // 1000

    def _look_again(self) -> None:
        known_ms = self._ahead_ms
        with suppress(KafkaException):  # without an answer, the time that is known stays
            self._ahead_ms = self._look()
        self._looked_s = monotonic()
        if self._ahead_ms and not known_ms:
            logger.warning(
                "the clock of this machine is %+.0f s off the brokers': records get the brokers' time. Correct it: "
                "delays are counted from it",
                -self._ahead_ms / 1000,
            )

    def _look(self) -> int:
        """By how many milliseconds the brokers are ahead; 0 if the clocks agree, or are not known to differ."""
        seen_ms: dict[int, int] = {}
        give_up_s = monotonic() + _NEXT_TICK_S
        while ticks_ms := self._newest_ticks_ms():
            if abs(max(ticks_ms.values()) - self._own_ms()) <= PRODUCER_CLOCK_ERROR_MS:
                break
            new_ms = new_tick_ms(ticks_ms, seen_ms)
            if new_ms is not None:  # a worker ticks: this is the time
                return new_ms - self._own_ms()
            if monotonic() > give_up_s:  # no worker ticks: an old tick does not give the time
                break
            sleep(_POLL_S)
        return 0

    def _own_ms(self) -> int:
        return int(self._own_s() * 1000)


def new_tick_ms(ticks_ms: Mapping[int, int], seen_ms: dict[int, int]) -> int | None:
    """The time of the newest tick that came since its partition was first looked at; None: there is none.

    Args:
        ticks_ms: what :func:`newest_ticks_ms` says now. A partition whose leader was slow may be missing, so ticks are
            compared with those of the same partition: an old one of another partition is not new.
        seen_ms: what each partition said first; what it says for the first time now is added.
    """
    seen_ms |= {partition: ms for partition, ms in ticks_ms.items() if partition not in seen_ms}
    return max((ms for partition, ms in ticks_ms.items() if ms > seen_ms[partition]), default=None)


def newest_ticks_ms(settings: Settings) -> dict[int, int]:
    """The time of the newest tick of each partition that has one and says it now, in epoch milliseconds.

    Raises:
        KafkaException: no broker answers, or this user may not describe the topic of ticks.
    """
    from confluent_kafka.admin import OffsetSpec  # not at the top: the client library does not need this import

    # Reports of its own: that this user may not describe the ticks is no error of what the caller does.
    admin, topic = admin_client(settings, connection.ErrorReports(settings), _ANSWER_S), settings.oscillator_topic
    found = admin.list_topics(topic, timeout=_ANSWER_S).topics[topic]
    places = {TopicPartition(topic, partition): OffsetSpec.max_timestamp() for partition in found.partitions}  # type: ignore[no-untyped-call]
    listed = admin.list_offsets(places, request_timeout=_ANSWER_S) if places else {}
    times: dict[int, int] = {}
    for place, future in listed.items():
        with suppress(KafkaException, TimeoutError):
            times[place.partition] = int(future.result(_ANSWER_S).timestamp)
    return {partition: ms for partition, ms in times.items() if ms > 0}
