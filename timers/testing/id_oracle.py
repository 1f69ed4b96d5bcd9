"""The oracle for timers with an id: computes the history of each id from the log alone.

The log does not show the result of a cancel or update, because it depends on what had fired when it was accepted. A
verdict shows it and must stay true: a version that was replaced or cancelled never fires, a version said to have
fired has fired by then, and a version that is not ended fires at its due second.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from timers.core.index import is_over, latest
from timers.core.keys import OrderKey
from timers.core.operation import ALREADY_FIRED, CANCELLED, REPLACED, UNKNOWN, Entry, Operation
from timers.core.timer import Row
from timers.testing.log import SimRecord
from timers.wire.verdict import VerdictMessage


class Violation(AssertionError):
    """A promise was broken."""


@dataclass
class Request:
    """One readable record of a log that has a machine, and what becomes of it."""

    record: SimRecord
    key: OrderKey | None
    """None if it must be rejected."""
    row: Row | None
    name: str
    """Where it was first asked for."""
    attempt: int
    """Of a retry; -1 for what is none."""
    timer_id: str
    """What its firing is called."""
    end: Step | None = None
    """Of a timer with an id: what came next in its history."""
    copy_of: Request | None = None
    """The cold request that this one brings back."""
    forged: bool = False
    """It looks like a promoted copy, but no machine sent this request to the cold tier."""

    @property
    def original(self) -> Request:
        """The request that was first asked."""
        return self.copy_of or self


@dataclass(eq=False)
class Step:
    """A record that sets or cancels a timer with an id."""

    operation: Operation
    source: str
    request: Request | None
    """None: it cancels."""
    before: Request | None = None
    """The version that it found."""
    verdict: VerdictMessage | None = None

    @property
    def offset(self) -> int:
        """Of the record."""
        return self.operation[1]


@dataclass
class IdOracle:
    """All ids of one machine's log."""

    _steps: dict[bytes, list[Step]] = field(default_factory=dict)
    _by_source: dict[str, Step] = field(default_factory=dict)

    def add(self, step: Step) -> None:
        """A record became visible; those of a transaction come after what stands behind them."""
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

    def tell(self, source: str, key: bytes | None, told: VerdictMessage) -> None:
        """A verdict became visible."""
        step = self._by_source.get(source)
        if step is None or step.operation[0] != key or key.decode() != told.id:
            raise Violation(f"a verdict on {source}, which asks for none: {told}")
        if step.verdict is not None:
            raise Violation(f"two verdicts on {source}: {step.verdict} and {told}")
        step.verdict = told

    def check(self, next_offset: int, fired_through: OrderKey, retention_s: int) -> None:
        """Every record that was accepted has the verdict that it must have, and no other has one."""
        for step in self._by_source.values():
            wanted = self._wanted(step, fired_through, retention_s) if step.offset < next_offset else [None]
            said = None if step.verdict is None else (step.verdict.verdict, step.verdict.due_s)
            if said not in wanted:
                raise Violation(f"{step.source} was told {said}, not {wanted}")

    def _wanted(self, step: Step, fired_through: OrderKey, retention_s: int) -> list[tuple[str, int | None] | None]:
        nothing = (UNKNOWN, None) if step.request is None else None
        if step.before is None or step.before.key is None:
            return [nothing]
        due_s = step.before.key[0]
        wanted: list[tuple[str, int | None] | None] = [
            (CANCELLED if step.request is None else REPLACED, due_s),
            (ALREADY_FIRED, due_s),
        ]
        entry = (*step.before.key, step.before.record.timestamp // 1000)
        return [*wanted, nothing] if is_over(entry, fired_through, retention_s) else wanted

    def entries(self, applied: int) -> dict[bytes, Entry | None]:
        """What the index must hold."""
        operations = sorted((step.operation for step in self._by_source.values()), key=lambda each: each[1])
        return latest([each for each in operations if each[1] < applied])


def is_ended(request: Request, next_offset: int) -> bool:
    """Whether something that was accepted took the place of a version, or cancelled it, before it fired."""
    end = request.original.end
    if end is None or end.offset >= next_offset:
        return False
    return end.verdict is not None and end.verdict.verdict in (CANCELLED, REPLACED)


def is_told_fired(request: Request, next_offset: int) -> bool:
    """Return whether the next record of the id got the verdict that this one had fired, or fired too long ago."""
    end = request.original.end
    return end is not None and end.offset < next_offset and not is_ended(request, next_offset)
