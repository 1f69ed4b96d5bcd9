"""``timers topics``, ``acls`` and ``watch``: topics, who may use them, and the callbacks that arrive on them."""

from __future__ import annotations

import math
import shlex
import time
from typing import TYPE_CHECKING

import click

from timers.cli.lazy import NamedGroup
from timers.cli.output import Output, output_option, say
from timers.cli.reach import load_settings
from timers.client.times import parse_duration, parse_moment
from timers.core.printable import quoted
from timers.errors import TimersError
from timers.process.config.settings import Settings
from timers.process.counted import counted
from timers.wire import topics as wire

if TYPE_CHECKING:
    from timers.kafka.records import TopicReader


@click.group(cls=NamedGroup)
def topics() -> None:
    """Create topics. Workers create the engine's own topics by themselves, if they may."""


@topics.command()
@click.argument("names", metavar="[TOPIC]...", nargs=-1)
@click.option("--engine", is_flag=True, help="Create the topics of the engine, so that workers need no right Create.")
@click.option(
    "--partitions", "-p", type=click.IntRange(1, 10_000), help="Number of partitions.  [default: TIMERS_PARTITIONS]"
)
@click.option("--compacted", is_flag=True, help="Keep the newest record of each key: for TIMERS_SCHEDULE_TOPICS.")
@output_option()
def create(names: tuple[str, ...], engine: bool, partitions: int | None, compacted: bool, output: Output) -> None:
    """Create topics that do not exist; TIMERS_REPLICATION is their replication factor. One that exists stays as it is.

    Records of a callback topic get the broker's time, so that lags are exact. With --compacted they keep the time of
    their producer, and cleanup.policy is compact.

    \b
      timers topics create order-timeouts
      timers topics create schedules --compacted --partitions 6
      timers topics create --engine
    """
    if engine == bool(names) or (engine and (partitions or compacted)):
        raise click.UsageError("say which: the names of topics, or --engine and nothing else")
    settings = load_settings()
    if engine:
        from timers.kafka.topics import ensure  # not at the top: `--help` needs no librdkafka

        for name, count in sorted(ensure(settings).partitions.items()):
            output.show({"topic": name, "partitions": count}, f"{name}: {count} partitions")
        return
    for name in names:
        if not wire.is_legal(name):
            raise click.UsageError(f"{quoted(name)} is not {wire.LEGAL_FORM}")
        settings.check_creation(name)

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


