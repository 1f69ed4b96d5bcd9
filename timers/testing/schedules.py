"""The oracle for schedules: the history of each id, read off the log alone.

What became of a version is said by a tombstone that names it, in the transaction in which it came out. Each version has
one of these ends, and no other:

* it came out once, and a tombstone on its own partition says so
* a record of its users took its place, or deleted it, before it came out
* a tombstone that is about another version stands behind it: then it was appended again, once, and the copy has the end
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from timers.core.index import latest
from timers.core.keys import OrderKey
from timers.core.operation import Entry
from timers.testing.id_oracle import Request, Step, Violation
from timers.testing.log import SimRecord


@dataclass
class ScheduleLog:
    """What is known of one partition."""

    requests: dict[int, Request] = field(default_factory=dict)
    """Versions, and what cannot be read, by offset."""
    _steps: dict[bytes, list[Step]] = field(default_factory=dict)
    _tombstones: Counter[int] = field(default_factory=Counter)
    """Offset of a version -> tombstones of the engine's that name it."""
    _copies: Counter[int] = field(default_factory=Counter)
    _overdue: set[int] = field(default_factory=set)
    """Offsets of the schedules that are rejected because they were overdue."""

    def add(self, step: Step, record: SimRecord, *, ours: bool, overdue: bool) -> None:
        """A record became visible.

        Args:
            step: what it asks for.
            record: itself.
            ours: the engine wrote it.
            overdue: it is rejected because it was overdue.
        """
        _, offset, due_s, version = step.operation
        if step.request is not None:
            self.requests[offset] = step.request
        if overdue:
            self._overdue.add(offset)
        if ours and due_s is not None:
            self._copy(record)
        elif ours:
            named = self.requests.get(version)
            if named is None or named.record.key != record.key:
                raise Violation(f"{record.source} is a tombstone of {record.key!r} at {version}, which there is not")
            self._tombstones[version] += 1
        steps = self._steps.setdefault(step.operation[0], [])
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

    def check(self, next_offset: int, fired_through: OrderKey, outcomes: Callable[[Request], int]) -> None:
        """Every record has the end that the committed progress says."""
        for offset, request in self.requests.items():
            out = outcomes(request)
            if request.key is None:
                if out != (offset < next_offset) and not (out == 0 and request.record.compacted):
                    raise Violation(f"{request.name} cannot be read, and has {out} dead letters")
                if offset in self._overdue and out != self._tombstones[offset]:
                    raise Violation(
                        f"{request.name} was rejected {out} times, with {self._tombstones[offset]} tombstones"
                    )
                continue
            end = request.end if request.end is not None and request.end.offset < next_offset else None
            due = offset < next_offset and request.key <= fired_through
            if out != self._tombstones[offset]:
                raise Violation(f"{request.name} came out {out} times, with {self._tombstones[offset]} tombstones")
            unread = request.record.compacted  # before a worker read it, if it did not fire
            if out > 1 or (out and not due) or (due and end is None and not out and not unread):
                raise Violation(f"{request.name} came out {out} times: {next_offset=}, {fired_through=}")
            erased = end is not None and end.request is None and 0 <= end.operation[3] != offset
            copies = self._copies[offset]
            if erased and out + copies != 1:
                raise Violation(f"{request.name} came out {out} times and has {copies} copies behind {end}")
            if copies and not erased:
                raise Violation(f"{request.name} has {copies} copies, though nothing erases it")

    def pending(self, applied: int, fired_through: OrderKey) -> list[OrderKey]:
        """Versions that wait."""
        return sorted(
            request.key
            for offset, request in self.requests.items()
            if offset < applied
            and request.key is not None
            and request.key > fired_through
            and (request.end is None or request.end.offset >= applied)
        )

    def is_compacted(self, key: OrderKey) -> bool:
        """Whether the record of a version is gone from the log: a store may never have seen it."""
        return self.requests[key[1]].record.compacted

    def entries(self, applied: int) -> dict[bytes, Entry | None]:
        """What an index holds that has read every record."""
        steps = sorted((step for steps in self._steps.values() for step in steps), key=lambda step: step.offset)
        return latest([step.operation for step in steps if step.offset < applied])

    def left(self, until_s: int, outcomes: Callable[[Request], int]) -> tuple[int, int]:
        """At the end: how many versions still wait, and how many were ended before they came out.

        Raises:
            Violation: one that is due did neither come out nor end.
        """
        waiting = ended = 0
        for request in self.requests.values():
            if outcomes(request):
                continue
            if request.end is not None:
                ended += 1
            elif request.key is None or request.key[0] <= until_s:
                raise Violation(f"lost: {request.name} with key {request.key} never came out")
            else:
                waiting += 1
        return waiting, ended
