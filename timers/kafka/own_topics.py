"""The topics that a worker needs, the configuration that each must have, and what is wrong with one. Asks no broker.

The worker compares at its start, and again every few seconds while it runs. An operator may change a topic at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka.admin import AclOperation

from timers.kafka.clients import max_message_bytes
from timers.process.config.settings import Settings

UNLIMITED = "-1"

CLEANUP_POLICY, MAX_MESSAGE_BYTES = "cleanup.policy", "max.message.bytes"
RETENTION_MS, RETENTION_BYTES = "retention.ms", "retention.bytes"
MIN_IN_SYNC, _UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"
TIMESTAMP_TYPE = "message.timestamp.type"
LOG_APPEND_TIME = "LogAppendTime"
COMPACT = "compact"
KEEP_ALL = ""
"""From Kafka 4.2 on, brokers neither delete nor compact with this ``cleanup.policy``. ``DeleteRecords`` works."""

SEGMENT_MS = "segment.ms"
LEAST_SEGMENT_S, DAY_S = 60, 86_400

SMALL_SEGMENTS = {"segment.bytes": "8388608", "min.cleanable.dirty.ratio": "0.1"}
"""Of a compacted topic that is read as a whole: only closed segments are compacted."""

_READ, _WRITE = AclOperation.READ, AclOperation.WRITE


class Effect(NamedTuple):
    """What a wrong setting of a topic does."""

    severity: str
    """One of :data:`SEVERITIES`."""
    text: str


@dataclass(frozen=True)
class OwnTopic:
    """A topic that the worker needs."""

    name: str
    config: dict[str, str]
    operations: tuple[Any, ...]
    """ACL operations that the worker needs, in addition to Describe and DescribeConfigs."""
    append_time: Effect | None = None
    """What happens if its records have the times of their producers. None: nothing, or the topic belongs to users."""
    needs_all_records: bool = False
    """If retention deletes a record, a timer is lost."""
    too_large: Effect | None = None
    """What happens if it does not take the largest request. None: it need not."""
    warn_only: bool = False
    """The worker warns about the configuration of an existing topic and does not change it: its producers own it."""
    may_write: bool = False
    """A worker without Write there does not raise partitions to a feature level that needs it."""
    must_exist: bool = False
    """Its users create and configure it. The worker does not create it, and warns about its configuration only."""
    must_last: bool = False
    """If its records are lost with a broker, a promise is broken."""
    if_lost: str = ""
    """What else the loss of an acknowledged record does, for the end of a sentence."""


TRANSACTION_LOG = OwnTopic(
    "__transaction_state",
    {},
    (),
    must_last=True,
    if_lost=": if one is lost, a transaction may be committed in some partitions and aborted in others",
)
"""The brokers' log of transactions, which they create: only how well it lasts is judged, where the login may see it.
The brokers' ``transaction.state.log.min.isr`` is its ``min.insync.replicas`` when they create it, and never later."""


_TRANSACTIONS_S = 3600.0


def kept_config(settings: Settings) -> dict[str, str]:
    """Configuration of a topic that keeps its records, and takes those of the largest requests."""
    unlimited = {RETENTION_MS: UNLIMITED, RETENTION_BYTES: UNLIMITED}
    return {CLEANUP_POLICY: "delete", **unlimited, MAX_MESSAGE_BYTES: str(max_message_bytes(settings))}


def own_topics(settings: Settings) -> list[OwnTopic]:
    """Every topic that the worker needs."""
    letters = {**kept_config(settings), TIMESTAMP_TYPE: LOG_APPEND_TIME}
    # Brokers delete whole segments, and never the newest one: records that workers have deleted leave the disk after
    # the segment is rolled.
    segment_ms = int(1000 * min(max(settings.log_keep_s, LEAST_SEGMENT_S), DAY_S))
    requests = {**letters, SEGMENT_MS: str(segment_ms)}
    short_lived = {
        CLEANUP_POLICY: "delete",
        TIMESTAMP_TYPE: LOG_APPEND_TIME,
        RETENTION_MS: "3600000",
        SEGMENT_MS: "600000",
    }
    progress = {CLEANUP_POLICY: COMPACT, TIMESTAMP_TYPE: LOG_APPEND_TIME, **SMALL_SEGMENTS}
    both = (_READ, _WRITE)
    # Requests are read again, and the times of their records decide.
    decides = Effect(RED, "so a producer's clock decides in place of the brokers'")
    kept = partial(OwnTopic, append_time=decides, needs_all_records=True, must_last=True)
    # Programs on any machine write there: commands, receivers, queues.
    refuses = Effect(WARNING, "so a record of a machine whose clock is wrong has a wrong time, or is refused")
    written = partial(OwnTopic, append_time=refuses)
    begins = Effect(WARNING, "so countdowns and redeliveries begin at the producers' times")
    topics = [kept(settings.request_topic, requests, both if settings.canary_interval_s else (_READ,))]
    if settings.id_topic:
        topics.append(kept(settings.id_topic, requests, (_READ,), may_write=True))
    if settings.countdown_topic:  # a countdown begins at the time of its record
        topics.append(kept(settings.countdown_topic, requests, (_READ,), append_time=begins, warn_only=True))
    if settings.marker_topic:  # the deadline of a message follows from the time of its marker
        topics.append(kept(settings.marker_topic, requests, both, append_time=begins, warn_only=True))
    if settings.has_ids:
        verdicts = {CLEANUP_POLICY: "delete", TIMESTAMP_TYPE: LOG_APPEND_TIME}
        topics.append(written(settings.verdict_topic, verdicts, (_WRITE,)))
    topics += [
        kept(settings.retry_topic, requests, both),
        OwnTopic(settings.oscillator_topic, short_lived, both, append_time=decides),
        written(settings.progress_topic, progress, both, must_last=True),
        written(settings.targets_topic, progress, (_READ,), must_last=True),
        written(settings.dead_letter_topic, letters, (_WRITE,), must_last=True),
    ]
    if settings.hot_horizon_s:
        # Its records are kept until `timers spark hold` has read them. The largest request of a request topic must fit,
        # with the headers that are added to it.
        stops = Effect(RED, "so its partition would stop")
        cold = partial(OwnTopic, needs_all_records=True, too_large=stops, must_last=True)
        topics.append(cold(settings.cold_topic, requests, (_WRITE,)))
    if settings.canary_interval_s:
        topics.append(OwnTopic(settings.canary_topic, short_lived, both))
    schedules = partial(OwnTopic, must_exist=True, needs_all_records=True, must_last=True)
    return topics + [schedules(topic, {}, both) for topic in settings.schedule_topics]


