"""Which brokers and which worker a command asks.

It says within seconds that no broker can be reached, which librdkafka's calls say only at their timeouts.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import as_completed
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import click

from timers.cli.output import say
from timers.errors import TimersError
from timers.process.config import variables
from timers.process.config.project import project_broker, project_dir
from timers.process.config.settings import Settings, describe
from timers.process.http.asking import ask
from timers.process.threads import call_in_thread
from timers.wire.headers import TRACE_HEADERS

_P = ParamSpec("_P")
_T = TypeVar("_T")

WAIT_S = 1.5
"""Time for a broker to take a connection. With the start of Python a command says within 3 s that none does."""

_RETRY_S = 0.1

_GRACE_S = 0.5
"""Added for the threads, which may get the processor late on a busy machine."""


def load_settings() -> Settings:
    """The settings of a command that needs a broker, which must take a connection."""
    settings = Settings.load()
    check_brokers(settings)
    return settings


def traced(command: Callable[_P, _T]) -> Callable[_P, _T]:
    """Make a command that gives its timers the trace context of the environment: ``TRACEPARENT``, and with it
    ``TRACESTATE`` and ``BAGGAGE``, which tools for traces of shells and of CI set."""

    @wraps(command)
    def run(*arguments: _P.args, **options: _P.kwargs) -> _T:
        from timers.client import tracing  # not at the top: `--help` needs none of it

        with tracing.given(tracing.said({name: os.environ.get(name.upper(), "") for name in TRACE_HEADERS})):
            return command(*arguments, **options)

    return run


def names_brokers(settings: Settings) -> bool:
    return any(setting.env == "TIMERS_BROKERS" and from_env for setting, _, from_env in describe(settings))


def say_brokers(settings: Settings) -> None:
    """Say which brokers a command uses, and why, if neither the environment nor a project names them."""
    if names_brokers(settings) or settings.security_protocol != "PLAINTEXT" or project_broker() is not None:
        return
    project = project_dir()
    kind = f"the project in {project.parent}" if project.is_dir() else "this folder, and each one above it,"
    say(f"brokers: {settings.brokers}, because TIMERS_BROKERS is not set, and {kind} has no broker")


worker_option = click.option(
    "--worker",
    metavar="URL",
    help="Ask this worker, also without brokers; the command says of which cluster it is.",
)
"""Adds the option to a command."""


class WorkerToAsk:
    """The worker that a command asks: one of the brokers' cluster, unless ``--worker`` has named it."""

    def __init__(self, named: str | None) -> None:
        self._cluster_id: str | None = None
        self._says_cluster = bool(named)
        self._settings = Settings.load(needs_brokers=False) if named else load_settings()
        if named:
            self._settings = replace(self._settings, worker_url=variables.url("--worker", named))
            return

        from timers.kafka import topic_admin  # not at the top: `--help` needs no librdkafka

        self._cluster_id = topic_admin.cluster_id(self._settings)

    def ask(self, path: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        """The worker's answer. The first one of a worker that the user has named says of which cluster it is."""
        answer = ask(self._settings, path, parameters, self._cluster_id)
        if self._says_cluster:
            self._says_cluster = False
            app, cluster = answer.get("app"), answer.get("cluster")
            which = "says neither" if cluster is None else f"is of app {app!r} and cluster {cluster}"
            say(f"app and cluster were not compared: the worker at {self._settings.query_url} {which}")
        return answer


def check_brokers(settings: Settings) -> None:
    """Check that one of the brokers takes a connection within :data:`WAIT_S`, or raise TimersError."""
    say_brokers(settings)
    deadline, reason = time.monotonic() + WAIT_S, "no answer"
    # Threads, because a look-up of a name has no timeout, and must not hold up the end of the command.
    tries = [call_in_thread("timers-reach", _connect, each, deadline) for each in settings.brokers.split(",")]
    with suppress(TimeoutError):
        for each in as_completed(tries, WAIT_S + _GRACE_S):
            error = each.exception()
            if error is None:
                return
            reason = str(getattr(error, "strerror", None) or error)
    raise TimersError(
        f"no broker answers at {settings.brokers} ({reason}): is it running, and is TIMERS_BROKERS right? "
        "(`timers broker start` runs a broker on this machine)"
    )


def _connect(address: str, deadline: float) -> None:
    host, _, port = address.rpartition(":")
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=WAIT_S).close()
        except OSError:
            if time.monotonic() + _RETRY_S >= deadline:
                raise
            time.sleep(_RETRY_S)
        else:
            return
