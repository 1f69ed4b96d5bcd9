"""Limits the connections of an HTTP server, so that requests that were sent by half keep no other caller out."""

from __future__ import annotations

import logging
import resource
import threading
from collections.abc import Callable, Hashable
from time import monotonic
from typing import NamedTuple

logger = logging.getLogger(__name__)

HEAD_S = 10.0
"""Time for the head of a request: its first line and its headers."""

MAX_CONNECTIONS = 512
"""Maximum number of connections of one server. More than a kernel hands over at a time, so that a caller that sends its
head at once is not closed before it is read."""

FILES_SHARE = 8
"""At most one in this number of the files that the process may open is a connection of an HTTP server."""

LOG_S = 60.0
"""Seconds between two lines of the log."""


class _Open(NamedTuple):
    """A connection whose head has not been read."""

    close: Callable[[], None]
    since_s: float | None
    """When its head began; None: it is idle after an answer."""


class OpenConnections:
    """The connections of one server. Any thread.

    If there are too many, the one that has waited longest for the rest of its request's head is closed; if more than
    half of them are being answered, the one of these that began first. So a caller that sends its head at once always
    gets in.

    Args:
        server: what the log calls the server.
        limit: maximum number of connections; None: it follows from the process's limit of open files.
        now_s: a clock that never goes back.
        head_s: time for the head of a request.
    """

    def __init__(
        self, server: str, limit: int | None = None, now_s: Callable[[], float] = monotonic, head_s: float = HEAD_S
    ) -> None:
        if limit is None:
            limit = most_connections(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self.limit, self.head_s = limit, head_s
        self._server = server
        self._now_s = now_s
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, _Open] = {}
        """The one that has waited longest comes first."""
        self._answering: dict[Hashable, Callable[[], None]] = {}
        self._closed = 0
        self._logged_s = float("-inf")

    def opened(self, connection: Hashable, close: Callable[[], None]) -> None:
        """Note a new connection, after others were closed if there are too many. ``close`` must not block."""
        closing = []
        with self._lock:
            while len(self._waiting) + len(self._answering) >= self.limit:
                closing.append(self._take_oldest())
            self._waiting[connection] = _Open(close, self._now_s())
        self._close(closing)

    def received(self, connection: Hashable) -> None:
        """Note that bytes came. If the connection was idle, the head of its next request begins."""
        with self._lock:
            known = self._waiting.get(connection)
            if known is not None and known.since_s is None:
                self._waiting[connection] = known._replace(since_s=self._now_s())

    def answering(self, connection: Hashable) -> None:
        """Note that the head of a request was read."""
        with self._lock:
            known = self._waiting.pop(connection, None)
            if known is not None:
                self._answering[connection] = known.close

    def answered(self, connection: Hashable) -> None:
        """Note that a request was answered. The connection is idle until bytes come."""
        with self._lock:
            close = self._answering.pop(connection, None)
            if close is not None:
                self._waiting[connection] = _Open(close, None)

    def lost(self, connection: Hashable) -> None:
        """Forget a connection that is closed."""
        with self._lock:
            self._waiting.pop(connection, None)
            self._answering.pop(connection, None)

    def close_late(self) -> None:
        """Close the connections whose head has taken too long. Call it ten times in ``head_s``."""
        with self._lock:
            before_s = self._now_s() - self.head_s
            late = [
                each for each, known in self._waiting.items() if known.since_s is not None and known.since_s < before_s
            ]
            closing = [self._waiting.pop(each).close for each in late]
        self._close(closing)

    def close_oldest(self) -> None:
        """Close one connection, because the process may open no more files."""
        with self._lock:
            closing = [self._take_oldest()] if self._waiting or self._answering else []
        self._close(closing)

    def _take_oldest(self) -> Callable[[], None]:
        # Half of the connections is for callers whose head is not read yet. Bodies that never end do not fill it.
        if self._waiting and len(self._answering) <= self.limit // 2:
            return self._waiting.pop(next(iter(self._waiting))).close
        return self._answering.pop(next(iter(self._answering)))

    def _close(self, closing: list[Callable[[], None]]) -> None:
        if not closing:
            return
        for close in closing:
            close()
        with self._lock:
            self._closed += len(closing)
            count, now_s = self._closed, self._now_s()
            if now_s - self._logged_s < LOG_S:
                return
            self._closed, self._logged_s = 0, now_s
        logger.warning(
            "%s: connections closed: %d, because the head of a request did not come within %.0f s or more than %d were "
            "open; further ones are counted for a minute",
            *(self._server, count, self.head_s, self.limit),
        )


def most_connections(files: int) -> int:
    """Maximum number of connections of a server in a process that may open ``files`` files."""
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else max(8, min(MAX_CONNECTIONS, files // FILES_SHARE))
