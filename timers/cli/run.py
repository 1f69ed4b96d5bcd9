"""``timers worker`` and ``console``, and ``run``, which ``make run`` calls: it starts them, a broker and a demo."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from timers.cli.lazy import require
from timers.cli.output import Output, output_option, say
from timers.cli.reach import check_brokers, names_brokers, say_brokers
from timers.core.printable import quoted
from timers.errors import SettingsError, TimersError, UnacknowledgedError, UnreachableError
from timers.process.config.project import project_broker, project_dir
from timers.process.config.settings import Settings
from timers.process.signals import END_SIGNALS, on_signals
from timers.wire import headers, topics
from timers.worker.port import check_port

if TYPE_CHECKING:
    from timers.client import TimersClient


def faust_command(options: tuple[str, ...], settings: Settings) -> list[str]:
    """The Faust command line of a worker, with this project's defaults for options that are missing."""
    quiet = ["--quiet"] if settings.log_format == "json" else []  # else Faust prints the names of signals
    command = [sys.executable, "-m", "timers.worker", "-A", "timers.app", *quiet, "worker"]
    if not _has_option(options, "--loglevel", "-l"):
        command += ["-l", "info"]
    if not _has_option(options, "--web-port", "-p"):
        command += ["--web-port", str(settings.web_port)]
    return [*command, *options]


def _has_option(options: tuple[str, ...], long: str, short: str) -> bool:
    return any(option == long or option.startswith((f"{long}=", short)) for option in options)


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.argument("options", metavar="[FAUST WORKER OPTIONS]...", nargs=-1, type=click.UNPROCESSED)
def worker(options: tuple[str, ...]) -> None:
    """Run the worker, which fires timers: faust -A timers.app worker -l info.

    Options go to Faust as they are (`faust worker --help` lists them). Ctrl-C or SIGTERM stops it cleanly. More workers
    share the load; on one machine each needs its own TIMERS_WEB_PORT.
    """
    require("worker")
    settings = Settings.load()  # also here: an error is one sentence, without Faust's traceback
    say_brokers(settings)
    if not _has_option(options, "--web-port", "-p"):
        check_port(settings)
    command = faust_command(options, settings)
    sys.stdout.flush()
    os.execv(command[0], command)


_TOKEN_BYTES = 32


@click.command()
@click.option("--hash-password", is_flag=True, help="Read a password, and print its hash for the file of users.")
@click.option("--new-token", is_flag=True, help="Print a new bearer token, and its hash for the file of users.")
def console(hash_password: bool, new_token: bool) -> None:
    """Run the console: an HTTP API, with pages for a browser, to set, find, change and watch timers.

    It keeps no state. It asks the brokers at TIMERS_BROKERS and the worker at TIMERS_WORKER_URL. By default it only
    reads, and only this machine reaches it: docs/http-api.md says who may do what.

    \b
      TIMERS_CONSOLE_WRITE=1 timers console
      curl http://127.0.0.1:6067/v1/timers
    """
    require("console")
    if hash_password or new_token:
        _print_hash(new_token)
        return
    settings = Settings.load()
    say_brokers(settings)

    from timers.console.access import check_settings
    from timers.console.web.server import local_url

    check_settings(settings)
    if settings.console_oidc_issuer:
        require("oidc")
    asyncio.run(_serve(settings, local_url(settings)))


def _print_hash(new_token: bool) -> None:
    from timers.console import access

    if new_token:
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        say(f"token: {token}")
        Output().show({}, f'token_sha256 = "{access.hash_token(token)}"')
        return
    if sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise click.UsageError("the password is empty")
    Output().show({}, f'password = "{access.hash_password(password)}"')


async def _serve(settings: Settings, url: str) -> None:
    from timers.console.kafka_cluster import KafkaCluster
    from timers.console.web.server import Server, tls_context
    from timers.process.http.web_site import LimitedSite

    cluster = KafkaCluster(settings)
    try:
        server, tls = Server(settings, cluster), tls_context(settings)
        runner = server.runner()
        await runner.setup()
        ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        try:
            await LimitedSite(runner, settings.console_bind, settings.console_port, server.connections, tls).start()
            say(f"console: {url} ({'reads and writes' if settings.console_write else 'only reads'})")
            await ended.wait()
        except OSError as error:
            raise SettingsError(
                f"the console cannot listen at TIMERS_CONSOLE_BIND={settings.console_bind} "
                f"TIMERS_CONSOLE_PORT={settings.console_port} ({error.strerror}): choose another port"
            ) from None
        finally:
            await runner.cleanup()
    finally:
        await cluster.close()


