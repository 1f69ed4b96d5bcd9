"""Reads one machine for a query, one slice at a time and when it may be read, so that due timers fire first.

The functions run on the machine's thread. Most reading is done in the idle window of each second, after its timers have
fired. The first page of a list may be read at any time: it is small, and someone waits for it. Both take a limited
share of the time of one processor, so any number of readers delays due timers by a limited time. While the machine
reads its log again, they raise NoAnswer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import NamedTuple

from timers.core.fired import Hold
from timers.core.keys import MAX_OFFSET, OrderKey
from timers.core.levels import FIRST_LEVEL
from timers.core.listing import Listed, NoAnswer, Page, Position, key_after
from timers.core.machine import Machine
from timers.core.operation import key_of, offset_of, repeating, request_of
from timers.core.printable import utc_text
from timers.core.progress import FEATURE_LEVEL
from timers.core.repeating import target_of
from timers.core.snapshots import may_take
from timers.core.timer import Origin, Row, id_bytes, key_bytes
from timers.wire import query as wire
from timers.wire import topics
from timers.wire.headers import SET
from timers.wire.query import Query, Timer

SLICE_S = 0.002
"""Time for which a machine is read at once. A tick may have to wait for it."""

SLICE_ROWS = 1024
"""Approximate maximum number of rows read at once; it takes about 1 ms."""

SLICE_BYTES = 1024 * 1024
"""Maximum size of the values read at once."""


REPLACEMENT = "\ufffd"
"""Stands in shown ids for bytes that are not UTF-8."""


class Place(NamedTuple):
    """The partition of a machine, and how it is read."""

    topic: str
    partition: int
    moved: bool
    """Whether the topic is the retry topic, to which timers are moved."""
    hidden_topic: str = ""
    """Callback topic whose timers are listed only if a query names it."""
    slices: int = 1
    """Slices of its store that are read at once."""
    all_have_ids: bool = False
    """As :attr:`RequestFormat.all_have_ids`. The source of a request stands in no row."""


def want_snapshot(machine: Machine, want: Callable[[], None]) -> None:
    """Call ``want`` if a snapshot of a machine may be taken, unless there is nothing that it could hold.

    Raises:
        NoAnswer: it may not be taken now.
    """
    if not may_take(machine):
        raise NoAnswer("its log is being read again, or its broker's clock is behind: try again later")
    if machine.progress.next_offset:
        want()


class _Slice:
    """Whether enough was read at once."""

    def __init__(self, place: Place) -> None:
        self._end_at = monotonic() + place.slices * SLICE_S
        self._most_rows = place.slices * SLICE_ROWS
        self._rows = self._bytes = 0

    def ends_after(self, rows: Sequence[Row]) -> bool:
        """Count the rows of a group; an empty one counts as one row."""
        self._rows += len(rows) or 1
        self._bytes += sum([len(row[3]) for row in rows])
        return self._rows >= self._most_rows or self._bytes >= SLICE_BYTES or monotonic() > self._end_at


def _wanted(query: Query, place: Place) -> Callable[[Row], bool]:
    """Whether a row has the topic, the key and the part of the id that a query names."""
    topic, hidden, prefix, contains = query.topic, place.hidden_topic, query.prefix, query.contains
    key, part = None if query.key is None else query.key.encode(), contains.encode(errors="surrogatepass")
    of_set = SET, query.set.encode()

    def wanted(row: Row) -> bool:
        target = row[1] or target_of(row)
        if target != topic and (topic is not None or target == hidden):
            return False
        if key is not None and key_bytes(row[2]) != key:
            return False
        if query.set and of_set not in map(tuple, row[4] or ()):
            return False
        if not prefix and (not contains or part in (key_bytes(row[2]) or b"")):
            return True
        id = wire.shown_id(row, topics.source(*place[:2], row[0]))
        return id.startswith(prefix) and (not contains or contains in id or part in (key_bytes(row[2]) or b""))

    return wanted


def _sought(query: Query, place: Place) -> list[bytes]:
    """Texts that stand in each row that is wanted. The id of a row without an origin does not stand in it."""
    sought = [] if query.topic is None else [query.topic.encode()]
    if query.key:
        sought.append(query.key.encode())
    if query.set:
        sought.append(query.set.encode())
    prefix, part = query.prefix.partition(REPLACEMENT)[0], max(query.contains.split(REPLACEMENT), key=len)
    own = topics.source(place.topic, place.partition, 0)[:-1]
    if prefix and (place.all_have_ids or not (own.startswith(prefix) or prefix.startswith(own))):
        sought.append(prefix.encode(errors="surrogatepass"))
    if part and (place.all_have_ids or (part not in own and not own.endswith(part.rstrip("0123456789")))):
        sought.append(part.encode(errors="surrogatepass"))
    return sought


def page(machine: Machine, place: Place, query: Query, after: Position, limit: int) -> Page:
    """The next timers of a machine: at most ``limit``, from at most one slice of its store."""
    _check_recovered(machine)
    listed: list[Listed] = []
    piece = _Slice(place)
    start = key_after(after, place.topic, place.partition)
    for (due_s, offset), rows in machine.waiting(start, _wanted(query, place), _sought(query, place)):
        if query.to_s is not None and due_s >= query.to_s:
            break
        for row in rows:
            hold = _hold(machine, row, due_s)
            timer = wire.describe(row, due_s, *place[:2], hold, moved=place.moved, with_value=query.with_values)
            position = (due_s, place.topic, place.partition, row[0])
            listed.append(Listed(position, timer))
            if len(listed) == limit:
                return Page(listed, position)
        if piece.ends_after(rows):
            return Page(listed, (due_s, place.topic, place.partition, offset))
    return Page(listed, None)


def count(
    machine: Machine, place: Place, query: Query, after: OrderKey
) -> tuple[Counter[tuple[int, str]], OrderKey | None]:
    """Count the next timers of a machine, from at most one slice of its store.

    Returns:
        (first second of a group of ``query.by_s`` seconds, callback topic) -> timers, and the key up to which it has
        counted; None: no timers follow.
    """
    _check_recovered(machine)
    counts: Counter[tuple[int, str]] = Counter()
    piece = _Slice(place)
    for through, rows in machine.waiting(after, _wanted(query, place), _sought(query, place)):
        due_s = through[0]
        if query.to_s is not None and due_s >= query.to_s:
            break
        group = due_s - due_s % query.by_s
        for row in rows:
            counts[group, row[1] or target_of(row)] += 1
        if piece.ends_after(rows):
            return counts, through
    return counts, None


def find_by_id(machine: Machine, place: Place, id: str, with_value: bool) -> Timer | None:
    """The latest version of a timer with an id, pending or remembered. One that repeats is pending at each moment, also
    while what follows its latest occurrence is not read yet: then its callback is not known."""
    _check_recovered(machine)
    entry = machine.find(id_bytes(id))
    if entry is None:
        return None
    key = due_s, _ = key_of(entry)
    cold, past = machine.is_cold(entry), machine.progress.is_past(key)
    row = None if cold or (past and not machine.progress.holds) else _row(machine, key)
    repeats = repeating(entry) is not None and not machine.progress.is_elsewhere(key[1])
    if row is None and (cold or past or repeats):
        state = wire.PENDING if repeats else wire.COLD if cold else wire.FIRED
        source = topics.source(place.topic, place.partition, request_of(entry))
        timer: Timer = {"id": id, "state": state, "due": due_s, "due_at": utc_text(due_s), "source": source}
        return {**timer, "version": source} if repeats else timer
    if row is None:
        return None
    return with_state(row, due_s, place, wire.PENDING, with_value, _hold(machine, row, due_s))


def find_record(
    machine: Machine,
    place: Place,
    offset: int,
    timer_id: str | None,
    due_s: int,
    append_s: int,
    version: int | None = None,
) -> tuple[str, Row | None] | None:
    """The state of an accepted request, and its row if it is pending. None: the machine does not know it.

    Args:
        timer_id: that the request has in its row; None: none.
        version: if it is an occurrence of a timer that repeats: offset of the definition.
    """
    _check_recovered(machine)
    key = due_s, offset
    latest = machine.find_copy(offset) if timer_id is None else machine.find(id_bytes(timer_id))
    # The timer is stored under its own offset or, after its promotion from the cold tier, under that of its copy.
    for each in (key,) if latest is None else (key, key_of(latest)):
        stored = _row(machine, each)
        if stored is not None and (each == key or _source(stored) == topics.source(*place[:2], offset)):
            return wire.PENDING, stored
    cold = machine.is_cold((*key, append_s))
    past = machine.progress.is_past(key)
    state: str | None
    if timer_id is None:
        state = wire.FIRED if past else wire.COLD if cold and latest is None else None
    elif latest is None:
        state = None if past else wire.REPLACED  # past: its id is forgotten, so it fired or was replaced
    elif latest[:2] == key:
        state = wire.COLD if cold else wire.FIRED
    elif version is not None and version == request_of(latest) and offset < offset_of(latest):
        state = wire.FIRED  # or it is one of the missed occurrences
    else:
        state = wire.REPLACED
    return None if state is None else (state, None)


def find_sent(
    machine: Machine,
    place: Place,
    offset: int,
    append_s: int,
    requests: Mapping[int, tuple[str | None, int, int | None] | None],
) -> tuple[int, str | None, Row | None, Hold | None] | None:
    """The state of the request in a record, as :func:`find_record` returns it, and what holds its timer. None: the
    machine has not read it.

    Args:
        requests: feature level from which such a record is read so -> the id of its timer, the due second, and the
            offset of the definition that it repeats by, or None; None: it asks for no timer.

    Returns:
        Which of these levels it was; the state, None if the machine does not know it; its row if it is pending.
    """
    progress = machine.progress
    if offset >= progress.next_offset:
        return None
    read_at = progress.setting_at(FEATURE_LEVEL, offset, FIRST_LEVEL)
    level = max(each for each in requests if each <= read_at)
    request = requests[level]
    found = None
    if request is not None:
        timer_id, due_s, version = request
        found = find_record(machine, place, offset, timer_id, due_s, append_s, version)
    if found is None or request is None:
        return level, None, None, None
    state, row = found
    return level, state, row, None if row is None else _hold(machine, row, request[1])


def find_offset(
    machine: Machine, place: Place, offset: int, after: OrderKey, with_value: bool
) -> tuple[Timer | None, OrderKey | None]:
    """Look in one slice of the store for the pending timer of a request of which only the offset is known.

    Returns:
        The timer, and the key up to which it has looked; None: no timers follow.
    """
    _check_recovered(machine)
    piece, source = _Slice(place), topics.source(*place[:2], offset)
    for through, rows in machine.waiting(after, lambda row: row[0] == offset or _source(row) == source):
        for row in rows:
            hold = _hold(machine, row, through[0])
            return with_state(row, through[0], place, wire.PENDING, with_value, hold), through
        if piece.ends_after(rows):
            return None, through
    return None, None


def _source(row: Row) -> str | None:
    return None if row[5] is None else Origin(*row[5]).source


def with_state(row: Row, due_s: int, place: Place, state: str, with_value: bool, hold: Hold | None) -> Timer:
    """A timer as a look-up shows it."""
    timer = wire.describe(row, due_s, *place[:2], hold, moved=place.moved, with_value=with_value)
    return {**timer, "state": state}


def _hold(machine: Machine, row: Row, due_s: int) -> Hold | None:
    """What holds a pending timer that is due."""
    key = due_s, row[0]
    return machine.progress.hold_of(key, row[1]) if machine.progress.is_past(key) else None


def _row(machine: Machine, key: OrderKey) -> Row | None:
    """The row of a key, if it is pending."""
    due_s, offset = key
    before = (due_s, offset - 1) if offset else (due_s - 1, MAX_OFFSET)
    for (found_s, _), rows in machine.waiting(before):
        return next((row for row in rows if (found_s, row[0]) == key), None)
    return None


def _check_recovered(machine: Machine) -> None:
    if machine.recovering:  # the pending timers of a machine that recovers are not known yet
        raise NoAnswer("its log is being read again")


START = 0.25
END = 0.85
"""Start and end of the idle window in a second, by the brokers' clock. At a steady load all due timers have fired by
then. Without the window a long list doubled the lag of due timers (``bench.listing``)."""

IDLE_SHARE = 0.5
"""Share of the time in which machines are read in the idle window."""

BUSY_SHARE = 0.35
"""The same in the rest of the second."""

BURST_S = 0.02
"""Time for which machines may be read before the shares count, and longest time that is made up for afterwards."""


class Turns:
    """Says when to read. One event loop calls it.

    Args:
        now_s: returns the brokers' time; None if it is not known yet, and then no timer fires.
        clock: returns monotonic time.
    """

    def __init__(self, now_s: Callable[[], float | None], clock: Callable[[], float] = monotonic) -> None:
        self._now_s = now_s
        self._clock = clock
        self._left_s = BURST_S
        self._refilled_at = clock()
        self._given_back = asyncio.Event()

    def wait_s(self, *, quick: bool) -> float:
        """Seconds until a machine may be read; 0: now.

        Args:
            quick: whether it is for the first page of a list, and need not wait for the idle window.
        """
        until_window_s = self._until_window_s()
        if until_window_s and not quick:
            return until_window_s
        share = BUSY_SHARE if until_window_s else IDLE_SHARE
        now = self._clock()
        self._left_s = min(BURST_S, self._left_s + (now - self._refilled_at) * share)
        self._refilled_at = now
        return 0.0 if self._left_s > 0 else (BURST_S / 100 - self._left_s) / share

    def _until_window_s(self) -> float:
        now_s = self._now_s()
        if now_s is None or START <= now_s % 1 < END:
            return 0.0
        return (START - now_s) % 1

    async def wait(self, *, quick: bool) -> None:
        """Wait until a machine may be read. A whole slice counts as read, until :meth:`correct` says how much it was:
        else all questions that wait would begin together."""
        while wait_s := self.wait_s(quick=quick):
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._given_back.wait()
        self.spend(SLICE_S)

    def correct(self, seconds: float) -> None:
        """Note how long a machine was read after :meth:`wait`. Most slices are shorter, so others may read earlier."""
        self.spend(seconds - SLICE_S)
        self._given_back.set()  # wakes those that wait now
        self._given_back.clear()

    def spend(self, seconds: float) -> None:
        """Note how long a machine was read."""
        self._left_s = max(-BURST_S, self._left_s - seconds)
