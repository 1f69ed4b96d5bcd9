"""Facts about callback topics: which ones exist, refuse records, or have small limits.

Used when a timer fires, never when it is accepted [I4], because topics change in between. Shared by all machines
of a worker; every method may be called from any thread.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Iterable, Mapping
from itertools import islice
from time import monotonic

from aiokafka.errors import (
    LeaderNotAvailableError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from timers.config.settings import Settings
from timers.core.circuit_breaker import FIRST_S, CircuitBreaker
from timers.core.delivery import DeliveryProblem
from timers.core.ports import Lost
from timers.kafka.aiokafka_internals.produce import RecordsRefused
from timers.kafka.clients import librdkafka
from timers.kafka.known_topics import AVOIDED_S, KnownTopics
from timers.kafka.topic_creator import TopicCreator
from timers.kafka.topic_metadata import REFRESH_S, TopicMetadata
from timers.wire.callback_rules import CallbackRules
from timers.worker.sending.producer import NoAnswer

logger = logging.getLogger(__name__)

UNKNOWN_FOR_S = 1.0
"""Seconds after which an unknown topic is looked up again. So many timers for it cause few requests."""

MAX_UNKNOWN = 10_000
"""Maximum number of unknown topics that are remembered."""

ELECTION_S = 2.0
"""Seconds for which a circuit opens at first, if the cause may soon be over."""

MISSING_TWICE_S = 5.0
"""If a listed topic is missing twice within so many seconds, its circuit opens for ``ELECTION_S``."""

LEAST_AGE_MS = 1000
"""A topic that takes no record of this age gets none: delivering and committing it can take as long."""

MAX_DESCRIBED = 100
"""Topics in one request for their configuration."""

TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)

ADMIN_TIMEOUT_S = 5.0


class Targets:
    """The callback topics, as far as they are known.

    Attributes:
        usable: topic -> number of partitions, if records may be sent to it without a check; the hot path reads only
            this.
        max_message_bytes: topic that has refused a batch -> its limit.
        circuit_breaker: failing topics.
        rules: which topics may be targets.
        own: topics of the engine that are never targets.
    """

    def __init__(self, settings: Settings, partitions: Mapping[str, int]) -> None:
        self._settings = settings
        admin = AdminClient(librdkafka(settings))
        self._metadata = TopicMetadata(admin, ADMIN_TIMEOUT_S)
        self._lock = threading.Lock()
        self.rules = CallbackRules(settings)
        self._known = KnownTopics(partitions)
        self.available, self.partitions = self._known.available, self._known.partitions
        self._unknown: dict[str, float] = {}
        self._times: dict[str, tuple[float, str | None]] = {}
        """Topic -> (until when this is valid, why it never takes the times of callbacks)."""
        self._forgotten: dict[str, float] = {}
        self._is_fresh = False
        self._refresh_at = monotonic() + REFRESH_S
        self.own = settings.own_topics.keys() - {settings.request_topic, settings.canary_topic}  # these may be targets
        self.usable: dict[str, int] = {}
        self.max_message_bytes: dict[str, int] = {}
        self.circuit_breaker = CircuitBreaker(monotonic)
        self._creator = TopicCreator(admin, ADMIN_TIMEOUT_S, self._note_created)
        self._not_created: Mapping[str, str] = {}

    def route(self, topic: str, *, retried: bool) -> int | DeliveryProblem:
        """Number of partitions of ``topic``; or why nothing can be sent there.

        A missing topic is created in the background, if the settings say so.

        Args:
            topic: a callback topic.
            retried: whether the timers come from the retry topic.

        Raises:
            Lost: the brokers do not answer.
        """
        try:
            return self._find_route(topic, retried=retried)
        except KafkaException as error:
            raise Lost(f"the brokers do not say whether topic {topic!r} exists: {error.args[0]}") from None

    def _find_route(self, topic: str, *, retried: bool) -> int | DeliveryProblem:
        problem = self.circuit_breaker.problem(topic, retried=retried)
        if problem is not None:
            return problem
        with self._lock:
            if topic not in self._known.counts and self._unknown.get(topic, 0.0) < monotonic():
                # A topic is unknown only if a list from this transaction lacks it: its timer may have been requested
                # just after it was created. So many unknown names cause one request for a transaction.
                if not self._is_fresh:
                    self._look()
                if topic not in self._known.counts:
                    self._note_unknown(topic)
            if topic not in self._known.counts and self._settings.create_target_topics:
                self._creator.request(topic)  # timers of other topics must not wait for it
                why = self._not_created.get(topic)
                reason = "is being created" if why is None else f"cannot be created: {why}"
                return DeliveryProblem("topic-unknown", f"callBackTopic {topic!r} {reason}", 0.0)
            if topic not in self._known.counts:
                return DeliveryProblem.unknown(topic)
            refused = self._refuses_times(topic)
            if refused is not None:
                return DeliveryProblem("message-refused", refused, None)
            if topic not in self._known.leaderless:
                if topic not in self.circuit_breaker:
                    self.usable[topic] = self._known.counts[topic]
                return self._known.counts[topic]
            del self._known.leaderless[topic]  # looked up again before the next attempt
        self.open_circuit(topic, LeaderNotAvailableError())
        return self.circuit_breaker.problem(topic, retried=retried) or self._known.counts[topic]

    def open_circuit(self, topic: str, error: BaseException) -> None:
        """Open the circuit of ``topic``, because of ``error``."""
        code, first_s = "target-failing", ELECTION_S
        if isinstance(error, LeaderNotAvailableError):
            reason = f"a partition of {topic!r} has no leader"
        elif isinstance(error, UnknownTopicOrPartitionError):
            reason = f"{topic!r}, or a partition of it, comes and goes"
        elif isinstance(error, NoAnswer):
            reason = f"a partition of {topic!r} does not answer"
        elif isinstance(error, RecordsRefused):
            why = next((record.why for record in error.records), error.why)
            reason = f"{topic!r} refuses its records: {error.name} ({why})"
        elif isinstance(error, TopicAuthorizationFailedError):
            code, first_s, reason = "topic-denied", FIRST_S, f"not authorized to write to {topic!r}"
        elif isinstance(error, TOO_LARGE):
            code, first_s = "message-too-large", FIRST_S
            reason = f"{topic!r} refuses a batch as too large and does not tell its limit"
        else:
            first_s, reason = FIRST_S, f"{topic!r} does not take records ({error!r})"
        with self._lock:
            self.usable.pop(topic, None)
            is_first = self.circuit_breaker.enter(topic, code, reason, first_s)
        if is_first:
            logger.warning("target %s fails: %s; its timers wait in the retry topic", topic, reason)

    def note_worked(self, topics: Iterable[str]) -> None:
        """Close the circuits of topics that have taken records."""
        if self.circuit_breaker.count:
            with self._lock:
                closed = self.circuit_breaker.worked(topics)
            for topic, failed_s in closed.items():
                logger.info("target %s works again, %.0f s after it failed", topic, failed_s)

    def note_failed(self, failed: Mapping[str, BaseException]) -> None:
        """Note topics that did not take their records, and what the brokers said: topic -> error."""
        for topic, error in failed.items():
            if isinstance(error, TOO_LARGE):
                try:
                    learned = self.learn_limit(topic)
                except KafkaException:
                    learned = False
                if not learned:
                    self.open_circuit(topic, error)
            elif topic in self.own and isinstance(error, LeaderNotAvailableError):
                with self._lock:  # until the metadata of the brokers show the loss too
                    self._refresh_at = min(self._refresh_at, self._known.avoid(topic, error.args[1:]))
            elif self.own & failed.keys():
                continue  # the engine's topics fail too, so the brokers are the cause
            elif isinstance(error, UnknownTopicOrPartitionError):
                self.forget(topic)
            else:
                self.open_circuit(topic, error)

    def forget(self, topic: str) -> None:
        """Look up ``topic`` again before the next sending: it, or a partition of it, was missing."""
        with self._lock:
            now = monotonic()
            # Reports of several machines about one failure count once: brokers must have listed it in between.
            was_known = self._known.counts.pop(topic, None) is not None
            is_repeated = was_known and now - self._forgotten.get(topic, -math.inf) < MISSING_TWICE_S
            self._forgotten = {name: since for name, since in self._forgotten.items() if now - since < MISSING_TWICE_S}
            self._forgotten[topic] = now
            self.usable.pop(topic, None)
            self.max_message_bytes.pop(topic, None)
            self._unknown.pop(topic, None)
            self._is_fresh = False
        if is_repeated:  # the brokers do not agree on it yet
            self.open_circuit(topic, UnknownTopicOrPartitionError())

    def refresh(self) -> None:
        """Note that a transaction begins. Every :data:`REFRESH_S`, look up partitions and limits of topics again, and
        every :data:`AVOIDED_S` while a topic of the engine has partitions without a leader.

        If the brokers do not answer, nothing changes.
        """
        self._is_fresh = False
        if monotonic() < self._refresh_at:
            return
        self._refresh_at = monotonic() + (AVOIDED_S if self.own & self._known.leaderless.keys() else REFRESH_S)
        with contextlib.suppress(KafkaException):
            with self._lock:
                self._look()
                known = self._known.counts
                self.usable = {topic: known[topic] for topic in self.usable if topic in known}
                for topic in self.max_message_bytes.keys() - known.keys():
                    del self.max_message_bytes[topic]  # deleted: its error would end the loop below
            for topic in list(self.max_message_bytes):
                self.learn_limit(topic)

    def _look(self) -> None:
        """Look up all topics."""
        self._known.note(self._metadata.topics())
        self._is_fresh = True
        if self.own & self._known.leaderless.keys():
            self._refresh_at = min(self._refresh_at, monotonic() + AVOIDED_S)

    def _refuses_times(self, topic: str) -> str | None:
        """Why ``topic`` never takes records with the times of callbacks; None if it may take them.

        Such a topic must not become part of a transaction: Kafka checks the time of the record that ends it, too, and
        if this record is refused, neither this transaction nor another one with the transactional id ever ends.
        """
        until, reason = self._times.get(topic, (0.0, None))
        if until > monotonic():
            return reason
        others = (name for name in self._known.counts if name not in self._times and name not in self.own)
        oldest_ms: Mapping[str, int] = {}
        for names in ({topic, *islice(others, MAX_DESCRIBED)}, {topic}):
            with contextlib.suppress(KafkaException):  # one of the others was deleted, or the brokers do not say
                oldest_ms = self._metadata.oldest_ms(names)
                break
        for name in names:
            self._times[name] = monotonic() + REFRESH_S, None
            if oldest_ms.get(name, LEAST_AGE_MS) < LEAST_AGE_MS:
                why = f"takes no record that is more than {oldest_ms[name]} ms old (message.timestamp.before.max.ms)"
                self._times[name] = monotonic() + UNKNOWN_FOR_S, f"INVALID_TIMESTAMP: {name!r} {why}"
        return self._times[topic][1]

    def note_times_refused(self, topic: str) -> None:
        """Look up again which times ``topic`` takes, before the next sending."""
        with self._lock:
            self._times.pop(topic, None)
            self.usable.pop(topic, None)

    def _note_unknown(self, topic: str) -> None:
        if len(self._unknown) >= MAX_UNKNOWN:
            self._unknown.clear()
        self._unknown[topic] = monotonic() + UNKNOWN_FOR_S
        if self.circuit_breaker.drop(topic):
            logger.info("target %s does not exist any more", topic)

    def _note_created(self, failures: Mapping[str, str]) -> None:
        """Use topics that were created now. In the creator's thread: the lock is not held while brokers answer."""
        self._not_created = failures
        with contextlib.suppress(KafkaException):  # else the next attempt of a timer looks
            found = self._metadata.topics()
            with self._lock:
                self._known.note(found)

    def learn_limit(self, topic: str) -> bool:
        """Ask for the largest batch that ``topic`` takes, and store it.

        Returns:
            Whether the limit has changed.

        Raises:
            KafkaException: the brokers do not answer, or this worker may not ask.
        """
        limit = self._metadata.max_message_bytes(topic)
        known = self.max_message_bytes.get(topic)
        with self._lock:
            self.max_message_bytes[topic] = limit
        if limit != known:
            logger.info("target %s takes batches of up to %d bytes", topic, limit)
        return limit != known
