"""The oracle for schedules: computes the history of each id from the log alone.

The transaction that fires or dead-letters a version also writes a tombstone that names it. Each version has exactly one
of these ends:

* it has one outcome, and one tombstone on its own partition names it
* a record of a user replaced or deleted it before
* a tombstone of another version follows it: it was republished once, and the copy has one of these ends
"""

from bisect import insort
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulation.id_oracle import Request, Step
from tests.simulation.kit.faults import Violation
from tests.simulation.kit.log import SimRecord
from timers.core.index import latest
from timers.core.keys import OrderKey
from timers.core.operation import Entry
from timers.core.progress import Progress


@dataclass
class ScheduleLog:
    """The schedules of one partition."""

    requests: dict[int, Request] = field(default_factory=dict)
    """Offset -> version, or record that cannot be read."""
    _steps: dict[bytes, list[Step]] = field(default_factory=dict)
    _tombstones: Counter[int] = field(default_factory=Counter)
    """Offset of a version -> number of tombstones of the engine that name it."""
    _copies: Counter[int] = field(default_factory=Counter)
    _overdue: set[int] = field(default_factory=set)
    """Offsets of the schedules that are rejected because they were overdue."""

    def add(self, step: Step, record: SimRecord, *, by_engine: bool, overdue: bool) -> None:
        """Add a visible record."""
        _, offset, due_s, _ = step.operation
        if step.request is not None:
            self.requests[offset] = step.request
        if overdue:
            self._overdue.add(offset)
        if by_engine and due_s is not None:
            self._copy(record)
        elif by_engine:
            version = step.fired_version
            named = None if version is None else self.requests.get(version)
            if named is None or named.record.key != record.key:
                raise Violation(f"{record.source} is a tombstone of {record.key!r} at {version}, which does not exist")
            self._tombstones[named.record.offset] += 1
        steps = self._steps.setdefault(step.id, [])
        insort(steps, step, key=lambda each: each.offset)
        for before, after in zip(steps, [*steps[1:], None], strict=True):
            if before.request is not None:
                before.request.end = after

    def _copy(self, copy: SimRecord) -> None:
        earlier = [
            each.record
            for offset, each in self.requests.items()
            if offset < copy.offset and (each.record.key, each.record.value) == (copy.key, copy.value)
        ]
        original = max(earlier, key=lambda record: record.offset, default=None)
        if original is None or (original.headers, original.timestamp) != (copy.headers, copy.timestamp):
            raise Violation(f"{copy.source} is a copy of nothing, or differs: {copy!r}, {original!r}")
        self._copies[original.offset] += 1

    def check(self, progress: Progress, outcomes: Callable[[Request], int]) -> None:
        """Check that each record has the end that the committed progress says."""
        next_offset = progress.next_offset
        for offset, request in self.requests.items():
            count = outcomes(request)
            if request.key is None:
                if count != (offset < next_offset) and not (count == 0 and request.record.compacted):
                    raise Violation(f"{request.name} cannot be read, and has {count} dead letters")
                if self._tombstones[offset] != (count if offset in self._overdue else 0):
                    raise Violation(
                        f"{request.name} was rejected {count} times, with {self._tombstones[offset]} tombstones"
                    )
                continue
            end = request.end if request.end is not None and request.end.offset < next_offset else None
            due = offset < next_offset and request.has_fired(progress)
            if count != self._tombstones[offset]:
                raise Violation(f"{request.name} has {count} outcomes and {self._tombstones[offset]} tombstones")
            unread = request.record.compacted  # if it did not fire, compaction removed it before a worker read it
            if count > 1 or (count and not due) or (due and end is None and not count and not unread):
                raise Violation(f"{request.name} has {count} outcomes: {progress}")
            erased = end is not None and end.fired_version not in (None, offset)
            copies = self._copies[offset]
            if erased and count + copies != 1:
                raise Violation(f"{request.name} has {count} outcomes and {copies} copies after {end}")
            if copies and not erased:
                raise Violation(f"{request.name} has {copies} copies, but no tombstone erases it")

    def pending(self, applied: int, progress: Progress) -> list[OrderKey]:
        return sorted(
            request.key
            for offset, request in self.requests.items()
            if offset < applied
            and request.key is not None
            and not request.has_fired(progress)
            and (request.end is None or request.end.offset >= applied)
        )

    def has_fired(self, key: OrderKey, progress: Progress) -> bool:
        """Whether a machine with this progress has sent a version that it has accepted."""
        request = self.requests.get(key[1])
        return progress.is_past(key) if request is None else request.has_fired(progress)

    def is_compacted(self, key: OrderKey) -> bool:
        """Whether compaction removed a version, or it was forgotten; a store may then not hold it."""
        request = self.requests.get(key[1])
        return request is None or request.record.compacted

    def entries(self, applied: int) -> dict[bytes, Entry | None]:
        """The entries of an index that has read all records."""
        steps = sorted((step for steps in self._steps.values() for step in steps), key=lambda step: step.offset)
        return latest([step.operation for step in steps if step.offset < applied])

    def forget(self, names: set[str]) -> set[str]:
        """Forget the ids that have no version of these names. Returns the names of the versions that are left."""
        for id, steps in list(self._steps.items()):
            if not any(step.request is not None and step.request.name in names for step in steps):
                del self._steps[id]
        kept = {step.offset for steps in self._steps.values() for step in steps}
        self.requests = {offset: each for offset, each in self.requests.items() if offset in kept}
        self._overdue &= kept
        for counted in (self._tombstones, self._copies):
            for offset in counted.keys() - kept:
                del counted[offset]
        return {each.name for each in self.requests.values()}

    def pending_and_ended(self, until_s: int, outcomes: Callable[[Request], int]) -> tuple[int, int]:
        """Numbers of pending versions, and of versions that were ended without an outcome."""
        waiting = ended = 0
        for request in self.requests.values():
            if outcomes(request):
                continue
            if request.end is not None:
                ended += 1
            elif request.key is None or request.key[0] <= until_s:
                raise Violation(f"lost: {request.name} with key {request.key} has no outcome")
            else:
                waiting += 1
        return waiting, ended
