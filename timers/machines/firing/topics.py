"""What is known of callback topics: which ones exist, refuse records, fail, or have small limits.

Used when a timer fires, never when it is accepted [I4], because topics change in between. Shared by all machines
of a worker; every method may be called from any thread.

A thread asks the brokers. A broker that is silent keeps a request waiting for seconds, and no machine may wait for it,
except for a moment, to send timers to a topic that is used for the first time.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from time import monotonic, sleep
from typing import NamedTuple

from aiokafka.errors import (
    LeaderNotAvailableError,
    MessageSizeTooLargeError,
    NotEnoughReplicasError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from confluent_kafka import KafkaException

from timers.core.ports import Unanswered
from timers.kafka.aiokafka_internals.refusals import RecordsRefused
from timers.kafka.clients import METADATA_ANSWER_S, asking_admin
from timers.kafka.error_codes import UNREACHABLE, code_of
from timers.kafka.topic_admin import UNKNOWN_TOPIC_RETRY_S, TopicCreator, largest_batch, listed, oldest_ms
from timers.machines.firing.breaker import FIRST_OPEN_S, CircuitBreaker, DeliveryProblem, OpenCircuit
from timers.process.config.settings import Settings

logger = logging.getLogger(__name__)

ELECTION_S = 2.0
"""Seconds for which a circuit opens at first, if the cause may soon be over."""

MISSING_TWICE_S = 5.0
"""If a listed topic is missing twice within this time, its circuit opens for ``ELECTION_S``."""

REFRESH_S = 300.0
"""Age at which the brokers are asked again: the default of Java's producer."""

ANSWER_S = 3.0
"""Seconds for which :meth:`Targets.wait` waits; they begin with the first request that has no answer."""

POLL_S = 0.2

FIRST_LIST_S, LAST_LIST_S = 3.0, 30.0
"""Seconds until the request for all topics times out: at first, and at most. The time-out doubles after each failure. A
request to a broker that has just died gets no answer, and the next one goes to another broker."""

AVOIDED_S = 10.0
"""Seconds for which no records of the engine go to a partition whose leader did not take them. While a partition has no
leader, leaders are looked up again after this time. The brokers notice a lost broker after 9 s."""

MOVED_S = 60.0
"""Seconds for which verdicts are marked as moved: longer than readers of verdicts are behind."""

MAX_UNKNOWN = 10_000
"""Maximum number of unknown topics that are remembered."""

MIN_AGE_MS = 1000
"""A topic gets no records if it refuses records of this age: delivery and commit of a record can take as long."""

MAX_DESCRIBED = 100
"""Topics in one request for their configuration."""

CONFIG_ANSWER_S = 0.5
"""Seconds for an answer about configurations. librdkafka asks a single broker for them, which may be dead or frozen."""


_NO_TIMES = (0.0, None, False)

TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)


class TopicAnswer(NamedTuple):
    """What the brokers said about a topic."""

    partitions: int | None
    """Number of its partitions; None: it does not exist."""
    refuses: str | None = None
    """Why it never takes records with the times of callbacks; None if it may take them."""
    is_led: bool = True
    """Whether each partition has a leader."""
    is_sure: bool = True
    """Whether the configuration is known; else its records are tried, and it must be asked for again."""


