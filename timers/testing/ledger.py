"""An outbox that only remembers: for trying out one machine by hand, without a log of transactions."""

from __future__ import annotations

from collections.abc import Sequence

from timers.core.operation import Verdict
from timers.core.ports import Lost
from timers.core.progress import Progress
from timers.core.timer import Forwarded, Rejected, Row, Tick


class SimLedger:
    """Implements :class:`timers.core.ports.Outbox`.

    Attributes:
        commits: what each transaction held: (keys fired in order, rejected, progress).
        verdicts: of all commits, in their order.
        forwarded: offsets of requests that went cold, in the order of the commits.
        again: offsets of the versions that were appended again, in the order of the commits.
        postponed: ((due second, offset), second it is asked for anew), in the order of the commits.
        progress: of the last commit.
        failing: commits that will fail from now on, before anything becomes visible.
        tick: that the last transaction was begun with.
    """

    def __init__(self) -> None:
        self.commits: list[tuple[list[tuple[int, int]], list[Rejected], Progress]] = []
        self.postponed: list[tuple[tuple[int, int], int]] = []
        self.verdicts: list[Verdict] = []
        self.forwarded: list[int] = []
        self.again: list[int] = []
        self.progress = Progress()
        self.failing = 0
        self.tick: Tick | None = None
        self._fired: list[tuple[int, int]] = []
        self._rejected: list[Rejected] = []
        self._postponed: list[tuple[tuple[int, int], int]] = []
        self._verdicts: list[Verdict] = []
        self._forwarded: list[int] = []
        self._again: list[int] = []

    @property
    def fired(self) -> list[tuple[int, int]]:
        """(due second, offset) of every firing, in the order of the commits."""
        return [key for fired, _, _ in self.commits for key in fired]

    @property
    def rejected(self) -> list[tuple[int, str]]:
        """(offset, code) of every dead letter."""
        return [(entry.offset, entry.code) for _, rejected, _ in self.commits for entry in rejected]

    def begin(self, tick: Tick) -> None:
        """Start collecting."""
        self.tick = tick
        self._fired, self._rejected, self._postponed, self._verdicts, self._forwarded = [], [], [], [], []
        self._again = []

    def fire(self, due_s: int, rows: Sequence[Row]) -> None:
        """Add firings of one due second."""
        self._fired += [(due_s, row[0]) for row in rows]

    def postpone(self, due_s: int, rows: Sequence[Row], again_s: int) -> None:
        """Note what is asked for anew."""
        self._postponed += [((due_s, row[0]), again_s) for row in rows]

    def reject(self, rejected: Sequence[Rejected]) -> None:
        """Add dead letters."""
        self._rejected += rejected

    def answer(self, verdicts: Sequence[Verdict]) -> None:
        """Add verdicts."""
        self._verdicts += verdicts

    def forward(self, forwarded: Sequence[Forwarded]) -> None:
        """Add requests that go cold."""
        self._forwarded += [each.record.offset for each in forwarded]

    def republish(self, rows: Sequence[Row]) -> None:
        """Note which versions are appended again."""
        self._again += [row[0] for row in rows]

    def commit(self, progress: Progress) -> None:
        """Make all of it visible."""
        if self.failing:
            self.failing -= 1
            raise Lost("told to fail")
        self.postponed += self._postponed
        self.verdicts += self._verdicts
        self.forwarded += self._forwarded
        self.again += self._again
        self.commits.append((self._fired, self._rejected, progress))
        self.progress = progress
