"""``timers queue``: sends, receives and looks at the messages of queues."""

from __future__ import annotations

import click

from timers.cli.lazy import LazyGroup

_COMMANDS = {
    "send": "Send a message now or later, or a file of messages.",
    "receive": "Show messages, and acknowledge or reject them.",
    "run": "Handle messages with a Python function until SIGTERM or Ctrl-C.",
    "stat": "Show how many messages wait, and how old the oldest is.",
    "list": "List the queues.",
    "dead": "List the messages that a queue gave up.",
    "redrive": "Put messages that a queue gave up back on it.",
    "purge": "Mark all messages of a queue as done.",
}


@click.group(
    cls=LazyGroup,
    package=__name__,
    lines=_COMMANDS,
    epilog="docs/queues.md has the guarantees and the limits. Settings are environment variables (`timers settings`).",
)
def queue() -> None:
    """Work through a Kafka topic message by message: acknowledge, retry, reject.

    A queue is a topic and a name; the name is the topic's, unless the program gives another one.

    \b
    Try it, with `timers run` in another terminal:
      timers topics create jobs
      timers queue send jobs --value 'invoice 17'
      timers queue receive jobs --reject 'no such customer'
      timers queue dead jobs
      timers queue redrive jobs --all
      timers queue receive jobs --ack
    """
