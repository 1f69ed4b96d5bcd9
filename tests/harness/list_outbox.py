"""An outbox that keeps its output in lists, for tests of one machine without a simulated log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from timers.core.limits import ChunkSize
from timers.core.operation import Verdict
from timers.core.ports import Lost
from timers.core.progress import Progress
from timers.core.timer import DueRows, Forwarded, Rejected, Row, Tick


class ListOutbox:
    """Implements :class:`timers.core.ports.Outbox`.

    Attributes:
        commits: (fired order keys, rejected, progress) of each transaction.
        verdicts: of all commits, in their order.
        forwarded: offsets of forwarded cold requests, in the order of the commits.
        republished: offsets of republished versions, in the order of the commits.
        postponed: (order key, second of the retry), in the order of the commits.
        rescued: order keys of timers, and (id, offset) of cancels, that a log has lost, in the order of the commits.
        progress: progress of the last commit.
        failing: how many of the next commits fail.
        tick: tick of the last transaction.
        chunk: limits the next transaction.
    """

    def __init__(self) -> None:
        self.commits: list[tuple[list[tuple[int, int]], list[Rejected], Progress]] = []
        self.postponed: list[tuple[tuple[int, int], int]] = []
        self.verdicts: list[Verdict] = []
        self.forwarded: list[int] = []
        self.republished: list[int] = []
        self.rescued: list[tuple[int, int] | tuple[bytes, int]] = []
        self.progress = Progress()
        self.failing = 0
        self.chunk = ChunkSize()
        self.tick: Tick | None = None
        self._open: dict[str, list[Any]] = defaultdict(list)
        """Name of an attribute -> what the open transaction adds to it."""

    @property
    def fired(self) -> list[tuple[int, int]]:
        """Order keys of all firings, in the order of the commits."""
        return [key for fired, _, _ in self.commits for key in fired]

    @property
    def rejected(self) -> list[tuple[int, str]]:
        """(offset, error code) of all dead letters."""
        return [(entry.offset, entry.code) for _, rejected, _ in self.commits for entry in rejected]

    def begin(self, tick: Tick) -> None:
        self.tick = tick
        self._open = defaultdict(list)

    def fire(self, due: Sequence[DueRows]) -> None:
        self._open["fired"] += [(due_s, row[0]) for due_s, rows in due for row in rows]

    def postpone(self, due_s: int, rows: Sequence[Row], again_s: int) -> None:
        self._open["postponed"] += [((due_s, row[0]), again_s) for row in rows]

    def reject(self, rejected: Sequence[Rejected]) -> None:
        self._open["rejected"] += rejected

    def rescue(self, timers: Sequence[tuple[int, Row]], cancels: Sequence[tuple[bytes, int]]) -> None:
        self._open["rescued"] += [*((due_s, row[0]) for due_s, row in timers), *cancels]

    def answer(self, verdicts: Sequence[Verdict]) -> None:
        self._open["verdicts"] += verdicts

    def forward(self, forwarded: Sequence[Forwarded]) -> None:
        self._open["forwarded"] += [each.record.offset for each in forwarded]

    def republish(self, rows: Sequence[Row]) -> None:
        self._open["republished"] += [row[0] for row in rows]

    def commit(self, progress: Progress) -> None:
        if self.failing:
            self.failing -= 1
            raise Lost("told to fail")
        for name in ("postponed", "verdicts", "forwarded", "republished", "rescued"):
            getattr(self, name).extend(self._open[name])
        self.commits.append((self._open["fired"], self._open["rejected"], progress))
        self.progress = progress