TOPIC = "timers-demo"
_FIRST_TIMERS = 20
_FIRST_SPAN_S = 10
_RUN = "demo-run"
"""Header with an id of this run: it distinguishes its timers from those of earlier runs, which may still be pending."""
_POLL_S = 0.5


def _demo(
    settings: Settings, topic: str, output: Output, check_worker: Callable[[], None], when_firing: Callable[[], object]
) -> None:
    """Set timers, and show each one fire, until it is interrupted.

    Args:
        check_worker: called several times a second; raises to end the demo.
        when_firing: called once, when the worker has begun to fire.
    """
    from timers.client import TimersClient
    from timers.kafka import topic_admin  # not at the top: `--help` needs no librdkafka
    from timers.kafka.records import TopicReader

    topic_admin.create_if_missing(settings, topic, partitions=1)
    say("waiting until the worker fires timers ...")
    with TopicReader(settings, topic) as reader, TimersClient(settings.brokers, timeout_s=10) as client:
        while not (reader.assign_partitions() and topic_admin.exists(settings, settings.request_topic)):
            check_worker()
            time.sleep(_POLL_S)
        show_timers(client, reader, topic, output, check_worker, when_firing)


def show_timers(
    client: TimersClient,
    messages: Iterable[Any],
    topic: str,
    output: Output,
    check_worker: Callable[[], None],
    when_firing: Callable[[], object],
) -> None:
    """Set 20 timers for the first 10 s, then one a second, and show the callbacks among ``messages``.

    A timer that is due already comes first, so the lags do not include the start of the worker.
    """
    from timers.offline.fired import CallbackRecord

    run, count, next_s, says_others = {_RUN: secrets.token_hex(4)}, 0, 0, False

    def schedule(at_s: int) -> bool:
        """Whether the brokers took the next timer. If they do not answer, this command goes on, as workers do."""
        nonlocal count
        count += 1
        try:
            client.schedule(topic, f"demo-{count - 1}", "hello, later", at=at_s, headers=run)
        except (UnreachableError, UnacknowledgedError) as error:
            say(f"{error}. Going on ...")
            return False
        return True

    while not schedule(int(time.time())):
        count = 0
        check_worker()
    for message in messages:
        check_worker()
        record = None if message is None else CallbackRecord.of(message)
        if record is not None and headers.last(record.headers, _RUN) == run[_RUN].encode():
            if next_s:
                output.show(record.fields(), record.line(), fg="green")
            else:
                when_firing()
                begin_s = int(time.time()) + 1
                for number in range(_FIRST_TIMERS):
                    schedule(begin_s + number * _FIRST_SPAN_S // _FIRST_TIMERS)
                say(f"{_FIRST_TIMERS} timers are set for the next {_FIRST_SPAN_S} s, then one a second; Ctrl-C ends it")
                next_s = begin_s + _FIRST_SPAN_S
        elif record is not None and not says_others:
            says_others = True
            say("callbacks of other timers, such as those of an earlier demo, arrive too: they are not shown")
        if next_s and time.time() >= next_s - 1:  # one second before it is due
            schedule(next_s)
            next_s = max(next_s + 1, int(time.time()) + 1)


_STOP_TIMEOUT_S = 20.0
_ERROR = re.compile(r"^(?:\[.*\[(?:ERROR|CRITICAL)\] (?:\[[^\]]*\]: )?|timers: )(?P<text>.+)$", re.MULTILINE)


@click.command()
@click.option("--topic", "-t", default=TOPIC, show_default=True, help="Where the callbacks go; created when missing.")
@output_option()
def run(topic: str, output: Output) -> None:
    """Start a broker, a worker and a console on this machine, and show timers fire until Ctrl-C.

    With TIMERS_BROKERS set, or this project's broker running, that broker is used and not stopped. The command stops
    what it started. The worker's log is .timers/worker.log. With the broker of this project, the console may set and
    cancel timers (TIMERS_CONSOLE_WRITE), and shows their values (TIMERS_QUERIES).
    """
    if not topics.is_legal(topic):
        raise click.BadParameter(f"{quoted(topic)} is not {topics.LEGAL_FORM}", param_hint="--topic")
    require("worker")
    with (
        _only_one(),
        on_signals(END_SIGNALS, _interrupt_once),
        _broker() as settings,
        _worker(settings) as check_worker,
        ExitStack() as stack,
    ):
        _say_exports(settings)
        # The console starts when the worker has begun to fire: it does not take the processor from the start of the
        # worker.
        console = [sys.executable, "-m", "timers.cli.main", "console"]
        start = partial(stack.enter_context, _running("console", console, settings))
        _demo(settings, topic, output, check_worker, start)


@contextmanager
def _only_one() -> Iterator[None]:
    """Hold the lock of this project, and check what a worker needs before a broker starts.

    Raises:
        TimersError: this command runs in the project already. A second one would take its log and its data.
        SettingsError: the port of the worker is taken.
    """
    lock = project_dir() / "run.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise TimersError(
                f"`timers run` runs already in the project in {lock.parent.parent} (process {file.read().strip()}): "
                "use it from this terminal, or end it there with Ctrl-C"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        check_port(Settings.load(needs_brokers=False))
        yield


def _interrupt_once(_number: int, _frame: FrameType | None) -> None:
    """Raise ``KeyboardInterrupt``, and ignore further signals while the command cleans up."""
    for number in END_SIGNALS:
        signal.signal(number, lambda *_: None)  # not SIG_IGN: Python raises OSError for a signal that arrived before
    raise KeyboardInterrupt


def _say_exports(settings: Settings) -> None:
    """Say which variables a command in another terminal or folder needs to reach what this one has started."""
    defaults = Settings.load({"TIMERS_BROKERS": settings.brokers})
    needed = {"TIMERS_BROKERS": settings.brokers}
    if settings.app_id != defaults.app_id:
        needed["TIMERS_APP_ID"] = settings.app_id
    if settings.query_url != defaults.query_url:
        needed["TIMERS_WORKER_URL"] = settings.query_url
    exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in needed.items())
    say(f"for commands in another terminal: export {exports}")


