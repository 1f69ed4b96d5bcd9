"""What is known of callback topics: which exist, which refuse us, which have small limits.

Judged when a timer fires, never when it is accepted (rule 4): the world may change in between. Shared by all machines
of a worker; every method may be called from any thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Mapping
from time import monotonic

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from timers.settings import Settings
from timers.worker.kafka import librdkafka

UNKNOWN_FOR_S = 1.0
"""A name that was looked for and not found is looked for again after this long: a flood for it costs little."""

MAX_UNKNOWN = 10_000
"""So many of them are remembered."""

QUARANTINE_S = 30.0
MAX_QUARANTINE_S = 600.0
"""How long a failing target is spared, doubling: its timers take the way of the retry topic meanwhile."""

REFRESH_S = 300.0
"""As often as Java's producer asks for metadata again."""

ADMIN_TIMEOUT_S = 5.0


class Targets:
    """Directory of callback topics.

    Attributes:
        usable: topics that may be sent to without a question, each with its number of partitions; the hot path asks
            only this.
        max_message_bytes: topics that have refused a batch, each with its limit.
    """

    def __init__(self, settings: Settings, partitions: Mapping[str, int]) -> None:
        self._settings = settings
        self._admin = AdminClient(librdkafka(settings))
        self._lock = threading.Lock()
        self._own = frozenset(partitions)
        self._known: dict[str, int] = dict(partitions)
        self._unknown: dict[str, float] = {}
        self._fresh = False
        self._refresh_at = monotonic() + REFRESH_S
        self._quarantined: dict[str, tuple[float, str]] = {}
        self._strikes: dict[str, int] = {}
        self.usable: dict[str, int] = {}
        self.max_message_bytes: dict[str, int] = {}

    def denied(self, topic: str) -> str | None:
        """Why a callback may never go to ``topic``: the engine's own topics, and Kafka's."""
        if topic in self._own or topic.startswith("__"):
            return f"callBackTopic {topic!r} is internal: callbacks may not go there"
        return None

    def quarantined(self, topic: str) -> tuple[float, str] | None:
        """For how many seconds more ``topic`` is spared, and why; None if it is not."""
        entry = self._quarantined.get(topic)
        if entry is None:
            return None
        until, reason = entry
        left_s = until - monotonic()
        if left_s > 0:
            return left_s, reason
        with self._lock:
            self._quarantined.pop(topic, None)
        return None

    @property
    def quarantined_count(self) -> int:
        """How many topics are spared now."""
        now = monotonic()
        return sum(until > now for until, _ in list(self._quarantined.values()))

    def quarantine(self, topic: str, reason: str) -> None:
        """Send nothing to ``topic`` for a while, and for longer each time: every trial costs the others a delay."""
        with self._lock:
            strikes = self._strikes[topic] = self._strikes.get(topic, 0) + 1
            quarantine_s = min(QUARANTINE_S * 2 ** (strikes - 1), MAX_QUARANTINE_S)
            self._quarantined[topic] = (monotonic() + quarantine_s, reason)
            self.usable.pop(topic, None)

    def forget(self, topic: str) -> None:
        """Ask the brokers again before the next sending."""
        with self._lock:
            self.usable.pop(topic, None)
            self.max_message_bytes.pop(topic, None)
            self._known.pop(topic, None)
            self._unknown.pop(topic, None)
            self._fresh = False

    def exists(self, topic: str) -> bool:
        """Whether ``topic`` is there, creating it if the settings say so.

        Raises:
            KafkaException: the brokers do not answer.
        """
        if topic in self.usable:
            return True
        with self._lock:
            if topic not in self._known and self._unknown.get(topic, 0.0) < monotonic():
                # Only what was heard since this transaction began says that a topic is not there: a timer that was
                # asked for after its topic was made must find it. So a flood of names costs one look a transaction.
                if not self._fresh:
                    self._look()
                if topic not in self._known:
                    self._note_unknown(topic)
            if topic not in self._known and self._settings.create_target_topics:
                self._create(topic)
                self._look()
                if topic not in self._known:  # the broker that was asked has not heard of it yet
                    self._quarantined[topic] = (monotonic() + UNKNOWN_FOR_S, f"{topic}: was created just now")
                    return True
            if topic in self._known and topic not in self._quarantined and topic not in self.max_message_bytes:
                self.usable[topic] = self._known[topic]
            return topic in self._known

    def partitions(self, topic: str) -> int:
        """Number of partitions of a topic that :meth:`exists`, as last heard."""
        return self._known.get(topic, 1)

    def gone(self, topics: Iterable[str]) -> set[str]:
        """Which of ``topics`` are not there any more; none if the brokers do not answer."""
        try:
            with self._lock:
                self._look()
        except KafkaException:
            return set()
        return {topic for topic in topics if topic not in self._known}

    def refresh(self) -> None:
        """Say that a transaction begins; ask again now and then, since topics get more partitions.

        What was known stays if nobody answers.
        """
        self._fresh = False
        if monotonic() < self._refresh_at:
            return
        self._refresh_at = monotonic() + REFRESH_S
        with contextlib.suppress(KafkaException), self._lock:
            self._look()
            self.usable = {topic: self._known[topic] for topic in self.usable if topic in self._known}
            self._strikes.clear()

    def _look(self) -> None:
        """Learn of all topics at once."""
        # All topics: asking for one by name would create it on brokers that allow it.
        found = self._admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics
        self._known = {name: len(topic.partitions) for name, topic in found.items() if topic.error is None}
        for name, topic in found.items():
            if any(partition.leader == -1 for partition in topic.partitions.values()):
                self._quarantined[name] = (monotonic() + UNKNOWN_FOR_S, f"{name}: a partition has no leader")
        self._fresh = True

    def _note_unknown(self, topic: str) -> None:
        if len(self._unknown) >= MAX_UNKNOWN:
            self._unknown.clear()
        self._unknown[topic] = monotonic() + UNKNOWN_FOR_S

    def _create(self, topic: str) -> None:
        future = self._admin.create_topics([NewTopic(topic, -1, -1)], operation_timeout=ADMIN_TIMEOUT_S)[topic]
        with contextlib.suppress(KafkaException, TimeoutError):  # whether it is there is asked next
            future.result(timeout=ADMIN_TIMEOUT_S)

    def learn_limit(self, topic: str) -> None:
        """Ask for ``topic``'s ``max.message.bytes`` after it refused a batch; remembered from then on.

        Raises:
            KafkaException: the brokers do not answer.
        """
        resource = ConfigResource(ResourceType.TOPIC, topic)
        config = self._admin.describe_configs([resource], request_timeout=ADMIN_TIMEOUT_S)[resource].result()
        with self._lock:
            self.max_message_bytes[topic] = int(config["max.message.bytes"].value)
            self.usable.pop(topic, None)
