"""The rows of a store that holds hold: which of due rows stay, how many there are, and which are released next.

Held rows stay in the groups in which they were written [I34]. A chunk of due timers passes over them, and its delete
leaves them. Later they are released, target by target, in key order [I35].
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from timers.core.fired import MOVED_S, Hold, Moment, reached
from timers.core.keys import NEVER, OrderKey
from timers.core.ports import Store
from timers.core.progress import Progress
from timers.core.sums import bytes_of
from timers.core.timer import DueRows, Row, RowsByDue

NOISY_PART = 10
"""A target with this part of a full chunk is noisy [I36],"""
NOISY_ROWS = 1_000
"""if it has at least so many rows of the chunk."""


class Release(NamedTuple):
    """Rows of one hold that are released together."""

    rows: list[DueRows]
    """They fire, unless they are former versions of an id."""
    number: int
    """Number of these rows."""
    hold: Hold | None
    """The hold after it; None: it holds nothing any more."""
    through: OrderKey
    """The store was read up to this key."""
    kept: list[DueRows]
    """What stays of the groups that were read."""


class HeldRows:
    """What a machine knows of its held rows. Each method gets the progress with which it asks.

    Args:
        store: of the machine.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._counts: dict[tuple[str, Moment], int] = {}
        """(Target, begin of a hold) -> rows that it holds, once they were counted."""
        self._turn = 0

    def known(self, hold: Hold) -> int | None:
        """Returns how many rows a hold holds, with versions that were replaced or cancelled; None: they were not yet
        counted. Any thread."""
        return self._counts.get((hold.target, hold.begin))

    def count(self, progress: Progress, hold: Hold) -> int:
        """Returns the same. The first time it reads what is held of the target: 1,000,000 rows in about a second."""
        name = hold.target, hold.begin
        if name not in self._counts:
            self._counts[name] = sum(
                self._is_held_by(progress, hold, (due_s, row[0]), row[1])
                for due_s, rows in self._store.held(hold.released, past_through(progress), hold.target)
                for row in rows
            )
        return self._counts[name]

    def note_begun(self, progress: Progress) -> None:
        """Note that holds without rows may have begun: nothing must be read to count them."""
        for hold in progress.holds:
            if hold.begin == progress.moment:
                self._counts.setdefault((hold.target, hold.begin), 0)

    def note_stored(self, progress: Progress, rows: RowsByDue) -> None:
        """Count those of newly stored rows that are past their due second: they are held."""
        if progress.holds:
            for due_s, group in rows.items():
                self._note(progress, due_s, group)

    def note_kept(self, progress: Progress, kept: Iterable[DueRows]) -> None:
        """Count the held rows that a chunk has passed over."""
        for due_s, rows in kept:
            self._note(progress, due_s, rows)

    def _note(self, progress: Progress, due_s: int, rows: Iterable[Row]) -> None:
        for row in rows:
            key = due_s, row[0]
            hold = progress.hold_of(key, row[1]) if progress.is_past(key) else None
            if hold is not None and (name := (hold.target, hold.begin)) in self._counts:
                self._counts[name] += 1

    @staticmethod
    def without_held(progress: Progress, due: list[DueRows], kept: list[DueRows]) -> list[DueRows]:
        """Returns those of due rows that may fire, and adds those that are held to ``kept``."""
        holds, holes = progress.holds, progress.holes
        free: list[DueRows] = []
        for due_s, rows in due:
            held = [row for row in rows if row[1] in holds.by_target and holds.of((due_s, row[0]), row[1], holes)]
            if held:
                kept.append((due_s, held))
                rows = without(rows, held)
            if rows:
                free.append((due_s, rows))
        return free

    def next_in_turn(self, progress: Progress, second: int) -> Hold | None:
        """Returns a hold of which rows may be released in a tick second: the holds take turns; None: there is none."""
        ready = progress.holds.released_in(second)
        self._turn += 1
        return ready[self._turn % len(ready)] if ready else None

    def next_release(self, progress: Progress, hold: Hold, limit: int, max_bytes: int) -> Release:
        """Returns the next rows of a hold, at most ``limit``, and not many more bytes than ``max_bytes``."""
        released, through = hold.released, NEVER
        taken: list[DueRows] = []
        kept: list[DueRows] = []
        count = size = 0
        is_end = True
        for due_s, rows in self._store.held(hold.released, past_through(progress), hold.target):
            if count >= limit or size >= max_bytes:
                is_end = False
                break
            held = [row for row in rows if self._is_held_by(progress, hold, (due_s, row[0]), row[1])]
            is_end = len(held) <= limit - count
            held = held[: limit - count]
            through = due_s, rows[-1][0]
            if held:
                taken.append((due_s, held))
                count += len(held)
                size += bytes_of(held)
                released = due_s, held[-1][0]
            left = without(rows, held)
            if left:
                kept.append((due_s, left))
        after = hold._replace(released=released, gone=hold.gone + count)
        return Release(taken, count, None if is_end else after, through, kept)

    def note_released(self, hold: Hold, release: Release) -> None:
        """Note that rows of a hold were released, and are not in the store any more."""
        name = hold.target, hold.begin
        if release.hold is None:
            self._counts.pop(name, None)
        elif name in self._counts:
            self._counts[name] -= release.number

    @staticmethod
    def _is_held_by(progress: Progress, hold: Hold, key: OrderKey, target: str) -> bool:
        return target == hold.target and hold.holds(key, progress.holes) and progress.is_past(key)


