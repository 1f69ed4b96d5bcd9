"""``timers watch``: prints the records that arrive on a topic."""

from __future__ import annotations

import time

import click

from timers.cli.output import Output, output_option, say
from timers.cli.reach import load_settings
from timers.wire import topics
from timers.wire.printable import quoted

_POLL_S = 1.0


@click.command()
@click.argument("topic")
@click.option("--from-beginning", is_flag=True, help="Start with the oldest record, not with the next one.")
@click.option("--count", "-n", type=click.IntRange(min=1), help="End after this many records.")
@output_option()
def watch(topic: str, from_beginning: bool, count: int | None, output: Output) -> None:
    """Print the callbacks that arrive on TOPIC: fired topic=T key=K due=S lag_ms=N at=TIME value=V.

    Only committed records are shown. TIME is the record's timestamp, and lag_ms is TIME minus the start of the due
    second. TIME is the broker's time where the topic has message.timestamp.type=LogAppendTime. V has at most 200 bytes;
    with -o json the value is whole.
    """
    if not topics.is_legal(topic):
        raise click.BadParameter(f"{quoted(topic)} is not {topics.LEGAL_FORM}")
    settings = load_settings()

    from timers.client.fired import CallbackRecord
    from timers.kafka.topic_reader import TopicReader  # not at the top: `--help` needs no librdkafka

    with TopicReader(settings, topic, from_beginning=from_beginning) as reader:
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
