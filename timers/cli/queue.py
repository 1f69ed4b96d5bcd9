"""``timers queue``: sends, receives and handles the messages of queues, and says how many there are."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click

from timers.cli.lazy import LazyGroup, extra_of_missing_module
from timers.cli.output import (
    INTERRUPTED_EXIT_CODE,
    Output,
    argument_bytes,
    confirm,
    metrics_options,
    output_option,
    require_terminal,
    say,
    say_metrics,
)
from timers.cli.reach import load_settings, traced
from timers.cli.timers import due_second, header, show_due
from timers.client.times import parse_duration
from timers.core.printable import json_value, one_line, quoted
from timers.errors import LeaseLostError, PublishError, QueueError, TimersError
from timers.process.counted import counted
from timers.process.limits import MAX_CONCURRENCY, MAX_PROCESSES
from timers.process.logs import make_safe
from timers.process.signals import on_signals
from timers.wire import topics

if TYPE_CHECKING:
    from timers.queue import Message, Queue
    from timers.queue.inspection import QueueStats

_COMMANDS = {
    "send": ("queue:send", "Send a message now or later, or a file of messages."),
    "receive": ("queue:receive", "Show messages, and acknowledge or reject them."),
    "run": ("queue:run", "Handle messages with a Python function until SIGTERM or Ctrl-C."),
    "stat": ("queue:stat", "Show how many messages wait, and how old the oldest is."),
    "list": ("queue:list_queues", "List the queues."),
    "dead": ("dead_letters:dead", "List the dead letters of a queue."),
    "redrive": ("dead_letters:redrive", "Put the dead letters of a queue back on the queue."),
    "purge": ("queue:purge", "Mark all messages of a queue as done."),
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
    lazy=_COMMANDS,
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
@traced
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
        settings.check_creation(topic)
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


_SAY_AFTER_S = 2.0
_SHOWN_BYTES = 200
_EXTEND_AFTER_S = 10.0
"""The leases of messages that are only shown are extended as often, so that no lease ends and uses up an attempt."""

_LEASE_S = 30.0


@click.command()
@queue_options
@click.option("--count", "-n", type=click.IntRange(1, 10_000), default=1, show_default=True, help="How many messages.")
@click.option(
    "--wait",
    "--timeout",
    "wait",
    default="10s",
    show_default=True,
    metavar="DURATION",
    help="End after this time without a message; it begins when the process has joined the queue.",
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
        is_joined = said = False
        while shown < count and time.monotonic() - last < wait_s:
            messages = queue.receive(count - shown)
            if not is_joined:
                is_joined, last = True, time.monotonic()
            for message in messages:
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
                for message in kept:
                    with suppress(LeaseLostError):  # the other processes have it, because its partition moved
                        message.extend(_LEASE_S)
            if not shown and not said and time.monotonic() - began > _SAY_AFTER_S:
                said = True
                say(f"waiting for messages of {name!r} ...")
        for message in kept:
            message.put_back()
        queue.settle()
    what = "acknowledged" if ack else "rejected" if reject is not None else "to be retried" if retry else "shown"
    say(f"{counted(shown, 'message')} {what}")


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


_LIST_COLUMNS = ("NAME", "TOPIC", "DEPTH", "OLDEST", "PROCESSES")
_LIST_WIDTHS = (32, 32, 12, 12, 0)


@click.command("list")
@output_option()
def list_queues(output: Output) -> None:
    """List the queues: each consumer group `queue.NAME`, with the messages that are not done.

    \b
      timers queue list
      timers queue list -o json | jq 'select(.depth > 1000)'
    """
    settings = load_settings()

    from tqdm import tqdm

    from timers.queue.inspection import Inspection  # not at the top: `--help` needs no librdkafka

    inspection = Inspection(settings)
    names = inspection.names()
    failures: dict[str, QueueError] = {}

    def rows() -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
        for name in tqdm(names, desc="reading queues", delay=2, leave=False, disable=None):
            try:
                stats = inspection.stats(name, with_delayed=False)
            except QueueError as error:
                failures[name] = error
                continue
            age_s = stats.oldest_age_s
            fields = {
                "name": name,
                "topic": stats.topic,
                "depth": stats.depth,
                "oldest_age_s": age_s,
                "processes": stats.processes,
            }
            age = "-" if age_s is None else f"{age_s:,.0f} s"
            yield fields, (name, stats.topic, f"{stats.depth:,}", age, str(stats.processes))

    output.table(_LIST_COLUMNS, _LIST_WIDTHS, rows())
    for error in failures.values():
        say(str(error))
    say(counted(len(names), "queue"))


@click.command()
@queue_options
@output_option()
def stat(name: str, topic: str | None, output: Output) -> None:
    """Show how many messages of the queue NAME wait, and how old the oldest one is.

    The command joins no group, so it does not disturb the queue. It knows what the processes have committed, which is
    0.1 s old while they run. It asks the worker at TIMERS_WORKER_URL for delayed messages.

    \b
      timers queue stat jobs
      timers queue stat jobs -o json | jq .depth
    """
    settings = load_settings()

    from timers.queue.inspection import Inspection  # not at the top: `--help` needs no librdkafka

    stats = Inspection(settings).stats(name, topic)
    output.show(asdict(stats), *_lines(stats, settings.query_url))


def _lines(stats: QueueStats, worker_url: str) -> list[str]:
    if stats.delayed is None:
        delayed = f"unknown: no worker of this app and cluster answers at {worker_url} (TIMERS_WORKER_URL)"
    else:
        delayed = f"{stats.delayed:,}{' or more' if stats.delayed_at_least else ''} timers, of retries and of delays"
    returned = sum(each.depth for each in stats.partitions if each.topic != stats.topic)
    age = "no message waits" if stats.oldest_age_s is None else f"came {stats.oldest_age_s:,.0f} s ago"
    rows = [
        ("queue", stats.name),
        ("topic", f"{stats.topic}, {sum(each.topic == stats.topic for each in stats.partitions)} partitions"),
        ("depth", f"{counted(stats.depth, 'message')} not done, {returned:,} of them from a retry"),
        ("delayed", delayed),
        ("oldest", age),
        ("processes", f"{stats.processes:,}"),
        *(("not read", f"{partition}: its leader does not answer") for partition in stats.unread),
    ]
    return [f"{label:<11}{text}" for label, text in rows]


@click.command()
@queue_options
@click.option("--yes", "-y", is_flag=True, help="Do not ask. Without a terminal it is required.")
@output_option()
def purge(name: str, topic: str | None, yes: bool, output: Output) -> None:
    """Mark all messages of the queue NAME as done, so that no process gets them. This cannot be undone.

    The topic keeps its records, and other queues and groups on it get them. Messages that a timer brings later, such as
    retries, still come. Stop the processes of the queue first: while one runs, the command fails.
    """
    if not yes:
        require_terminal("add --yes")
    settings = load_settings()

    from timers.queue.inspection import Inspection  # not at the top: `--help` needs no librdkafka

    inspection = Inspection(settings)
    topic = topic or inspection.topic_of(name)
    depth = inspection.stats(name, topic, with_delayed=False).depth
    messages = f"{counted(depth, 'message')} of {name!r}"
    if not yes and not confirm(f"Mark {messages} as done?"):
        say("nothing was changed")
        raise click.exceptions.Exit(1)
    inspection.purge(name, topic)
    output.show({"name": name, "topic": topic, "purged": depth}, f"done: {messages}")


_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_LEFT_THREADS_S = 5.0
"""How long the process of a queue waits at its end for threads that its handlers have left."""


@click.command()
@queue_options
@click.argument("function", metavar="MODULE:FUNCTION")
@click.option(
    "--concurrency",
    "-c",
    type=click.IntRange(1, MAX_CONCURRENCY),
    default=1,
    show_default=True,
    help="Threads; for an async function, tasks.",
)
@click.option("--processes", "-p", type=click.IntRange(1, MAX_PROCESSES), help="Child processes instead of threads.")
@click.option("--ordered", is_flag=True, help="One message of a key after the other; a retry delays the later ones.")
@click.option(
    "--lease",
    default="30s",
    show_default=True,
    help="A tenth of the time that a function may take until its message is delivered again.",
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
    "--jitter",
    type=click.FloatRange(0, 1),
    default=0.2,
    show_default=True,
    help="Largest share of a delay that is subtracted at random, so that what failed together does not come together.",
)
@click.option(
    "--member", metavar="NAME", help="Name of this process, the same after a restart; shortens the pause after a crash."
)
@click.option(
    "--accept-loss",
    metavar="TOPIC/PARTITION",
    multiple=True,
    help="Go on in a partition that has lost messages which were not done. For one start; may be repeated.",
)
@click.option("--tracebacks", is_flag=True, help="Log the traceback of each failure, not only of the first of a kind.")
@metrics_options
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
    jitter: float,
    member: str | None,
    accept_loss: tuple[str, ...],
    tracebacks: bool,
    metrics_port: int | None,
    metrics_host: str,
) -> None:
    """Call MODULE:FUNCTION with each message of the queue NAME, until SIGTERM or Ctrl-C.

    A message is acknowledged when the function returns, and retried when it raises an exception. The function may call
    message.ack, retry, reject, extend and output. MODULE is imported from the current directory or the installed
    packages. An async function runs in one event loop.

    After the first signal the command calls the function with no further message. When all calls have returned, it ends
    with exit code 0 after SIGTERM, and with 130 after Ctrl-C; with 1 if the brokers did not commit that the last
    messages are done, so they are delivered again. A second signal ends it at once.

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
    _log_to_stderr(tracebacks)

    from timers.queue import AsyncQueue, Backoff, Queue  # not at the top: `--help` needs no librdkafka

    backoff = Backoff(first_s=delays[0], most_s=max(delays), retries=retries, jitter=jitter)
    queue = Queue(
        topic or name,
        name=name,
        brokers=settings.brokers,
        backoff=backoff,
        lease_s=lease_s,
        ordered=ordered,
        member=member,
        accept_loss=accept_loss,
    )
    with _ending_in_time(queue):
        with queue, ExitStack() as stack:
            if metrics_port is not None:
                with extra_of_missing_module("metrics"):
                    from timers.queue.monitoring import Monitor
                monitor = stack.enter_context(Monitor(queue, metrics_port, metrics_host))
                say_metrics(metrics_host, monitor.port)
            signals: list[int] = []
            stack.enter_context(on_signals(_STOP_SIGNALS, _stopper(queue, signals)))
            say(f"handling messages of {quoted(name)} with {function} (Ctrl-C ends it)")
            if is_async:
                asyncio.run(_run_tasks(AsyncQueue(queue).run(handler, concurrency=concurrency)))
            else:
                queue.run(handler, concurrency=concurrency, processes=processes or 0)
        _report_end(queue, name)
        if signal.SIGINT in signals:
            ctx.exit(INTERRUPTED_EXIT_CODE)


