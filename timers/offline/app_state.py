"""The state of an app as the brokers tell it: feature levels, its topics, and transactions that are open for long.

Kafka's client libraries are imported where they are used: the commands import this file, and `--help` needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from timers.core import levels as feature_levels
from timers.errors import TimersError
from timers.process.config.settings import Settings
from timers.wire.topics import partition_name

if TYPE_CHECKING:
    from timers.core.progress import Progress
    from timers.core.timer import TopicPartition
    from timers.kafka.aiokafka_internals.open_transactions import OpenTransaction
    from timers.kafka.connection import ErrorReports
    from timers.kafka.topics import Cluster


@contextmanager
def explained(settings: Settings, failed: str) -> Iterator[ErrorReports]:
    """Errors of Kafka's clients in the block become sentences: that something ``failed``."""
    from aiokafka.errors import KafkaError

    from timers.kafka.connection import ErrorReports  # not at the top: `--help` needs no librdkafka

    reports = ErrorReports(settings)
    try:
        with reports.explained(failed):
            yield reports
    except KafkaError as error:
        raise TimersError(f"{failed}: no broker answers as it should ({error!r})") from error


def read_progress(settings: Settings, reports: ErrorReports) -> tuple[Cluster, dict[TopicPartition, Progress]]:
    """The topics of the app, and the progress of its partitions."""
    from timers.kafka import progress_log
    from timers.kafka.topics import existing

    cluster = existing(settings, reports)
    return cluster, progress_log.read_all(settings, cluster)


class LevelsInUse(NamedTuple):
    """Feature levels of an app."""

    allowed: int
    workers: dict[str, int]
    """Worker id -> the highest level that it supports."""
    partitions: dict[str, int]
    """``<topic>/<partition>`` -> its level."""
    taken: str = ""
    """Who has the group if other programs have it: then it does not tell what workers support."""

    @property
    def lowest(self) -> int:
        return min(self.partitions.values(), default=feature_levels.FIRST)

    @property
    def highest(self) -> int:
        return max(self.partitions.values(), default=feature_levels.FIRST)

    @property
    def next(self) -> int:
        """The highest level that may be allowed: this version raises to it, and all workers support it."""
        return self.allowed if self.taken else min((feature_levels.RAISED_TO, *self.workers.values()))


def levels_in_use(settings: Settings) -> LevelsInUse:
    """What is allowed, what workers support, and the level of each partition.

    Raises:
        TimersError: they cannot be read.
    """
    from timers.kafka import group_access
    from timers.kafka.aiokafka_internals.group import strangers_in
    from timers.kafka.progress_log import allowed_level

    with explained(settings, "the feature levels cannot be read") as reports:
        _, machines = read_progress(settings, reports)
        allowed = allowed_level(settings)
        group = group_access.describe(settings)
    return LevelsInUse(
        allowed,
        {} if group.is_taken else {each.worker_id: each.supports for each in group.members if each.is_ours},
        {partition_name(*tp): found.level for tp, found in sorted(machines.items())},
        strangers_in(settings.app_id, group) if group.is_taken else "",
    )


OPEN_S = 10.0
"""A transaction that is open for longer is shown: those of workers end within a second."""

MOST_TOPICS = 200
"""So many callback topics, in the order of their names, are looked at for open transactions."""


class TopicState(NamedTuple):
    """A topic that the workers of an app need."""

    name: str
    origin: str
    """The setting that its name comes from."""
    partitions: int
    """0: it does not exist."""
    leaderless: list[int]
    few_copies: list[int]
    """Partitions of which not all replicas are in sync."""
    wrong: list[str]
    """What is wrong with its configuration, in sentences."""
    is_read: bool
    """Whether this login may read its configuration."""


class AppState(NamedTuple):
    """What is known of an app."""

    levels: LevelsInUse | None
    topics: list[TopicState]
    transactions: list[OpenTransaction]
    unknown: dict[str, str]
    """What could not be read -> why."""


def look(
    settings: Settings, may_see: Callable[[str], bool], now_s: float, check: Callable[[], None] = lambda: None
) -> AppState:
    """The state of the app. What cannot be read is named, and the rest is known all the same. Blocks for some seconds.

    Args:
        may_see: whether transactions on a callback topic are of interest.
        now_s: epoch seconds.
        check: called between two steps; may raise to stop.

    Raises:
        TimersError: no broker answers.
    """
    from timers.kafka.topics import examine

    examined = examine(settings)
    unknown = dict.fromkeys(examined.denied, "this login may not describe it")
    check()
    levels = None
    try:
        levels = levels_in_use(settings)
    except TimersError as error:
        unknown["feature levels"] = str(error)
    check()
    transactions: list[OpenTransaction] = []
    try:
        transactions, unasked = open_transactions(settings, may_see, now_s, check)
        unknown |= unasked
    except TimersError as error:
        unknown["transactions"] = str(error)
    wrong = [(each.topic, each.sentence) for each in examined.wrong]
    topics = [
        _shown(settings, name, described, [why for topic, why in wrong if topic == name], name in examined.read)
        for name, described in {**examined.described, **dict.fromkeys(examined.missing)}.items()
    ]
    return AppState(levels, topics, transactions, unknown)


def _shown(settings: Settings, name: str, described: Any, wrong: list[str], is_read: bool) -> TopicState:
    partitions = described.partitions if described else []
    leaderless = [each.id for each in partitions if each.leader is None or each.leader.id < 0]
    few = [each.id for each in partitions if len(each.isr) < len(each.replicas)]
    return TopicState(name, settings.own_topics.get(name, ""), len(partitions), leaderless, few, wrong, is_read)


def open_transactions(
    settings: Settings, may_see: Callable[[str], bool], now_s: float, check: Callable[[], None]
) -> tuple[list[OpenTransaction], dict[str, str]]:
    """The transactions that have been open for :data:`OPEN_S` on topics of the app and on callback topics, the oldest
    first, and what was not asked.

    Raises:
        TimersError: no broker answers.
    """
    import asyncio

    from timers.kafka.aiokafka_clients import arguments
    from timers.kafka.aiokafka_internals.open_transactions import look as look_for
    from timers.kafka.topic_offsets import TopicOffsets
    from timers.offline.fired import callback_topics

    with explained(settings, "transactions cannot be looked for"):
        offsets = TopicOffsets(settings)
        others = callback_topics(settings, offsets, may_see)
        leaders = offsets.by_leader([*settings.own_topics, *others[:MOST_TOPICS]])
        found = asyncio.run(look_for(arguments(settings), leaders, int(1000 * (now_s - OPEN_S)), check))
    unasked = dict(found.unasked)
    if (more := len(others) - MOST_TOPICS) > 0:
        unasked[f"{more} callback topics"] = f"only {MOST_TOPICS} are looked at"
    return found.transactions, unasked
