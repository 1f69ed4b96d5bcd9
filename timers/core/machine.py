"""One partition of a request topic as a state machine over its log: the one idea of this system.

::

    pending = requests with offset < next_offset and key > fired_through

Everything below is a way to keep that sentence true while the process may die between any two lines. Marks such as
``[I1]`` name the invariants of ``docs/design.md``; the simulator (:mod:`timers.testing`) breaks them one by one and
must notice.

A machine is not thread-safe: one thread owns it. So nothing is accepted between the scan of a chunk and its delete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from timers.core.counters import Counters
from timers.core.horizon import Horizon
from timers.core.index import Index, latest
from timers.core.keys import MAX_OFFSET, OrderKey
from timers.core.operation import Entries, Entry, Judged, Operation
from timers.core.pace import OVERDUE_S, Pace
from timers.core.ports import Decoder, Lost, Outbox, Store
from timers.core.progress import Progress
from timers.core.second_barrier import SecondBarrier
from timers.core.ticking import CLOCK_STEP_BACK_S, present
from timers.core.timer import Decoded, Fetched, Row, RowsByDue, Tick, bytes_of

MAX_REQUEST_BYTES = "TIMERS_MAX_REQUEST_BYTES"
"""Name, in the progress history, of the one setting that acceptance depends on."""

REJECT_OVERDUE = "reject-overdue"
"""Name, in the progress history, of whether timers that were due before they were asked for are rejected: 0 or 1."""

PARTITIONS = "partitions"
"""Name, in the progress history, of how many partitions a topic of timers with an id has. Acceptance does not depend on
it, but an id's way to its partition does: so it may not change unnoticed."""

CLEANING_S = 5
"""What was appended so short a time ago, compaction has not touched: it stands in a segment that is still written."""


