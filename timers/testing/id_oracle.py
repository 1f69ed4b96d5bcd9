"""The oracle for timers with an id: computes the history of each id from the log alone.

The result of a cancel or an update depends on what had fired when it was accepted, so only its verdict shows it. The
verdict must be true: a replaced or cancelled version never fires, a version with the verdict `already-fired` has fired
by then, and a version that was not ended fires at its due second.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from timers.core.index import is_over, latest
from timers.core.keys import OrderKey
from timers.core.operation import ALREADY_FIRED, CANCELLED, REPLACED, UNKNOWN, Entry, Operation
from timers.core.progress import Progress, reached
from timers.core.timer import Row
from timers.testing.log import SimRecord
from timers.wire.verdict import VerdictMessage


class Violation(AssertionError):
    """A promise was broken."""


@dataclass
class Request:
    """One readable record of a request topic, and its later history."""

    record: SimRecord
    key: OrderKey | None
    """None: it must be rejected."""
    row: Row | None
    name: str
    """Source of the original request, also of a retry or a copy."""
    attempt: int
    """Number of a retry; -1: it is no retry."""
    timer_id: str
    """The ``timer-id`` of its callback."""
    end: Step | None = None
    """The next record with the same id."""
    copy_of: Request | None = None
    """The cold request of which this is a promoted copy."""
    forged: bool = False
    """Whether it looks like a promoted copy, but has no valid seal."""

    @property
    def original(self) -> Request:
        """The cold request of a copy, else the request itself."""
        return self.copy_of or self


@dataclass(eq=False)
class Step:
    """A record that sets or cancels a timer with an id."""

    operation: Operation
    source: str
    request: Request | None
    """None: it is a cancel."""
    before: Request | None = None
    """The version before it."""
    verdict: VerdictMessage | None = None

    @property
    def offset(self) -> int:
        return self.operation[1]


@dataclass
class IdOracle:
    """Computes the history of all ids of one log."""

    _steps: dict[bytes, list[Step]] = field(default_factory=dict)
    _by_source: dict[str, Step] = field(default_factory=dict)

    def add(self, step: Step) -> None:
        """Add a visible record. Transactions become visible late, so records may be added out of order."""
        steps = self._steps.setdefault(step.operation[0], [])
        insort(steps, step, key=lambda each: each.offset)
        self._by_source[step.source] = step
        before: Request | None = None
        for each in steps:
            each.before = before
            if before is not None:
                before.end = each
            before = each.request
        if before is not None:
            before.end = None

    def add_verdict(self, source: str, key: bytes | None, verdict: VerdictMessage) -> None:
        step = self._by_source.get(source)
        if step is None or step.operation[0] != key or key.decode() != verdict.id:
            raise Violation(f"a verdict on {source}, which needs none: {verdict}")
        if step.verdict is not None:
            raise Violation(f"two verdicts on {source}: {step.verdict} and {verdict}")
        step.verdict = verdict

    def check(self, progress: Progress, retention_s: int) -> None:
        """Check that each accepted record has the right verdict, and that no other record has one."""
        for step in self._by_source.values():
            allowed = self._allowed(step, progress, retention_s) if step.offset < progress.next_offset else [None]
            found = None if step.verdict is None else (step.verdict.verdict, step.verdict.due_s)
            if found not in allowed:
                raise Violation(f"{step.source} has the verdict {found}, not one of {allowed}")

    def _allowed(self, step: Step, progress: Progress, retention_s: int) -> list[tuple[str, int | None] | None]:
        without_version = (UNKNOWN, None) if step.request is None else None
        if step.before is None or step.before.key is None:
            return [without_version]
        due_s = step.before.key[0]
        allowed: list[tuple[str, int | None] | None] = [
            (CANCELLED if step.request is None else REPLACED, due_s),
            (ALREADY_FIRED, due_s),
        ]
        entry = (*step.before.key, step.before.record.timestamp // 1000)
        through = reached(progress.fired_through, progress.holes, entry[1])
        return [*allowed, without_version] if is_over(entry, through, retention_s) else allowed

    def entries(self, applied: int) -> dict[bytes, Entry | None]:
        operations = sorted((step.operation for step in self._by_source.values()), key=lambda each: each[1])
        return latest([each for each in operations if each[1] < applied])


def is_ended(request: Request, next_offset: int) -> bool:
    """Whether an accepted record replaced or cancelled a version before it fired."""
    end = request.original.end
    if end is None or end.offset >= next_offset:
        return False
    return end.verdict is not None and end.verdict.verdict in (CANCELLED, REPLACED)


def has_fired_verdict(request: Request, next_offset: int) -> bool:
    """Whether the next record of the id has the verdict that this version had fired, or no verdict."""
    end = request.original.end
    return end is not None and end.offset < next_offset and not is_ended(request, next_offset)
