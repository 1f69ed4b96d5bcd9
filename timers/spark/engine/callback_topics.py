"""The callback topics that the engine knows, with their limits, for each Python process."""

from __future__ import annotations

from functools import lru_cache
from time import monotonic
from typing import NamedTuple

from confluent_kafka import KafkaException

from timers.config.settings import Settings
from timers.core.delivery import DeliveryProblem
from timers.errors import TimersError
from timers.kafka import connection
from timers.kafka.clients import admin_client
from timers.kafka.topic_metadata import REFRESH_S, TopicMetadata

ROOM_BYTES = 512
"""Upper bound for what a message adds to its key and value, if it has no headers of its own."""


class Limits(NamedTuple):
    """Limits of a callback topic."""

    max_message_bytes: int
    is_request_topic: bool

    @property
    def safe_bytes(self) -> int:
        """Largest size of key and value together that always fits, if the request has no headers."""
        return self.max_message_bytes - ROOM_BYTES


class CallbackTopics:
    """A cache of callback topics. Each task looks again for topics that did not exist."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._metadata = TopicMetadata(admin_client(settings, connection.ErrorReports(settings)), connection.TIMEOUT_S)
        self._known: frozenset[str] = frozenset()
        self._limits: dict[str, Limits] = {}
        self._has_read_topics = False
        self._refresh_at = monotonic() + REFRESH_S

    @classmethod
    def of(cls, settings: Settings) -> CallbackTopics:
        """The instance of this process."""
        return _callback_topics(settings)

    def begin(self) -> None:
        """Note that a task begins. Topics that did not exist may exist now."""
        self._has_read_topics = False
        if monotonic() >= self._refresh_at:
            self._refresh_at = monotonic() + REFRESH_S
            self._known, self._limits = frozenset(), {}

    def limits(self, topic: str) -> Limits | DeliveryProblem:
        """Limits of ``topic``, or why no message can be sent there. Creates the topic if the settings allow it.

        Raises:
            TimersError: the brokers do not answer.
        """
        known = self._limits.get(topic)
        if known is not None:
            return known
        try:
            if topic not in self._known and not self._has_read_topics:
                self._read_topics()
            if topic not in self._known and self._settings.create_target_topics:
                self._metadata.create(topic)
                self._read_topics()
            if topic not in self._known:
                return DeliveryProblem.unknown(topic)
            if not self._metadata.may_write(topic):  # the first refusal of Spark's sink would end the query
                return DeliveryProblem.denied(f"not authorized to write to {topic!r}")
            limit = self._metadata.max_message_bytes(topic, skip_denied=True)
            self._limits[topic] = limits = Limits(limit, topic == self._settings.request_topic)
        except KafkaException as error:
            raise TimersError(f"the brokers do not say the limits of topic {topic!r}: {error.args[0]}") from None
        return limits

    def _read_topics(self) -> None:
        self._known = frozenset(self._metadata.topics())
        self._has_read_topics = True


@lru_cache(maxsize=2)
def _callback_topics(settings: Settings) -> CallbackTopics:
    return CallbackTopics(settings)