class OutOfPlace(Exception):
    """A fetch does not continue where the machine stands: read again from ``position``."""

    def __init__(self, position: int) -> None:
        super().__init__(f"expected a fetch from offset {position}")
        self.position = position


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one machine."""

    chunk_timers: int
    """Most timers in one transaction, give or take one stored group."""
    chunk_bytes: int
    """Most bytes of timers in one transaction, give or take one stored group."""
    max_request_bytes: int
    """Largest request value accepted."""
    catch_up_per_s: int = 0
    """Most overdue timers fired in one second; 0 means no bound."""
    overdue_s: int = OVERDUE_S
    """Late by more than this is overdue."""
    partitions: int = 0
    """Of the topic, where timers have ids; kept in the progress."""
    reject_overdue: bool = False
    """Where a request format can read in both ways."""
    stale_after_s: int = 0
    """A store that has not kept up with its log for longer is not to be trusted: compaction may have taken both a
    version that the store holds and the tombstone behind it [I9]. 0: the log is not compacted."""


def catch_up(store: Store, progress: Progress, *, indexed: bool = False) -> bool:
    """Bring a store up to what was committed since it was written, before a machine is made of both.

    Returns:
        False: the store must be emptied, and the log read again. Another owner has read, under other settings, what is
        already in it [I4]; or has passed over what it holds, and an index cannot be taken back: it no longer knows what
        stood there before.
    """
    applied = store.applied
    store.drop_through(progress.fired_through, progress.next_offset)
    taken_back = store.applied < applied
    return progress.read_alike(store.history, store.applied) and not (indexed and taken_back)


class Machine:
    """Accepts requests and fires them when their second has begun.

    Args:
        index: of a request format whose timers have ids; None for all others, which then cost nothing more. horizon:
        where timers may go cold, or once might; None elsewhere, likewise. decode_rejecting: how the request format
        reads where overdue timers are rejected; None if it knows no such thing.

    Attributes:
        progress: what the last commit said, plus what has moved since without needing a commit.
        replayed: records read again since opening.
        counters: totals of the partition, for metrics; shared with the outbox and with the machines before.
    """

    def __init__(
        self,
        progress: Progress,
        decode: Decoder,
        store: Store,
        outbox: Outbox,
        limits: Limits,
        counters: Counters | None = None,
        index: Index | None = None,
        horizon: Horizon | None = None,
        decode_rejecting: Decoder | None = None,
    ) -> None:
        # [I1] Everything that the store holds may fire, so next_offset covers it. Right only because whatever a batch
        # emits is committed before the batch is stored [I2]: what the store has beyond the progress emitted nothing.
        next_offset = max(progress.next_offset, store.applied)
        self.progress = replace(progress, next_offset=next_offset).with_setting(
            MAX_REQUEST_BYTES, limits.max_request_bytes
        )
        if index is not None:
            self.progress = self.progress.with_setting(PARTITIONS, limits.partitions)
        if horizon is not None:
            self.progress = horizon.enter(self.progress)
        if decode_rejecting is not None:
            self.progress = self.progress.with_setting(REJECT_OVERDUE, int(limits.reject_overdue))
        store.note_history(self.progress.settings)
        self.replayed = 0
        self.counters = counters or Counters()
        self.counters.resume(progress, store.applied)
        self._committed = progress
        self._decode = decode
        self._decode_rejecting = decode_rejecting
        self._store = store
        self._outbox = outbox
        self._limits = limits
        self._pace = Pace(limits.catch_up_per_s)
        self._tick: Tick | None = None
        self._held = False
        self._index = index
        self._horizon = horizon
        self._barrier = None if index is None else SecondBarrier(CLEANING_S if limits.stale_after_s else None)

    @property
    def position(self) -> int:
        """Offset that the next fetch must begin at, or before."""
        return self._store.applied

    @property
    def recovering(self) -> bool:
        """Still re-reading what was accepted before: nothing may fire yet."""
        return self._store.applied < self.progress.next_offset

    @property
    def remaining(self) -> int:
        """Offsets that are still to be read again before anything may fire."""
        return max(0, self.progress.next_offset - self._store.applied)

    @property
    def held(self) -> bool:
        """The broker's clock stands before what has already fired: accepting now could fire early [I10]."""
        return self._held

    @property
    def may_accept(self) -> bool:
        """A replay needs no clock; new requests need one, since late ones fire at once.

        Where the log is compacted even a replay does: only the time says whether the store may be read on.
        """
        if self._limits.stale_after_s and self._tick is None:
            return False
        return self.recovering or (self._tick is not None and not self._held)

    @property
    def fires_first(self) -> bool:
        """Whether accepting waits while something is due. What was there before a second is read before it fires in any
        case."""
        return self._index is not None and self._index.fires_first

    @property
    def released_s(self) -> int | None:
        """The last second that accepting has let through: it may fire now. None where timers have no ids: there no
        second waits for that."""
        return None if self._barrier is None else self._barrier.second

    @property
    def pending(self) -> int:
        """Timers stored and not yet fired; of those with an id, also versions that were replaced or cancelled."""
        return self._store.pending

    @property
    def oldest_due_s(self) -> int | None:
        """Due second of the next timer to fire."""
        return self._store.oldest_due_s()

    # ---- questions ----------------------------------------------------------------------------------------------

    def waiting(self, after: OrderKey) -> Iterator[tuple[int, list[Row]]]:
        """Timers above ``after`` that will fire as things stand, in the order in which they will: (due second, rows).

        A group may be empty. To be read between two steps of the machine, not beyond.
        """
        for due_s, rows in self._store.waiting(max(after, self.progress.fired_through)):
            yield due_s, rows if self._index is None else self._index.alive(due_s, rows)

    def find(self, id: bytes) -> Entry | None:
        """The latest version of an id: waiting, cold, or fired and remembered."""
        return None if self._index is None else self._index.find(id, self.progress.fired_through)

    def find_returned(self, offset: int) -> Entry | None:
        """The copy of a cold request that came back, where timers have no ids."""
        return None if self._horizon is None or self._index is not None else self._horizon.find_returned(offset)

    def is_cold(self, entry: Entry) -> bool:
        """Whether a version went cold when it was accepted."""
        return self._horizon is not None and self._horizon.is_cold(entry)

    # ---- requests -----------------------------------------------------------------------------------------------

    def accept(self, fetched: Fetched) -> None:
        """Take in one fetch.

        Raises:
            OutOfPlace: there is a gap before it, or what is new in it must wait for a clock; read again from there.
            Lost: its output could not be committed: drop this machine and open it again.
        """
        position = self.position
        if fetched.from_offset > position:  # [I7] a fetch before this one was dropped on the way
            raise OutOfPlace(position)
        if fetched.to_offset <= position:
            return
        records: Sequence[Any] = fetched.records
        if records and records[0].offset < position:
            records = [record for record in records if record.offset >= position]
        end_of_replay = self.progress.next_offset
        if not self.recovering:
            self._take(self._accept_new, records, fetched.to_offset)
        elif fetched.to_offset <= end_of_replay:
            self._take(self._replay, records, fetched.to_offset)
        else:
            before = [record for record in records if record.offset < end_of_replay]
            self._take(self._replay, before, end_of_replay)
            if not self.may_accept:
                raise OutOfPlace(end_of_replay)
            after = [record for record in records if record.offset >= end_of_replay]
            self._take(self._accept_new, after, fetched.to_offset)
        if self._barrier is not None:
            self._barrier.read(self.position)

    def _take(self, take: Callable[[Sequence[Any], int], None], records: Sequence[Any], to_offset: int) -> None:
        pieces: Iterable[tuple[Sequence[Any], int]] = [(records, to_offset)]
        if self._horizon is not None:
            pieces = self._horizon.pieces(records, to_offset)
        for piece, end in pieces:
            take(piece, end)

    def _replay(self, records: Sequence[Any], to_offset: int) -> None:
        """Take in again what was accepted before: the same decisions, outputs discarded [I15]."""
        decoded = self._read(records, to_offset)
        returned = self._admit(decoded)
        _, waiting = self._split_late(decoded.rows)
        # Also what is itself past takes the place of the version before: else that one would fire after it.
        self._store.write(waiting, to_offset, {**latest(decoded.operations), **returned})
        self.replayed += len(records)
        self.counters.replayed += len(records)

    def _accept_new(self, records: Sequence[Any], to_offset: int) -> None:
        decoded = self._read(records, to_offset)
        returned = self._admit(decoded)
        late, waiting = self._split_late(decoded.rows)
        judged = self._judge(decoded.operations)
        after = replace(self.progress, next_offset=to_offset)
        ended = {offset for _, offset, due_s, _ in decoded.operations if due_s is None}
        ended.update(rejected.offset for rejected in decoded.rejected)
        accepted = len(records) - len(ended) - len(decoded.returned)
        late_count, returned_count = sum(map(len, late.values())), len(decoded.returned)
        self.counters.take(to_offset, accepted, late_count, returned_count, decoded.ignored, decoded.callers)
        speaks = late or decoded.rejected or decoded.forwarded or judged.verdicts or judged.superseded
        if speaks or after.settings != self._committed.settings:
            # [I2] Output is committed before the batch is stored. So is a changed setting: a replay of this batch must
            # find it in the history [I4].
            self._emit(late, decoded, judged, after)
        self._store.write(waiting, to_offset, {**judged.entries, **returned} if returned else judged.entries)
        self.progress = after

    def _admit(self, decoded: Decoded) -> Entries:
        """Drop copies of timers that came back before, or were replaced or cancelled meanwhile."""
        return self._horizon.admit(decoded) if self._horizon is not None and decoded.returned else {}

    def _judge(self, operations: Sequence[Operation]) -> Judged:
        return Judged({}) if self._index is None else self._index.judge(operations, self.progress.fired_through)

    def _read(self, records: Sequence[Any], to_offset: int) -> Decoded:
        """Decode with the settings that were in force where each record stands [I4]."""
        if not records:
            return Decoded()
        start = records[0].offset
        cuts = self.progress.boundaries(start, to_offset)
        if not cuts:
            return self._read_alike(records, start)
        decoded = Decoded()
        for low, high in zip([start, *cuts], [*cuts, to_offset], strict=True):
            part = self._read_alike([r for r in records if low <= r.offset < high], low)
            for due_s, rows in part.rows.items():
                decoded.rows.setdefault(due_s, []).extend(rows)
            decoded.rejected.extend(part.rejected)
            decoded.operations.extend(part.operations)
            decoded.forwarded.extend(part.forwarded)
            decoded.returned.extend(part.returned)
            for caller, count in part.callers.items():
                decoded.callers[caller] = decoded.callers.get(caller, 0) + count
        return decoded

    def _read_alike(self, records: Sequence[Any], offset: int) -> Decoded:
        """Decode records among which no setting changes."""
        max_bytes = self.progress.setting_at(MAX_REQUEST_BYTES, offset, self._limits.max_request_bytes)
        if self._decode_rejecting is not None and self.progress.setting_at(REJECT_OVERDUE, offset, 0):
            return self._decode_rejecting(records, max_bytes)
        if self._horizon is None or not records:
            return self._decode(records, max_bytes)
        return self._horizon.read(records, self._decode, max_bytes)

    def _split_late(self, rows: RowsByDue) -> tuple[RowsByDue, RowsByDue]:
        """Rows at or below ``fired_through``, whose turn is over, and the others."""
        fired_s, fired_offset = self.progress.fired_through
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
                passed = [row for row in group if row[0] <= fired_offset]
                ahead = [row for row in group if row[0] > fired_offset]
                if passed:
                    late[due_s] = passed
                if ahead:
                    waiting[due_s] = ahead
        return late, waiting

    def _emit(self, late: RowsByDue, decoded: Decoded, judged: Judged, after: Progress) -> None:
        assert self._tick is not None, "may_accept was not asked"
        self._outbox.begin(self._tick)
        self.counters.transaction.late = bool(late)
        for due_s in sorted(late):
            self._fire(due_s, late[due_s], self._tick)
        if decoded.rejected:
            self._outbox.reject(decoded.rejected)
        if decoded.forwarded:
            self._outbox.forward(decoded.forwarded)
        if judged.verdicts:
            self._outbox.answer(judged.verdicts)
        if judged.superseded:
            self._outbox.republish([self._row_of(key, decoded.rows) for key in judged.superseded])
        self._commit(after)

    def _row_of(self, key: OrderKey, fresh: RowsByDue) -> Row:
        """The row of a key that the index holds: it is about to be stored, or is."""
        due_s, offset = key
        for row in fresh.get(due_s, ()):
            if row[0] == offset:
                return row
        _, rows = next(self._store.waiting((due_s, offset - 1)))
        assert rows[0][0] == offset, f"the index holds {key}, the store does not"
        return rows[0]

    def _fire(self, due_s: int, rows: list[Row], tick: Tick) -> None:
        """Fire rows; of a backlog only so many a second, the rest becomes requests for later seconds."""
        if not self._pace.bounded or due_s >= tick.second - self._limits.overdue_s:
            self._outbox.fire(due_s, rows)
            return
        start = 0
        for second, count in self._pace.share(tick.second, len(rows)):
            some = rows[start : start + count]
            start += count
            if second == tick.second:
                self._outbox.fire(due_s, some)
            else:
                self._outbox.postpone(due_s, some, second)

    # ---- time ---------------------------------------------------------------------------------------------------

    def observe(self, tick: Tick, end: int | None = None) -> None:
        """Learn the time. Old and duplicate ticks change nothing; a missed second needs no tick of its own.

        Args:
            tick: the time.
            end: where the log ended for committed readers after the tick was appended. Timers with ids fire by ticks of
                which it is known; nobody else asks.

        Raises:
            Lost: the store is too old [I9]; opened again, it is empty.
        """
        if self._limits.stale_after_s:
            self._keep_or_condemn(tick)
        fired_s = self.progress.fired_through[0]
        self._held = tick.second < (fired_s if self._held else fired_s - CLOCK_STEP_BACK_S)
        set_back = self._tick is not None and tick.second < self._tick.second - CLOCK_STEP_BACK_S
        self._tick = present(self._tick, tick)
        if self._barrier is not None and tick == self._tick:
            if set_back:
                self._barrier.close()
            if end is not None:
                self._barrier.tick(tick.second, end, self.position)

    def _keep_or_condemn(self, tick: Tick) -> None:
        """Judge the store's age [I9].

        Whoever reads a log from its start has as long for it as a tombstone lives, counted from when the reading began.
        """
        known_s = self._store.read_through_s
        if known_s is None:  # nothing is read before the first tick, so this is a new one
            self._store.note_read_through(tick.second)
            return
        behind_s = tick.second - max(known_s, self.released_s or 0)
        if abs(behind_s) > self._limits.stale_after_s:  # or the clock went back, and nobody knows
            self._store.condemn()
            raise Lost(
                f"the store has not kept up with its log for {behind_s} s, and what was deleted there meanwhile may be "
                "gone without a trace: it is read again from its start"
            )

    def _note_read_through(self) -> None:
        through_s, known_s = self.released_s, self._store.read_through_s
        if through_s is not None and known_s is not None and through_s - known_s > self._limits.stale_after_s // 100:
            self._store.note_read_through(through_s)

    def _second_to_fire(self, tick: Tick) -> int | None:
        """What is due by this second may fire; None: nothing may."""
        if self._barrier is None:
            return tick.second
        return None if self._barrier.second is None else min(tick.second, self._barrier.second)

    def fire_chunk(self) -> bool:
        """Fire the next chunk of what is due. Call until it returns False.

        Returns:
            Whether more is due.

        Raises:
            Lost: drop this machine and open it again.
        """
        tick = self._tick
        if tick is None or self.recovering:
            return False
        start = self.progress.fired_through
        second = self._second_to_fire(tick)
        if second is None or second < start[0]:
            return False
        through: OrderKey = (second, MAX_OFFSET)
        count = size = 0
        full = fires = False
        for due_s, rows in self._store.scan(start, second):  # [I3] each chunk is a fresh scan from fired_through
            if full:
                break
            alive = rows if self._index is None else self._index.alive(due_s, rows)
            if alive:
                if not fires:
                    self._outbox.begin(tick)
                    fires = True
                self._fire(due_s, alive, tick)
            count += len(rows)
            size += bytes_of(rows)
            full = count >= self._limits.chunk_timers or size >= self._limits.chunk_bytes
            last = (due_s, rows[-1][0])
        else:
            # The scan reached its end, and this thread accepted nothing meanwhile: the whole second is done [I3].
            full = False
        if full:
            through = last
        after = replace(self.progress, fired_through=max(start, through))
        if fires:
            self._commit(after)
        else:
            # Nothing fired, so nobody can have seen this yet: it becomes durable with the next commit.
            self.progress = after
        if count:
            # [I3] Exactly (old, new], and only after the commit. What is dead needs none: it stays dead.
            self._store.delete(after.fired_through, count)
        return full

    def commit_progress(self, *, even_if_idle: bool = False) -> bool:
        """Make durable what was accepted since the last commit, so that lag tools and a new owner see it.

        Args:
            even_if_idle: commit also when only time has passed, so that a new owner starts from a recent second.

        Returns:
            Whether there was something to commit.

        Raises:
            Lost: drop this machine and open it again.
        """
        if self._index is not None and not self.recovering:
            self._index.sweep(self._committed.fired_through)  # for good: by no time that a crash takes back
        if self._horizon is not None and not self.recovering:
            self._horizon.sweep()
        if self._limits.stale_after_s:
            self._note_read_through()
        behind = self._committed.next_offset != self.progress.next_offset or (
            even_if_idle and self._committed != self.progress
        )
        if not behind or self.recovering or self._tick is None:
            return False
        self._outbox.begin(self._tick)
        self._commit(self.progress)
        return True

    def _commit(self, after: Progress) -> None:
        self.counters.transaction.progress = after
        self._outbox.commit(after)
        # Memory moves only after the commit [I2].
        self.progress = self._committed = after
        if self._horizon is not None:
            self._horizon.commit()
        self.counters.settle(after)
