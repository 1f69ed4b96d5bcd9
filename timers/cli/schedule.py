"""``timers schedule``: one timer from the shell."""

from __future__ import annotations

import re
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import click

from timers.cli.times import from_now, parse_due, parse_duration
from timers.config.settings import Settings
from timers.wire.query import format_due

_TIMEOUT_S = 10.0


@click.command()
@click.option("--in", "duration", metavar="DURATION", help="How long from now: 90s, 15m, 2h, 3d, 1w, 1h30m.")
@click.option("--at", metavar="TIME", help="When: RFC 3339 with offset (2030-01-31T12:00:00Z), or epoch seconds.")
@click.option("--topic", "-t", required=True, help="Topic that the callback goes to.")
@click.option("--key", "-k", help="Record key of the callback; without it the callback has no key.")
@click.option("--value", "-v", metavar="TEXT", help="Record value of the callback.")
@click.option(
    "--file", "-f", "path", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Value from a file."
)
@click.option("--header", "-H", "headers", metavar="NAME=VALUE", multiple=True, help="Record header; may be repeated.")
@click.option("--id", "id", metavar="ID", help="Id of the timer. It replaces a timer of this id, and can be cancelled.")
@click.option("--create-topic", is_flag=True, help="Create TOPIC first, if it does not exist.")
@click.argument("source", metavar="[-]", required=False, type=click.Choice(["-"]))
def schedule(
    duration: str | None,
    at: str | None,
    topic: str,
    key: str | None,
    value: str | None,
    path: Path | None,
    headers: tuple[str, ...],
    id: str | None,
    create_topic: bool,
    source: str | None,
) -> None:
    """Schedule one timer: its callback is sent to TOPIC at the due second.

    The value is --value TEXT, --file PATH, or - for standard input. The last line printed is the timer id. With --id
    the request goes to TIMERS_ID_TOPIC (docs/timers-with-an-id.md), and `timers cancel ID` cancels the timer.

    \b
      timers schedule --in 15m --topic orders --key o-17 --value expired
      timers schedule --at 2030-01-31T12:00:00Z --topic orders --key o-17 - < order.json
    """
    if (duration is None) == (at is None):
        raise click.UsageError("give one of --in DURATION and --at TIME")
    if sum(given is not None for given in (value, path, source)) != 1:
        raise click.UsageError("give one of --value TEXT, --file PATH and - (standard input)")
    pairs = [_header(text) for text in headers]
    if at is not None and re.fullmatch(r"[0-9]{1,9}", at):
        raise click.UsageError(f"--at {at} is an epoch second before the year 2002: did you mean --in {at}s?")
    # The due second is computed here, once: the line printed shows the due second that is sent.
    due_s = -(-time.time_ns() // 10**9) + parse_duration(duration) if duration is not None else parse_due(at or "")
    body = value if value is not None else path.read_bytes() if path is not None else sys.stdin.buffer.read()

    settings = Settings.load()

    from timers.client import TimersClient
    from timers.kafka import topic_admin  # not at the top: `--help` needs no librdkafka

    if create_topic:
        topic_admin.create_if_missing(settings, topic, partitions=settings.partitions)
    with TimersClient(settings.brokers, timeout_s=_TIMEOUT_S) as client:
        timer_id = client.schedule(topic, key, body, at=datetime.fromtimestamp(due_s, UTC), headers=pairs, id=id)
    if not settings.create_target_topics and not topic_admin.exists(settings, topic):
        click.echo(
            f"topic {topic!r} does not exist: unless it does when the timer is due, the callback becomes a dead letter "
            f"in {settings.dead_letter_topic!r} (--create-topic creates it)",
            err=True,
        )
    left_s = due_s - time.time()
    when = from_now(left_s) if left_s > 0 else "in the past: it fires at once"
    click.echo(f"due {format_due(due_s)} ({due_s}, {when})")
    click.echo(timer_id)


def _header(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.UsageError(f"--header {text!r} is not NAME=VALUE")
    return name, value
