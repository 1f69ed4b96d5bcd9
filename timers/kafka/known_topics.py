"""What the brokers said last about all topics, and the partitions of the engine's topics that get no records for now.

A thread asks the brokers. A broker that is silent keeps a request waiting for seconds, and no machine may wait for it,
except for a moment, to send timers to a topic that is used for the first time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from time import monotonic, sleep
from typing import NamedTuple

from confluent_kafka import KafkaException

from timers.kafka.error_codes import UNREACHABLE, code_of
from timers.kafka.topic_metadata import REFRESH_S, TopicMetadata

logger = logging.getLogger(__name__)

ANSWER_S = 3.0
"""Seconds for which :meth:`KnownTopics.wait` waits; they begin with the first request that has no answer."""

POLL_S = 0.2

FIRST_LIST_S, LAST_LIST_S = 3.0, 30.0
"""Seconds until the request for all topics times out: at first, and at most. The time-out doubles after each failure. A
request to a broker that has just died gets no answer, and the next one goes to another broker."""

AVOIDED_S = 10.0
"""Seconds for which no records of the engine go to a partition whose leader did not take them. While a partition has no
leader, leaders are looked up again after this time. The brokers notice a lost broker after 9 s."""

MOVED_S = 60.0
"""Seconds for which verdicts are marked as moved: longer than readers of verdicts are behind."""

UNKNOWN_FOR_S = 1.0
"""Seconds after which an unknown topic is looked up again. So even many timers for it cause few requests."""

MAX_UNKNOWN = 10_000
"""Maximum number of unknown topics that are remembered."""

MIN_AGE_MS = 1000
"""A topic gets no records if it refuses records of this age: delivery and commit of a record can take as long."""

MAX_DESCRIBED = 100
"""Topics in one request for their configuration."""

DESCRIBE_S = 0.5
"""Seconds for an answer about configurations. librdkafka asks a single broker for them, which may be dead or frozen."""


_NO_TIMES = (0.0, None, False)


class Answer(NamedTuple):
    """What the brokers said about a topic."""

    partitions: int | None
    """Number of its partitions; None: it does not exist."""
    refuses: str | None = None
    """Why it never takes records with the times of callbacks; None if it may take them."""
    is_led: bool = True
    """Whether each partition has a leader."""
    is_sure: bool = True
    """Whether the configuration is known; else its records are tried, and it must be asked for again."""


class KnownTopics:
    """The topics of the cluster. Any thread may call each method.

    Attributes:
        counts: topic -> number of its partitions.
        leaderless: topic -> its partitions without a leader, if there are any.

    Args:
        metadata: asks the brokers.
        counts: of the topics that are known at the start.
        on_list: called in the asking thread after each list of all topics.
    """

    def __init__(self, metadata: TopicMetadata, counts: Mapping[str, int], on_list: Callable[[], None]) -> None:
        self._metadata = metadata
        self._on_list = on_list
        self.counts = dict(counts)
        self.leaderless: Mapping[str, frozenset[int]] = {}
        self._avoided: dict[tuple[str, int], float] = {}
        """Partition of a topic of the engine whose leader did not take records -> until when another one is used."""
        self._moved: dict[tuple[str, int], float] = {}
        """Partition of a topic of the engine -> when a record of it last went to another one."""
        self._unknown: dict[str, float] = {}
        """Topic that does not exist -> until when this is valid."""
        self._times: dict[str, tuple[float, str | None, bool]] = {}
        """Topic -> (until when this is valid, why it never takes the times of callbacks, whether it was described)."""
        self._changed = threading.Condition()
        self._wanted: set[str] | None = None
        """Topics that the next request asks about; None: no request is needed."""
        self._is_asking = False
        self._silent_since = 0.0
        self._list_s = FIRST_LIST_S

    # ---- questions ----------------------------------------------------------------------------------------------

    def ask(self, *topics: str) -> None:
        """Ask the brokers for a list of all topics, and what these ones take. Returns at once."""
        with self._changed:
            self._wanted = self._wanted or set()
            if len(self._wanted) < MAX_UNKNOWN:
                self._wanted.update(topics)
            if not self._is_asking:
                self._is_asking, self._silent_since = True, monotonic()
                threading.Thread(target=self._run, name="timers-topics", daemon=True).start()

    def wait(self, topics: Collection[str], keep_waiting: Callable[[], bool]) -> bool:
        """Wait for the answers about topics. Returns whether all have come.

        Args:
            topics: that :meth:`ask` got.
            keep_waiting: called about five times a second; returns False to end the wait.
        """
        with self._changed:
            while not all(map(self.answer, topics)):
                left_s = self._silent_since + ANSWER_S - monotonic()
                if left_s <= 0 or not keep_waiting():
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
            self.ask(*wanted)
            sleep(POLL_S)
        else:
            self._silent_since, self._list_s = monotonic(), FIRST_LIST_S
        return True

    def _list(self, wanted: set[str]) -> None:
        found = self._metadata.topics(self._list_s)
        with self._changed:
            self.leaderless = {name: topic.leaderless for name, topic in found.items() if topic.leaderless}
            self.counts = {name: topic.partitions for name, topic in found.items()}
            if len(self._unknown) >= MAX_UNKNOWN:
                self._unknown.clear()
            self._unknown |= dict.fromkeys(wanted - found.keys(), monotonic() + UNKNOWN_FOR_S)
            self._changed.notify_all()
        self._on_list()

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
        oldest_ms: Mapping[str, int] = {}
        until = monotonic() + REFRESH_S
        for described in ({*names, *others}, names):
            try:
                oldest_ms = self._metadata.oldest_ms(described, DESCRIBE_S)
                names = described
                break
            except KafkaException as error:  # one of the others was deleted, or the broker does not say
                if code_of(error) in UNREACHABLE:
                    until = monotonic() + AVOIDED_S
                    break
        is_sure = until > monotonic() + AVOIDED_S
        with self._changed:
            for name in names:
                self._times[name] = until, None, is_sure
                age_ms = oldest_ms.get(name, MIN_AGE_MS)
                if age_ms < MIN_AGE_MS:
                    why = f"takes no record that is more than {age_ms} ms old (message.timestamp.before.max.ms)"
                    self._times[name] = monotonic() + UNKNOWN_FOR_S, f"INVALID_TIMESTAMP: {name!r} {why}", True
            self._changed.notify_all()

    # ---- answers ------------------------------------------------------------------------------------------------

    def answer(self, topic: str) -> Answer | None:
        """What the brokers said about a topic; None: they must be asked (again)."""
        with self._changed:
            if topic not in self.counts:
                return Answer(None) if monotonic() < self._unknown.get(topic, 0.0) else None
            until, refuses, is_sure = self._times.get(topic, _NO_TIMES)
            if monotonic() >= until:
                return None
            return Answer(self.counts[topic], refuses, topic not in self.leaderless, is_sure)

    def forget(self, topic: str) -> bool:
        """Forget that a topic exists, until the next list. Returns whether it was known."""
        with self._changed:
            self._unknown.pop(topic, None)
            return self.counts.pop(topic, None) is not None

    def forget_times(self, topic: str) -> None:
        """Forget which times a topic takes."""
        with self._changed:
            self._times.pop(topic, None)

    # ---- partitions of the engine's topics ----------------------------------------------------------------------

    def partitions(self, topic: str) -> int:
        """Last known number of partitions of a topic that exists."""
        return self.counts.get(topic, 1)

    def avoid(self, places: Iterable[tuple[str, int]]) -> float:
        """Use other partitions of the engine's topics for :data:`AVOIDED_S`. Returns when this time ends."""
        until = monotonic() + AVOIDED_S
        self._avoided |= dict.fromkeys(places, until)
        return until

    def available(self, topic: str, partition: int) -> int:
        """``partition`` of a topic of the engine; or the next one with a leader, if it had none a short time ago."""
        if not self._avoided and topic not in self.leaderless:
            return partition
        count = self.partitions(topic)
        others = ((partition + step) % count for step in range(count))
        chosen = next((each for each in others if not self._is_avoided(topic, each)), partition)
        if chosen != partition:
            self._moved[topic, partition] = monotonic()
        return chosen

    def _is_avoided(self, topic: str, partition: int) -> bool:
        return partition in self.leaderless.get(topic, ()) or monotonic() < self._avoided.get((topic, partition), 0.0)

    def was_moved(self, topic: str, partition: int) -> bool:
        """Whether :meth:`available` returned another partition in the last :data:`MOVED_S`."""
        moved_at = self._moved.get((topic, partition))
        return moved_at is not None and monotonic() < moved_at + MOVED_S
