"""The state of an app as the brokers tell it: feature levels, its topics, and transactions that are open for long.

Kafka's client libraries are imported where they are used: the commands import this file, and `--help` needs none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from timers.core import levels as feature_levels
from timers.errors import TimersError
from timers.process.config.settings import Settings
from timers.wire.topics import partition_name

if TYPE_CHECKING:
    from timers.core.progress import Progress
    from timers.core.timer import TopicPartition
    from timers.kafka.aiokafka_internals.open_transactions import Looked
    from timers.kafka.connection import ErrorReports
    from timers.kafka.topics import Cluster

_T = TypeVar("_T")


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


def read_progress(
    settings: Settings, reports: ErrorReports, timeout_s: float | None = None
) -> tuple[Cluster, dict[TopicPartition, Progress]]:
    """The topics of the app, and the progress of its partitions.

    Args:
        timeout_s: for each answer of a broker; None: half a minute.
    """
    from timers.kafka import progress_log
    from timers.kafka.topics import existing

    cluster = existing(settings, reports, timeout_s)
    return cluster, progress_log.read_all(settings, cluster, timeout_s)


class LevelsInUse(NamedTuple):
    """Feature levels of an app."""

    allowed: int
    workers: dict[str, int]
    """Worker id -> the highest level that it supports."""
    partitions: dict[str, int]
    """``<topic>/<partition>`` -> its level."""
    taken: str = ""
    """Who has the group if other programs have it: then it does not tell what workers support, and ``workers`` is
    empty."""

    @property
    def lowest(self) -> int:
        return min(self.partitions.values(), default=feature_levels.FIRST_LEVEL)

    @property
    def highest(self) -> int:
        return max(self.partitions.values(), default=feature_levels.FIRST_LEVEL)

    @property
    def next(self) -> int:
        """The highest level that may be allowed: this version raises to it, and all workers support it. The one that is
        allowed, if what the workers support is not known."""
        return min(feature_levels.RAISED_TO_LEVEL, *self.workers.values()) if self.workers else self.allowed

    @property
    def behind(self) -> list[str]:
        """Partitions below the level that is allowed."""
        return [name for name, level in self.partitions.items() if level < self.allowed]


def levels_in_use(settings: Settings, timeout_s: float | None = None) -> LevelsInUse:
    """What is allowed, what workers support, and the level of each partition.

    Args:
        timeout_s: for each answer of a broker; None: half a minute.

    Raises:
        TimersError: they cannot be read.
    """
    from timers.kafka import group_access
    from timers.kafka.aiokafka_internals.group import strangers_in
    from timers.kafka.progress_log import allowed_level

    with explained(settings, "the feature levels cannot be read") as reports:
        _, machines = read_progress(settings, reports, timeout_s)
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

ANSWER_S = 5.0
"""How long one answer of a broker is waited for."""

PART_S = 15.0
"""How long levels, topics and transactions are waited for, each by itself. What does not come is not known."""

Run: TypeAlias = Callable[..., Awaitable[Any]]
"""Runs a blocking call with its arguments, elsewhere than on the event loop."""


class TopicState(NamedTuple):
    """A topic that the workers of an app need."""

    name: str
    origin: str
    """The setting that its name comes from."""
    partitions: int | None
    """0: it does not exist; None: this login may not describe it."""
    leaderless: list[int]
    few_copies: list[int]
    """Partitions of which not all replicas are in sync."""
    wrong: list[str]
    """What is wrong with its configuration, in sentences."""
    is_read: bool
    """Whether this login may read its configuration."""


class AppState(NamedTuple):
    """What is known of an app; None: it is not known, and ``unknown`` says why."""

    levels: LevelsInUse | None
    topics: list[TopicState] | None
    transactions: Looked | None
    unknown: dict[str, str]
    """What could not be read -> why."""


async def look(
    settings: Settings, may_see: Callable[[str], bool], now_s: float, run: Run, check: Callable[[], None]
) -> AppState:
    """The state of an app. What cannot be read is named, and the rest is known all the same.

    Args:
        may_see: whether transactions on a topic are of interest.
        run: runs the three calls, side by side.
        check: called between two steps of a call; may raise to stop.
    """
    unknown: dict[str, str] = {}

    async def known(what: str, call: Callable[..., _T], *given: Any) -> _T | None:
        try:
            async with asyncio.timeout(PART_S):
                found: _T = await run(call, settings, *given)
                return found
        except TimersError as error:
            unknown[what] = str(error)
        except TimeoutError:
            unknown[what] = f"no answer came within {PART_S:.0f} s"
        return None

    levels, topics, transactions = await asyncio.gather(
        known("feature levels", levels_in_use, ANSWER_S),
        known("topics of the app", topics_in_use),
        known("open transactions", open_transactions, may_see, now_s, check),
    )
    return AppState(levels, topics, transactions, unknown)


def topics_in_use(settings: Settings) -> list[TopicState]:
    """The topics of an app. Blocks.

    Raises:
        TimersError: no broker answers.
    """
    from timers.kafka.topics import examine

    examined = examine(settings)
    absent = dict.fromkeys((*examined.missing, *examined.denied))

    def state(name: str, described: Any) -> TopicState:
        partitions = described.partitions if described else []
        leaderless = [each.id for each in partitions if each.leader is None or each.leader.id < 0]
        few = [each.id for each in partitions if len(each.isr) < len(each.replicas)]
        wrong = [each.sentence for each in examined.wrong if each.topic == name]
        count = None if name in examined.denied else len(partitions)
        return TopicState(name, settings.own_topics.get(name, ""), count, leaderless, few, wrong, name in examined.read)

    return [state(name, described) for name, described in {**examined.described, **absent}.items()]


def open_transactions(
    settings: Settings, may_see: Callable[[str], bool], now_s: float, check: Callable[[], None]
) -> Looked:
    """The transactions that have been open for :data:`OPEN_S` on topics of the app and on those that may be callback
    topics, the oldest first. Blocks.

    Raises:
        TimersError: no broker answers.
    """
    from timers.kafka.aiokafka_clients import arguments
    from timers.kafka.aiokafka_internals.open_transactions import look as look_for
    from timers.kafka.own_topics import own_topics
    from timers.kafka.topic_offsets import TopicOffsets
    from timers.offline.fired import callback_topics

    with explained(settings, "transactions cannot be looked for"):
        offsets = TopicOffsets(settings, ANSWER_S)
        own = filter(may_see, settings.own_topics)
        leaders = offsets.by_leader([*own, *callback_topics(settings, offsets, may_see)])
        found = asyncio.run(look_for(arguments(settings), leaders, int(1000 * (now_s - OPEN_S)), check))
    needed = {topic.name for topic in own_topics(settings) if may_see(topic.name)}
    if hidden := sorted(needed.difference(offsets.existing(needed))):
        found.unknown.append(f"{', '.join(hidden)}: they do not exist, or this login may not describe them")
    return found
