"""``timers topics``: creates topics without Kafka's own tools."""

from __future__ import annotations

import click

from timers.cli.output import Output, output_option
from timers.cli.reach import load_settings
from timers.config.settings import Settings
from timers.wire import topics as wire
from timers.wire.printable import quoted


@click.group()
def topics() -> None:
    """Create topics for callbacks and for schedules. Workers create the engine's own topics by themselves."""


@topics.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "--partitions", "-p", type=click.IntRange(1, 10_000), help="Number of partitions.  [default: TIMERS_PARTITIONS]"
)
@click.option("--compacted", is_flag=True, help="Keep the newest record of each key: for TIMERS_SCHEDULE_TOPICS.")
@output_option()
def create(names: tuple[str, ...], partitions: int | None, compacted: bool, output: Output) -> None:
    """Create topics that do not exist; TIMERS_REPLICATION is their replication factor. One that exists stays as it is.

    Records of a callback topic get the broker's time, so that lags are exact. With --compacted they keep the time of
    their producer, and cleanup.policy is compact.

    \b
      timers topics create order-timeouts
      timers topics create schedules --compacted --partitions 6
    """
    settings = load_settings()
    for name in names:
        _check(settings, name)

    from timers.kafka import topic_admin  # not at the top: `--help` needs no librdkafka

    for name in names:
        count, policy = partitions or settings.partitions, "compact" if compacted else "delete"
        created = topic_admin.create_if_missing(
            settings, name, partitions=count, cleanup_policy=policy, append_time=not compacted
        )
        if not created:
            count, policy = topic_admin.describe(settings, name)
        state = "created" if created else "exists already, and stays as it is"
        fields = {"topic": name, "created": created, "partitions": count, "cleanup_policy": policy}
        output.show(fields, f"{name}: {state}; {count} partitions, cleanup.policy={policy}")


def _check(settings: Settings, name: str) -> None:
    if not wire.is_legal(name):
        raise click.UsageError(f"{quoted(name)} is not {wire.LEGAL_FORM}")
    if name in settings.own_topics and name not in settings.schedule_topics:
        raise click.UsageError(
            f"{name!r} is a topic of the engine ({settings.own_topics[name]}): start a worker (or the engine on "
            "Spark), which creates it with the configuration that it needs"
        )
