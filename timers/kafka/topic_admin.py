"""Asks the brokers whether a topic exists and how it is configured, and creates topics: one at once, or many soon.

What takes an admin client raises KafkaException if the brokers do not answer, or refuse.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from time import monotonic, sleep
from types import MappingProxyType
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource, ConfigSource, NewTopic, ResourceType

from timers.kafka import connection
from timers.kafka.admin_client import AdminClient
from timers.kafka.clients import admin_client
from timers.kafka.error_codes import NO_TOPIC, NOT_ALLOWED, code_of
from timers.kafka.own_topics import LOG_APPEND_TIME, MIN_IN_SYNC, TIMESTAMP_TYPE
from timers.process.config.settings import Settings
from timers.process.threads import BoundedThreads, log_failure

logger = logging.getLogger(__name__)

_SHOWN_S = 5.0
"""Seconds that a new topic may take until the brokers show it: the controller answers before they know it."""

UNKNOWN_TOPIC_RETRY_S = 1.0
"""Seconds after which workers look up an unknown topic again. So even many timers for it cause few requests."""


@contextmanager
def _asking(settings: Settings, failed: str) -> Iterator[tuple[AdminClient, connection.ErrorReports]]:
    """A client for a few requests. Raises TimersError, which says what failed, if they fail."""
    reports = connection.ErrorReports(settings)
    with reports.explained(failed):
        yield admin_client(settings, reports), reports


def cluster_id(settings: Settings) -> str:
    """The id of the cluster of these brokers.

    Raises:
        TimersError: no broker answers.
    """
    with _asking(settings, "the id of the cluster cannot be read") as asked:
        return str(connection.metadata(*asked, connection.CALL_TIMEOUT_S, settings.request_topic).cluster_id)


def exists(settings: Settings, topic: str) -> bool:
    """Whether a topic exists. The request does not create it."""
    return not missing(settings, [topic])


def missing(settings: Settings, topics: Iterable[str]) -> list[str]:
    """Those of ``topics`` that do not exist. The requests do not create them.

    Raises:
        TimersError: no broker answers, or a topic may not be described.
    """
    found = []
    with _asking(settings, "topics cannot be described") as (admin, reports):
        for topic in topics:
            with reports.explained(f"topic {topic!r} cannot be described"):
                if not connection.partitions_of(admin, reports, topic):
                    found.append(topic)
    return found


def describe(settings: Settings, topic: str) -> tuple[int, str]:
    """Number of partitions and ``cleanup.policy`` of a topic that exists.

    Raises:
        TimersError: no broker answers, or the topic may not be described.
    """
    with _asking(settings, f"topic {topic!r} cannot be described") as asked:
        return connection.partitions_of(*asked, topic), configs(asked[0], [topic])[topic]["cleanup.policy"]


class Identity(NamedTuple):
    """What distinguishes a topic from another one of the same name, and from itself with fewer partitions."""

    id: bytes
    """The id that the cluster gave it; 16 zeros from brokers before 2.8."""
    partitions: int
    """How many it has, also without a leader."""


def identity(admin: AdminClient, name: str, timeout_s: float) -> Identity | None:
    """The id and the number of partitions of a topic; None if it does not exist. The request does not create it.

    Raises:
        KafkaException: no broker answers, or the topic may not be described.
    """
    return identity_of(ask_for_identity(admin, name, timeout_s), connection.give_up_at(timeout_s))


def ask_for_identity(admin: AdminClient, name: str, timeout_s: float) -> Future[Any]:
    """Ask as :func:`identity`, without waiting. Read the answer with :func:`identity_of`."""
    asked: Future[Any] = admin.describe_topics(TopicCollection([name]), request_timeout=timeout_s)[name]
    return asked


def identity_of(asked: Future[Any], until: float | None = None) -> Identity | None:
    """What :func:`identity` returns, in an answer; waits for it."""
    try:
        found = connection.answer(asked, until or connection.give_up_at())
    except KafkaException as error:
        if code_of(error) in NO_TOPIC:
            return None
        raise
    return Identity(id_bytes(found.topic_id), len(found.partitions))


def id_bytes(uuid: Any) -> bytes:
    """The 16 bytes of a topic's id."""
    high, low = uuid.get_most_significant_bits(), uuid.get_least_significant_bits()
    return int(high & 2**64 - 1).to_bytes(8, "big") + int(low & 2**64 - 1).to_bytes(8, "big")


