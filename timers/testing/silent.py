"""An outbox that refuses everything: a recovery must emit nothing."""

from __future__ import annotations

from collections.abc import Sequence

from timers.core.operation import Verdict
from timers.core.progress import Progress
from timers.core.timer import Forwarded, Rejected, Row, Tick
from timers.testing.id_oracle import Violation


class SilentOutbox:
    """For recovering a machine from the log alone: it must emit nothing."""

    def begin(self, tick: Tick) -> None:
        """Refuse."""
        raise Violation("recovery emitted something")

    def fire(self, due_s: int, rows: Sequence[Row]) -> None:
        """Refuse."""
        raise Violation("recovery fired something")

    def postpone(self, due_s: int, rows: Sequence[Row], again_s: int) -> None:
        """Refuse."""
        raise Violation("recovery postponed something")

    def reject(self, rejected: Sequence[Rejected]) -> None:
        """Refuse."""
        raise Violation("recovery dead-lettered something")

    def answer(self, verdicts: Sequence[Verdict]) -> None:
        """Refuse."""
        raise Violation("recovery gave a verdict")

    def forward(self, forwarded: Sequence[Forwarded]) -> None:
        """Refuse."""
        raise Violation("recovery forwarded something")

    def republish(self, rows: Sequence[Row]) -> None:
        """Refuse."""
        raise Violation("recovery appended something again")

    def commit(self, progress: Progress) -> None:
        """Refuse."""
        raise Violation("recovery committed something")
