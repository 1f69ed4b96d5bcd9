"""``timers queue receive``: shows messages of a queue, and settles them."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import click

from timers.cli.output import Output, output_option, say
from timers.cli.queue import queue_options
from timers.cli.reach import load_settings
from timers.client.times import parse_duration
from timers.counted import counted
from timers.errors import LeaseLostError
from timers.wire.printable import json_value, one_line

if TYPE_CHECKING:
    from timers.queue import Message

_SAY_AFTER_S = 2.0
_SHOWN_BYTES = 200
_EXTEND_AFTER_S = 10.0
"""The leases of messages that are only shown are extended as often, so that no lease ends and uses up an attempt."""

_LEASE_S = 30.0


@click.command()
@queue_options
@click.option("--count", "-n", type=click.IntRange(1, 10_000), default=1, show_default=True, help="How many messages.")
@click.option(
    "--wait", default="10s", show_default=True, metavar="DURATION", help="End after this time without a message."
)
@click.option("--ack", is_flag=True, help="Acknowledge them: they are done.")
@click.option("--reject", metavar="REASON", help="Make them dead letters.")
@click.option("--retry", metavar="DURATION", help="Deliver them again after this time, as the next attempt.")
@click.option("--ordered", is_flag=True, help="The queue is ordered: give this if its other processes have it.")
@output_option()
def receive(
    name: str,
    topic: str | None,
    count: int,
    wait: str,
    ack: bool,
    reject: str | None,
    retry: str | None,
    ordered: bool,
    output: Output,
) -> None:
    """Show messages of the queue NAME. Without --ack, --reject or --retry they stay on it, in the same attempt.

    The command joins the queue as one more process. If others run, some partitions move to it, and back at its end; it
    gets only the messages of these partitions. To look at a topic without that, use `timers watch`. A value is cut
    after 200 bytes; with -o json it is whole.

    \b
      timers queue receive jobs -n 10
      timers queue receive jobs -n 10 --ack -o json > messages.json
    """
    if sum((ack, reject is not None, retry is not None)) > 1:
        raise click.UsageError("give one of --ack, --reject REASON and --retry DURATION, or none of them")
    wait_s = parse_duration(wait)
    after_s = None if retry is None else parse_duration(retry)
    settings = load_settings()

    from timers.client.retry import MAX_ATTEMPT_DIGITS  # not at the top: `--help` needs no librdkafka
    from timers.queue import Backoff, Queue

    # The command does not know how many attempts the queue's other processes allow, so it gives up no message.
    backoff = Backoff(retries=10**MAX_ATTEMPT_DIGITS - 1)
    with Queue(
        topic or name, name=name, brokers=settings.brokers, ordered=ordered, backoff=backoff, lease_s=_LEASE_S
    ) as queue:
        shown = 0
        kept: list[Message] = []
        began = last = extended = time.monotonic()
        said = False
        while shown < count and time.monotonic() - last < wait_s:
            for message in queue.receive(count - shown):
                shown += 1
                last = time.monotonic()
                output.show(_fields(message), _line(message))
                if ack:
                    message.ack()
                elif reject is not None:
                    message.reject(reject)
                elif after_s is not None:
                    message.retry(after_s, error="timers queue receive --retry")
                else:
                    kept.append(message)
            if time.monotonic() - extended > _EXTEND_AFTER_S:
                extended = time.monotonic()
                _extend(kept)
            if not shown and not said and time.monotonic() - began > _SAY_AFTER_S:
                said = True
                say(f"waiting for messages of {name!r} ...")
        for message in kept:
            message.put_back()
        queue.settle()
    what = "acknowledged" if ack else "rejected" if reject is not None else "to be retried" if retry else "shown"
    say(f"{counted(shown, 'message')} {what}")


def _extend(messages: list[Message]) -> None:
    for message in messages:
        with contextlib.suppress(LeaseLostError):  # the other processes have it, because its partition moved
            message.extend(_LEASE_S)


def _fields(message: Message) -> dict[str, Any]:
    return {
        "source": message.source,
        "attempt": message.attempt,
        "sent_ms": message.sent_ms,
        "key": json_value(message.key),
        "value": json_value(message.value),
        "headers": [[name, json_value(value)] for name, value in message.headers],
    }


def _line(message: Message) -> str:
    value = message.value
    short = one_line(value if value is None else value[:_SHOWN_BYTES])
    return f"message={message.source} attempt={message.attempt} key={one_line(message.key)} value={short}"
