"""``timers queue run``: handles the messages of a queue with a function."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from timers.cli.lazy import extra_of_missing_module
from timers.cli.main import INTERRUPTED
from timers.cli.output import say
from timers.cli.queue import queue_options
from timers.cli.reach import load_settings
from timers.client.times import parse_duration
from timers.counted import counted
from timers.logs import make_safe
from timers.signals import on_signals
from timers.wire.printable import quoted

if TYPE_CHECKING:
    from timers.queue import Queue

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@click.command()
@queue_options
@click.argument("function", metavar="MODULE:FUNCTION")
@click.option(
    "--concurrency",
    "-c",
    type=click.IntRange(1, 10_000),
    default=1,
    show_default=True,
    help="Threads; for an async function, tasks.",
)
@click.option("--processes", "-p", type=click.IntRange(1, 1000), help="Child processes instead of threads.")
@click.option("--ordered", is_flag=True, help="One message of a key after the other; a retry delays the later ones.")
@click.option(
    "--lease", default="30s", show_default=True, help="How long a message may take until it is delivered again."
)
@click.option(
    "--retries",
    type=click.IntRange(0, 999_999),
    default=10,
    show_default=True,
    help="How often a message is tried again after its first attempt, before it becomes a dead letter.",
)
@click.option(
    "--first-delay",
    default="5s",
    show_default=True,
    help="Delay before the first retry; each next one is twice as long.",
)
@click.option("--most-delay", default="1h", show_default=True, help="Longest delay before a retry.")
@click.option(
    "--member", metavar="NAME", help="Name of this process, the same after a restart; shortens the pause after a crash."
)
@click.option("--metrics-port", type=click.IntRange(0, 65_535), metavar="PORT", help="Port of /metrics and /health.")
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="Address of this port; 0.0.0.0: all.")
@click.pass_context
def run(
    ctx: click.Context,
    /,
    name: str,
    topic: str | None,
    function: str,
    concurrency: int,
    processes: int | None,
    ordered: bool,
    lease: str,
    retries: int,
    first_delay: str,
    most_delay: str,
    member: str | None,
    metrics_port: int | None,
    metrics_host: str,
) -> None:
    """Call MODULE:FUNCTION with each message of the queue NAME, until SIGTERM or Ctrl-C.

    A message is acknowledged when the function returns, and retried when it raises an exception. The function may call
    message.ack, retry, reject, extend and output. MODULE is imported from the current directory or the installed
    packages. An async function runs in one event loop.

    After the first signal the command calls the function with no further message. It ends with exit code 0 when all
    calls have returned. A second signal ends it at once.

    \b
      timers queue run jobs invoices:send --concurrency 8
      timers queue run jobs images:resize --processes 4 --lease 5m --metrics-port 9100
    """
    if processes and concurrency > 1:
        raise click.UsageError("give one of --concurrency, a number of threads, and --processes")
    lease_s = parse_duration(lease)
    delays = parse_duration(first_delay), parse_duration(most_delay)
    handler = _function(function)
    is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
    if is_async and processes:
        raise click.UsageError(
            f"{function!r} is async: give --concurrency, or a function without async for --processes"
        )
    settings = load_settings()
    logging.basicConfig(level=logging.INFO, format="[%(asctime)s] [%(levelname)s] %(message)s", stream=sys.stderr)
    make_safe(logging.root.handlers)
    logging.raiseExceptions = False  # if the function closes stderr, its lines are lost, and nothing else

    from timers.queue import Backoff, Queue  # not at the top: `--help` needs no librdkafka

    backoff = Backoff(first_s=delays[0], most_s=max(delays), retries=retries)
    queue = Queue(
        topic or name,
        name=name,
        brokers=settings.brokers,
        backoff=backoff,
        lease_s=lease_s,
        ordered=ordered,
        member=member,
    )
    with queue, ExitStack() as stack:
        if metrics_port is not None:
            stack.enter_context(_monitor(queue, metrics_port, metrics_host))
        say(f"handling messages of {quoted(name)} with {function} (Ctrl-C ends it)")
        stack.enter_context(on_signals(_STOP_SIGNALS, _stopper(queue)))
        if is_async:
            asyncio.run(_run_async(queue, handler, concurrency))
        else:
            queue.run(handler, concurrency=concurrency, processes=processes or 0)
    done = queue.counters()
    dead = counted(done.dead.total(), "dead letter")
    say(f"stopped: {done.acked:,} acknowledged, {done.retried:,} retried, {dead}")


def _function(text: str) -> Callable[[Any], Any]:
    module_name, colon, name = text.partition(":")
    if not colon or not module_name or not name:
        raise click.BadParameter(f"{quoted(text)} is not MODULE:FUNCTION, such as invoices:send")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise click.UsageError(f"{module_name!r} cannot be imported: {error}") from error
        raise click.BadParameter(
            f"there is no module {module_name!r} in {Path.cwd()} or among the installed packages"
        ) from error
    found = getattr(module, name, None)
    if found is None:
        functions = [each for each, value in vars(module).items() if inspect.isfunction(value) and each[0] != "_"]
        raise click.BadParameter(
            f"{module_name!r} has no {quoted(name)}; it has {', '.join(functions) or 'no functions'}"
        )
    if not callable(found):
        raise click.BadParameter(f"{quoted(text)} is no function, but of type {type(found).__name__}")
    handler: Callable[[Any], Any] = found
    return handler


def _stopper(queue: Queue) -> Callable[..., None]:
    """A handler of signals: the first one stops the queue, the second one ends the process."""

    def stop(number: int, _frame: object) -> None:
        if queue.stopping:
            os._exit(INTERRUPTED)
        queue.stop()
        os.write(2, b"stopping when the running functions have returned; a second signal ends this at once\n")

    return stop


def _monitor(queue: Queue, port: int, host: str) -> Any:
    with extra_of_missing_module("metrics"):
        from timers.queue.monitoring import Monitor

        monitor = Monitor(queue, port, host)
    say(f"metrics at http://{host}:{monitor.port}/metrics")
    return monitor


async def _run_async(queue: Queue, handler: Callable[[Any], Any], concurrency: int) -> None:
    from timers.queue import AsyncQueue

    await AsyncQueue(queue).run(handler, concurrency=concurrency)
