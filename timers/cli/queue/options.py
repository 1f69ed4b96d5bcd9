"""Arguments and options of several commands of ``timers queue``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from timers.wire import topics
from timers.wire.printable import quoted

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
