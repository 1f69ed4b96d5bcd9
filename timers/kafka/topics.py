"""Creates the topics that a worker needs before it joins its group, and checks those that exist.

A topic that is created after the group has formed is assigned to no member until the next rebalance, and with static
membership there may be none.

What takes an admin client raises KafkaException if the brokers do not answer, or refuse.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic, sleep
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AclOperation,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from timers.errors import AccessError, TimersError, TopicConfigError
from timers.kafka import connection, group_access
from timers.kafka.admin_client import AdminClient
from timers.kafka.clients import admin_client, librdkafka
from timers.kafka.error_codes import NOT_ALLOWED, UNREACHABLE, code_of
from timers.kafka.own_topics import (
    CLEANUP_POLICY,
    COMPACT,
    LOG_APPEND_TIME,
    MAX_MESSAGE_BYTES,
    MIN_IN_SYNC,
    RED,
    SNAPSHOT_TOPIC_CONFIG,
    TIMESTAMP_TYPE,
    TRANSACTION_LOG,
    OwnTopic,
    WrongConfig,
    log_new,
    own_topics,
    wrong_configs,
    wrong_snapshots,
)
from timers.kafka.topic_admin import configs, create, create_all, id_bytes
from timers.process.config.settings import Settings

logger = logging.getLogger(__name__)

_V = TypeVar("_V")

TOPICS_TIMEOUT_S = 30.0
WARN_AFTER_S = 2.0
VISIBLE_POLL_S = 0.1

USER_TOPIC_WAIT_S = 5.0
"""How long to wait for a topic that its users may have created just now."""

MIN_STALE_S = 10
"""Lower bound of ``stale_after_s``: the store of a running machine may be this many seconds behind for a moment."""


@dataclass(frozen=True)
class Cluster:
    """Identity of the cluster and of its topics. Stores belong to one cluster and one topic id."""

    cluster_id: str
    topic_ids: dict[str, bytes]
    partitions: dict[str, int]
    stale_after_s: dict[str, int] = field(default_factory=dict)
    """How long a store of a compacted topic may fall behind its log [I9]: half of ``delete.retention.ms``."""
    wrong_configs: tuple[WrongConfig, ...] = ()
    """What is wrong with the configuration of its topics, the worst first."""
    unseen: frozenset[str] = frozenset()
    """Topics whose description or configuration may not be read any more."""
    brokers: int = 1
    """Number of brokers when the worker started."""

    @property
    def compacted(self) -> dict[str, str]:
        """Topic that is compacted and must not be -> why this is wrong, in a sentence."""
        return {wrong.topic: wrong.sentence for wrong in self.wrong_configs if wrong.compacts}

    def without(self, names: Collection[str]) -> Cluster:
        """The same without some topics."""
        return replace(
            self,
            topic_ids={name: topic_id for name, topic_id in self.topic_ids.items() if name not in names},
            partitions={name: count for name, count in self.partitions.items() if name not in names},
        )


def ensure(
    settings: Settings,
    *,
    user_topics: bool = True,
    asking: tuple[AdminClient, connection.ErrorReports] | None = None,
) -> Cluster:
    """Create missing topics; correct or refuse the configuration of the others. Blocks.

    Args:
        user_topics: whether to check the topics that users create, too.
        asking: a client and its reports; None: a new one. A client that was refused lives until the garbage collector
            runs, which is seldom in a worker.

    Raises:
        TopicConfigError: with the configuration of a topic timers would be lost or fire early, or it cannot be created.
        AccessError: the brokers refuse the login, or do not allow an operation that the worker needs.
    """
    if asking is None:
        new = connection.ErrorReports(settings)
        config: dict[str, Any] = {**librdkafka(settings), **new.callbacks}
        asking = AdminClient(config), new
    admin, reports = asking
    try:
        metadata = _first_metadata(admin, reports, settings)
        wanted = [topic for topic in own_topics(settings) if user_topics or not topic.must_exist]
        created = _create(admin, settings, _find_missing(admin, settings, wanted))
        found = _describe_all(admin, [topic.name for topic in wanted])
        _check_access(settings, wanted, found)
        wrong, configured = _look(admin, settings, wanted, found, len(metadata.brokers), TOPICS_TIMEOUT_S, created)
        wrong = _mend(admin, wanted, wrong)
    except KafkaException as error:
        admin.poll(0)  # runs error_cb, which tells the reports why the brokers refused the login
        raise reports.user_error(error, "the engine's topics cannot be checked", TopicConfigError) from None
    log_new(wrong)
    return Cluster(
        metadata.cluster_id or "",
        _topic_ids(found),
        _partitions(found),
        _stale_after_s(settings, configured),
        tuple(wrong),
        brokers=len(metadata.brokers),
    )


class Examined(NamedTuple):
    """What is wrong with the topics and rights of a worker."""

    missing: list[str]
    wrong: list[WrongConfig]
    lacking: list[str]
    """Rights that this login lacks, such as ``Write on topic 'timer-verdict'``."""
    described: dict[str, Any]
    """Topic -> its description, of those that exist and may be described."""
    denied: list[str]
    """Topics that may not be described."""
    read: list[str]
    """Topics whose configuration may be read."""


def examine(settings: Settings) -> Examined:
    """Look at what :func:`ensure` makes and corrects, and change nothing. Blocks.

    Raises:
        TimersError: no broker answers, or the brokers refuse the login.
    """
    reports = connection.ErrorReports(settings)
    with reports.explained("the engine's topics cannot be looked at"):
        admin = admin_client(settings, reports)
        brokers = len(connection.metadata(admin, reports, connection.CALL_TIMEOUT_S).brokers)
        wanted, denied = own_topics(settings), set[str]()
        found = _describe(admin, [topic.name for topic in wanted], denied)
        lacking = [_missing_rights(topic, ())[0] for topic in wanted if topic.name in denied]
        lacking += _lacking(settings, [topic for topic in wanted if topic.name in found], found)
        missing = [topic.name for topic in wanted if topic.name not in found and topic.name not in denied]
        wrong, config = _look(admin, settings, wanted, found, brokers, TOPICS_TIMEOUT_S)
        return Examined(missing, wrong, lacking, found, sorted(denied), list(config))


def _first_metadata(admin: AdminClient, reports: connection.ErrorReports, settings: Settings) -> Any:
    """The metadata of the cluster. Says early that no broker answers yet: brokers may start later than their worker."""
    try:
        return connection.metadata(admin, reports, WARN_AFTER_S)
    except KafkaException as error:
        if code_of(error) not in UNREACHABLE:
            raise
        logger.warning("no broker answers yet at %s; trying for %d s more", settings.brokers, TOPICS_TIMEOUT_S)
        return connection.metadata(admin, reports, TOPICS_TIMEOUT_S)


def existing_topics(
    admin: AdminClient,
    settings: Settings,
    known: Cluster | None = None,
    timeout_s: float = TOPICS_TIMEOUT_S,
    *,
    with_configs: bool = True,
    with_transactions: bool = True,
) -> Cluster:
    """The worker's topics that exist now. Blocks, for up to ``timeout_s`` for each of its five requests.

    Args:
        known: the topics as they were. What may not be read any more counts as unchanged. Without them no configuration
            is read.
        with_configs: read the configurations, too; those of new topics are always read.
        with_transactions: with them, look at the brokers' log of transactions, too. Else it counts as unchanged.

    Raises:
        KafkaException: the brokers do not answer, or refuse and nothing is known.
    """
    # Ask about one topic only: workers ask every 5 s, and a shared cluster may have tens of thousands of partitions.
    metadata = admin.list_topics(settings.progress_topic, timeout=timeout_s)
    wanted, denied = own_topics(settings), set[str]()
    found = _describe(admin, [topic.name for topic in wanted], None if known is None else denied, timeout_s)
    now = Cluster(metadata.cluster_id or "", _topic_ids(found), _partitions(found))
    if known is None:
        return now
    topic_ids = _with_known(now.topic_ids, known.topic_ids, denied)
    partitions = _with_known(now.partitions, known.partitions, denied)
    now = replace(known, cluster_id=now.cluster_id, topic_ids=topic_ids, partitions=partitions)
    if with_configs or topic_ids != known.topic_ids:
        look = partial(_look, with_transactions=with_transactions)
        wrong, config = look(admin, settings, wanted, found, len(metadata.brokers), timeout_s)
        unseen = frozenset(denied | (found.keys() - config.keys()))
        # Most logins never see the log of transactions, so it is not reported that this one does not.
        unread = unseen | ({TRANSACTION_LOG.name} - config.keys())
        wrong += [each for each in known.wrong_configs if each.topic in unread]
        stale_after_s = _with_known(_stale_after_s(settings, config), known.stale_after_s, unseen)
        now = replace(now, stale_after_s=stale_after_s, wrong_configs=tuple(wrong), unseen=unseen)
    return now


def existing(settings: Settings, reports: connection.ErrorReports, timeout_s: float | None = None) -> Cluster:
    """The topics of an app that has run; ``timeout_s`` for each request, None: :data:`TOPICS_TIMEOUT_S`.

    Raises:
        TimersError: it has no progress topic.
        KafkaException: the brokers do not answer, or refuse.
    """
    cluster = existing_topics(admin_client(settings, reports), settings, timeout_s=timeout_s or TOPICS_TIMEOUT_S)
    if settings.progress_topic not in cluster.partitions:
        raise TimersError(f"topic {settings.progress_topic!r} does not exist: no worker of this app has run yet")
    return cluster


def compacted_now(admin: AdminClient, settings: Settings, known: Cluster, timeout_s: float) -> dict[str, str]:
    """Topics of requests that are compacted now and must not be, as :attr:`Cluster.compacted`. Blocks. If no broker
    answers, those of ``known``."""
    wanted = [topic for topic in own_topics(settings) if topic.needs_all_records and topic.name in known.topic_ids]
    try:
        found = configs(admin, [topic.name for topic in wanted], timeout_s, skip_denied=True)
    except KafkaException as error:
        logger.warning("the configuration of topics cannot be read (%s)", error)
        return known.compacted
    judged = [(topic, found[topic.name], 0) for topic in wanted if topic.name in found]
    wrong = wrong_configs(settings.brokers, judged, 0)
    return replace(known, wrong_configs=tuple(wrong)).compacted


def _with_known(now: dict[str, _V], known: dict[str, _V], names: Collection[str]) -> dict[str, _V]:
    return {**{name: value for name, value in known.items() if name in names}, **now}


def config_problems(admin: AdminClient, settings: Settings, names: Collection[str]) -> dict[str, str]:
    """Check topics that were created while the worker runs as :func:`ensure` does at its start. Blocks.

    Returns:
        Topic -> why it cannot be used, in a sentence.
    """
    problems = {}
    for topic in own_topics(settings):
        if topic.name in names and not topic.must_exist:
            try:
                found = _describe(admin, [topic.name])
                _mend(admin, [topic], _look(admin, settings, [topic], found, 1, TOPICS_TIMEOUT_S)[0])
            except TopicConfigError as error:
                problems[topic.name] = str(error)
    return problems


def _stale_after_s(settings: Settings, config: dict[str, dict[str, str]]) -> dict[str, int]:
    """``stale_after_s`` of :class:`Cluster`. Called repeatedly, because users may change these topics."""
    found = {topic.name: config.get(topic.name, {}) for topic in own_topics(settings) if topic.must_exist}
    return {
        name: max(MIN_STALE_S, int(each["delete.retention.ms"]) // 2000)
        for name, each in found.items()
        if COMPACT in each.get(CLEANUP_POLICY, "")
    }


def ensure_snapshots(admin: AdminClient, settings: Settings, request_topic: str, name: str) -> list[str]:
    """Create the topic of a request topic's snapshots, or its missing partitions. Blocks.

    It has as many partitions, replicas and in-sync replicas as the request topic.

    Returns:
        What is wrong with its configuration, in sentences.

    Raises:
        KafkaException: the brokers do not answer, or refuse, or the request topic was deleted.
    """
    found = _describe(admin, [request_topic, name])
    if request_topic not in found:
        raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, f"topic {request_topic!r} was deleted"))
    config = configs(admin, found, TOPICS_TIMEOUT_S)
    requests, in_sync = found[request_topic].partitions, config[request_topic][MIN_IN_SYNC]
    replicas = len(requests[0].replicas)
    if name not in found:
        new = NewTopic(name, len(requests), replicas, config={**SNAPSHOT_TOPIC_CONFIG, MIN_IN_SYNC: in_sync})
        if create(admin, new, TOPICS_TIMEOUT_S):
            logger.info("created topic %s with %d partitions", name, len(requests))
        _describe_all(admin, [name])
        return []
    partitions = found[name].partitions
    wrong = wrong_snapshots(settings.brokers, name, config[name], int(in_sync))
    if len(partitions) < len(requests):
        wrong += _add_partitions(admin, name, len(requests))
    fewest = min(len(each.replicas) for each in partitions)
    if fewest < replicas:
        wrong.append(f"topic {name!r} has {fewest} replicas, and its request topic {replicas}: give it as many")
    return wrong


def _add_partitions(admin: AdminClient, name: str, count: int) -> list[str]:
    """Give a topic this many partitions. Returns why it cannot have them: its other partitions go on."""
    try:
        asked = admin.create_partitions([NewPartitions(name, count)], request_timeout=TOPICS_TIMEOUT_S)
        connection.answer(asked[name], connection.give_up_at(TOPICS_TIMEOUT_S))
    except KafkaException as error:
        why = error.args[0].str()
        return [f"topic {name!r} lacks partitions, and former snapshots are kept; it must have {count} ({why})"]
    return []


def topic_id(admin: AdminClient, name: str, timeout_s: float) -> bytes | None:
    """The id that the cluster gave a topic; None if it does not exist. Blocks."""
    return ids_of(admin, [name], timeout_s).get(name)


def ids_of(admin: AdminClient, names: list[str], timeout_s: float) -> dict[str, bytes]:
    """The ids of those topics that exist; see :func:`topic_id`."""
    return _topic_ids(_describe(admin, names, None, timeout_s))


def _topic_ids(found: dict[str, Any]) -> dict[str, bytes]:
    return {name: id_bytes(topic.topic_id) for name, topic in found.items()}


def _partitions(found: dict[str, Any]) -> dict[str, int]:
    return {name: len(topic.partitions) for name, topic in found.items()}


def _find_missing(admin: AdminClient, settings: Settings, wanted: list[OwnTopic]) -> list[OwnTopic]:
    """Topics that do not exist, after a wait for those of users. The worker may not have the right to create topics."""
    deadline = monotonic() + USER_TOPIC_WAIT_S
    while True:
        denied: set[str] = set()
        found = _describe(admin, [topic.name for topic in wanted], denied)
        if denied:
            raise _access_error(settings, [_missing_rights(topic, ())[0] for topic in wanted if topic.name in denied])
        missing = [topic for topic in wanted if topic.name not in found]
        if not any(topic.must_exist for topic in missing) or monotonic() > deadline:
            return missing
        sleep(VISIBLE_POLL_S)


def _create(admin: AdminClient, settings: Settings, wanted: list[OwnTopic]) -> set[str]:
    missing = [topic.name for topic in wanted if topic.must_exist]
    if missing:
        raise TopicConfigError(
            f"TIMERS_SCHEDULE_TOPICS names {missing[0]!r}, which does not exist at {settings.brokers}: create it as "
            f"its producers want it (timers topics create {missing[0]} --compacted), or name another"
        )
    if not wanted:
        return set()
    replication = settings.replication or -1
    new = [NewTopic(topic.name, settings.partitions, replication, config=topic.config) for topic in wanted]
    failures = create_all(admin, new, TOPICS_TIMEOUT_S)
    for name, error in failures.items():
        if code_of(error) in NOT_ALLOWED:
            config = next(topic.config for topic in wanted if topic.name == name)
            needs = " ".join(f"{key}={value}" for key, value in config.items())
            right = f"Create on topic {name!r}, which does not exist (it needs {needs})"
            raise _access_error(settings, [right])
        if code_of(error) != KafkaError.TOPIC_ALREADY_EXISTS:
            raise TopicConfigError(f"topic {name!r} cannot be created: {error.args[0].str()}")
    created = {topic.name for topic in wanted} - failures.keys()
    if created:
        logger.info("created topics %s with %d partitions each", ", ".join(sorted(created)), settings.partitions)
    return created


def _describe(
    admin: AdminClient, names: list[str], denied: set[str] | None = None, timeout_s: float = TOPICS_TIMEOUT_S
) -> dict[str, Any]:
    """Descriptions of the topics that exist. Topics that may not be described are added to ``denied``."""
    described = admin.describe_topics(
        TopicCollection(names), include_authorized_operations=True, request_timeout=timeout_s
    )
    found, until = {}, connection.give_up_at(timeout_s)
    for name, future in described.items():
        try:
            found[name] = connection.answer(future, until)
        except KafkaException as error:
            if denied is not None and code_of(error) in NOT_ALLOWED:
                denied.add(name)
            elif code_of(error) != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
    return found


def _describe_all(admin: AdminClient, names: list[str]) -> dict[str, Any]:
    """Descriptions of topics. A broker may learn of a new topic some time after its creation."""
    deadline = monotonic() + TOPICS_TIMEOUT_S
    while len(found := _describe(admin, names)) < len(names):
        if monotonic() > deadline:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        sleep(VISIBLE_POLL_S)
    return found


def _check_access(settings: Settings, wanted: list[OwnTopic], found: dict[str, Any]) -> None:
    """Check all rights before the worker starts. Later, the brokers would refuse one by one, some after minutes."""
    if missing_rights := _lacking(settings, wanted, found):
        raise _access_error(settings, missing_rights)


def _lacking(settings: Settings, wanted: list[OwnTopic], found: dict[str, Any]) -> list[str]:
    missing_rights = []
    for topic in wanted:
        allowed = found[topic.name].authorized_operations
        if allowed is not None:  # brokers before 2.3 do not report it
            missing_rights += _missing_rights(topic, allowed)
    if not group_access.may_join(settings):
        missing_rights.append(f"Read on group {settings.app_id!r}")
    return missing_rights


def _missing_rights(topic: OwnTopic, allowed: Collection[Any]) -> list[str]:
    missing = [each for each in (*topic.operations, AclOperation.DESCRIBE_CONFIGS) if each not in allowed]
    names = ", ".join(str(each.name).title().replace("_", "") for each in missing)
    return [f"{names} on topic {topic.name!r}"] if missing else []


def _access_error(settings: Settings, missing_rights: list[str]) -> AccessError:
    needs_ids = settings.id_topic and any(repr(settings.id_topic) in right for right in missing_rights)
    without = "; an app without timers with an id can set TIMERS_ID_TOPIC= (empty) instead" if needs_ids else ""
    return AccessError(
        f"{connection.principal(settings)} lacks at {settings.brokers}: {'; '.join(missing_rights)} (docs/security.md "
        f"has the kafka-acls lines of all that a worker needs{without})"
    )


def _look(
    admin: AdminClient,
    settings: Settings,
    wanted: list[OwnTopic],
    found: dict[str, Any],
    broker_count: int,
    timeout_s: float,
    created: Collection[str] = (),
    *,
    with_transactions: bool = True,
) -> tuple[list[WrongConfig], dict[str, dict[str, str]]]:
    """What is wrong with topics that exist, and the configurations that may be read. Of those that were created just
    now only the replicas are judged: brokers may not know their configuration yet, and it is as it must be."""
    config = configs(admin, [name for name in found if name not in created], timeout_s, skip_denied=True)
    config.update((name, {}) for name in created)
    seen, read = _log_of_transactions(admin, timeout_s) if with_transactions else ({}, {})
    found, config = {**found, **seen}, {**config, **read}
    replicas = {name: min(len(each.replicas) for each in topic.partitions) for name, topic in found.items()}
    judged = [
        (topic, config[topic.name], replicas[topic.name])
        for topic in [*wanted, TRANSACTION_LOG]
        if topic.name in config
    ]
    return wrong_configs(settings.brokers, judged, broker_count), config


def _log_of_transactions(admin: AdminClient, timeout_s: float) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """The description and the configuration of the brokers' log of transactions. Nothing if there is none yet, or this
    login may not see it, or brokers of another make answer otherwise: no worker needs to see it."""
    try:
        found = _describe(admin, [TRANSACTION_LOG.name], set(), timeout_s)
        read = configs(admin, found, timeout_s, skip_denied=True)
    except KafkaException:
        return {}, {}
    return found, read


def _mend(admin: AdminClient, wanted: list[OwnTopic], wrong: list[WrongConfig]) -> list[WrongConfig]:
    """Set what the worker sets itself. Returns the others.

    Raises:
        TopicConfigError: the worker must not use the topic as it is.
    """
    left, of_producers = [], {topic.name for topic in wanted if topic.warn_only}
    for each in wrong:
        if each.severity == RED and each.name in (CLEANUP_POLICY, MAX_MESSAGE_BYTES):
            raise TopicConfigError(each.sentence)
        may_set = each.name == TIMESTAMP_TYPE and each.topic not in of_producers
        if not may_set or not _set_append_time(admin, each):
            left.append(each)
    return left


def _set_append_time(admin: AdminClient, wrong: WrongConfig) -> bool:
    """Let the brokers set the times of a topic. False if this worker may not, and can do without.

    Raises:
        TopicConfigError: it must not use the topic as it is.
    """
    entry = ConfigEntry(TIMESTAMP_TYPE, LOG_APPEND_TIME, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, wrong.topic, incremental_configs=[entry])
    try:
        asked = admin.incremental_alter_configs([resource], request_timeout=TOPICS_TIMEOUT_S)
        connection.answer(asked[resource], connection.give_up_at(TOPICS_TIMEOUT_S))
    except KafkaException as error:
        if wrong.severity != RED:
            return False
        refusal = f"this worker may not set it ({error.args[0].str()})"
        raise TopicConfigError(f"{wrong.sentence}; {refusal}") from None
    logger.info("set %s=%s on topic %s", TIMESTAMP_TYPE, LOG_APPEND_TIME, wrong.topic)
    return True
