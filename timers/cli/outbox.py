"""``timers outbox``: the table of the outbox, and the relay that sends its rows."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from contextlib import ExitStack

import click

from timers.cli.lazy import LazyGroup, extra_of_missing_module
from timers.cli.output import INTERRUPTED_EXIT_CODE, Output, metrics_options, output_option, say, say_metrics
from timers.client.config import id_topic_of
from timers.client.outbox import DEFAULT_TABLE, DIALECTS
from timers.client.outbox import schema as schema_of
from timers.process.config.settings import Settings
from timers.process.counted import counted
from timers.process.logs import make_safe
from timers.process.signals import on_signals

_COMMANDS = {
    "schema": ("outbox:schema", "Print the statements that make the table."),
    "run": ("outbox:run", "Send the rows of a database until SIGTERM or Ctrl-C."),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS, epilog="docs/outbox.md has the guarantees and the limits.")
def outbox() -> None:
    """Set timers if and only if a database transaction commits.

    A program writes a row in its own transaction, with SqlOutbox or by SQL. The relay sends each committed row as a
    request for a timer, and deletes it.

    \b
    Try it, with `timers run` in another terminal:
      timers outbox schema --dialect sqlite | sqlite3 shop.db
      timers outbox run sqlite:shop.db
    """


_table_option = click.option("--table", default=DEFAULT_TABLE, show_default=True, help="Table, or SCHEMA.TABLE.")


@click.command()
@click.option("--dialect", type=click.Choice(DIALECTS), required=True)
@_table_option
@output_option()
def schema(dialect: str, table: str, output: Output) -> None:
    """Print the statements that make the table, for a migration.

    \b
      timers outbox schema --dialect postgresql | psql shop
    """
    statements = schema_of(dialect, table)
    output.show({"dialect": dialect, "table": table, "sql": statements}, *statements.splitlines())


@click.command()
@click.argument("url", metavar="DATABASE")
@_table_option
@metrics_options
@click.pass_context
def run(ctx: click.Context, url: str, table: str, metrics_port: int | None, metrics_host: str) -> None:
    """Send the rows of DATABASE, postgresql://USER@HOST/NAME or sqlite:PATH, until SIGTERM or Ctrl-C.

    The password of PostgreSQL is in the variable PGPASSWORD or in the file ~/.pgpass. Several relays may run: one
    sends, and another one goes on when it ends.

    \b
      timers outbox run postgresql://relay@db/shop --metrics-port 9100
    """
    from timers.outbox.databases import database  # not at the top: `--help` needs no librdkafka
    from timers.outbox.relay import Relay

    with extra_of_missing_module("outbox"):
        rows = database(url, table)
    settings = Settings.load()  # brokers that do not answer yet are waited for
    topic = id_topic_of(settings)
    logging.basicConfig(level=logging.INFO, format="[%(asctime)s] [%(levelname)s] %(message)s", stream=sys.stderr)
    make_safe(logging.root.handlers)
    stop = threading.Event()
    signals: list[int] = []

    def note(number: int, _frame: object) -> None:
        signals.append(number)
        stop.set()

    relay = Relay(rows, settings)
    with ExitStack() as stack:
        if metrics_port is not None:
            with extra_of_missing_module("metrics"):
                from timers.outbox.monitoring import monitor
            port = stack.enter_context(monitor(relay, metrics_port, metrics_host))
            say_metrics(metrics_host, port)
        stack.enter_context(on_signals((signal.SIGINT, signal.SIGTERM), note))
        say(f"sending the rows of {table} to {topic} (Ctrl-C ends it)")
        relay.run(stop)
    say(f"stopped: {counted(relay.counters.sent, 'row')} sent")
    if signal.SIGINT in signals:
        ctx.exit(INTERRUPTED_EXIT_CODE)
