"""The rows of a store that holds hold: which of due rows stay, how many there are, and which are released next.

Held rows stay in the groups in which they were written [I34]. A chunk of due timers passes over them, and its delete
leaves them. Later they are released, target by target, in key order [I35].
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from timers.core.chunk import OCCURRENCE_COST, Chunk, without_held
from timers.core.fired import MOVED_HOLE_S, Hold, Holds, Moment, reached
from timers.core.keys import MAX_OFFSET, OrderKey
from timers.core.limits import LARGEST_CHUNK, ChunkSize, Limits
from timers.core.ports import MAX_GROUPS_LEFT_OUT, Store
from timers.core.progress import Progress
from timers.core.repeating import REPEAT, is_occurrence
from timers.core.sums import bytes_of, count_with
from timers.core.timer import DueRows, Row, RowsByDue, without

OTHERS_S = 2
"""So many seconds after :attr:`HeldRows.others_s`, rows are released in small parts: others may come due again."""

MOST_READ = 20_000
"""So many rows of a store are read for one release at most: others of the same groups are not of the hold."""


class Release(NamedTuple):
    """Rows of one hold that are released together."""

    rows: list[DueRows]
    """They fire, unless they are former versions of an id."""
    number: int
    """Number of these rows."""
    hold: Hold | None
    """The hold after it; None: it holds nothing any more."""
    left: list[tuple[DueRows, list[Row]]]
    """The whole groups of the store of which they were a part, and what is left of each."""
    begin: OrderKey | None
    """Begin of the last group that was read; None: none was."""
    is_end: bool
    """Whether the hold holds no more rows that may be released in this second."""


class HeldRows:
    """What a machine knows of its held rows. Each method gets the progress with which it asks.

    Args:
        turn: number of the first turn. It differs between machines: if all of them released the same target at the
            same time, the others would get nothing meanwhile.

    Attributes:
        others_s: second in which timers were last sent while others were held.
    """

    def __init__(self, store: Store, turn: int) -> None:
        self._store = store
        self._counts: dict[tuple[str, Moment], int] = {}
        """(Target, begin of a hold) -> rows that it holds, once they were counted."""
        self.others_s = -1
        self._nothing_left: dict[tuple[str, Moment], int] = {}
        """(Target, begin of a hold) -> second in which it held no more rows that may be released."""
        self._begins: dict[tuple[str, Moment], OrderKey] = {}
        """(Target, begin of a hold) -> key at or above which each group begins that has more of its rows. It is not
        above ``released``: a late request may still add a row behind that."""
        self._turn = turn

    def known(self, hold: Hold) -> int | None:
        """Returns how many rows a hold holds, with versions that were replaced or cancelled; None: they were not yet
        counted. Any thread."""
        return self._counts.get((hold.target, hold.begin))

    def count(self, progress: Progress, hold: Hold) -> int:
        """Returns the same. The first time it reads what is held: of 1,000,000 rows about 0.1 s, as single ones 1 s."""
        name = hold.target, hold.begin
        if name not in self._counts:
            only = replace(progress, holds=Holds((hold,)))
            whole = [0]

            def passes(due_s: int, target: str, first: int, last: int, number: int) -> bool:
                if target == hold.target:
                    if not (progress.is_past((due_s, last)) and only.holds_group(due_s, target, first, last, number)):
                        return False
                    whole[0] += number
                return True

            after = max(-1, hold.released[0] - 1), MAX_OFFSET  # a group may begin below what was released last
            scanned = self._store.scan(after, past_through(progress)[0], passes)
            self._counts[name] = sum(len(_held_past(only, due_s, rows)) for due_s, rows in scanned) + whole[0]
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

    def note_passed(self, progress: Progress, chunk: Chunk, start: OrderKey) -> None:
        """Count the held rows that a chunk has passed over.

        Args:
            progress: after it. A hold may have begun with it.
            start: ``fired_through`` before it. After this was taken back, a chunk passes over held rows again.
        """
        self.note_begun(progress)
        holes = progress.holes
        for due_s, rows in chunk.kept:
            new = [row for row in rows if (due_s, row[0]) > reached(start, holes, row[0])] if holes else rows
            self._note(progress, due_s, new)
        for hold, number in chunk.whole(progress.fired_through):
            if (name := (hold.target, hold.begin)) in self._counts:
                self._counts[name] += number

    def _note(self, progress: Progress, due_s: int, rows: list[Row]) -> None:
        for target in {row[1] for row in rows}:
            for hold in progress.holds.by_target.get(target, ()):
                if (name := (target, hold.begin)) in self._counts:
                    only = replace(progress, holds=Holds((hold,)))
                    self._counts[name] += len(_held_past(only, due_s, rows))

    def next_in_turn(self, progress: Progress, second: int) -> Hold | None:
        """Returns a hold of which rows may be released in a tick second: the holds take turns; None: there is none."""
        ready = self._ready(progress, second)
        if not ready:
            return None
        self._turn += 1
        return ready[self._turn % len(ready)]

    def may_release(self, progress: Progress, second: int) -> bool:
        """Whether :meth:`next_in_turn` returns a hold."""
        return bool(self._ready(progress, second))

    def _ready(self, progress: Progress, second: int) -> list[Hold]:
        ready = progress.holds.released_in(second)
        return [hold for hold in ready if self._nothing_left.get((hold.target, hold.begin)) != second]

    def next_release(self, progress: Progress, hold: Hold, second: int, chunk: ChunkSize, limits: Limits) -> Release:
        """Returns the next rows of a hold: no more than its quota, or than fit a transaction.

        Args:
            second: the present one. Later rows are left, also if a wrong clock has passed them.
        """
        quota = hold.quota(second)
        limit = min(chunk.timers, limits.chunk_timers)
        if second - self.others_s <= OTHERS_S:
            limit = min(limit, chunk.part)
        most = LARGEST_CHUNK if quota is None else quota
        released, through = hold.released, min(past_through(progress), (second, MAX_OFFSET))
        only = replace(progress, holds=Holds((hold,)))
        first = self._begins.get((hold.target, hold.begin), (max(0, released[0]), 0))
        taken: list[DueRows] = []
        groups: list[tuple[DueRows, list[Row]]] = []
        number = size = read = cost = 0
        last, is_end = None, True
        for begin, rows in self._store.held(first, through, hold.target):
            if number >= most or cost >= limit or size >= limits.chunk_bytes or read >= MOST_READ:
                is_end = False
                break
            due_s = begin[0]
            held = _held_past(only, due_s, rows) if rows else []
            fit, group_cost = _fitting(held[: most - number], limit - cost)
            is_end = len(held) == len(fit)
            held, read, cost = fit, read + (len(rows) or MAX_GROUPS_LEFT_OUT), cost + group_cost
            if held:
                taken.append((due_s, held))
                groups.append(((due_s, rows), without(rows, held)))
                number += len(held)
                size += bytes_of(held)
            last = begin
            # The group has no other row below the last row that was read. A row that comes there later is late, and is
            # not held.
            released = min(through, (due_s, (rows if is_end else held)[-1][0]) if rows else begin)
        is_over = is_end and through == past_through(progress)
        after = hold._replace(released=max(hold.released, released), gone=hold.gone + number)
        return Release(taken, number, None if is_over else after, groups, last, is_end)

    def note_released(self, hold: Hold, release: Release, second: int) -> None:
        """Note that rows of a hold were released in a tick second, and are not in the store any more. Before that,
        nothing of a release is noted: its transaction may be rolled back, and the next one begins with the same row."""
        name = hold.target, hold.begin
        if release.hold is None:
            self._counts.pop(name, None)
            self._nothing_left.pop(name, None)
            self._begins.pop(name, None)
            return
        if release.begin is not None:
            self._begins[name] = release.begin
        if release.is_end:
            self._nothing_left[name] = second
        if name in self._counts:
            self._counts[name] -= release.number


def _fitting(rows: list[Row], limit: int) -> tuple[list[Row], int]:
    """Returns the first rows that count as up to so many timers, or little more, and as how many they count."""
    if not count_with(REPEAT, [(0, rows)]):
        return rows[:limit], min(len(rows), limit)
    cost = 0
    for number, row in enumerate(rows):
        if cost >= limit:
            return rows[:number], cost
        cost += OCCURRENCE_COST if is_occurrence(row) else 1
    return rows, cost


def _held_past(progress: Progress, due_s: int, rows: list[Row]) -> list[Row]:
    """Returns those that are held of rows of one second, of which a part may be to come."""
    if not progress.is_past((due_s, rows[-1][0])):
        rows = [row for row in rows if progress.is_past((due_s, row[0]))]
    return progress.held(due_s, rows)


def past_through(progress: Progress) -> OrderKey:
    """Returns a key above which no row is past its due second. Of moved requests nothing is held."""
    return reached(progress.fired_through, [hole for hole in progress.holes if hole.through[0] != MOVED_HOLE_S], -1)


class Split(NamedTuple):
    """New rows, by what becomes of them."""

    late: RowsByDue
    """They fire at once: they are at or below ``fired_through``, and not held."""
    waiting: RowsByDue
    """They are above it."""
    held: RowsByDue
    """They are at or below it, and held [I33]. They are stored in groups of their own: the next scan begins above
    ``fired_through``, and would miss the end of a group that begins below it."""


def split_late(rows: RowsByDue, progress: Progress) -> Split:
    """Returns what becomes of new rows."""
    fired_s, fired_offset = progress.fired_through
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
    if not (progress.holds and late):
        return Split(late, waiting, {})
    held: list[DueRows] = []
    free = without_held(progress, list(late.items()), held)
    return Split(dict(free), waiting, dict(held))
