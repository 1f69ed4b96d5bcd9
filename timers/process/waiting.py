"""Waits with a time limit and messages, and holds the lock file with which one command runs at a time."""

from __future__ import annotations

import fcntl
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from timers.errors import TimersError

SHOW_AFTER_S = 2.0
"""Shorter waits show no message."""

_LINE_EVERY_S = 5
_POLL_S = 0.03


class TimedWait:
    """Shows what the command waits for, and for how long: ``starting broker ... 3 s``.

    A terminal shows one line that counts the seconds. Any other stream gets a new line every 5 s.
    """

    def __init__(self, message: str, out: TextIO | None, *, timeout_s: float = math.inf) -> None:
        self.message = message
        self._out = out
        self._began = time.monotonic()
        self._timeout_s = timeout_s
        self._terminal = out is not None and out.isatty()
        self._next_message_s = SHOW_AFTER_S
        self._shown = False

    def __enter__(self) -> TimedWait:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove the line from a terminal."""
        if self._shown and self._terminal and self._out:
            print("\r\x1b[K", end="", file=self._out, flush=True)

    @property
    def expired(self) -> bool:
        """Whether the time limit has passed."""
        return time.monotonic() - self._began >= self._timeout_s

    def pause(self) -> None:
        """Sleep for one polling interval, and show a message if the wait is long."""
        time.sleep(_POLL_S)
        waited_s = time.monotonic() - self._began
        if self._out is None or waited_s < self._next_message_s:
            return
        line = f"{self.message} ... {waited_s:.0f} s"
        print(f"\r{line}" if self._terminal else line, end="" if self._terminal else "\n", file=self._out, flush=True)
        self._shown = True
        self._next_message_s = int(waited_s) + (1 if self._terminal else _LINE_EVERY_S)


@contextmanager
def exclusive(
    lock: Path, message: str, out: TextIO | None, *, timeout_s: float, error: type[TimersError]
) -> Iterator[None]:
    """Hold a lock file. The system releases it when this process ends, also after a crash.

    Raises:
        error: another command holds it for longer than ``timeout_s``.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as file, TimedWait(message, out, timeout_s=timeout_s) as waiting:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if waiting.expired:
                    raise error(
                        f"{lock} has been held by another command for {timeout_s:.0f} s: end that one and try again"
                    ) from None
                waiting.pause()
        waiting.clear()
        yield