def create_if_missing(
    settings: Settings,
    topic: str,
    *,
    partitions: int,
    cleanup_policy: str = "delete",
    append_time: bool = True,
    config: Mapping[str, str] = MappingProxyType({}),
) -> bool:
    """Create a topic unless it exists, and wait until the brokers show it.

    Args:
        config: further settings of the topic.
        append_time: its record times are the broker's, so that lags are exact; else the producers'.

    Returns:
        Whether it was created.

    Raises:
        TimersError: no broker answers, or the brokers refuse.
    """
    time_config = {TIMESTAMP_TYPE: LOG_APPEND_TIME} if append_time else {}
    config = {"cleanup.policy": cleanup_policy, **time_config, **config}
    new = NewTopic(topic, partitions, settings.replication or -1, config=config)
    with _asking(settings, f"topic {topic!r} cannot be created") as asked:
        connection.metadata(*asked, connection.CALL_TIMEOUT_S)
        created = connection.while_moving(lambda: create(asked[0], new), connection.CALL_TIMEOUT_S)
        deadline_s = monotonic() + _SHOWN_S
        while not connection.partitions_of(*asked, topic) and monotonic() < deadline_s:
            sleep(connection.CALL_RETRY_S)
        return created


def create(admin: AdminClient, topic: NewTopic, timeout_s: float = connection.CALL_TIMEOUT_S) -> bool:
    """Create a topic, and wait for it. False if it exists already."""
    failure = create_all(admin, [topic], timeout_s).get(topic.topic)
    if failure is not None and code_of(failure) != KafkaError.TOPIC_ALREADY_EXISTS:
        raise failure
    return failure is None


def create_all(
    admin: AdminClient, topics: list[NewTopic], timeout_s: float = connection.CALL_TIMEOUT_S
) -> dict[str, KafkaException]:
    """Create topics in one request, and wait for them. Returns topic -> error, for those that were not created."""
    failures = {}
    topics = _outliving_a_broker(admin, topics, timeout_s)
    created = admin.create_topics(topics, operation_timeout=timeout_s, request_timeout=timeout_s)
    until = connection.give_up_at(timeout_s)
    for name, future in created.items():
        try:
            connection.answer(future, until)
        except KafkaException as failure:
            failures[name] = failure
    return failures


REPLICAS, IN_SYNC = 3, 2
"""Of a new topic about which no operator has decided, on a cluster with that many brokers: one of them may be lost."""


def _outliving_a_broker(admin: AdminClient, topics: list[NewTopic], timeout_s: float) -> list[NewTopic]:
    """New topics with the replicas and in-sync replicas that they should have (ADR 48).

    What TIMERS_REPLICATION or the files of the brokers say counts. Kafka's own defaults, one replica and one in sync,
    are no decision: on a cluster of three brokers or more a topic gets three and two instead. With two of them, of
    which one more may be down, it gets one replica, with a warning.
    """
    open_ones = [each for each in topics if each.replication_factor == -1 or _needs_in_sync(each)]
    if not open_ones:
        return topics
    try:
        until = connection.give_up_at(timeout_s)
        nodes = connection.answer(admin.describe_cluster(request_timeout=timeout_s), until).nodes
        if len(nodes) == 1:
            return topics
        broker = ConfigResource(ResourceType.BROKER, str(nodes[0].id))
        found = connection.answer(admin.describe_configs([broker], request_timeout=timeout_s)[broker], until)
        replicas, in_sync = found["default.replication.factor"], found[MIN_IN_SYNC]
        default = REPLICAS if _is_kafkas_own(replicas) else int(replicas.value)
    except (KafkaException, KeyError, TypeError, ValueError) as error:  # some logins may not ask, some brokers fail
        logger.warning(
            "%d new topics, such as %r, get the brokers' default number of replicas or in-sync replicas, which cannot "
            "be read (%s): set TIMERS_REPLICATION=3 and min.insync.replicas=2 (docs/operations.md#replicas)",
            len(open_ones),
            open_ones[0].topic,
            error,
        )
        return topics
    if len(nodes) < REPLICAS:
        new = [each.topic for each in open_ones if each.replication_factor == -1]
        if new and _is_kafkas_own(replicas):  # a broker that is down is not among the nodes
            logger.warning(
                "%d new topics, such as %r, get one replica, because %d brokers run: if the cluster has more, this "
                "stays so when they are back. Set TIMERS_REPLICATION, and give these topics more replicas "
                "(docs/operations.md#replicas)",
                len(new),
                new[0],
                len(nodes),
            )
        return topics
    decided = []
    for each in topics:
        # The number of replicas is named only if min.insync.replicas needs it: a controller may have another default
        # than the brokers.
        count = default if each.replication_factor == -1 and default >= REPLICAS else each.replication_factor
        config = each.config or {}
        if count >= REPLICAS and _is_kafkas_own(in_sync):
            config = {MIN_IN_SYNC: str(IN_SYNC), **config}
        decided.append(NewTopic(each.topic, each.num_partitions, count, config=config))
    return decided


def _needs_in_sync(topic: NewTopic) -> bool:
    return topic.replication_factor >= REPLICAS and MIN_IN_SYNC not in (topic.config or {})


def _is_kafkas_own(setting: Any) -> bool:
    """Whether no operator has set it. Kafka sets 1 for the whole cluster, where a cluster begins with KIP-966."""
    of_cluster = setting.source == ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG.value
    return bool(setting.source == ConfigSource.DEFAULT_CONFIG.value or (of_cluster and setting.value == "1"))