class Targets:
    """The callback topics, as far as they are known. Implements :class:`timers.machines.firing.ports.Topics`.

    Only :meth:`wait` and :meth:`note_failed` wait for brokers.

    Attributes:
        usable: topic -> number of partitions, if records may be sent to it without a check; the hot path reads only
            this.
        max_message_bytes: topic that has refused a batch -> its limit.
        circuit_breaker: failing topics.
        counts: topic -> number of its partitions, as the brokers said last.
        leaderless: topic -> its partitions without a leader, if there are any.
        own: topics of the engine that are never targets.

    Args:
        settings: of the worker.
        partitions: of the topics that are known at the start.
    """

    def __init__(self, settings: Settings, partitions: Mapping[str, int]) -> None:
        self._settings = settings
        self._admin = asking_admin(settings)
        self._changed = threading.Condition()
        self.counts = dict(partitions)
        self.leaderless: Mapping[str, frozenset[int]] = {}
        self._avoided: dict[tuple[str, int], float] = {}
        """Partition of a topic of the engine whose leader did not take records -> until when another one is used."""
        self._moved: dict[tuple[str, int], float] = {}
        """Partition of a topic of the engine -> when a record of it last went to another one."""
        """Topic of the engine -> when it was seen to have more partitions."""
        self._unknown: dict[str, float] = {}
        """Topic that does not exist -> until when this is valid."""
        self._times: dict[str, tuple[float, str | None, bool]] = {}
        """Topic -> (until when this is valid, why it never takes the times of callbacks, whether it was described)."""
        self._wanted: set[str] | None = None
        """Topics that the next request asks about; None: no request is needed."""
        self._is_asking = False
        self._silent_since = 0.0
        self._list_s = FIRST_LIST_S
        self._forgotten: dict[str, float] = {}
        self._refresh_at = monotonic() + REFRESH_S
        self._is_refresh = False
        self.own = settings.own_topics.keys() - {settings.request_topic, settings.canary_topic}  # these may be targets
        self.usable: dict[str, int] = {}
        self.max_message_bytes: dict[str, int] = {}
        self.circuit_breaker = CircuitBreaker(monotonic)
        self._creator = TopicCreator(self._admin, METADATA_ANSWER_S, self._note_created)
        self._not_created: Mapping[str, str] = {}

    # ---- routes ---------------------------------------------------------------------------------------------------

    def route(self, topic: str, *, retried: bool) -> int | DeliveryProblem | None:
        """See :meth:`timers.machines.firing.ports.Topics.route`. If the settings say so, a missing topic is created in
        the background."""
        problem = self.circuit_breaker.problem(topic, retried=retried)
        if problem is not None:
            return problem
        with self._changed:
            answer = self._answer(topic)
            if answer is None:
                self._ask(topic)
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
            self._forget(topic)  # the topic is looked up again before the next attempt
        self.open_circuit(topic, LeaderNotAvailableError())
        return self.circuit_breaker.problem(topic, retried=retried) or count

    def expect(self, topics: Iterable[str]) -> list[str]:
        """Ask the brokers about topics of timers that are due soon, so that no timer waits for the answers.

        Returns:
            Those of which it is known that they exist.
        """
        with self._changed:
            unknown = [topic for topic in topics if self._answer(topic) is None]
            if unknown:
                self._ask(*unknown)
            return [topic for topic in topics if topic in self.counts]

    def _missing(self, topic: str) -> DeliveryProblem:
        """Why nothing can be sent to a topic that does not exist. Brokers also leave out of their list the topics for
        which this worker has no right at all."""
        if self.circuit_breaker.drop(topic):
            logger.info("target %s does not exist any more", topic)
        if topic == self._settings.canary_topic and self._settings.canary_interval_s:
            return DeliveryProblem("topic-unknown", f"topic {topic!r} was deleted, and is made anew", 0.0)
        if not self._settings.create_target_topics:
            return DeliveryProblem.unknown(topic)
        self._creator.request(topic)  # in the background: timers of other topics must not wait for a new topic
        why = self._not_created.get(topic)
        reason = "is being created" if why is None else f"cannot be created: {why}"
        return DeliveryProblem("topic-unknown", f"callback topic {topic!r} {reason}", 0.0)

    # ---- what transactions say ------------------------------------------------------------------------------------

    def open_circuit(self, topic: str, error: BaseException) -> None:
        code, first_s = "target-failing", ELECTION_S
        if isinstance(error, LeaderNotAvailableError):
            reason = f"a partition of {topic!r} has no leader"
        elif isinstance(error, UnknownTopicOrPartitionError):
            reason = f"{topic!r}, or a partition of it, comes and goes"
        elif isinstance(error, NotEnoughReplicasError):
            reason = f"{topic!r} has fewer replicas in sync than its min.insync.replicas"
        elif isinstance(error, Unanswered):
            reason = f"a partition of {topic!r} does not answer"
        elif isinstance(error, RecordsRefused):
            why = next((record.why for record in error.records), error.why)
            reason = f"{topic!r} refuses its records: {error.name} ({why})"
        elif isinstance(error, TopicAuthorizationFailedError):
            code, first_s, reason = "topic-denied", FIRST_OPEN_S, f"not authorized to write to {topic!r}"
        elif isinstance(error, TOO_LARGE):
            code, first_s = "message-too-large", FIRST_OPEN_S
            reason = f"{topic!r} refuses a batch as too large and does not tell its limit"
        else:
            first_s, reason = FIRST_OPEN_S, f"{topic!r} does not take records ({error!r})"
        with self._changed:
            self.usable.pop(topic, None)
            is_first = self.circuit_breaker.open(topic, code, reason, first_s)
        if is_first:
            logger.warning("target %s fails: %s; its timers wait in the retry topic", topic, reason)

    def adopt(self, circuits: Iterable[OpenCircuit]) -> None:
        """Use the circuits of another process instead of those of this one."""
        with self._changed:
            self.circuit_breaker = CircuitBreaker(monotonic)
            self.merge(circuits)

    def merge(self, circuits: Iterable[OpenCircuit]) -> None:
        """Add circuits that were opened in another process."""
        with self._changed:
            self.circuit_breaker.merge(circuits)
            self.usable = {topic: count for topic, count in self.usable.items() if topic not in self.circuit_breaker}

    def note_worked(self, topics: Iterable[str]) -> None:
        """Close the circuits of topics that have taken records."""
        if self.circuit_breaker.count:
            with self._changed:
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
                if not learned:  # else the policy compares each callback with the limit, and sends the others
                    self.open_circuit(topic, error)
            elif topic in self.own and isinstance(error, LeaderNotAvailableError):
                self._avoid((topic, partition) for partition in error.args[1:])
            elif topic in self.own and isinstance(error, UnknownTopicOrPartitionError):
                self._ask()  # the topic was deleted, or made anew with fewer partitions
            elif self.own & failed.keys():
                continue  # the engine's topics fail too, so the brokers are the cause
            elif isinstance(error, UnknownTopicOrPartitionError):
                self.forget(topic)
            else:
                self.open_circuit(topic, error)

    def note_silent(self, failure: Unanswered, *, few_records: bool) -> None:
        """Note partitions that did not answer a transaction; ``few_records``: it had few records."""
        own = {place for place in failure.places if place[0] in self.own}
        if own:
            self._avoid(own)
        for topic in failure.topics if few_records and not own else ():
            self.open_circuit(topic, failure)

    def _avoid(self, places: Iterable[tuple[str, int]]) -> None:
        """Use other partitions of the engine's topics, until the metadata of the brokers show the loss too."""
        with self._changed:
            until = monotonic() + AVOIDED_S
            self._avoided |= dict.fromkeys(places, until)
            self._refresh_at = min(self._refresh_at, until)

    def forget(self, topic: str) -> None:
        """Look up ``topic`` again before the next sending: it, or a partition of it, was missing."""
        with self._changed:
            now = monotonic()
            # Reports of several machines about one failure count once: before the next report counts, brokers must have
            # listed the topic.
            is_repeated = self._forget(topic) and now - self._forgotten.get(topic, -math.inf) < MISSING_TWICE_S
            self._forgotten = {name: since for name, since in self._forgotten.items() if now - since < MISSING_TWICE_S}
            self._forgotten[topic] = now
            self.usable.pop(topic, None)
            self.max_message_bytes.pop(topic, None)
        if is_repeated:  # some brokers list the topic, and others do not yet
            self.open_circuit(topic, UnknownTopicOrPartitionError())

    def refresh(self) -> None:
        """Note that a transaction begins. Every :data:`REFRESH_S`, look up partitions and limits of topics again, and
        every :data:`AVOIDED_S` while a topic of the engine has partitions without a leader.
        """
        if monotonic() >= self._refresh_at:
            self._refresh_at = monotonic() + REFRESH_S
            self._is_refresh = True
            self._ask()

    def _use_list(self) -> None:
        """Use a new list of all topics."""
        limited: list[str] = []
        with self._changed:
            if self.own & self.leaderless.keys():
                self._refresh_at = min(self._refresh_at, monotonic() + AVOIDED_S)
            if self._is_refresh:
                self._is_refresh = False
                known = self.counts
                self.usable = {topic: known[topic] for topic in self.usable if topic in known}
                for topic in self.max_message_bytes.keys() - known.keys():
                    del self.max_message_bytes[topic]
                limited = list(self.max_message_bytes)
        with contextlib.suppress(KafkaException):
            for topic in limited:
                self.learn_limit(topic)

    def note_timestamps_refused(self, topic: str) -> None:
        """Look up again which times ``topic`` takes, before the next sending."""
        with self._changed:
            self._times.pop(topic, None)
            self.usable.pop(topic, None)

    def _note_created(self, failures: Mapping[str, str]) -> None:
        """Use topics that were created now."""
        self._not_created = failures
        self._ask()

    def learn_limit(self, topic: str) -> bool:
        """Ask for the largest batch that ``topic`` takes, and store it.

        Returns:
            Whether the limit has changed.

        Raises:
            KafkaException: the brokers do not answer, or this worker may not ask.
        """
        limit = largest_batch(self._admin, topic, METADATA_ANSWER_S)
        known = self.max_message_bytes.get(topic)
        with self._changed:
            self.max_message_bytes[topic] = limit
        if limit != known:
            logger.info("target %s takes batches of up to %d bytes", topic, limit)
        return limit != known

    def limit_now(self, topic: str) -> int | None:
        """Ask for the largest batch that ``topic`` takes; without an answer, return what was known."""
        with contextlib.suppress(KafkaException):
            self.learn_limit(topic)
        return self.max_message_bytes.get(topic)

    # ---- questions to the brokers ---------------------------------------------------------------------------------

    def _ask(self, *topics: str) -> None:
        """Ask the brokers for a list of all topics, and what these ones take. Returns at once."""
        with self._changed:
            self._wanted = self._wanted or set()
            if len(self._wanted) < MAX_UNKNOWN:
                self._wanted.update(topics)
            if not self._is_asking:
                self._is_asking, self._silent_since = True, monotonic()
                threading.Thread(target=self._run, name="timers-topics", daemon=True).start()

    def wait(self, topics: Collection[str], may_wait: Callable[[], bool]) -> bool:
        """Wait for the answers about topics; ``may_wait`` is called about five times a second. Returns whether all
        have come."""
        with self._changed:
            is_repeated = False
            while missing := [topic for topic in topics if self._answer(topic) is None]:
                # A topic that another question has found has no configuration yet.
                if not self._is_asking and not is_repeated:
                    is_repeated = True
                    self._ask(*missing)
                left_s = self._silent_since + ANSWER_S - monotonic()
                if left_s <= 0 or not may_wait():
                    return False
                self._changed.wait(min(left_s, POLL_S))
        return True

    def _run(self) -> None:
        try:
            while self._ask_once():
                pass
        except BaseException:
            with self._changed:
                self._is_asking = False
            raise

    def _ask_once(self) -> bool:
        """Ask the brokers once. Returns False if the thread must end."""
        with self._changed:
            wanted, self._wanted = self._wanted, None
            self._is_asking = wanted is not None
            if wanted is None:
                return False
        try:
            self._list(wanted)
            self._describe(wanted)
        except KafkaException as error:
            if self._list_s == FIRST_LIST_S:
                logger.warning("no broker answers about topics, asking again: %s", error)
            self._list_s = min(2 * self._list_s, LAST_LIST_S)
            self._ask(*wanted)
            sleep(POLL_S)
        else:
            self._silent_since, self._list_s = monotonic(), FIRST_LIST_S
        return True

    def _list(self, wanted: set[str]) -> None:
        found = listed(self._admin, self._list_s)
        with self._changed:
            self.leaderless = {name: topic.leaderless for name, topic in found.items() if topic.leaderless}
            self._use_counts({name: topic.partitions for name, topic in found.items()})
            if len(self._unknown) >= MAX_UNKNOWN:
                self._unknown.clear()
            self._unknown |= dict.fromkeys(wanted - found.keys(), monotonic() + UNKNOWN_TOPIC_RETRY_S)
            self._changed.notify_all()
        self._use_list()

    def _describe(self, wanted: set[str]) -> None:
        """Ask which times topics take.

        A topic that refuses them must not become part of a transaction: Kafka checks the time of the record that ends
        it, too, and if this record is refused, neither this transaction nor another one with the transactional id ever
        ends.
        """
        with self._changed:
            known = wanted & self.counts.keys()
            names = {name for name in known if self._times.get(name, _NO_TIMES)[0] <= monotonic()}
            others = list(islice((name for name in self.counts if name not in self._times), MAX_DESCRIBED))
        if not names:
            return
        oldest: Mapping[str, int] = {}
        until, is_sure = monotonic() + REFRESH_S, True
        for described in ({*names, *others}, names):
            try:
                oldest = oldest_ms(self._admin, described, CONFIG_ANSWER_S)
                names = described
                break
            except KafkaException as error:  # another topic of the request was deleted, or no broker answered
                if code_of(error) in UNREACHABLE:
                    until, is_sure = monotonic() + AVOIDED_S, False
                    break
        with self._changed:
            for name in names:
                self._times[name] = until, None, is_sure
                age_ms = oldest.get(name, MIN_AGE_MS)
                if age_ms < MIN_AGE_MS:
                    why = f"takes no record that is more than {age_ms} ms old (message.timestamp.before.max.ms)"
                    self._times[name] = monotonic() + UNKNOWN_TOPIC_RETRY_S, f"INVALID_TIMESTAMP: {name!r} {why}", True
            self._changed.notify_all()

    def _answer(self, topic: str) -> TopicAnswer | None:
        """What the brokers said about a topic; None: they must be asked (again)."""
        with self._changed:
            if topic not in self.counts:
                return TopicAnswer(None) if monotonic() < self._unknown.get(topic, 0.0) else None
            until, refuses, is_sure = self._times.get(topic, _NO_TIMES)
            if monotonic() >= until:
                return None
            return TopicAnswer(self.counts[topic], refuses, topic not in self.leaderless, is_sure)

    def _forget(self, topic: str) -> bool:
        """Forget that a topic exists, until the next list. Returns whether it was known."""
        with self._changed:
            self._unknown.pop(topic, None)
            return self.counts.pop(topic, None) is not None

    # ---- partitions of the engine's topics ----------------------------------------------------------------------

    def learn(self, own: Mapping[str, int]) -> None:
        """Use what a watch of the engine's topics has seen: topic -> number of partitions. One that is not in it was
        deleted."""
        with self._changed:
            others = {topic: count for topic, count in self.counts.items() if topic not in self.own}
            self._use_counts({**others, **{topic: count for topic, count in own.items() if topic in self.own}})

    def _use_counts(self, counts: dict[str, int]) -> None:
        self.counts = counts

    def partitions(self, topic: str) -> int:
        """Last known number of partitions of a topic that exists."""
        return self.counts.get(topic, 1)

    def available(self, topic: str, partition: int) -> int:
        """``partition`` of a topic of the engine; or the next one with a leader, if it had none a short time ago."""
        if not self._avoided and topic not in self.leaderless:
            return partition
        now, count, leaderless = monotonic(), self.partitions(topic), self.leaderless.get(topic, ())
        others = ((partition + step) % count for step in range(count))
        led = (each for each in others if each not in leaderless and now >= self._avoided.get((topic, each), 0.0))
        chosen = next(led, partition)
        if chosen != partition:
            self._moved[topic, partition] = now
        return chosen

    def was_moved(self, topic: str, partition: int) -> bool:
        """Whether :meth:`available` returned another partition in the last :data:`MOVED_S`, where earlier records of a
        key may be."""
        return monotonic() < self._moved.get((topic, partition), -math.inf) + MOVED_S
