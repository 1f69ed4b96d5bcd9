"""An outbox that keeps its output in lists, for tests of one machine without a simulated log."""

from collections.abc import Sequence
from typing import Any

from timers.core.limits import ChunkSize
from timers.core.operation import Verdict
from timers.core.ports import NO_OUTPUT, Lost, Output
from timers.core.progress import Progress
from timers.core.timer import Rejected, Tick


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
        held_from: first offsets that transactions have in the log of the machine.
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
        self.held_from: set[int] = set()

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

    def read_again(self, offsets: Sequence[int]) -> dict[int, Any]:
        """Returns nothing: no record can be read now."""
        return {}

    def commit(self, progress: Progress, output: Output = NO_OUTPUT) -> None:
        if self.failing:
            self.failing -= 1
            raise Lost("told to fail")
        self.postponed += [((due_s, row[0]), again_s) for due_s, rows, again_s in output.postponed for row in rows]
        self.verdicts += output.verdicts
        self.forwarded += [each.record.offset for each in output.forwarded]
        self.republished += [row[0] for row in output.republished]
        self.rescued += [*((due_s, row[0]) for due_s, row in output.lost), *output.lost_cancels]
        fired = [(due_s, row[0]) for due_s, rows in output.due for row in rows]
        self.commits.append((fired, [*output.rejected], progress))
        self.progress = progress