def configs(
    admin: AdminClient,
    topics: Iterable[str],
    timeout_s: float = connection.CALL_TIMEOUT_S,
    *,
    skip_denied: bool = False,
) -> dict[str, dict[str, str]]:
    """The configuration of each topic: name to value.

    Args:
        skip_denied: leave out topics whose configuration may not be read.
    """
    found, until = {}, connection.give_up_at(timeout_s)
    for topic, asked in ask_for_configs(admin, topics, timeout_s).items():
        try:
            found[topic] = config_of(asked, until)
        except KafkaException as error:
            if not skip_denied or code_of(error) not in NOT_ALLOWED:
                raise
    return found


def ask_for_configs(
    admin: AdminClient, topics: Iterable[str], timeout_s: float = connection.CALL_TIMEOUT_S
) -> dict[str, Future[Any]]:
    """Ask for the configuration of topics, without waiting. Read each answer with :func:`config_of`."""
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    if not resources:  # the client refuses an empty list
        return {}
    asked = admin.describe_configs(resources, request_timeout=timeout_s)
    return {resource.name: future for resource, future in asked.items()}


def config_of(asked: Future[Any], until: float | None = None) -> dict[str, str]:
    """The configuration in an answer, name to value; waits for it."""
    return {name: entry.value for name, entry in connection.answer(asked, until or connection.give_up_at()).items()}


class ListedTopic(NamedTuple):
    """A topic that exists."""

    partitions: int
    leaderless: frozenset[int]
    """Partitions without a leader."""


def listed(admin: AdminClient, timeout_s: float) -> dict[str, ListedTopic]:
    """All topics. A request for one name would create the topic on brokers that allow it."""
    return {
        name: ListedTopic(
            len(topic.partitions),
            frozenset(number for number, partition in topic.partitions.items() if partition.leader == -1),
        )
        for name, topic in admin.list_topics(timeout=timeout_s).topics.items()
        if topic.error is None
    }


def largest_batch(admin: AdminClient, name: str, timeout_s: float) -> int:
    """The bytes of the largest batch that a topic takes. Raises as :func:`configs`."""
    config = configs(admin, [name], timeout_s)[name]
    return min(int(config["max.message.bytes"]), int(config["segment.bytes"]))


def oldest_ms(admin: AdminClient, names: Iterable[str], timeout_s: float) -> dict[str, int]:
    """How old a record may be in topics that keep producers' times, without topics that may not be described."""
    found = configs(admin, names, timeout_s, skip_denied=True)
    limits = ("message.timestamp.before.max.ms", "message.timestamp.difference.max.ms")  # the latter before Kafka 4
    return {
        name: min(int(config[limit]) for limit in limits if limit in config)
        for name, config in found.items()
        if config.get("message.timestamp.type") == "CreateTime"
    }


MAX_TOPICS = 500
"""Topics in one request: a controller does not take other requests while it handles a large one."""

MAX_WANTED = 10_000
"""Maximum number of topics that wait. Further ones are requested again by the next attempt of their timers."""


class TopicCreator:
    """Creates topics with the brokers' number of partitions, many in one request, in a thread of its own.

    Args:
        on_created: called in the creator's thread after each request, with topic -> reason for topics not created.
    """

    def __init__(self, admin: AdminClient, timeout_s: float, on_created: Callable[[Mapping[str, str]], None]) -> None:
        self._admin = admin
        self._timeout_s = timeout_s
        self._on_created = on_created
        self._lock = threading.Lock()
        self._wanted: dict[str, None] = {}
        self._threads = BoundedThreads("topic creator", 1)

    def request(self, topic: str) -> None:
        """Create a topic soon. Returns at once."""
        with self._lock:
            # Each wanted topic has a call already, which waits.
            if topic in self._wanted or len(self._wanted) >= MAX_WANTED:
                return
            self._wanted[topic] = None
            # After an error, the next attempts of their timers request the topics again.
            self._threads.call(self._create_next).add_done_callback(log_failure("callback topics were not created"))

    def _create_next(self) -> None:
        with self._lock:
            names = list(self._wanted)[:MAX_TOPICS]
            for name in names:
                del self._wanted[name]
        if not names:  # an earlier call has asked for them
            return
        refused = {}
        try:
            failures = create_all(self._admin, [NewTopic(name, -1, -1) for name in names], self._timeout_s)
        except KafkaException as error:
            logger.warning("%d callback topics were not created, as no broker answered: %s", len(names), error)
        else:
            refused = {
                name: failure.args[0].str()
                for name, failure in failures.items()
                if code_of(failure) != KafkaError.TOPIC_ALREADY_EXISTS
            }
            for name, why in list(refused.items())[:1]:
                logger.warning("%d callback topics were not created, such as %r: %s", len(refused), name, why)
        self._on_created(refused)
