"""``timers broker``: start, stop and look at this project's embedded Kafka broker."""

from __future__ import annotations

import sys

import click

from timers.cli.broker import EmbeddedBroker
from timers.cli.lazy import NamedGroup
from timers.cli.output import Output, confirm, output_option, say
from timers.process.signals import END_SIGNALS, on_signals, raise_interrupt

NOT_RUNNING = 3
"""Exit code of ``status`` if no broker answers, as service managers expect it."""


@click.group(cls=NamedGroup)
def broker() -> None:
    """A Kafka broker for this project, on 127.0.0.1 only.

    Its address, data and log are in .timers/broker; workers and commands find it there by themselves.
    """


@broker.command()
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="Port on 127.0.0.1. Default: the last port, else 9092, else any free port.",
)
@output_option()
def start(port: int | None, output: Output) -> None:
    """Start the broker unless it runs; the last line is its address.

    Returns when the broker answers, and leaves it running. The very first start downloads Kafka (46 MB).
    """
    server = EmbeddedBroker.of_project(port, out=sys.stderr)
    with on_signals(END_SIGNALS[1:], raise_interrupt):
        address = server.start()
    output.show({"address": address}, address)


@broker.command()
@output_option()
def stop(output: Output) -> None:
    """Stop the broker and wait for its end. A broker that does not run is no failure."""
    stopped = EmbeddedBroker.of_project(out=sys.stderr).stop()
    output.show({"stopped": stopped}, "stopped" if stopped else "not running")


@broker.command()
@output_option()
def status(output: Output) -> int:
    """Show whether the broker answers: exit code 0 if it does, 3 if not."""
    server = EmbeddedBroker.of_project()
    pid, log = server.pid, server.log_path
    address = server.address if pid else None
    if address:
        line = f"running at {address}, process {pid}, log {log}"
    elif pid is None:
        line = "not running (`timers broker start` starts it)"
    else:
        line = f"not answering yet, process {pid}, log {log}"
    output.show({"running": address is not None, "address": address, "pid": pid, "log": str(log)}, line)
    return 0 if address else NOT_RUNNING


@broker.command()
@click.option("--yes", is_flag=True, help="Delete without asking. Without a terminal the command never asks.")
@output_option()
def reset(yes: bool, output: Output) -> int:
    """Stop the broker and delete all its data: every topic, timer and offset."""
    server = EmbeddedBroker.of_project(out=sys.stderr)
    question = f"Delete all topics and timers of the broker in {server.directory}?"
    if not yes and sys.stdin.isatty() and not confirm(question):
        say("nothing deleted")
        return 1
    server.reset()
    output.show({"deleted": str(server.directory)}, "data deleted")
    return 0
