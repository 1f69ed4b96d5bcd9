"""The relay as a thread of a service, in place of a process ``timers outbox run``."""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from typing import Self

from timers.client.outbox import DEFAULT_TABLE
from timers.outbox.databases import database
from timers.outbox.relay import Counters, Relay
from timers.process.config.settings import Settings
from timers.process.threads import call_in_thread, log_failure, tell_of_forks

_END_S = 15.0
"""Longest time for the end of the thread, in which it waits for brokers and for the database."""


class Relaying:
    """Sends the rows of a table while its block runs, once, in a thread::

        with Relaying("postgresql://relay@db/shop"):
            serve()

    Each process of a service may have one: one of them sends, and another one goes on when it ends. The end of the
    block takes about a second, and 15 s at most; rows that are left wait for the next relay. In a process that is
    forked inside the block there is no relay: begin it in the processes that serve.

    Args:
        database_url: ``postgresql://user@host/name``, or ``sqlite:`` and a path; without a password.
        table: table, or ``schema.table``.
        settings: of the app that fires the timers; None: those of the environment.

    Attributes:
        relay: for :func:`timers.outbox.monitoring.monitor`, which shows metrics and health.

    Raises:
        SettingsError: the URL, the table or a setting is wrong. A database or brokers that do not answer are waited
            for.
        ImportError: it is PostgreSQL, and psycopg is not installed.
    """

    def __init__(self, database_url: str, *, table: str = DEFAULT_TABLE, settings: Settings | None = None) -> None:
        self._rows = database(database_url, table)
        self.relay = Relay(self._rows, settings or Settings.load())
        self._stop = threading.Event()
        self._thread: Future[None] | None = None
        tell_of_forks(self)

    @property
    def counters(self) -> Counters:
        """What it has done, and why it does not work now."""
        return self.relay.counters

    def __enter__(self) -> Self:
        self._thread = call_in_thread("timers-outbox-relay", self.relay.run, self._stop)
        self._thread.add_done_callback(log_failure("the relay of the outbox has ended, and sends no rows"))
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            wait([self._thread], _END_S)

    def after_fork(self) -> None:
        """Leave table and database to the process that was forked. Else no other relay could begin while this process
        runs."""
        self._thread = None
        self._rows.forget()
