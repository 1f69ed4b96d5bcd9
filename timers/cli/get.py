"""``timers get``: shows the state of one timer."""

from __future__ import annotations

import time

import click

from timers.cli.output import Output, argument_id, output_option, say
from timers.cli.reach import WorkerToAsk, worker_option
from timers.client.times import from_now
from timers.wire import query as wire
from timers.wire.printable import one_line
from timers.wire.query import Timer, key_as_bytes

UNKNOWN = 4
"""Exit code, as of ``timers cancel``."""


@click.command()
@click.argument("id")
@click.option("--value", "with_value", is_flag=True, help="With -o json: also the callback's value, in base64.")
@worker_option
@output_option()
def get(id: str, with_value: bool, worker: str | None, output: Output) -> int:
    """Show the timer that has this ID: whether it waits or has fired, when it is due, and where it goes.

    ID is one that its sender gave it (TIMERS_ID_TOPIC), or <topic>/<partition>/<offset> as `timers schedule` prints it.
    Asks the worker at TIMERS_WORKER_URL, which asks the others. It must be one of the cluster at TIMERS_BROKERS.

    Exit codes: 0 found, 4 there is no timer of this id, 1 a worker does not answer.

    \b
      timers get order-17
      timers get timer-request/2/4711 -o json
    """
    if with_value and not output.as_json:
        raise click.UsageError("--value goes with -o json")
    if not id:
        raise click.UsageError("ID is empty")
    answer = WorkerToAsk(worker).ask(wire.FIND_PATH, {"id": argument_id(id), "value": str(int(with_value))})
    for timer in answer["timers"]:
        output.show(timer, _sentence(timer))
    if not answer["timers"]:
        say(f"{id}: there is no timer of this id (never set, cancelled, or fired long ago)")
        return UNKNOWN
    return 0


def _sentence(timer: Timer) -> str:
    parts = [timer["state"]]
    if "due" in timer:
        parts.append(f"due {timer['due_at']} ({timer['due']}, {from_now(timer['due'] - time.time())})")
    if "topic" in timer:
        parts.append(f"topic {timer['topic']}")
        parts.append(f"key {one_line(key_as_bytes(timer))}")
        parts.append(f"{timer['value_bytes']:,} bytes")
    if "error" in timer:
        parts.append(timer["error"])
    parts.append(f"request {timer['source']}")
    return f"{timer['id']}: {', '.join(parts)}"
