"""How many machines this process can open: each takes open files and a thread.

A process that reaches one of these limits fails in any place: a store is half made, a connection is not accepted. So
the limits are looked at when the worker starts, and a machine that does not fit is not begun.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from timers.core.ports import Lost
from timers.process import limits as process_limits
from timers.process.config.settings import Settings
from timers.process.http.open_connections import MAX_CONNECTIONS

STORE_FILES = 7
"""Files of a store without tables: write-ahead log, manifest, log, lock, twice its directory; one more in a flush."""

FEWEST_TABLES, MOST_TABLES = 10, 246
"""Tables that a store keeps open. If it has more, it opens them again and again."""

BASE_FILES, BASE_CONNECTIONS = 100, 45
"""Files of a worker without machines and without its web port, and its connections to each broker: of its other clients
and of the openings that are under way."""

BASE_THREADS = 310
"""Threads of a worker without machines: up to 256 that open machines, and those of its clients and of RocksDB."""

BASE_BYTES, MACHINE_BYTES = 110 * 2**20, int(1.2 * 2**20)
"""Memory of a worker without the limit of its stores, and of each machine."""

_PAGE = "docs/operations.md#open-files-threads-and-memory"


class NoRoom(Lost):
    """A machine does not fit into the limits of the process. It is tried again, because others may close."""


class Limit(NamedTuple):
    """A limit of the process."""

    name: str
    value: int
    base: int
    """What the process takes without machines."""
    each: int
    """What a machine takes."""
    remedy: str
    more: int = 0
    """What the process takes beside :attr:`base` if the limit is higher."""

    @property
    def machines(self) -> int:
        """How many machines fit; one is always tried."""
        return max(1, (self.value - self.base) // self.each)

    def needed(self, machines: int) -> int:
        """The value with which so many machines fit."""
        return self.base + self.more + self.each * machines


class Capacity:
    """Admits as many machines as the limits of the process allow. Any thread.

    Attributes:
        most: number of machines that fit at the same time; before :meth:`measure` there is no limit.
        tables: number of tables that each store may keep open.
    """

    def __init__(self) -> None:
        self.most = 2**63
        self.tables = MOST_TABLES
        self._limit: Limit | None = None
        self._lock = threading.Lock()
        self._open = 0

    def measure(self, files: int, threads: int, connections: int, brokers: int, machines: int) -> None:
        """Compute what fits.

        Args:
            files: how many files the process may open.
            connections: maximum number of connections of its web port.
            machines: how many the process would have as the only worker of the app.
        """
        base = BASE_FILES + BASE_CONNECTIONS * brokers + connections
        without_tables = STORE_FILES + brokers + 1  # a producer has two connections to its coordinator
        limits = [
            Limit(
                "open files",
                files,
                base,
                without_tables + FEWEST_TABLES,
                "the hard limit of open files (ulimit -Hn)",
                MAX_CONNECTIONS - connections,
            ),
            Limit("threads", threads, BASE_THREADS, 1, "the limit of threads (ulimit -u, pids.max)"),
        ]
        self._limit = min(limits, key=lambda limit: limit.machines)
        self.most = self._limit.machines
        left = (files - base) // max(1, min(machines, self.most)) - without_tables
        self.tables = max(FEWEST_TABLES, min(MOST_TABLES, left))

    def shortage(self, machines: int) -> str:
        """Returns a sentence if not all machines of the app fit; else an empty text."""
        limit = self._limit
        if limit is None or machines <= self.most:
            return ""
        return (
            f"this worker can open {self.most} of the app's {machines} partitions, because its limit of {limit.name} "
            f"is {limit.value}. As the only worker it would leave the timers of the others waiting: raise "
            f"{limit.remedy} to {limit.needed(machines)}, or run {-(-machines // self.most)} workers ({_PAGE})"
        )

    def enter(self) -> None:
        """Count a machine that is about to be opened.

        Raises:
            NoRoom: it does not fit.
        """
        with self._lock:
            if self._open < self.most:
                self._open += 1
                return
        assert self._limit is not None
        raise NoRoom(
            f"it does not fit into this worker, which can open {self.most} partitions with its limit of "
            f"{self._limit.value} {self._limit.name}; it waits until another one closes. Run one more worker, or raise "
            f"{self._limit.remedy} ({_PAGE})"
        )

    def leave(self) -> None:
        """Count a machine that is closed, or could not be opened."""
        with self._lock:
            self._open -= 1


def memory_shortage(settings: Settings, machines: int) -> str:
    """Returns a sentence if the machines of the app may need more memory than the process may have; else no text."""
    limit = process_limits.most_memory_bytes()
    needed = BASE_BYTES + settings.store_memory_bytes + MACHINE_BYTES * machines
    if needed <= limit:
        return ""
    return (
        f"this worker may have {limit // 2**20} MB of memory, and may need {needed // 2**20} MB as the only worker of "
        f"the app's {machines} partitions: give it more, or lower TIMERS_STORE_MEMORY_MB={settings.store_memory_mb} "
        f"({_PAGE})"
    )
