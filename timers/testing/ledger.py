"""An outbox that keeps its output in lists, for tests of one machine without a simulated log."""

from __future__ import annotations

from collections.abc import Sequence

from timers.core.operation import Verdict
from timers.core.ports import Lost
from timers.core.progress import Progress
from timers.core.timer import Forwarded, Rejected, Row, Tick


class SimLedger:
    """Implements :class:`timers.core.ports.Outbox`.

    Attributes:
        commits: (fired order keys, rejected, progress) of each transaction.
        verdicts: of all commits, in their order.
        forwarded: offsets of forwarded cold requests, in the order of the commits.
        republished: offsets of republished versions, in the order of the commits.
        postponed: (order key, second of the retry), in the order of the commits.
        progress: progress of the last commit.
        failing: how many of the next commits fail.
        tick: tick of the last transaction.
    """

    def __init__(self) -> None:
        self.commits: list[tuple[list[tuple[int, int]], list[Rejected], Progress]] = []
        self.postponed: list[tuple[tuple[int, int], int]] = []
        self.verdicts: list[Verdict] = []
        self.forwarded: list[int] = []
        self.republished: list[int] = []
        self.progress = Progress()
        self.failing = 0
        self.tick: Tick | None = None
        self._fired: list[tuple[int, int]] = []
        self._rejected: list[Rejected] = []
        self._postponed: list[tuple[tuple[int, int], int]] = []
        self._verdicts: list[Verdict] = []
        self._forwarded: list[int] = []
        self._republished: list[int] = []

    @property
    def fired(self) -> list[tuple[int, int]]:
        """Order keys of all firings, in the order of the commits."""
        return [key for fired, _, _ in self.commits for key in fired]

    @property
    def rejected(self) -> list[tuple[int, str]]:
        """(offset, error code) of all dead letters."""
        return [(entry.offset, entry.code) for _, rejected, _ in self.commits for entry in rejected]

    def begin(self, tick: Tick) -> None:
        """Begin a transaction."""
        self.tick = tick
        self._fired, self._rejected, self._postponed, self._verdicts, self._forwarded = [], [], [], [], []
        self._republished = []

    def fire(self, due_s: int, rows: Sequence[Row]) -> None:
        """Add firings of one due second."""
        self._fired += [(due_s, row[0]) for row in rows]

    def postpone(self, due_s: int, rows: Sequence[Row], again_s: int) -> None:
        """Add postponed timers."""
        self._postponed += [((due_s, row[0]), again_s) for row in rows]

    def reject(self, rejected: Sequence[Rejected]) -> None:
        """Add dead letters."""
        self._rejected += rejected

    def answer(self, verdicts: Sequence[Verdict]) -> None:
        """Add verdicts."""
        self._verdicts += verdicts

    def forward(self, forwarded: Sequence[Forwarded]) -> None:
        """Add forwarded cold requests."""
        self._forwarded += [each.record.offset for each in forwarded]

    def republish(self, rows: Sequence[Row]) -> None:
        """Add republished versions."""
        self._republished += [row[0] for row in rows]

    def commit(self, progress: Progress) -> None:
        """Keep the output of the transaction, or fail."""
        if self.failing:
            self.failing -= 1
            raise Lost("told to fail")
        self.postponed += self._postponed
        self.verdicts += self._verdicts
        self.forwarded += self._forwarded
        self.republished += self._republished
        self.commits.append((self._fired, self._rejected, progress))
        self.progress = progress
