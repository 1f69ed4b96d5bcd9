"""``timers levels``: shows the feature levels of an app, and allows a higher one."""

from __future__ import annotations

from typing import Any, NamedTuple

import click

from timers.cli.output import Output, output_option
from timers.cli.reach import load_settings
from timers.config.settings import Settings
from timers.core import levels as feature_levels
from timers.errors import TimersError


class _Found(NamedTuple):
    allowed: int
    workers: dict[str, int]
    """Worker id -> the highest level that it supports."""
    partitions: dict[str, int]
    """``<topic>/<partition>`` -> its level."""

    @property
    def lowest(self) -> int:
        return min(self.partitions.values(), default=feature_levels.FIRST)

    @property
    def highest(self) -> int:
        return max(self.partitions.values(), default=feature_levels.FIRST)

    @property
    def next(self) -> int:
        """The highest level that may be allowed: this version raises to it, and all workers support it."""
        return min((feature_levels.RAISED_TO, *self.workers.values()))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--raise",
    "wanted",
    type=click.IntRange(feature_levels.FIRST),
    metavar="LEVEL",
    help="Allow the workers to use this level.",
)
@output_option()
def levels(wanted: int | None, output: Output) -> None:
    """Show the feature levels of workers and partitions, and allow a higher one.

    After an upgrade, workers do not use what the version before would misread. When all workers run the new version and
    you will not go back to the one before, allow the new level: the workers raise each partition within seconds. There
    is no way back then. docs/operations.md#feature-levels says more.
    """
    settings = load_settings()
    found = _look_up(settings)
    if wanted is not None:
        _allow(settings, found, wanted)
        found = found._replace(allowed=wanted)
    output.show(_describe(found), *_lines(found))


def _describe(found: _Found) -> dict[str, Any]:
    return {"supported": feature_levels.SUPPORTED, "lowest": found.lowest, "highest": found.highest, **found._asdict()}


def _lines(found: _Found) -> list[str]:
    used = f"{found.lowest}" if found.lowest == found.highest else f"{found.lowest} to {found.highest}"
    lines = [
        f"in use      {used} by {len(found.partitions)} partitions",
        f"allowed     {found.allowed}",
        f"supported   {feature_levels.SUPPORTED} by this version of timers",
        *(f"            {level} by worker {worker}" for worker, level in sorted(found.workers.items())),
    ]
    if found.next > found.allowed:
        lines.append(f"timers levels --raise {found.next} allows level {found.next}; there is no way back then")
    return lines


def _allow(settings: Settings, found: _Found, wanted: int) -> None:
    from confluent_kafka import KafkaException  # not at the top: `--help` needs no librdkafka

    from timers.kafka.allowed_level import allow
    from timers.kafka.connection import ErrorReports

    if wanted > feature_levels.RAISED_TO:
        raise TimersError(f"level {wanted} is too high: this version raises partitions to {feature_levels.RAISED_TO}")
    older = [f"{worker} ({level})" for worker, level in sorted(found.workers.items()) if level < wanted]
    if older:
        raise TimersError(f"these workers do not support level {wanted}: {', '.join(older)}; replace them first")
    if wanted < found.highest:
        raised = next(name for name, level in sorted(found.partitions.items()) if level > wanted)
        raise TimersError(f"{raised} was raised to level {found.partitions[raised]} already: there is no way back")
    try:
        allow(settings, wanted)
    except KafkaException as error:
        failed = f"level {wanted} cannot be written to {settings.progress_topic!r}"
        raise ErrorReports(settings).user_error(error, failed) from error


def _look_up(settings: Settings) -> _Found:
    from aiokafka.errors import KafkaError
    from confluent_kafka import KafkaException

    from timers.kafka import progress_log, topics
    from timers.kafka.aiokafka_internals import group_access
    from timers.kafka.allowed_level import AllowedLevel
    from timers.kafka.clients import admin_client
    from timers.kafka.connection import ErrorReports
    from timers.worker.consumer.group import levels_of

    reports = ErrorReports(settings)
    try:
        cluster = topics.existing_topics(admin_client(settings, reports), settings)
        if settings.progress_topic not in cluster.partitions:
            raise TimersError(f"topic {settings.progress_topic!r} does not exist: no worker of this app has run yet")
        machines = progress_log.read_all(settings, cluster)
        allowed = AllowedLevel(settings).read()
        members = map(levels_of, group_access.describe(settings).members)
    except (KafkaException, KafkaError) as error:
        raise _user_error(reports, error) from error
    return _Found(
        allowed,
        {member.worker_id: member.supports for member in members},
        {f"{topic}/{partition}": found.level for (topic, partition), found in sorted(machines.items())},
    )


def _user_error(reports: Any, error: Exception) -> TimersError:
    from confluent_kafka import KafkaException

    if isinstance(error, KafkaException):
        user_error: TimersError = reports.user_error(error, "the feature levels cannot be read")
        return user_error
    return TimersError(f"the group's members cannot be read ({error!r})")
