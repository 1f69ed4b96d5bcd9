"""What the brokers say of callback topics: whether they exist, and how much they take. One for each Python process."""

from __future__ import annotations

import contextlib
from functools import lru_cache
from time import monotonic
from typing import Any, NamedTuple

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclOperation,
    AdminClient,
    NewTopic,
)

from timers.config.settings import Settings
from timers.errors import TimersError
from timers.kafka import connection
from timers.kafka.topic_admin import configs
from timers.wire.future import InvalidRequestError

REFRESH_S = 300.0
"""As often as Java's producer asks for metadata again."""

ADMIN_TIMEOUT_S = 10.0

DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's own; what we go by where we may not ask."""

ROOM_BYTES = 512
"""More than a message needs beside key and value, when it has no headers of its own."""


class Limits(NamedTuple):
    """What a topic takes."""

    max_message_bytes: int
    is_request_topic: bool

    @property
    def surely_fits(self) -> int:
        """Key and value of up to so many bytes together fit, without headers of their own."""
        return self.max_message_bytes - ROOM_BYTES


class TopicMetadata:
    """Remembers topics; those that do not exist are looked for again by each task.

    Args:
        settings: of the engine.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        config: dict[str, Any] = {**connection.librdkafka(settings), "log_level": 0}
        self._admin = AdminClient(config)
        self._known: frozenset[str] = frozenset()
        self._limits: dict[str, Limits] = {}
        self._looked = False
        self._refresh_at = monotonic() + REFRESH_S

    @classmethod
    def of(cls, settings: Settings) -> TopicMetadata:
        """This process's own."""
        return _topic_metadata(settings)

    def begin(self) -> None:
        """A task begins: what is not known may be there by now."""
        self._looked = False
        if monotonic() >= self._refresh_at:
            self._refresh_at = monotonic() + REFRESH_S
            self._known, self._limits = frozenset(), {}

    def limits(self, topic: str) -> Limits | InvalidRequestError:
        """What ``topic`` takes, made first if the settings say so; or why nothing can be sent there.

        Raises:
            TimersError: the brokers do not answer.
        """
        known = self._limits.get(topic)
        if known is not None:
            return known
        try:
            if topic not in self._known and not self._looked:
                self._look()
            if topic not in self._known and self._settings.create_target_topics:
                self._create(topic)
                self._look()
            if topic not in self._known:
                return InvalidRequestError("topic-unknown", f"callBackTopic {topic!r} does not exist")
            if not self._may_write(topic):
                return InvalidRequestError("topic-denied", f"not authorized to write to {topic!r}")
            self._limits[topic] = limits = Limits(self._most(topic), topic == self._settings.request_topic)
        except KafkaException as error:
            raise TimersError(f"the brokers do not say what topic {topic!r} takes: {error.args[0]}") from None
        return limits

    def _look(self) -> None:
        # All topics: asking for one by name would create it on brokers that allow it.
        found = self._admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics
        self._known = frozenset(name for name, topic in found.items() if topic.error is None)
        self._looked = True

    def _create(self, topic: str) -> None:
        made = self._admin.create_topics([NewTopic(topic, -1, -1)], operation_timeout=ADMIN_TIMEOUT_S)[topic]
        with contextlib.suppress(KafkaException, TimeoutError):  # whether it is there is asked next
            made.result(timeout=ADMIN_TIMEOUT_S)

    def _may_write(self, topic: str) -> bool:
        # Asked before, since the sink's first refusal would end the query.
        asked = self._admin.describe_topics(
            TopicCollection([topic]), include_authorized_operations=True, request_timeout=ADMIN_TIMEOUT_S
        )
        allowed = asked[topic].result().authorized_operations
        return allowed is None or AclOperation.WRITE in allowed

    def _most(self, topic: str) -> int:
        config = configs(self._admin, [topic], ADMIN_TIMEOUT_S, skip_denied=True).get(topic)
        if config is None:
            return DEFAULT_MAX_MESSAGE_BYTES
        return min(int(config[name]) for name in ("max.message.bytes", "segment.bytes"))


@lru_cache(maxsize=2)
def _topic_metadata(settings: Settings) -> TopicMetadata:
    return TopicMetadata(settings)
