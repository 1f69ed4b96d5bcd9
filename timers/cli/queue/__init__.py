"""``timers queue``: sends, receives and looks at the messages of queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from timers.cli.lazy import LazyGroup
from timers.wire import topics
from timers.wire.printable import quoted

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


_Command = TypeVar("_Command", bound=Callable[..., Any])


def _legal_queue(_ctx: click.Context, _param: click.Parameter, name: str) -> str:
    if not topics.is_legal(topics.queue_returns(topics.queue_group(name))):
        raise click.BadParameter(f"{quoted(name)} is no name of a queue: 1 to 235 of a-z A-Z 0-9 . _ -")
    return name


def legal_topic(_ctx: click.Context, _param: click.Parameter, topic: str | None) -> str | None:
    """Callback of an argument or option that is a topic."""
    if topic is not None and not topics.is_legal(topic):
        raise click.BadParameter(f"{quoted(topic)} is not {topics.LEGAL_FORM}")
    return topic


def queue_options(command: _Command) -> _Command:
    """Add the arguments ``name``, of a queue, and ``topic``, which may be None."""
    topic = click.option(
        "--topic", "-t", metavar="TOPIC", callback=legal_topic, help="Topic of the queue, if it is not called NAME."
    )
    return click.argument("name", callback=_legal_queue)(topic(command))


@click.group(
    cls=LazyGroup,
    package=__name__,
    lines=_COMMANDS,
    modules={
        "list": "state:list_queues",
        **{name: f"state:{name}" for name in ("stat", "purge")},
        "redrive": "dead:redrive",
    },
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