@click.command()
@click.option(
    "--for",
    "parts",
    type=click.Choice(["worker", "engine", "console", "relay"]),
    multiple=True,
    default=("worker",),
    help="Who gets them: a worker, the engine on Spark, the console, or the relay of an outbox; repeat it for several.",
    show_default=True,
)
@click.option(
    "--principal",
    help="The user who logs in, as the brokers name that user.  [default: User:<TIMERS_SASL_USERNAME>]",
)
@click.option(
    "--callback-topic",
    "callback_topics",
    metavar="TOPIC",
    multiple=True,
    help="A topic to which timers fire; repeat it for several.",
)
@click.option(
    "--create",
    is_flag=True,
    help="Create them. The settings must have the login of an administrator of the brokers.",
)
@output_option()
def acls(
    parts: tuple[str, ...], principal: str | None, callback_topics: tuple[str, ...], create: bool, output: Output
) -> None:
    """Show the least ACLs that these settings need, as commands of Kafka's kafka-acls.sh, or create them.

    The topics must exist already (`timers topics create --engine`). ACLs that exist stay, also those for topics of
    former settings.

    \b
      timers acls --principal User:timers --callback-topic orders
      timers acls --principal User:timers --for worker --for console --callback-topic orders --create
    """
    settings = load_settings() if create else Settings.load(needs_brokers=False)
    if principal is None and not settings.sasl_username:
        raise click.UsageError("say whose they are: --principal User:NAME (TIMERS_SASL_USERNAME is not set)")
    principal = principal or f"User:{settings.sasl_username}"
    if not principal.isprintable() or not all(principal.partition(":")):
        raise click.UsageError(f"--principal {quoted(principal)} is not TYPE:NAME, such as User:timers")
    for name in callback_topics:
        if name != "*" and not wire.is_legal(name):
            raise click.UsageError(f"{quoted(name)} is not {wire.LEGAL_FORM}")
    from timers.kafka.rights import allow, rights  # not at the top: `--help` needs no librdkafka

    wanted = rights(settings, parts, callback_topics)
    if create:
        allow(settings, principal, wanted)
    for right in wanted:
        kind, operations = right.words
        fields = {"principal": principal, "resource": kind, "name": right.name, "prefixed": right.prefixed}
        words = ["kafka-acls.sh", "--bootstrap-server", settings.brokers, "--add", "--allow-principal", principal]
        words += [f"--{kind}", right.name, *(["--resource-pattern-type", "prefixed"] if right.prefixed else [])]
        words += [word for each in operations for word in ("--operation", each)]
        output.show(fields | {"operations": operations}, shlex.join(words))


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
@click.option(
    "--timeout", metavar="DURATION", help="End after this time; exit code 1 if fewer than COUNT records came."
)
@output_option()
def watch(
    topic: str | None, from_beginning: bool, since: str | None, count: int | None, timeout: str | None, output: Output
) -> int:
    """Print the callbacks that arrive on TOPIC: fired topic=T key=K due=S lag_ms=N at=TIME value=V.

    Only committed records are shown. TIME is the record's timestamp, and lag_ms is TIME minus the start of the due
    second. TIME is the broker's time where the topic has message.timestamp.type=LogAppendTime. V has at most 200 bytes;
    with -o json the value is whole.

    With --since and without TOPIC: print what has fired since then, on all topics that this login may read, and end.
    These are the newest 10,000, the oldest of them first; K and V have at most 200 bytes. It reads for 30 seconds at
    most, or for a shorter --timeout. The command says what it left out.

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
    within_s = math.inf if timeout is None else parse_duration(timeout)
    settings = load_settings()
    if topic is None:
        assert since_ms is not None
        return _look_back(settings, since_ms, count, within_s, output)
    from timers.kafka.records import TopicReader  # not at the top: `--help` needs no librdkafka

    with TopicReader(settings, topic, from_beginning=from_beginning, since_ms=since_ms) as reader:
        return _follow(reader, topic, settings.brokers, count, within_s, output)


def _follow(reader: TopicReader, topic: str, brokers: str, count: int | None, within_s: float, output: Output) -> int:
    """Show records as they arrive. Returns 1 if the time was over before so many came."""
    from timers.offline.fired import CallbackRecord

    end_s, is_said, seen = time.monotonic() + within_s, False, 0
    while not reader.assign_partitions():
        if time.monotonic() > end_s:
            raise TimersError(f"topic {topic!r} does not exist at {brokers}")
        if not is_said:
            say(f"waiting for topic {topic!r}, which does not exist yet at {brokers} ...")
            is_said = True
        time.sleep(min(_POLL_S, max(0.0, end_s - time.monotonic())))
    for message in reader:
        if message is not None:
            record = CallbackRecord.of(message)
            output.show(record.fields(), record.long_line())
            seen += 1
            if seen == count:
                return 0
        if time.monotonic() > end_s:
            break
    say(f"{counted(seen, 'record')} came in time")
    return 0 if count is None else 1


def _look_back(settings: Settings, since_ms: int, count: int | None, within_s: float, output: Output) -> int:
    from timers.offline.fired import FIRED_READ_S, read_past_firings

    found = read_past_firings(settings, since_ms, within_s=min(within_s, FIRED_READ_S))
    for record in reversed(found.records[:count]):
        output.show(record.fields(), record.long_line())
    say(f"{counted(len(found.records), 'timer')} fired")
    for topic, why in sorted(found.left_out.items()):
        say(f"left out: {topic}: {why}")
    return 1 if count is not None and len(found.records) < count else 0
