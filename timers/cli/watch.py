"""``timers watch``: prints the records that arrive on a topic."""

from __future__ import annotations

import time

import click

from timers.config.settings import Settings
from timers.wire import topics

_POLL_S = 1.0


@click.command()
@click.argument("topic")
@click.option("--from-beginning", is_flag=True, help="Start with the oldest record, not with the next one.")
@click.option("--count", "-n", type=click.IntRange(min=1), help="End after this many records.")
@click.option("--json", "as_json", is_flag=True, help="Everything about each record, as one JSON object a line.")
def watch(topic: str, from_beginning: bool, count: int | None, as_json: bool) -> None:
    """Print the callbacks that arrive on TOPIC: fired topic=T key=K due=S lag_ms=N at=TIME value=V.

    Only committed records are shown. TIME is the record's timestamp, and lag_ms is TIME minus the start of the due
    second. TIME is the broker's time where the topic has message.timestamp.type=LogAppendTime. V has at most 200 bytes.
    """
    if not topics.is_legal(topic):
        raise click.BadParameter(f"{topic!r} is not {topics.LEGAL_FORM}")
    settings = Settings.load()

    from timers.cli.fired import CallbackRecord
    from timers.kafka.topic_reader import TopicReader  # not at the top: `--help` needs no librdkafka

    with TopicReader(settings, topic, from_beginning=from_beginning) as reader:
        if not reader.assign_partitions():
            click.echo(f"waiting for topic {topic!r}, which does not exist yet at {settings.brokers} ...", err=True)
            while not reader.assign_partitions():
                time.sleep(_POLL_S)
        seen = 0
        for message in reader:
            if message is None:
                continue
            record = CallbackRecord.of(message)
            click.echo(record.json() if as_json else record.long_line())  # echo flushes, also into a pipe
            seen += 1
            if seen == count:
                return
