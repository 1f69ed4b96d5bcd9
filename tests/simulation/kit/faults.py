"""Injected faults: the simulator chooses them, and the simulated log, store and worker ask for them."""

from collections import Counter

UNREACHABLE = "unreachable"
"""The brokers do not answer the next transaction, so the worker does not learn that it was fenced."""
REFUSED = "refused"
"""The brokers refuse a record of the next transaction."""
REQUEST_LOST = "request lost"
"""The next commit times out and has no effect."""
REPLY_LOST = "reply lost"
"""The next commit times out and takes effect."""
FENCED = "fenced"
"""Another worker fences the machine that is opened next."""
ALL = (UNREACHABLE, REFUSED, REQUEST_LOST, REPLY_LOST)


class Crashed(Exception):
    """The process crashed at a point; its memory is lost."""


class Unforeseen(Exception):
    """An exception that no code expects: the machine ends here, and the process goes on."""


class Violation(AssertionError):
    """A promise was broken."""


class Faults:
    """The faults of one worker.

    A step of a worker passes many points, and may crash at each of them.

    Attributes:
        passed: name of the last passed point; after a crash, the point of the crash.
        stepping: whether a machine does a step now.
        has_crashed: whether the process has crashed, and not started again: it does nothing more, such as closing.
    """

    def __init__(self) -> None:
        self.passed = ""
        self._armed: Counter[str] = Counter()
        self._points_left: int | None = None
        self._fails_after: int | None = None
        self._fails_at: str | None = None
        self._fails_stepping = False
        self.stepping = self.has_crashed = False
        self._at: str | None = None

    def arm(self, fault: str, times: int = 1) -> None:
        """Choose ``fault`` for the next ``times`` transactions."""
        self._armed[fault] += times

    def take(self, fault: str) -> bool:
        """Whether ``fault`` happens now; each call uses one of its times."""
        if not self._armed[fault]:
            return False
        self._armed[fault] -= 1
        return True

    def crash_after(self, points: int) -> None:
        """Crash after ``points`` more points."""
        self._points_left = points

    def fail_after(self, points: int, *, stepping: bool) -> None:
        """Raise an exception that no code expects after ``points`` more points of a step, or of an opening."""
        self._fails_after, self._fails_stepping = points, stepping

    def fail_at(self, name: str) -> None:
        """Raise an exception that no code expects at the next point with this name."""
        self._fails_at = name

    def crash_at(self, name: str) -> None:
        """Crash at the next point with this name."""
        self._at = name

    def point(self, name: str) -> None:
        """Crash here, or let the machine fail here, if it was chosen."""
        self.passed = name
        if self._fails_after is not None and self._fails_stepping == self.stepping:
            self._fails_after -= 1
        if self._fails_at == name or (self._fails_after is not None and self._fails_after < 0):
            self._fails_after = self._fails_at = None
            raise Unforeseen(name)
        if self._points_left is not None:
            self._points_left -= 1
        if self._at == name or (self._points_left is not None and self._points_left < 0):
            self._at = self._points_left = None
            self.has_crashed = True
            raise Crashed(name)

    def clear(self) -> None:
        """Remove all faults."""
        self._armed.clear()
        self._at = self._points_left = self._fails_after = self._fails_at = None