@contextmanager
def _broker() -> Iterator[Settings]:
    """Settings that name a running broker. It is started, and stopped at the end, if there is none."""
    settings = Settings.load(needs_brokers=False)
    if names_brokers(settings) or project_broker() is not None:
        if names_brokers(settings):
            say(f"using the broker at {settings.brokers}")
        check_brokers(settings)
        yield settings
        return

    if settings.security_protocol != "PLAINTEXT":
        raise SettingsError(
            f"TIMERS_SECURITY_PROTOCOL={settings.security_protocol!r} needs TIMERS_BROKERS: the broker that this "
            "command would start speaks PLAINTEXT"
        )

    from timers.cli.broker import EmbeddedBroker

    broker = EmbeddedBroker.of_project(out=sys.stderr)
    try:
        say(f"broker: {broker.start()}")
        yield Settings.load()
    finally:
        broker.stop()


def last_error(log: str) -> str:
    """The last error in a worker's log, else its last line. Faust logs its shutdown after an error."""
    errors = [found["text"].strip() for found in _ERROR.finditer(log)]
    lines = [line.strip() for line in log.splitlines() if any(map(str.isalnum, line))]
    return (errors or lines or ["nothing"])[-1]


def _check_worker(process: subprocess.Popen[bytes], log: Path) -> None:
    """Raise if the worker has ended."""
    code = process.poll()
    if code is None:
        return
    ending = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    text = log.read_text(errors="replace")
    raise TimersError(f"the worker {ending}; its log {log} ends with: {last_error(text)}")


def _end(process: subprocess.Popen[bytes], what: str) -> None:
    """Stop a process; kill it after 20 s. A worker that is killed loses no timer, but its next start is slower."""
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        say(f"the {what} did not stop within {_STOP_TIMEOUT_S:.0f} s: killing it")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def _running(what: str, command: list[str], settings: Settings, **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process, and stop it at the end. Its session is its own: Ctrl-C reaches only this command.

    With this project's broker, the console writes and shows values.
    """
    trial = {} if names_brokers(settings) else {"TIMERS_CONSOLE_WRITE": "1", "TIMERS_QUERIES": "values"}
    environment = {**trial, **os.environ, "TIMERS_BROKERS": settings.brokers}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, env=environment, **streams)
    try:
        yield process
    finally:
        _end(process, what)


@contextmanager
def _worker(settings: Settings) -> Iterator[Callable[[], None]]:
    """A function that raises if the worker has ended."""
    log = project_dir() / "worker.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("wb") as output,
        _running("worker", faust_command((), settings), settings, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            say(f"worker: process {process.pid}, log {log}")
            yield partial(_check_worker, process, log)
        finally:
            with suppress(OSError):  # the reader of the output has ended, such as `make run | tee` after Ctrl-C
                say("stopping ...")
