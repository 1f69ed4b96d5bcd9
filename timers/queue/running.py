"""The threads that run handlers, and how they end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Protocol

from timers.errors import LeaseLostError
from timers.queue.message import Message

_WAIT_S = 0.5
"""Longest time until a thread without a message notices that it must end."""

_log = logging.getLogger("timers.queue")


class Handlers:
    """Counts the threads that run handlers of a queue, and tells them to end.

    Attributes:
        stopping: no handler begins any more.
    """

    def __init__(self) -> None:
        self.stopping = False
        self._running: set[int] = set()
        self._changed = threading.Condition()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the calling thread while the block runs."""
        me = threading.get_ident()
        with self._changed:
            self._running.add(me)
        try:
            yield
        finally:
            with self._changed:
                self._running.discard(me)
                self._changed.notify_all()

    def wait(self, wait_s: float) -> bool:
        """Wait until no other thread runs handlers; False if one does so after ``wait_s``."""
        deadline = monotonic() + wait_s
        with self._changed:
            while self._running - {threading.get_ident()}:
                if not self._changed.wait(deadline - monotonic()) and monotonic() >= deadline:
                    return False
        return True


class Receiving(Protocol):
    """What :func:`work` uses of a queue."""

    def receive(self, limit: int = 1, wait_s: float = 1.0) -> list[Message]: ...
    @property
    def stopping(self) -> bool: ...


def work(queue: Receiving, handle: Callable[[Message], None]) -> None:
    """Handle messages one after the other until the queue stops."""
    while not queue.stopping:
        for message in queue.receive(1, _WAIT_S):
            if queue.stopping:
                message.put_back()
                continue
            try:
                handle(message)
            except LeaseLostError as error:
                _log.warning("%s", error)