async def _run_tasks(run: Awaitable[None]) -> None:
    try:
        await run
    finally:  # asyncio.run would wait for the threads in which handlers hang, such as those of asyncio.to_thread
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())


@contextmanager
def _ending_in_time(queue: Queue) -> Iterator[None]:
    """After the block, let threads in which handlers hang delay the end of the process by at most
    :data:`_LEFT_THREADS_S`.

    Python waits for threads of pools at its exit, and has no way to end one.
    """
    code = 0
    try:
        yield
    except BaseException as error:
        code = getattr(error, "exit_code", 1)
        raise
    finally:
        if queue.handlers.left:
            timer = threading.Timer(_LEFT_THREADS_S, os._exit, [code])
            timer.daemon = True
            timer.start()


def _log_to_stderr(tracebacks: bool) -> None:
    logging.basicConfig(level=logging.INFO, format="[%(asctime)s] [%(levelname)s] %(message)s", stream=sys.stderr)
    make_safe(logging.root.handlers)
    if tracebacks:
        logging.getLogger("timers.queue").setLevel(logging.DEBUG)
    logging.raiseExceptions = False  # if the function closes stderr, its lines are lost, and nothing else


def _report_end(queue: Queue, name: str) -> None:
    """Say what was done; QueueError if the brokers may not have all of it."""
    done = queue.counters()
    dead = counted(done.dead.total(), "dead letter")
    say(f"stopped: {done.acked:,} acknowledged, {done.retried:,} retried, {dead}")
    if queue.driver.lost_last_calls:
        raise QueueError(f"the queue {name!r} ended before its last calls were committed: messages are delivered again")


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


def _stopper(queue: Queue, signals: list[int]) -> Callable[..., None]:
    """A handler of signals, which notes them: the first one stops the queue, the second one ends the process."""

    def stop(number: int, _frame: object) -> None:
        signals.append(number)
        if queue.stopping:
            os._exit(INTERRUPTED_EXIT_CODE)
        queue.stop()
        os.write(2, b"stopping when the running functions have returned; a second signal ends this at once\n")

    return stop
