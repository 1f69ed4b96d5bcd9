"""Signal handlers that are set while a command runs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a command: Ctrl-C, a supervisor's stop, and a terminal that closes."""


@contextmanager
def on_signals(signals: Collection[signal.Signals], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call ``handler`` for these signals inside the block.

    A SIGHUP that is ignored stays so: ``nohup`` asks for it. An ignored SIGINT does not: shells ignore it for what a
    script starts in the background.
    """
    given = [each for each in signals if each != signal.SIGHUP or signal.getsignal(each) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in given}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before or signal.SIG_DFL)


def raise_interrupt(_number: int, _frame: FrameType | None) -> None:
    """A handler that ends a command as Ctrl-C does, so that it cleans up."""
    raise KeyboardInterrupt


_forking = threading.local()


@contextmanager
def children_ignoring_sigterm() -> Iterator[None]:
    """Child processes that this thread starts in the block by a fork ignore SIGTERM, and so do theirs. This process
    goes on handling it."""
    _forking.ignores_sigterm = True
    try:
        yield
    finally:
        _forking.ignores_sigterm = False


def _after_fork() -> None:
    if getattr(_forking, "ignores_sigterm", False):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


os.register_at_fork(after_in_child=_after_fork)
