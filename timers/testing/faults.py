"""What goes wrong, and where: the fakes ask, the simulator answers."""

from __future__ import annotations

from collections import Counter

UNREACHABLE = "unreachable"
"""The brokers do not answer the next transaction at all: not even that it was fenced."""
REFUSED = "refused"
"""The next transaction has a record that the brokers do not take."""
REQUEST_LOST = "request lost"
"""The next commit times out and was not done."""
REPLY_LOST = "reply lost"
"""The next commit times out and was done."""
ALL = (UNREACHABLE, REFUSED, REQUEST_LOST, REPLY_LOST)


class Crashed(Exception):
    """The process died here. Nothing that stood in its memory is left."""


class Faults:
    """Faults armed for one worker.

    A step of a worker passes many points; between any two of them the process may die. :meth:`crash_after` says how
    many more are passed.

    Attributes:
        passed: name of the last point passed; says where a crash struck.
    """

    def __init__(self) -> None:
        self.passed = ""
        self._armed: Counter[str] = Counter()
        self._points_left: int | None = None
        self._at: str | None = None

    def arm(self, fault: str, times: int = 1) -> None:
        """Let ``fault`` happen at the next ``times`` occasions."""
        self._armed[fault] += times

    def take(self, fault: str) -> bool:
        """Whether ``fault`` happens now; it is then used up."""
        if not self._armed[fault]:
            return False
        self._armed[fault] -= 1
        return True

    def crash_after(self, points: int) -> None:
        """Die after passing ``points`` more points."""
        self._points_left = points

    def crash_at(self, name: str) -> None:
        """Die at the next point of this name."""
        self._at = name

    def point(self, name: str) -> None:
        """A place where the process may die.

        Raises:
            Crashed: it does.
        """
        self.passed = name
        if self._points_left is not None:
            self._points_left -= 1
        if self._at == name or (self._points_left is not None and self._points_left < 0):
            self._at = self._points_left = None
            raise Crashed(name)

    def clear(self) -> None:
        """Nothing goes wrong any more."""
        self._armed.clear()
        self._at = self._points_left = None
