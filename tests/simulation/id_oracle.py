"""The oracle for timers with an id: computes the history of each id from the log alone.

The result of a cancel or an update depends on what had fired when it was accepted, so only its verdict shows it. The
verdict must be true: a replaced or cancelled version never fires, a version with the verdict `already-fired` has fired
by then, and a version that was not ended fires at its due second.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from tests.simulation.kit.faults import Violation
from tests.simulation.kit.log import SimRecord
from timers.core.fired import reached
from timers.core.index import is_over
from timers.core.keys import OrderKey
from timers.core.operation import (
    ABSENT,
    ALREADY_FIRED,
    CANCELLED,
    CHANGED,
    EXISTS,
    REPLACED,
    SET,
    TOO_LATE,
    UNKNOWN,
    Entry,
    Operation,
    cancelled,
    id_of,
    request_of,
    version_of,
)
from timers.core.progress import VERDICT_RETENTION, Progress
from timers.core.timer import Row
from timers.wire import headers as h
from timers.wire.verdict import VerdictMessage


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
    refused: bool = False
    """Whether its condition was not true, so that it is no timer."""
    forged: bool = False
    """Whether it looks like a promoted copy, but has no valid seal."""

    @property
    def original(self) -> Request:
        """The cold request of a copy, else the request itself."""
        return self.copy_of or self

    def has_fired(self, progress: Progress) -> bool:
        """Whether a machine with this progress has sent it, if it has accepted it."""
        return self.key is not None and self.row is not None and progress.has_fired(self.key, self.row[1])


@dataclass(eq=False)
class Step:
    """A record that sets or cancels a timer with an id."""

    operation: Operation
    source: str
    request: Request | None
    """None: it is a cancel."""
    record: SimRecord | None = None
    """None: it is a schedule."""
    fired_version: int | None = None
    """Offset of the version that a tombstone of the engine names."""
    before: Request | None = None
    """The version before it."""
    verdict: VerdictMessage | None = None
    refusal: tuple[str, int | None] | None = None
    """The verdict that says that it does not count; None: it counts."""
    judges: bool = False
    """Whether its condition counts, if it has one."""
    is_first: bool = False
    """Whether its id is absent before it."""
    time_s: int = 0
    """Latest append second so far."""

    @property
    def id(self) -> bytes:
        return id_of(self.operation)

    @property
    def offset(self) -> int:
        return self.operation[1]

    @property
    def condition(self) -> str | None:
        """What the record must find to count."""
        value = h.last(self.record.headers, h.TIMER_IF) if self.record is not None and self.judges else None
        return None if value is None else value.decode()


@dataclass
class IdOracle:
    """Computes the history of all ids of one log.

    Args:
        copy_of: returns the promoted copy of a request below an offset.
        is_cold: whether a request is cold, by the settings history of a progress.
        has_conditions: whether the requests may have conditions.
    """

    copy_of: Callable[[Request, int], Request | None]
    is_cold: Callable[[Request, Progress], bool]
    has_conditions: bool
    _steps: list[Step] = field(default_factory=list)
    _by_source: dict[str, Step] = field(default_factory=dict)
    _progress: Progress = Progress()  # noqa: RUF009  # frozen
    _late: set[int] = field(default_factory=set)
    """Offsets of the requests that are refused because they were readable late."""
    _forgotten: dict[bytes, Entry | None] = field(default_factory=dict)
    """The last entries of the ids that were forgotten. A store may still hold them."""

    def add(self, step: Step, progress: Progress) -> None:
        """Add a visible record. Transactions become visible late, so records may be added out of order."""
        self._steps.append(step)
        self._steps.sort(key=lambda each: each.offset)
        self._by_source[step.source] = step
        self.judge(progress)

    def commit(self, before: Progress, after: Progress, log_start: int) -> None:
        """Judge the records that a commit has accepted."""
        left = {each for each in before.late_changes if each >= log_start} - set(after.late_changes)
        if left:
            raise Violation(f"the log has the late changes {left}, and the progress has forgotten them")
        self.judge(after, range(before.next_offset, after.next_offset))
        if surplus := set(after.late_changes) - self._late:
            raise Violation(f"the progress lists {surplus}, which are no late changes")

    def judge(self, progress: Progress, accepted: range = range(0)) -> None:
        """Find out which records count, by the settings history of a progress, and by what had fired before.

        Args:
            accepted: offsets of the records that this progress has accepted.
        """
        self._progress = progress
        for request in [step.request for step in self._steps if step.request is not None]:
            request.end, request.refused = None, False
        time_s = 0
        last: dict[bytes, Step | None] = {}
        for step in self._steps:
            previous = last.get(step.id)
            step.before = None if previous is None else previous.request
            step.judges = self.has_conditions
            step.refusal, former = None, previous
            if step.judges:
                assert step.record is not None
                step.time_s = time_s = max(time_s, step.record.timestamp // 1000)
                if previous is not None and self.is_past(self._entry(previous, step.offset), time_s):
                    former = None
                step.refusal = self._refusal(step, former)
                if step.offset in accepted and step.refusal is None:
                    self._note_late(step, former)
                if step.offset in self._late:
                    step.refusal = TOO_LATE, None if former is None else former.operation[2]
            step.is_first = former is None
            if step.refusal is None:
                last[step.id] = self._last_after(step, former)
                if step.before is not None:
                    step.before.end = step
            elif step.request is not None:
                step.request.refused = True

    def _note_late(self, step: Step, former: Step | None) -> None:
        """Check that a record whose condition is true is listed as a late change if the version before it has fired."""
        is_named = step.condition not in (None, ABSENT)
        has_fired = is_named and former is not None and self._has_fired(former, step.offset)
        is_listed = step.offset in self._progress.late_changes
        if is_listed != has_fired:
            what = "listed as a late change" if is_listed else "no late change"
            raise Violation(f"{step.source} is {what}, and {'has' if has_fired else 'has not'} come after a firing")
        if is_listed:
            self._late.add(step.offset)

    def _has_fired(self, former: Step, below: int) -> bool:
        request = former.request
        if request is None or request.key is None:
            return False
        copy = self.copy_of(request, below)
        if copy is None:
            return not self.is_cold(request, self._progress) and request.has_fired(self._progress)
        return copy.has_fired(self._progress)

    def _refusal(self, step: Step, former: Step | None) -> tuple[str, int | None] | None:
        condition, due_s = step.condition, None if former is None else former.operation[2]
        if condition is None:
            return None
        if condition == ABSENT:
            return None if former is None else (EXISTS, due_s)
        if former is None or self._version(former, step.offset) != condition:
            return CHANGED, due_s
        assert step.record is not None
        return (TOO_LATE, due_s) if due_s is not None and step.record.timestamp >= due_s * 1000 else None

    @staticmethod
    def _last_after(step: Step, former: Step | None) -> Step | None:
        """The record that the index holds after one that counts; None: the id is absent."""
        if step.request is not None:
            return step
        if not step.judges or former is None:
            return None
        return step if former.request is not None else former

    def is_past(self, entry: Entry, time_s: int) -> bool:
        """Whether an entry of the index counts as absent for records with this latest append second."""
        due_s, offset, append_s = version_of(entry)
        settings = self._progress.settings
        first_s = next((change.value for change in settings if change.name == VERDICT_RETENTION), 0)
        return max(due_s, append_s) + self._progress.setting_at(VERDICT_RETENTION, offset, first_s) <= time_s

    def _entry(self, step: Step, below: int) -> Entry:
        """What the index must hold after a record, and after its copy, if that is below an offset."""
        _, offset, due_s, append_s = step.operation
        if step.request is None or due_s is None:
            return cancelled(offset, step.time_s)
        copy = self.copy_of(step.request, below)
        if copy is None:
            return due_s, offset, append_s
        at = copy.record.offset
        return due_s, at, max(due_s, copy.record.timestamp // 1000), offset

    def _version(self, step: Step, below: int) -> str:
        """The source that a condition must name: also after a promotion, that of the request."""
        place, _, _ = step.source.rpartition("/")
        return f"{place}/{request_of(self._entry(step, below))}"

    def add_verdict(self, source: str, key: bytes | None, verdict: VerdictMessage) -> None:
        step = self._by_source.get(source)
        if step is None or step.id != key or key.decode() != verdict.id:
            raise Violation(f"a verdict on {source}, which needs none: {verdict}")
        if step.verdict is not None:
            raise Violation(f"two verdicts on {source}: {step.verdict} and {verdict}")
        step.verdict = verdict

    def check(self, progress: Progress, retention_s: int) -> None:
        """Check that each accepted record has the right verdict, and that no other record has one."""
        for step in self._steps:
            allowed = self._allowed(step, progress, retention_s) if step.offset < progress.next_offset else [None]
            found = None if step.verdict is None else (step.verdict.verdict, step.verdict.due_s)
            if found not in allowed:
                raise Violation(f"{step.source} has the verdict {found}, not one of {allowed}")

    def _allowed(self, step: Step, progress: Progress, retention_s: int) -> list[tuple[str, int | None] | None]:
        if step.refusal is not None:
            return [step.refusal]
        alone = (UNKNOWN, None) if step.request is None else (SET, None) if step.condition is not None else None
        before = step.before
        if before is None or before.key is None:
            return [alone]
        due_s = before.key[0]
        in_time = (CANCELLED if step.request is None else REPLACED, due_s)
        if step.condition not in (None, ABSENT):
            return [in_time]
        if step.judges:
            return [in_time, alone if step.is_first else (ALREADY_FIRED, due_s)]
        entry = (*before.key, before.record.timestamp // 1000)
        through = reached(progress.fired_through, progress.holes, entry[1])
        allowed: list[tuple[str, int | None] | None] = [in_time, (ALREADY_FIRED, due_s)]
        return [*allowed, alone] if is_over(entry, through, retention_s) else allowed

    def entries(self, applied: int) -> dict[bytes, Entry | None]:
        """What the index must hold of each id. Entries whose time is over may be absent."""
        last: dict[bytes, Step | None] = {}
        for step in self._steps:
            if step.offset < applied and step.refusal is None:
                id = step.id
                last[id] = self._last_after(step, None if step.is_first else last.get(id))
        entries = {id: None if step is None else self._entry(step, applied) for id, step in last.items()}
        return {**self._forgotten, **entries}

    def forget(self, names: set[str], progress: Progress, retention_s: int) -> set[str]:
        """Forget each id whose last entry is over, unless one of its requests has one of these names.

        What is left is judged as before: the records with the latest append times until then are left, too.

        Returns:
            The names of the requests that are left.
        """
        by_id: dict[bytes, list[Step]] = {}
        time_s, latest = -1, []
        for step in self._steps:
            by_id.setdefault(step.id, []).append(step)
            if step.time_s > time_s:
                time_s = step.time_s
                latest.append(step)
        entries = self.entries(progress.next_offset)
        kept = {id for id, entry in entries.items() if entry is not None and self._counts(entry, time_s, retention_s)}
        kept |= {step.id for step in self._steps if step.offset >= progress.next_offset}
        kept |= {step.id for step in self._steps if step.request is not None and step.request.name in names}
        if self.has_conditions:
            kept |= {step.id for step in latest[-1:]}
            known = 0
            while known < len(kept):  # each that is kept may need an earlier one
                known = len(kept)
                offsets = sorted(each.offset for id in kept for each in by_id[id])
                for former, later in pairwise(latest):
                    place = bisect_right(offsets, former.offset)
                    if place < len(offsets) and offsets[place] < later.offset:
                        kept.add(former.id)
        self._forgotten |= {id: entry for id, entry in entries.items() if id not in kept}
        self._steps = [step for step in self._steps if step.id in kept]
        self._by_source = {step.source: step for step in self._steps}
        return {step.request.name for step in self._steps if step.request is not None}

    def _counts(self, entry: Entry, time_s: int, retention_s: int) -> bool:
        """Whether an entry of the index still counts, or may count."""
        if self.has_conditions:
            return not self.is_past(entry, time_s)
        through = reached(self._progress.fired_through, self._progress.holes, entry[1])
        return not is_over(entry, through, retention_s)

    def time_s(self, applied: int) -> int:
        """The latest append second of the records below an offset that may have conditions."""
        return max((step.time_s for step in self._steps if step.judges and step.offset < applied), default=0)


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
