"""Compares the configuration of topics with the one that the promises need. Pure: it asks no broker, changes nothing.

The worker compares at its start, and again every few seconds while it runs. An operator may change a topic at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from timers.kafka.own_topics import LOG_APPEND_TIME, TIMESTAMP_TYPE, UNLIMITED, OwnTopic

logger = logging.getLogger(__name__)

CLEANUP_POLICY, MAX_BYTES = "cleanup.policy", "max.message.bytes"
RETENTION_MS, RETENTION_BYTES = "retention.ms", "retention.bytes"
_MIN_IN_SYNC, _UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"

RED, WARNING, NOTE = SEVERITIES = ("red", "warning", "note")
"""red: timers or dead letters are lost, or timers fire early. warning: a promise is weaker than it could be. note: the
same, and the cluster as it is cannot do better."""

COMPACT = "compact"
DAY_MS = 86_400_000


class WrongConfig(NamedTuple):
    """A setting of a topic that has another value than the promises need.

    Attributes:
        topic: its name; of a finding about several topics, one of them.
        name: of the setting; ``replicas`` is none that brokers know.
        value: of the setting.
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
    brokers: str,
    topics: Iterable[tuple[OwnTopic, Mapping[str, str], int]],
    broker_count: int,
    kept: str = "timers",
) -> list[WrongConfig]:
    """What is wrong with the configuration of topics, the worst first.

    Args:
        brokers: addresses, for the commands.
        topics: each topic with its configuration and the number of replicas of its partitions. A setting that is
            missing there is not judged.
        broker_count: number of brokers of the cluster.
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


def _of_topic(
    brokers: str, kept: str, topic: OwnTopic, config: Mapping[str, str], replicas: int
) -> Iterable[WrongConfig]:
    def wrong(name: str, severity: str, effect: str, needed: str) -> WrongConfig:
        command = (
            f"kafka-configs.sh --bootstrap-server {brokers} --alter --entity-type topics --entity-name {topic.name} "
            f"--add-config {name}={needed}"
        )
        value = f"exactly {needed}" if name == CLEANUP_POLICY else needed
        sentence = f"topic {topic.name!r} has {name}={config[name]}, {effect}; it must be {value}: {command}"
        return WrongConfig(topic.name, name, config[name], severity, sentence)

    policy = topic.config.get(CLEANUP_POLICY)
    if policy and config.get(CLEANUP_POLICY, policy) != policy:
        yield wrong(CLEANUP_POLICY, RED, f"which would lose {kept}", policy)
    if topic.needs_append_time and config.get(TIMESTAMP_TYPE, LOG_APPEND_TIME) != LOG_APPEND_TIME:
        if topic.warn_only:
            effect = "so countdowns and redeliveries begin at the producers' times"
            yield wrong(TIMESTAMP_TYPE, WARNING, effect, LOG_APPEND_TIME)
        else:
            effect = "so a producer's clock decides in place of the brokers'"
            yield wrong(TIMESTAMP_TYPE, RED, effect, LOG_APPEND_TIME)
    if topic.must_fit_requests:
        needed = topic.config[MAX_BYTES]
        if int(config.get(MAX_BYTES) or needed) < int(needed):
            yield wrong(MAX_BYTES, RED, "less than a request may take, so its partition would stop", needed)
    if topic.needs_all_records and "delete" in config.get(CLEANUP_POLICY, "delete"):
        for name in (RETENTION_MS, RETENTION_BYTES):
            if config.get(name, UNLIMITED) != UNLIMITED:
                severity = WARNING if topic.is_users else RED
                yield wrong(name, severity, f"so {kept} that wait longer than its retention are lost", UNLIMITED)
    if topic.must_last and replicas > 1:
        if int(config.get(_MIN_IN_SYNC) or 2) < 2:
            effect = "so an acknowledged record may have one copy only, and P1 rests on it"
            yield wrong(_MIN_IN_SYNC, WARNING, effect, "2")
        if config.get(_UNCLEAN) == "true":
            effect = "so the election of a leader may lose acknowledged records"
            yield wrong(_UNCLEAN, WARNING, effect, "false")


def _one_copy(brokers: str, kept: str, names: list[str], broker_count: int) -> WrongConfig:
    """One finding for all topics with one replica: on a cluster of one broker these are all topics."""
    what = "P1 rests on one copy"
    if broker_count == 1:
        sentence = f"{what}: the cluster at {brokers} has one broker, and a lost disk of it loses all {kept}"
        return WrongConfig(names[0], "replicas", "1", NOTE, sentence)
    listed = ", ".join(names)
    sentence = (
        f"{what}: {listed} {'has' if len(names) == 1 else 'have'} one replica, and a lost disk of its broker loses "
        f"{kept}; at least 2 are needed, better 3: kafka-reassign-partitions.sh --bootstrap-server {brokers} --execute "
        "--reassignment-json-file FILE, where FILE names the brokers of each partition"
    )
    return WrongConfig(names[0], "replicas", "1", WARNING, sentence)