logger = logging.getLogger(__name__)

RED, WARNING, NOTE = SEVERITIES = ("red", "warning", "note")
"""red: timers or dead letters are lost, or timers fire early. warning: a promise is weaker than it could be. note: the
same, and the cluster as it is cannot do better."""

DAY_MS = 86_400_000


class WrongConfig(NamedTuple):
    """A setting of a topic that has another value than the promises need.

    Attributes:
        topic: its name; of a finding about several topics, one of them.
        name: of the setting; ``replicas`` is none that brokers know.
        severity: one of :data:`SEVERITIES`.
        sentence: says topic, value, effect, the value needed, and the command that sets it.
    """

    topic: str
    name: str
    value: str
    severity: str
    sentence: str

    @property
    def compacts(self) -> bool:
        """Whether compaction deletes records of the topic."""
        return self.name == CLEANUP_POLICY and COMPACT in self.value

    @property
    def is_short_retention(self) -> bool:
        """Whether the records of a pending timer may be deleted within a day."""
        return self.name == RETENTION_MS and int(self.value) <= DAY_MS


def wrong_configs(
    brokers: str, topics: Iterable[tuple[OwnTopic, Mapping[str, str], int]], broker_count: int, kept: str = "timers"
) -> list[WrongConfig]:
    """What is wrong with the configuration of topics, the worst first.

    Args:
        brokers: addresses, for the commands.
        topics: each topic with its configuration and the number of replicas of its partitions. A setting that is
            missing there is not judged.
        kept: what the topics hold, for the sentences.
    """
    topics = list(topics)
    found = [wrong for each in topics for wrong in _of_topic(brokers, kept, *each)]
    single = [topic.name for topic, _, replicas in topics if topic.must_last and replicas == 1]
    if single:
        found.append(_one_copy(brokers, kept, single, broker_count))
    return sorted(found, key=lambda wrong: SEVERITIES.index(wrong.severity))


def log_new(found: Iterable[WrongConfig], known: Collection[WrongConfig] = (), logger: logging.Logger = logger) -> None:
    """Log what is wrong and was not before, and what was wrong and is right."""
    found = list(found)
    for wrong in found:
        if wrong not in known:
            logger.log(logging.ERROR if wrong.severity == RED else logging.WARNING, "%s", wrong.sentence)
    still = {(wrong.topic, wrong.name) for wrong in found}
    for wrong in known:
        if (wrong.topic, wrong.name) not in still:
            logger.info("topic %s: %s is right again", wrong.topic, wrong.name)


def transactions_due(asked_s: float, wrong: Iterable[WrongConfig]) -> bool:
    """Whether to look at :data:`TRANSACTION_LOG` again, so many seconds after the last look: once an hour, because it
    changes hardly ever. Or at each look at topics while something is wrong with it: a command may have mended it."""
    return asked_s > _TRANSACTIONS_S or any(each.topic == TRANSACTION_LOG.name for each in wrong)


