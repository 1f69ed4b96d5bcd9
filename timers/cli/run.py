"""``timers run``, which ``make run`` calls: broker, worker and demo on this machine, and nothing left of them after."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from timers.cli.demo import TOPIC, run_demo
from timers.cli.worker import faust_command
from timers.config.project import project_broker, project_dir
from timers.config.settings import Settings, describe
from timers.errors import SettingsError, TimersError
from timers.worker.port import check_port

_STOP_TIMEOUT_S = 20.0
_ERROR = re.compile(r"^(?:\[.*\[(?:ERROR|CRITICAL)\] (?:\[[^\]]*\]: )?|timers: )(?P<text>.+)$", re.MULTILINE)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--topic", "-t", default=TOPIC, show_default=True, help="Where the callbacks go; created when missing.")
def run(topic: str) -> None:
    """Start a broker and a worker on this machine, and show timers fire until Ctrl-C.

    With TIMERS_BROKERS set, or this project's broker running, that broker is used and left alone. Everything that this
    command started, it stops. The worker's log is .timers/worker.log.
    """
    check_port(Settings.load())  # before a broker is started for nothing
    with _signals_as_ctrl_c(), _broker() as settings, _worker(settings) as worker:
        run_demo(settings, topic, worker.check)


@contextmanager
def _signals_as_ctrl_c() -> Iterator[None]:
    """Every signal that means "end" ends this command the same way; while it tidies up, further ones are ignored."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in _ENDING:
            signal.signal(number, ignore)  # not SIG_IGN: a signal that had come already would be an OSError of Python's
        raise KeyboardInterrupt

    def ignore(_number: int, _frame: FrameType | None) -> None:
        pass

    before = {number: signal.signal(number, interrupt) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _broker() -> Iterator[Settings]:
    """The settings of a broker that answers, started here if there is none; then stopped here, too."""
    settings = Settings.load()
    given = any(setting.env == "TIMERS_BROKERS" and from_env for setting, _, from_env in describe(settings))
    if given or project_broker() is not None:
        click.echo(f"using the broker at {settings.brokers}", err=True)
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
        click.echo(f"broker: {broker.start()}", err=True)
        yield Settings.load()
    finally:
        broker.stop()


def last_error(log: str) -> str:
    """What a worker's log says went wrong: its last error, else its last line. Faust goes on to log its shutdown."""
    errors = [found["text"].strip() for found in _ERROR.finditer(log)]
    lines = [line.strip() for line in log.splitlines() if any(map(str.isalnum, line))]
    return (errors or lines or ["nothing"])[-1]


class _Worker:
    """The worker's process: one that this command started, in a session of its own so that Ctrl-C reaches only us."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    def check(self) -> None:
        """Raise if the worker has ended.

        Raises:
            TimersError: it has, with the last error of its log.
        """
        code = self._process.poll()
        if code is None:
            return
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        text = self._log.read_text(errors="replace")
        raise TimersError(f"the worker {how}; the last word of its log {self._log}: {last_error(text)}")

    def stop(self) -> None:
        """End the worker cleanly; by force if that takes too long, which loses nothing but time at the next start."""
        if self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            click.echo(f"the worker did not stop within {_STOP_TIMEOUT_S:.0f} s: killing it", err=True)
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


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
            env={**os.environ, "TIMERS_BROKERS": settings.brokers},
        )
    worker = _Worker(process, log)
    try:
        click.echo(f"worker: process {process.pid}, log {log}", err=True)
        yield worker
    finally:
        click.echo("stopping ...", err=True)
        worker.stop()
