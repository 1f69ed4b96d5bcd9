"""``timers topics``, ``watch`` and ``status``: topics, what arrives on them, and who has their partitions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from timers.cli.output import Output, output_option, say
from timers.cli.reach import load_settings
from timers.client.request import parse_moment
from timers.config.settings import Settings
from timers.counted import counted
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


_POLL_S = 1.0


@click.command()
@click.argument("topic", required=False)
@click.option("--from-beginning", is_flag=True, help="Start with the oldest record, not with the next one.")
@click.option(
    "--since",
    metavar="WHEN",
    help="Start at this time: 1h (an hour ago), or 2030-01-31T12:00:00Z. TOPIC may be left out.",
)
@click.option("--count", "-n", type=click.IntRange(min=1), help="End after this many records.")
@output_option()
def watch(topic: str | None, from_beginning: bool, since: str | None, count: int | None, output: Output) -> None:
    """Print the callbacks that arrive on TOPIC: fired topic=T key=K due=S lag_ms=N at=TIME value=V.

    Only committed records are shown. TIME is the record's timestamp, and lag_ms is TIME minus the start of the due
    second. TIME is the broker's time where the topic has message.timestamp.type=LogAppendTime. V has at most 200 bytes;
    with -o json the value is whole.

    With --since and without TOPIC: print what has fired since then, on all topics that this login may read, and end.
    These are the newest 10,000, the oldest of them first; K and V have at most 200 bytes. What was left out is said.

    \b
      timers watch orders --since 1h
      timers watch --since 1h
    """
    if topic is None and since is None:
        raise click.UsageError("say which: TOPIC, or --since for what has fired on all topics")
    if from_beginning and (since is not None or topic is None):
        raise click.UsageError("--from-beginning goes with TOPIC, and without --since")
    if topic is not None and not wire.is_legal(topic):
        raise click.BadParameter(f"{quoted(topic)} is not {wire.LEGAL_FORM}")
    since_ms = None if since is None else 1000 * parse_moment(since, time.time())
    settings = load_settings()
    if topic is None:
        assert since_ms is not None
        _look_back(settings, since_ms, count, output)
    else:
        _follow(settings, topic, from_beginning, since_ms, count, output)


def _follow(
    settings: Settings, topic: str, from_beginning: bool, since_ms: int | None, count: int | None, output: Output
) -> None:
    from timers.client.fired import CallbackRecord
    from timers.kafka.records import TopicReader  # not at the top: `--help` needs no librdkafka

    with TopicReader(settings, topic, from_beginning=from_beginning, since_ms=since_ms) as reader:
        if not reader.assign_partitions():
            say(f"waiting for topic {topic!r}, which does not exist yet at {settings.brokers} ...")
            while not reader.assign_partitions():
                time.sleep(_POLL_S)
        seen = 0
        for message in reader:
            if message is None:
                continue
            record = CallbackRecord.of(message)
            output.show(record.fields(), record.long_line())
            seen += 1
            if seen == count:
                return


def _look_back(settings: Settings, since_ms: int, count: int | None, output: Output) -> None:
    from timers.client.fired import read_past_firings

    found = read_past_firings(settings, since_ms)
    for record in reversed(found.records[:count]):
        output.show(record.fields(), record.long_line())
    say(f"{counted(len(found.records), 'timer')} fired")
    for topic, why in sorted(found.left_out.items()):
        say(f"left out: {topic}: {why}")


DO_NOT_FIRE_CODE, NOT_KNOWN_CODE = 3, 4

_COLUMNS = ("PARTITION", "WORKER", "STATE", "SINCE", "FROM")
_WIDTHS = (28, 24, 10, 12, 0)


@click.command()
@output_option()
def status(output: Output) -> int:
    """Show whether all timers fire, and for each partition its worker, since when it has it, and from what it began.

    FROM says where the worker had the state of the partition from: its own store, a snapshot, or the log. What
    has said nothing for 2 s is not known.

    Exit codes: 0 all timers fire, 3 some do not, 4 it is not known, 1 the group cannot be asked.
    """
    from timers.console.figures import DO_NOT_FIRE, NOT_KNOWN  # not at the top: it needs the extra `console`

    found = asyncio.run(_look(load_settings()))
    output.table(_COLUMNS, _WIDTHS, _rows(found["workers"]))
    for worker in found["workers"]:
        if worker["ready"] is None:
            say(f"{worker['id']}: {worker['why']}")
    timers, why = found["state"]["timers"], found["state"]["why"]
    sentences = {DO_NOT_FIRE: f"some timers do not fire: {why}", NOT_KNOWN: f"it is not known whether all fire: {why}"}
    say(sentences.get(timers, "all timers fire"))
    return {DO_NOT_FIRE: DO_NOT_FIRE_CODE, NOT_KNOWN: NOT_KNOWN_CODE}.get(timers, 0)


async def _look(settings: Settings) -> dict[str, Any]:
    from timers.console.kafka_cluster import KafkaCluster
    from timers.console.worker_pages import look

    cluster = KafkaCluster(settings)
    try:
        return await look(cluster)
    finally:
        await cluster.close()


def _rows(workers: list[Mapping[str, Any]]) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    for worker in workers:
        machines = worker.get("machines") or {}
        assigned = {f"{topic}/{each}" for topic, numbers in worker["assigned"].items() for each in numbers}
        for name in sorted(assigned | machines.keys()):
            machine = machines.get(name, {})
            state = "unknown" if worker["ready"] is None else "fires" if name in worker["firing"] else "waits"
            age_s, origin = machine.get("age_s"), machine.get("from")
            fields = {"partition": name, "worker": worker["id"], "state": state, "age_s": age_s, "from": origin}
            since = "" if age_s is None else f"{age_s:,.0f} s"
            yield fields, (name, worker["id"], state, since, origin or "")