def _of_topic(
    brokers: str, kept: str, topic: OwnTopic, config: Mapping[str, str], replicas: int
) -> Iterable[WrongConfig]:
    def wrong(name: str, severity: str, effect: str, needed: str) -> WrongConfig:
        command = _alter(brokers, topic.name, name, needed)
        value = f"exactly {needed}" if name == CLEANUP_POLICY else needed
        sentence = f"topic {topic.name!r} has {name}={config[name]}, {effect}; it must be {value}: {command}"
        return WrongConfig(topic.name, name, config[name], severity, sentence)

    policy = topic.config.get(CLEANUP_POLICY)
    if policy and config.get(CLEANUP_POLICY) == KEEP_ALL:
        # If the retention has no limit, this policy is as good as `delete`.
        if policy == COMPACT or topic.config.get(RETENTION_MS, UNLIMITED) != UNLIMITED:
            yield wrong(CLEANUP_POLICY, WARNING, "so the brokers delete none of its records, and it only grows", policy)
    elif policy and config.get(CLEANUP_POLICY, policy) != policy:
        yield wrong(CLEANUP_POLICY, RED, f"which would lose {kept}", policy)
    if topic.append_time is not None and config.get(TIMESTAMP_TYPE, LOG_APPEND_TIME) != LOG_APPEND_TIME:
        yield wrong(TIMESTAMP_TYPE, *topic.append_time, LOG_APPEND_TIME)
    if topic.too_large is not None:
        severity, effect = topic.too_large
        needed = topic.config[MAX_MESSAGE_BYTES]
        if int(config.get(MAX_MESSAGE_BYTES) or needed) < int(needed):
            yield wrong(MAX_MESSAGE_BYTES, severity, f"less than a request may take, {effect}", needed)
    if topic.needs_all_records and "delete" in config.get(CLEANUP_POLICY, "delete"):
        for name in (RETENTION_MS, RETENTION_BYTES):
            if config.get(name, UNLIMITED) != UNLIMITED:
                severity = WARNING if topic.warn_only or topic.must_exist else RED  # users decide about theirs
                yield wrong(name, severity, f"so {kept} that wait longer than its retention are lost", UNLIMITED)
    if topic.must_last and replicas > 1:
        if int(config.get(MIN_IN_SYNC) or 2) < 2:
            effect = f"so an acknowledged record may have one copy only{topic.if_lost}"
            yield wrong(MIN_IN_SYNC, WARNING, effect, "2")
        if config.get(_UNCLEAN) == "true":
            effect = f"so the election of a leader may lose acknowledged records{topic.if_lost}"
            yield wrong(_UNCLEAN, WARNING, effect, "false")


def _alter(brokers: str, topic: str, name: str, value: str) -> str:
    """The command that changes a setting of a topic."""
    to = f"kafka-configs.sh --bootstrap-server {brokers} --alter --entity-type topics --entity-name {topic}"
    return f"{to} --add-config {name}={value}"


SNAPSHOT_TOPIC_CONFIG = {
    CLEANUP_POLICY: "delete",
    RETENTION_MS: UNLIMITED,
    RETENTION_BYTES: UNLIMITED,
    "segment.bytes": str(16 * 1024 * 1024),
    SEGMENT_MS: "10000",  # each snapshot begins a segment, so that those before it can be deleted
    MAX_MESSAGE_BYTES: str(1024 * 1024),
    TIMESTAMP_TYPE: LOG_APPEND_TIME,
    _UNCLEAN: "false",
}
"""Configuration of a topic of snapshots, beside the number of in-sync replicas, which is that of its request topic."""


def wrong_snapshots(brokers: str, topic: str, config: Mapping[str, str], min_in_sync: int) -> list[str]:
    """What is wrong with the configuration of a topic of snapshots, in sentences: snapshots may get lost.

    Args:
        min_in_sync: number of in-sync replicas of its request topic.
    """
    needed = {name: SNAPSHOT_TOPIC_CONFIG[name] for name in (CLEANUP_POLICY, RETENTION_MS, RETENTION_BYTES, _UNCLEAN)}
    if int(config[MIN_IN_SYNC]) < min_in_sync:
        needed[MIN_IN_SYNC] = str(min_in_sync)
    if config[CLEANUP_POLICY] == KEEP_ALL:
        for name in (CLEANUP_POLICY, RETENTION_MS, RETENTION_BYTES):  # a retention has no effect then
            del needed[name]
    return [
        f"topic {topic!r} has {name}={config[name]}, so snapshots may get lost, and former ones are kept; it must be "
        f"{value}: {_alter(brokers, topic, name, value)}"
        for name, value in needed.items()
        if config[name] != value
    ]


def _one_copy(brokers: str, kept: str, names: list[str], broker_count: int) -> WrongConfig:
    """One finding for all topics with one replica: on a cluster of one broker these are all topics."""
    what = "all rests on one copy"
    if broker_count == 1:
        sentence = f"{what}: the cluster at {brokers} has one broker, and a lost disk of it loses all {kept}"
        return WrongConfig(names[0], "replicas", "1", NOTE, sentence)
    listed = ", ".join(names)
    if names == [TRANSACTION_LOG.name]:
        kept = "the ends of transactions"
    sentence = (
        f"{what}: {listed} {'has' if len(names) == 1 else 'have'} one replica, and a lost disk of its broker loses "
        f"{kept}; at least 2 are needed, better 3: kafka-reassign-partitions.sh --bootstrap-server {brokers} --execute "
        "--reassignment-json-file FILE, where FILE names the brokers of each partition (docs/operations.md#replicas)"
    )
    return WrongConfig(names[0], "replicas", "1", WARNING, sentence)
