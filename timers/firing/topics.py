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
from time import monotonic

from aiokafka.errors import (
    LeaderNotAvailableError,
    MessageSizeTooLargeError,
    NotEnoughReplicasError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from confluent_kafka import KafkaException

from timers.config.settings import Settings
from timers.firing.breaker import FIRST_S, CircuitBreaker, DeliveryProblem, OpenCircuit
from timers.firing.ports import NoAnswer
from timers.kafka.aiokafka_internals.produce import RecordsRefused
from timers.kafka.clients import SILENT_S, asking_admin
from timers.kafka.known_topics import AVOIDED_S, KnownTopics
from timers.kafka.topic_creator import TopicCreator
from timers.kafka.topic_metadata import REFRESH_S, TopicMetadata

logger = logging.getLogger(__name__)

ELECTION_S = 2.0
"""Seconds for which a circuit opens at first, if the cause may soon be over."""

MISSING_TWICE_S = 5.0
"""If a listed topic is missing twice within this time, its circuit opens for ``ELECTION_S``."""

TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)


class Targets:
    """The callback topics, as far as they are known. Only :meth:`wait` and :meth:`note_failed` wait for brokers.

    Attributes:
        usable: topic -> number of partitions, if records may be sent to it without a check; the hot path reads only
            this.
        max_message_bytes: topic that has refused a batch -> its limit.
        circuit_breaker: failing topics.
        own: topics of the engine that are never targets.
    """

    def __init__(self, settings: Settings, partitions: Mapping[str, int]) -> None:
        self._settings = settings
        admin = asking_admin(settings)
        self._metadata = TopicMetadata(admin, SILENT_S)
        self._lock = threading.Lock()
        self._known = KnownTopics(self._metadata, partitions, self._note_list)
        self.available, self.was_moved = self._known.available, self._known.was_moved
        self.partitions, self.wait = self._known.partitions, self._known.wait
        self._forgotten: dict[str, float] = {}
        self._refresh_at = monotonic() + REFRESH_S
        self._is_refresh = False
        self.own = settings.own_topics.keys() - {settings.request_topic, settings.canary_topic}  # these may be targets
        self.usable: dict[str, int] = {}
        self.max_message_bytes: dict[str, int] = {}
        self.circuit_breaker = CircuitBreaker(monotonic)
        self._creator = TopicCreator(admin, SILENT_S, self._note_created)
        self._not_created: Mapping[str, str] = {}

    def route(self, topic: str, *, retried: bool) -> int | DeliveryProblem | None:
        """Number of partitions of ``topic``; or why nothing can be sent there; or None: :meth:`wait` for the answer.

        A missing topic is created in the background, if the settings say so.

        Args:
            topic: a callback topic.
            retried: whether the timers come from the retry topic.
        """
        problem = self.circuit_breaker.problem(topic, retried=retried)
        if problem is not None:
            return problem
        with self._lock:
            answer = self._known.answer(topic)
            if answer is None:
                self._known.ask(topic)
                return None
            count, refuses, is_led, is_sure = answer
            if count is None:
                return self._missing(topic)
            if refuses is not None:
                return DeliveryProblem("message-refused", refuses, None)
            if is_led:
                if is_sure and topic not in self.circuit_breaker:
                    self.usable[topic] = count
                return count
            self._known.forget(topic)  # looked up again before the next attempt
        self.open_circuit(topic, LeaderNotAvailableError())
        return self.circuit_breaker.problem(topic, retried=retried) or count

    def _missing(self, topic: str) -> DeliveryProblem:
        """Why nothing can be sent to a topic that does not exist."""
        if self.circuit_breaker.drop(topic):
            logger.info("target %s does not exist any more", topic)
        if not self._settings.create_target_topics:
            return DeliveryProblem.unknown(topic)
        self._creator.request(topic)  # timers of other topics must not wait for it
        why = self._not_created.get(topic)
        reason = "is being created" if why is None else f"cannot be created: {why}"
        return DeliveryProblem("topic-unknown", f"callBackTopic {topic!r} {reason}", 0.0)

    def open_circuit(self, topic: str, error: BaseException) -> None:
        """Open the circuit of ``topic``, because of ``error``."""
        code, first_s = "target-failing", ELECTION_S
        if isinstance(error, LeaderNotAvailableError):
            reason = f"a partition of {topic!r} has no leader"
        elif isinstance(error, UnknownTopicOrPartitionError):
            reason = f"{topic!r}, or a partition of it, comes and goes"
        elif isinstance(error, NotEnoughReplicasError):
            reason = f"{topic!r} has fewer replicas in sync than its min.insync.replicas"
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

    def adopt(self, circuits: Iterable[OpenCircuit]) -> None:
        """Use the circuits of another process instead of those of this one."""
        with self._lock:
            self.circuit_breaker.adopt(circuits)
            self.usable = {topic: count for topic, count in self.usable.items() if topic not in self.circuit_breaker}

    def merge(self, circuits: Iterable[OpenCircuit]) -> None:
        """Add circuits that were opened in another process."""
        with self._lock:
            self.circuit_breaker.merge(circuits)
            self.usable = {topic: count for topic, count in self.usable.items() if topic not in self.circuit_breaker}

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
                self._avoid((topic, partition) for partition in error.args[1:])
            elif self.own & failed.keys():
                continue  # the engine's topics fail too, so the brokers are the cause
            elif isinstance(error, UnknownTopicOrPartitionError):
                self.forget(topic)
            else:
                self.open_circuit(topic, error)

    def note_silent(self, failure: NoAnswer, *, is_short: bool) -> None:
        """Note partitions that did not answer a transaction; ``is_short``: of few records."""
        own = {place for place in failure.places if place[0] in self.own}
        if own:
            self._avoid(own)
        for topic in failure.topics if is_short and not own else ():
            self.open_circuit(topic, failure)

    def _avoid(self, places: Iterable[tuple[str, int]]) -> None:
        """Use other partitions of the engine's topics, until the metadata of the brokers show the loss too."""
        with self._lock:
            self._refresh_at = min(self._refresh_at, self._known.avoid(places))

    def forget(self, topic: str) -> None:
        """Look up ``topic`` again before the next sending: it, or a partition of it, was missing."""
        with self._lock:
            now = monotonic()
            # Reports of several machines about one failure count once: brokers must have listed it in between.
            is_repeated = self._known.forget(topic) and now - self._forgotten.get(topic, -math.inf) < MISSING_TWICE_S
            self._forgotten = {name: since for name, since in self._forgotten.items() if now - since < MISSING_TWICE_S}
            self._forgotten[topic] = now
            self.usable.pop(topic, None)
            self.max_message_bytes.pop(topic, None)
        if is_repeated:  # the brokers do not agree on it yet
            self.open_circuit(topic, UnknownTopicOrPartitionError())

    def refresh(self) -> None:
        """Note that a transaction begins. Every :data:`REFRESH_S`, look up partitions and limits of topics again, and
        every :data:`AVOIDED_S` while a topic of the engine has partitions without a leader.
        """
        if monotonic() >= self._refresh_at:
            self._refresh_at = monotonic() + REFRESH_S
            self._is_refresh = True
            self._known.ask()

    def _note_list(self) -> None:
        """Use a new list of all topics. In the thread that asked for it."""
        limited: list[str] = []
        with self._lock:
            if self.own & self._known.leaderless.keys():
                self._refresh_at = min(self._refresh_at, monotonic() + AVOIDED_S)
            if self._is_refresh:
                self._is_refresh = False
                known = self._known.counts
                self.usable = {topic: known[topic] for topic in self.usable if topic in known}
                for topic in self.max_message_bytes.keys() - known.keys():
                    del self.max_message_bytes[topic]
                limited = list(self.max_message_bytes)
        with contextlib.suppress(KafkaException):
            for topic in limited:
                self.learn_limit(topic)

    def note_times_refused(self, topic: str) -> None:
        """Look up again which times ``topic`` takes, before the next sending."""
        with self._lock:
            self._known.forget_times(topic)
            self.usable.pop(topic, None)

    def _note_created(self, failures: Mapping[str, str]) -> None:
        """Use topics that were created now."""
        self._not_created = failures
        self._known.ask()

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
