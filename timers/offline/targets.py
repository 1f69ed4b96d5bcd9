"""Pauses and resumes callback topics, and says what is paused: for the commands and the console.

A command is a record on the topic of targets. Each worker looks there once a second, and its machines take the command
with their next tick (:mod:`timers.core.fired`). Progress records say what each machine has taken.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from timers.core.fired import MOST_PAUSES, PAUSE, Command, Hold
from timers.core.levels import HOLDS
from timers.core.printable import quoted
from timers.core.progress import Progress
from timers.core.timer import TopicPartition
from timers.errors import TargetError, TimersError
from timers.kafka import connection, targets_log, topics
from timers.kafka.brokers_time import BrokersTime
from timers.kafka.clients import admin_client
from timers.kafka.progress_log import allowed_level, read_all
from timers.kafka.request_formats import enabled_formats
from timers.kafka.topic_admin import listed
from timers.kafka.topics import Cluster
from timers.process.clock import Clock
from timers.process.config.settings import Settings
from timers.process.counted import counted
from timers.wire.targets import MAX_TEXT, Target, Targets
from timers.wire.topics import LEGAL_FORM, WORKERS_ONLY, is_legal, partition_name

OVER_S = 600
"""Seconds over which a pause with an end releases its timers, when it ends by itself."""

EXAMPLE = "timers targets pause orders --for 1h"


class Found(NamedTuple):
    """What is known of targets, as the topics say."""

    targets: Targets
    progress: Mapping[TopicPartition, Progress]
    missing: tuple[TopicPartition, ...]
    """Partitions of the app without progress: nothing has happened there yet."""
    level_of_missing: int
    """The feature level that they will have."""

    @property
    def below(self) -> list[str]:
        """The partitions that take no commands, because they are below the level of holds."""
        below = [tp for tp, progress in self.progress.items() if progress.level < HOLDS]
        return [
            partition_name(*tp) for tp in sorted([*below, *(self.missing if self.level_of_missing < HOLDS else ())])
        ]

    @property
    def number(self) -> int:
        """The highest number of a command that is known."""
        numbers = [self.targets.number]
        for progress in self.progress.values():
            numbers += [progress.taken, *(hold.number for hold in progress.holds if hold.reason == PAUSE)]
        return max(numbers)

    def holds_of(self, target: str) -> dict[TopicPartition, tuple[Hold, ...]]:
        """The holds of a target, without partitions that have none."""
        found = {tp: progress.holds.by_target.get(target, ()) for tp, progress in self.progress.items()}
        return {tp: holds for tp, holds in found.items() if holds}

    @property
    def names(self) -> list[str]:
        """The targets that are paused, or have held timers."""
        paused = {name for name, target in self.targets.known.items() if target.command.is_paused}
        held = {hold.target for progress in self.progress.values() for hold in progress.holds}
        ended = {name for name in paused - held if self.is_taken(self.targets.known[name].command)}
        return sorted((paused - ended) | held)

    def is_taken(self, command: Command) -> bool:
        """Whether each machine that takes commands has taken this one."""
        return not self.waits_for(command)

    def waits_for(self, command: Command) -> list[str]:
        """The partitions that have not taken a command yet."""
        return [
            partition_name(*tp)
            for tp, progress in sorted(self.progress.items())
            if progress.level >= HOLDS and not has_taken(progress, command)
        ]


def has_taken(progress: Progress, command: Command) -> bool:
    """Whether a machine has taken a command. It begins a pause at once, and notes the number when nothing is due."""
    if progress.taken >= command.number:
        return True
    return any(
        hold.number == command.number and hold.is_paused for hold in progress.holds.by_target.get(command.target, ())
    )


def look(settings: Settings, cluster: Cluster, reports: connection.ErrorReports) -> Found:
    """Return what is known of targets. Blocks.

    Raises:
        KafkaException: the brokers do not answer.
        LogMismatch: a progress record cannot be read.
    """
    return _found(settings, cluster, targets_log.read(settings, reports))


def _found(settings: Settings, cluster: Cluster, targets: Targets) -> Found:
    progress = read_all(settings, cluster)
    tps = [(topic, each) for topic in enabled_formats(settings) for each in range(cluster.partitions.get(topic, 0))]
    missing = tuple(tp for tp in tps if tp not in progress)
    return Found(targets, progress, missing, allowed_level(settings) if missing else HOLDS)


def pause(
    settings: Settings,
    target: str,
    *,
    for_s: int | None = None,
    over_s: int = OVER_S,
    by: str,
    why: str = "",
) -> Command:
    """Let the timers of a callback topic wait, and return the command when the brokers have it. Blocks.

    Args:
        for_s: seconds after which it ends by itself; None: it goes on until :func:`resume`.
        over_s: seconds that the release takes then.
        by: who wants it.
        why: why.

    Raises:
        TargetError: it cannot be paused.
        TimersError: the brokers do not answer or refuse, or partitions are below the level of holds.
    """
    _check_name(settings, target)
    _check_text(why)

    def make(found: Found, now_s: int) -> Target:
        if below := found.below:
            shown = f"{', '.join(below[:5])}{f' and {len(below) - 5} more' if len(below) > 5 else ''}"
            raise TimersError(
                f"nothing was paused: {shown} {'is' if len(below) == 1 else 'are'} below feature level {HOLDS}, from "
                f"which on timers can be held. When all workers run this version: timers levels --raise {HOLDS}"
            )
        paused = {name for name in found.names if name != target}
        if len(paused) >= MOST_PAUSES:
            raise TargetError(
                f"{counted(len(paused), 'callback topic')} are paused, and no more than {MOST_PAUSES} can be: end one "
                f"first, such as: timers targets resume {min(paused)}"
            )
        until_s = 0 if for_s is None else now_s + for_s
        command = Command(found.number + 1, target, True, until_s, over_s if until_s else 0)
        return Target(command, by[:MAX_TEXT], why, now_s)

    return _give(settings, make, exists=target)


def resume(settings: Settings, target: str, *, over_s: int = 0, by: str) -> Command:
    """Let the timers of a paused callback topic go on, and return the command when the brokers have it. Blocks.

    Args:
        over_s: seconds that the release of held timers takes; 0: as long as it needs.
        by: who wants it.

    Raises:
        TargetError: it is not paused.
        TimersError: the brokers do not answer, or refuse.
    """
    _check_name(settings, target)

    def make(found: Found, now_s: int) -> Target:
        if target not in found.names and target not in found.targets.unreadable:
            paused = f": {', '.join(found.names[:5])} {'is' if len(found.names) == 1 else 'are'}" if found.names else ""
            raise TargetError(
                f"{target!r} is not paused{paused}; `timers targets list` shows what is, and this pauses a topic: "
                f"{EXAMPLE}"
            )
        return Target(Command(found.number + 1, target, False, 0, over_s), by[:MAX_TEXT], "", now_s)

    return _give(settings, make)


def _give(settings: Settings, make: Callable[[Found, int], Target], exists: str | None = None) -> Command:
    reports = connection.ErrorReports(settings)
    with reports.explained(f"nothing was written to topic {settings.targets_topic!r}"):
        admin = admin_client(settings, reports)
        known = listed(admin, connection.TIMEOUT_S)
        if settings.targets_topic not in known:
            raise TimersError(
                f"topic {settings.targets_topic!r} does not exist: no worker of this version has run yet as "
                f"TIMERS_APP_ID={settings.app_id!r}"
            )
        if exists is not None and exists not in known:
            nearest = difflib.get_close_matches(exists, known, n=1)
            hint = f"did you mean {nearest[0]!r}? " if nearest else ""
            raise TargetError(f"topic {exists!r} does not exist: {hint}Name a callback topic, such as: {EXAMPLE}")
        cluster = topics.existing_topics(admin, settings)
        now_s = (BrokersTime.of(settings).record_ms() or round(1000 * Clock().now_s())) // 1000
        return targets_log.give(settings, reports, lambda targets: make(_found(settings, cluster, targets), now_s))


def _check_name(settings: Settings, target: str) -> None:
    if set("*?[],") & set(target):
        raise TargetError(f"{quoted(target)[:300]} is a pattern or a list: name one callback topic, such as: {EXAMPLE}")
    if not is_legal(target):
        raise TargetError(f"{quoted(target)[:300]} is no {LEGAL_FORM.removeprefix('a ')}; try: {EXAMPLE}")
    if target in settings.own_topics or any(fnmatchcase(target, pattern) for pattern in WORKERS_ONLY):
        raise TargetError(
            f"{target!r} is a topic of the engine itself, to which no timer fires: name a callback topic, such as: "
            f"{EXAMPLE}"
        )


def _check_text(why: str) -> None:
    if len(why) > MAX_TEXT:
        raise TargetError(
            f"the reason has {len(why)} characters, and {MAX_TEXT} are allowed; try: {EXAMPLE} --why 'provider down'"
        )
