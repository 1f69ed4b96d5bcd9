"""``timers queue send``: one message, or each line of a file."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from timers.cli.output import Output, argument_bytes, output_option, say
from timers.cli.queue import legal_topic
from timers.cli.reach import load_settings
from timers.cli.schedule import due_second, header, show_due
from timers.counted import counted
from timers.errors import PublishError, TimersError

if TYPE_CHECKING:
    from timers.queue import Queue

_BATCH = 5000


@click.command()
@click.argument("topic", callback=legal_topic)
@click.option("--value", "-v", metavar="TEXT", help="The message.")
@click.option(
    "--file",
    "-f",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The message, from a file.",
)
@click.option("--lines", type=click.File("rb"), help="Many messages, one a line; - for standard input.")
@click.option("--key", "-k", help="Record key: an ordered queue delivers the messages of a key one after the other.")
@click.option("--header", "-H", "headers", metavar="NAME=VALUE", multiple=True, help="Record header; may be repeated.")
@click.option("--in", "duration", metavar="DURATION", help="Send it after this time: 90s, 15m, 2h, 3d, 1w, 1h30m.")
@click.option("--at", metavar="TIME", help="Send it at this time: 2030-01-31T12:00:00Z, or epoch seconds.")
@click.option("--create-topic", is_flag=True, help="Create TOPIC first, if it does not exist.")
@output_option()
def send(
    topic: str,
    value: str | None,
    path: Path | None,
    lines: BinaryIO | None,
    key: str | None,
    headers: tuple[str, ...],
    duration: str | None,
    at: str | None,
    create_topic: bool,
    output: Output,
) -> None:
    """Send a message to TOPIC, for all queues on it, and print its source: TOPIC/PARTITION/OFFSET.

    With --in or --at a timer sends it, which needs a worker, and the command prints the id of the timer.

    \b
      timers queue send jobs --value 'invoice 17' --key customer-4
      timers queue send jobs --value 'remind customer 4' --in 2h
      timers queue send jobs --lines messages.txt
    """
    if sum(given is not None for given in (value, path, lines)) != 1:
        raise click.UsageError("give one of --value TEXT, --file PATH and --lines FILE")
    if duration is not None and at is not None:
        raise click.UsageError("give one of --in DURATION and --at TIME, or neither")
    is_later = duration is not None or at is not None
    if lines is not None and is_later:
        raise click.UsageError("--lines sends at once: for many delayed messages see `timers schedule --from-file`")
    pairs = [header(text) for text in headers]
    record_key = None if key is None else argument_bytes(key)
    due_s = due_second(duration, at) if is_later else 0
    settings = load_settings()

    from timers.kafka import topic_admin  # not at the top: `--help` needs no librdkafka
    from timers.queue import Queue

    if create_topic:
        topic_admin.create_if_missing(settings, topic, partitions=settings.partitions)
    elif not topic_admin.exists(settings, topic):
        raise click.UsageError(f"topic {topic!r} does not exist at {settings.brokers} (--create-topic creates it)")
    with Queue(topic, brokers=settings.brokers) as queue:
        if lines is not None:
            _send_lines(queue, lines, record_key, pairs, output)
            return
        body = path.read_bytes() if path is not None else argument_bytes(value or "")
        if not is_later:
            source = queue.send(body, key=record_key, headers=pairs)
            output.show({"source": source}, source)
            return
        timer_id = queue.send(body, key=record_key, headers=pairs, at=datetime.fromtimestamp(due_s, UTC))
        show_due(output, timer_id, due_s, "it is sent at once")


def _send_lines(
    queue: Queue, lines: BinaryIO, key: bytes | None, headers: list[tuple[str, bytes]], output: Output
) -> None:
    from tqdm import tqdm

    sent = 0
    with tqdm(desc="sending", unit=" messages", delay=2, leave=False, dynamic_ncols=True) as bar:
        try:
            while batch := [(key, line.rstrip(b"\r\n"), headers) for line in islice(lines, _BATCH)]:
                for source in queue.send_many(batch):
                    output.show({"source": source}, source)
                sent += len(batch)
                bar.update(len(batch))
        except TimersError as error:
            raise PublishError(
                f"{error}. The first {sent:,} lines were sent, and of the next {_BATCH:,} some may have been"
            ) from error
    say(f"{counted(sent, 'message')} sent")