def without(rows: list[Row], some: Sequence[Row]) -> list[Row]:
    """Returns the rows that are not among some of them, which are in the same order."""
    if not some:
        return rows
    if len(some) == len(rows):
        return []
    offsets = {row[0] for row in some}
    return [row for row in rows if row[0] not in offsets]


def past_through(progress: Progress) -> OrderKey:
    """Returns a key above which no row is past its due second. Of moved requests nothing is held."""
    return reached(progress.fired_through, [hole for hole in progress.holes if hole.through[0] != MOVED_S], -1)


def with_noisy(progress: Progress, fired: Iterable[DueRows], second: int) -> Progress:
    """Returns the progress after a full chunk, with a hold for each target that has a large part of it [I36]: the rest
    of its due timers is sent when no others are due.

    Args:
        fired: what the chunk sends.
        second: of the tick.
    """
    counts: Counter[str] = Counter()
    for _, rows in fired:
        counts.update(row[1] for row in rows)
    least = max(NOISY_ROWS, counts.total() // NOISY_PART)
    holds = progress.holds
    for target, number in counts.items():
        if number >= least:
            holds = holds.with_noisy(target, progress.moment, second)
    return progress.with_holds(holds)


def split_late(rows: RowsByDue, progress: Progress) -> tuple[RowsByDue, RowsByDue]:
    """Returns the late rows, which are at or below ``fired_through`` and not held, and the rows that wait."""
    fired_s, fired_offset = progress.fired_through
    if all(due_s > fired_s for due_s in rows):
        return {}, rows
    late: RowsByDue = {}
    waiting: RowsByDue = {}
    for due_s, group in rows.items():
        if due_s > fired_s:
            waiting[due_s] = group
        elif due_s < fired_s:
            late[due_s] = group
        else:
            late_rows = [row for row in group if row[0] <= fired_offset]
            waiting_rows = [row for row in group if row[0] > fired_offset]
            if late_rows:
                late[due_s] = late_rows
            if waiting_rows:
                waiting[due_s] = waiting_rows
    if progress.holds and late:
        return _without_held(late, waiting, progress)
    return late, waiting


def _without_held(late: RowsByDue, waiting: RowsByDue, progress: Progress) -> tuple[RowsByDue, RowsByDue]:
    """Returns the late rows that are not held, and with the rows that wait those that are [I33]."""
    kept: list[DueRows] = []
    fired = dict(HeldRows.without_held(progress, list(late.items()), kept))
    return fired, {**waiting, **{due_s: [*rows, *waiting.get(due_s, ())] for due_s, rows in kept}}
