"""``timers run``, which ``make run`` calls: starts a broker, a worker, the demo and a console, and stops them."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import click

from timers.cli.demo import TOPIC, run_demo
from timers.cli.lazy import require
from timers.cli.output import Output, output_option, say
from timers.cli.reach import check_brokers, names_brokers
from timers.cli.worker import faust_command
from timers.config.project import project_broker, project_dir
from timers.config.settings import Settings
from timers.errors import SettingsError, TimersError
from timers.signals import END_SIGNALS, on_signals
from timers.worker.port import check_port

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
    require("worker")
    check_port(Settings.load())  # a worker without its port fails only after the broker has started
    with (
        on_signals(END_SIGNALS, _interrupt_once),
        _broker() as settings,
        _worker(settings) as worker,
        _console(settings) as start_console,
    ):
        _say_exports(settings)
        # The console starts when the worker fires: it does not take the processor from the start of the worker.
        run_demo(settings, topic, output, worker.check, start_console, "the worker is still starting")


def _interrupt_once(_number: int, _frame: FrameType | None) -> None:
    """Raise ``KeyboardInterrupt``, and ignore further signals while the command cleans up."""
    for number in END_SIGNALS:
        signal.signal(number, lambda *_: None)  # not SIG_IGN: Python raises OSError for a signal that arrived before
    raise KeyboardInterrupt


def _environment(settings: Settings) -> dict[str, str]:
    """The variables of worker and console. With this project's broker, the console writes and shows values."""
    trial = {} if names_brokers(settings) else {"TIMERS_CONSOLE_WRITE": "1", "TIMERS_QUERIES": "values"}
    return {**trial, **os.environ, "TIMERS_BROKERS": settings.brokers}


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
    settings = Settings.load()
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

    from timers.broker import EmbeddedBroker

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


class _Worker:
    """The worker's process. It has a session of its own, so that Ctrl-C reaches only this command."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    def check(self) -> None:
        """Raise if the worker has ended."""
        code = self._process.poll()
        if code is None:
            return
        ending = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        text = self._log.read_text(errors="replace")
        raise TimersError(f"the worker {ending}; its log {self._log} ends with: {last_error(text)}")

    def stop(self) -> None:
        """Stop the worker; kill it after 20 s, which loses no timer but makes the next start slower."""
        if self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            say(f"the worker did not stop within {_STOP_TIMEOUT_S:.0f} s: killing it")
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@contextmanager
def _console(settings: Settings) -> Iterator[Callable[[], None]]:
    """A function that starts the console, whose process prints its address. It is stopped at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        command = [sys.executable, "-m", "timers.cli.main", "console"]
        # A session of its own, so that Ctrl-C reaches only this command.
        started.append(
            subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, env=_environment(settings))
        )

    try:
        yield start
    finally:
        for process in started:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def _worker(settings: Settings) -> Iterator[_Worker]:
    log = project_dir() / "worker.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            faust_command((), settings),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=_environment(settings),
        )
    worker = _Worker(process, log)
    try:
        say(f"worker: process {process.pid}, log {log}")
        yield worker
    finally:
        with suppress(OSError):  # the reader of the output has ended, such as `make run | tee` after Ctrl-C
            say("stopping ...")
        worker.stop()
