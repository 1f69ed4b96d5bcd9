"""``timers clock``: shows up to which second each partition has fired, and takes a wrong time back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from timers.cli.output import Output, output_option, say
from timers.cli.reach import load_settings
from timers.config.settings import Settings
from timers.core.clock_guard import iso
from timers.core.keys import NEVER
from timers.errors import TimersError

if TYPE_CHECKING:
    from timers.core.progress import Progress
    from timers.core.timer import TopicPartition
    from timers.kafka.topics import Cluster


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--repair", is_flag=True, help="Take back the time of partitions that are ahead. Stop the workers first.")
@output_option()
def clock(repair: bool, output: Output) -> None:
    """Show up to which second each partition has fired.

    If the clock of a broker was ahead, a partition may have fired timers up to a second that has not come yet. Until
    that second has come, the partition accepts no new requests. --repair lets such partitions forget the second, and
    records which timers have fired: no timer fires again, and new requests are accepted and fire by the right clock.
    The clock of this machine must be right. Use the settings and the rights of a worker.
    docs/operations.md#the-way-back-from-a-wrong-time says more.
    """
    from aiokafka.errors import KafkaError
    from confluent_kafka import KafkaException

    from timers.kafka.connection import ErrorReports

    settings = load_settings()
    try:
        _clock(settings, repair, output)
    except KafkaException as error:
        raise ErrorReports(settings).user_error(error, f"{settings.progress_topic!r} cannot be used") from error
    except KafkaError as error:
        raise TimersError(f"the members of the group {settings.app_id!r} cannot be read ({error!r})") from error


def _clock(settings: Settings, repair: bool, output: Output) -> None:
    from timers.kafka import connection, progress_log, topics
    from timers.kafka.clients import admin_client

    cluster = topics.existing_topics(admin_client(settings, connection.ErrorReports(settings)), settings)
    if settings.progress_topic not in cluster.partitions:
        raise TimersError(f"topic {settings.progress_topic!r} does not exist: no worker of this app has run yet")
    found = progress_log.read_all(settings, cluster)
    now_s = time.time()
    ahead = {tp: round(progress.fired_through[0] - now_s) for tp, progress in found.items()}
    ahead = {tp: seconds for tp, seconds in ahead.items() if seconds > settings.max_clock_leap_s}
    if not repair:
        _show(found, ahead, output)
    say(f"{len(ahead)} partitions are ahead of this machine's clock, {iso(now_s)}")
    if ahead and repair:
        _repair(settings, cluster, ahead, output)
    elif ahead:
        say("if this clock is right: stop all workers, then use --repair")


def _show(found: dict[TopicPartition, Progress], ahead: dict[TopicPartition, int], output: Output) -> None:
    rows = []
    for (topic, partition), progress in sorted(found.items()):
        fired = None if progress.fired_through == NEVER else iso(progress.fired_through[0])
        ahead_s = ahead.get((topic, partition), 0)
        fields = {"topic": topic, "partition": partition, "fired_through": fired, "ahead_s": ahead_s}
        rows.append((fields, (f"{topic}/{partition}", fired or "nothing", f"{ahead_s} s ahead" if ahead_s else "")))
    width = max((len(cells[0]) for _, cells in rows), default=0)
    output.table(("partition", "fired through", ""), (width, 20, 0), rows)


def _repair(settings: Settings, cluster: Cluster, ahead: dict[TopicPartition, int], output: Output) -> None:
    from timers.kafka import progress_log
    from timers.kafka.aiokafka_internals import group_access

    members = group_access.describe(settings).members
    if members:
        raise TimersError(
            f"the group {settings.app_id!r} has {len(members)} members: stop all workers first; the group forgets a "
            "stopped worker after TIMERS_SESSION_TIMEOUT_S"
        )
    for (topic, partition), ahead_s in sorted(ahead.items()):
        progress_log.take_time_back(settings, cluster, (topic, partition))
        fields = {"topic": topic, "partition": partition, "ahead_s": ahead_s, "repaired": True}
        output.show(fields, f"{topic}/{partition} was {ahead_s} s ahead, and was taken back")
