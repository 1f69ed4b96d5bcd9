"""The machine: one partition of a request topic as a state machine over its log.

::

    pending = requests with offset < next_offset and key > fired_through

The code keeps this sentence true even if the process dies between any two lines. Marks such as ``[I1]`` name the
invariants in ``docs/design.md``. The simulator (``tests/simulation``) also runs mutations of this code, which break
one invariant each, and must find every mutation.

:mod:`timers.core.loop` decides the order of the steps. :mod:`timers.machines.partition` makes a machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from timers.core.chunk import Chunk, with_noisy
from timers.core.counters import HELD, LATE, Accepted, Counters
from timers.core.doubts import Doubts, noted
from timers.core.fired import Command, Hold
from timers.core.held import HeldRows, Split, split_late
from timers.core.index import Sweeper, known_row
from timers.core.keys import MAX_OFFSET, NOTHING_FIRED, OrderKey
from timers.core.levels import HOLDS_LEVEL
from timers.core.limits import Limits, Pace
from timers.core.lineage import Leader, Lineage, PassedBatch, RecordCount, continued, counted_again
from timers.core.mending import StandingStill
from timers.core.operation import NO_ENTRIES, NO_RESULTS, Entry, OperationResults
from timers.core.ports import NO_OUTPUT, Lost, Outbox, Output, ReadAgain, Store, TooMuch
from timers.core.progress import FEATURE_LEVEL, MAX_REQUEST_BYTES, Cuts, Progress
from timers.core.rescue import next_lost
from timers.core.steps import STEPS, State
from timers.core.timer import (
    CLOCK_STEP_BACK_S,
    Decoded,
    Definition,
    DueRows,
    Fetched,
    Row,
    RowsByDue,
    Tick,
    latest_tick,
    runs,
)
from timers.core.variant import Variant


class Machine:
    """Accepts requests, and fires them when their second has begun.

    Not thread-safe: one thread owns it. So nothing is accepted between the scan of a chunk and its delete [I3].

    Args:
        store: of the partition, after :func:`timers.core.store_validity.catch_up`.
        outbox: sends what the machine emits.
        variant: the objects that differ between request formats.
        counters: totals of the partition, for metrics; shared with the outbox and with earlier machines.

    Attributes:
        progress: the last committed progress, and later changes that need no commit of their own.
        replayed: number of records read again since opening.
        must_ask_end: its own transaction held back the end of the log that came with the last tick [I17].
        clock_is_behind: no request is accepted, because the broker's clock is behind what has fired [I10].
        sweeper: removes ids, or promoted copies, that are forgotten.
        fires_first: accepting waits while timers are due. The second barrier is kept in both cases.
        doubts: what is known of doubts about the log.
        held: the rows that holds hold.
        rescue_count: how many cuts took records from the log that the store still holds. If it is not 0, the machine
            does nothing but write dead letters for these records [I28].
    """

    def __init__(
        self,
        progress: Progress,
        store: Store,
        outbox: Outbox,
        limits: Limits,
        variant: Variant,
        counters: Counters | None = None,
    ) -> None:
        # [I1] All timers in the store may fire, so next_offset is above them. The maximum is correct because of [I2]:
        # a batch with output is stored after its commit, so what the store holds above the commit has no output.
        opened = progress
        self.rescue_count = len(progress.rescues_of(store.history, store.applied))
        if store.applied >= progress.next_offset and not self.rescue_count:
            known = store.lineage if store.applied > progress.next_offset else progress.lineage
            accepted = progress.lineage.count_at(progress.next_offset)
            count = continued(store.lineage.count_at(store.applied), accepted)
            opened = replace(progress, next_offset=store.applied, lineage=known._replace(counted=count))
        for name, value in variant.settings.items():
            opened = opened.with_setting(name, value)
        self.progress = opened if variant.horizon is None else variant.horizon.with_horizon(opened)
        if not self.rescue_count:
            store.note_history(self.progress.settings)
        self.replayed = 0
        self.counters = counters or Counters()
        self.counters.resume(progress, store.applied)
        self.committed = progress
        self._holes = progress.holes
        self._store = store
        self._passed: Sequence[PassedBatch] = ()
        self._told: tuple[int, Lineage | None] = 0, None
        # The opening has just compared the log, so the first connection to a leader is trusted.
        self._trusted = Leader(max((epoch for each in self.lineages for epoch, _ in each.epochs), default=-1), -1)
        self._outbox = outbox
        self._limits = limits
        self._pace = Pace(limits.catch_up_per_s) if limits.catch_up_per_s else None
        self._tick: Tick | None = None
        self.clock_is_behind = False
        self.must_ask_end = False
        sweeping = variant.index or variant.horizon
        self.sweeper = Sweeper(store) if sweeping is None else sweeping.sweeper
        self._reader = variant.reader
        self._index = variant.index
        if self._index is not None:
            self._index.enter(self.progress)
        self.fires_first = self._index is not None and self._index.fires_first
        self._horizon = variant.horizon
        self._barrier = variant.barrier
        self._store_age = variant.store_age
        self._on_missing = variant.on_missing
        self._repeats = repeats = variant.repeats
        self._still = None if repeats is None else StandingStill(store, self.sweeper, variant.reader, repeats)
        self.doubts = Doubts(store, progress)
        self.held = HeldRows(store, self.progress.next_offset)

    # ---- what it knows -------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """Offset at or before which the next fetch must begin."""
        return self.progress.next_offset if self.rescue_count else self._store.applied

    @property
    def cuts(self) -> Cuts:
        """The cuts that are part of the sources of what it emits. What it rescues is older than the last ones."""
        return self.progress.cuts[: -self.rescue_count] if self.rescue_count else self.progress.cuts

    @property
    def lineages(self) -> tuple[Lineage, Lineage]:
        """Which log was read below :attr:`position`, and below the ``next_offset`` of the progress. Any thread."""
        known = self.progress.lineage
        return known if self.rescue_count else self._store.lineage, known

    @property
    def state(self) -> State:
        """What the machine does now: see :data:`STEPS`."""
        if self.rescue_count:
            return State.RESCUING
        if self.recovering:
            return State.RECOVERING
        if self._tick is None:
            return State.WAITING
        return State.CLOCK_BEHIND if self.clock_is_behind else State.ACCEPTING

    @property
    def recovering(self) -> bool:
        """Whether accepted records are still being read again; until then no timer fires."""
        return self._store.applied < self.progress.next_offset

    @property
    def left_to_replay(self) -> int:
        """Number of offsets to read again before timers may fire."""
        return max(0, self.progress.next_offset - self._store.applied)

    @property
    def may_accept(self) -> bool:
        """Whether a fetch may be accepted. New requests need a tick, because late ones fire at once; a replay needs
        none. If the age of the store counts, it must have been checked [I9]."""
        return "accept" in STEPS[self.state] and (self._store_age is None or self._store_age.is_checked)

    @property
    def released_s(self) -> int | None:
        """Last second that the second barrier released; None if timers have no ids, or before the first second."""
        return None if self._barrier is None else self._barrier.released_s

    @property
    def largest_value_limit(self) -> int:
        """The size in bytes above which no value is accepted, at any offset of the log [I23]."""
        return max(self._limits.max_request_bytes, self.progress.largest(MAX_REQUEST_BYTES))

    @property
    def pending(self) -> int:
        """Number of stored timers; of timers with an id, also versions that were replaced or cancelled."""
        return self._store.pending

    @property
    def oldest_due_s(self) -> int | None:
        """Due second of the next timer to fire, without those that are held; None: no such timer is stored."""
        return self._store.oldest_due_s(self.progress.fired_through)

    # ---- ticks ---------------------------------------------------------------------------------------------------

    def observe(self, tick: Tick, end: int | None = None) -> None:
        """Take the time from a tick. Old and duplicate ticks have no effect; a later tick also stands for missed ones.

        Args:
            end: end of the log for committed readers, read after the tick was appended. Timers with ids fire only after
                ticks with a known end; other machines do not use it.

        Raises:
            Lost: the store is too old [I9]; when it is opened again, it is empty.
        """
        if self._store_age is not None:
            self._store_age.check(tick.second, self.released_s)
        fired_s = self.progress.fired_through[0]
        self.clock_is_behind = tick.second < (fired_s if self.clock_is_behind else fired_s - CLOCK_STEP_BACK_S)
        went_back = self._tick is not None and tick.second < self._tick.second - CLOCK_STEP_BACK_S
        if self._tick is None or tick.second != self._tick.second:
            self._outbox.chunk.since_tick_s = 0.0
        self._tick = latest_tick(self._tick, tick)
        if self._barrier is not None:
            if went_back:
                self._barrier.start_again()
            if end is not None and tick == self._tick:
                self.must_ask_end = not self._barrier.tick(tick.second, end, self.position, self._outbox.held_from)

    # ---- accepting -----------------------------------------------------------------------------------------------

    def takes(self, fetched: Fetched) -> bool:
        """Whether a fetch may be accepted, and comes from a leader whose log is the one that was read."""
        return self.may_accept and self.untrusted_leader(fetched) is None

    def accept(self, fetched: Fetched, commands: Sequence[Command] = ()) -> bool:
        """Accept one fetch. If it begins in a replay and ends behind it, commands about targets are taken in between.

        Returns:
            Whether timers may be due that could not fire before: a replay has ended, or a second was released.

        Raises:
            ReadAgain: records before this fetch are missing, or its new records need a tick first.
            Lost: the output could not be committed: drop this machine and open it again.
        """
        position = self.position
        if fetched.from_offset > position:  # [I7] a fetch before this one was dropped
            raise ReadAgain(position)
        if fetched.to_offset <= position:
            return False
        recovering, released_s = self.recovering, self.released_s
        self._passed = fetched.passed
        self._told = fetched.to_offset, fetched.lineage
        self.trust(self._leader_of(fetched))
        records: Sequence[Any] = fetched.records
        if records and records[0].offset < position:
            records = [record for record in records if record.offset >= position]
        if self.progress.settings.passed_over:
            records = self.progress.settings.left_of(records)
        end_of_replay = self.progress.next_offset
        if not recovering:
            self._in_pieces(self._accept_new, records, fetched.to_offset)
        elif fetched.to_offset <= end_of_replay:
            self._in_pieces(self._replay, records, fetched.to_offset)
        else:
            before = [record for record in records if record.offset < end_of_replay]
            self._in_pieces(self._replay, before, end_of_replay)
            if not self.may_accept:
                raise ReadAgain(end_of_replay)
            self.take(commands)
            self._in_pieces(self._accept_new, records[len(before) :], fetched.to_offset)
        if self._barrier is not None:
            self._barrier.read(self.position)
        return (recovering and not self.recovering) or self.released_s != released_s

    def untrusted_leader(self, fetched: Fetched) -> Leader | None:
        """Returns the leader that a fetch came from, if its log may be another one than the one that was read [I28].

        Then the log must be compared with :attr:`lineages` before the fetch is accepted. If it is the same log:
        :meth:`trust`.
        """
        trusted, leader = self._trusted, self._leader_of(fetched)
        if not any(each.end for each in self.lineages):
            return None
        is_known = leader.epoch <= trusted.epoch and trusted.connection in (-1, leader.connection)
        return None if is_known else leader

    def trust(self, leader: Leader) -> None:
        """Accept fetches from a leader."""
        self._trusted = leader._replace(epoch=max(self._trusted.epoch, leader.epoch))

    def _leader_of(self, fetched: Fetched) -> Leader:
        return Leader(fetched.passed[-1][0] if fetched.passed else self._trusted.epoch, fetched.connection)

    def _in_pieces(self, accept: Callable[[Sequence[Any], int], None], records: Sequence[Any], to_offset: int) -> None:
        for piece, end in [(records, to_offset)] if self._horizon is None else self._horizon.pieces(records, to_offset):
            accept(piece, end)

    def _replay(self, records: Sequence[Any], to_offset: int) -> None:
        """Read accepted records again: with the same decisions, without output [I15]."""
        lineage = self._read_again(records, to_offset)
        decoded = self._reader.decode(records, to_offset, self.progress)
        copy_entries = NO_ENTRIES if self._horizon is None else self._horizon.admit_copies(decoded)
        rows, entries = (decoded.rows, {}) if self._index is None else self._index.replay(decoded, self.progress)
        _, waiting, held = split_late(rows, self.progress)
        if self._holes:  # rows that had fired before a wrong time was taken back are left out [I24]
            has_fired = self.progress.has_fired
            left = {
                due_s: [row for row in group if not has_fired((due_s, row[0]), row[1])]
                for due_s, group in waiting.items()
            }
            waiting = {due_s: group for due_s, group in left.items() if group}
        # A version that has fired also replaces the one before it: the older version must not fire after it.
        self._store.write(waiting, to_offset, {**entries, **copy_entries}, lineage, held)
        self.held.note_stored(self.progress, held)
        self.replayed += len(records)
        self.counters.replayed += len(records)

    def _accept_new(self, records: Sequence[Any], to_offset: int) -> None:
        progress = self.progress
        decoded = self._reader.decode(records, to_offset, progress)
        if len(records) > self._outbox.chunk.timers and self._may_emit(decoded):
            while records:  # brokers are slow: the output is sent in parts, which grow after each transaction
                count = self._outbox.chunk.timers
                end = records[count].offset if count < len(records) else to_offset
                self._accept_new(records[:count], end)
                records = records[count:]
            return
        copy_entries = NO_ENTRIES if self._horizon is None else self._horizon.admit_copies(decoded)
        rows, judged = decoded.rows, NO_RESULTS
        if self._index is not None:
            rows, judged = self._index.settle(decoded, progress, self.committed)
        fired_s = progress.fired_through[0]
        is_ahead = all(due_s > fired_s for due_s in rows)
        late, waiting, held = Split({}, rows, {}) if is_ahead else split_late(rows, progress)
        lineage, known, start = self._lineage_at(to_offset), progress.lineage.counted, self.position
        is_counted = self._store_age is None  # compaction takes records away
        if is_counted:
            since, before = (known.since, known.records) if known and known.to == start else (start, 0)
            lineage = lineage._replace(counted=RecordCount(since, to_offset, before + len(records), to_offset))
        late_changes = progress.late_changes + judged.late_changes
        new_progress = replace(self.progress, next_offset=to_offset, lineage=lineage, late_changes=late_changes)
        others = {offset for _, offset, due_s, _ in decoded.operations if due_s is None}
        others.update([rejected.offset for rejected in decoded.rejected], decoded.follows)
        accepted = len(records) - len(others) - len(decoded.copies) - judged.refused
        counts = accepted, sum(map(len, late.values())), len(decoded.copies), decoded.ignored, decoded.callers
        if any(counts):
            self.counters.uncommitted.append(Accepted(to_offset, *counts))
        has_output = late or decoded.rejected or decoded.forwarded or judged.verdicts or judged.superseded
        if has_output or new_progress.settings != self.committed.settings:
            # [I2] Output is committed before the batch is stored. A changed setting is committed too: a replay of
            # this batch must find it in the history [I4].
            self._emit(late, decoded, judged, new_progress)
        entries = {**judged.entries, **copy_entries} if copy_entries else judged.entries
        self._store.write(waiting, to_offset, entries, lineage, held)
        self.held.note_stored(self.progress, held)
        self.progress = new_progress

    def _lineage_at(self, to_offset: int) -> Lineage:
        """Returns the lineage of an offset inside the present fetch [I28], without a count."""
        end, told = self._told
        known = told if to_offset == end and told is not None else self._store.lineage.at(to_offset, self._passed)
        return known._replace(counted=None)

    def _read_again(self, records: Sequence[Any], to_offset: int) -> Lineage:
        """Returns the lineage after records were read again. At the end of all, their number is compared [I32].

        Raises:
            LogMismatch: the log has lost some of them. Nothing of this piece was stored: the next opening compares too.
        """
        accepted, position = self.progress.lineage.count_at(self.progress.next_offset), self.position
        count = counted_again(self._store.lineage.count_at(position), accepted, position)
        count = count and count.through(records, to_offset)
        if accepted is not None and to_offset == accepted.to:
            missing = accepted.records - count.records if count else 0
            if count and missing > 0:
                self._on_missing(missing, count.sure_to, to_offset)
            if missing:  # counting begins anew
                self.progress = replace(self.progress, lineage=self.progress.lineage.uncounted())
            count = None if missing else accepted
        return self._lineage_at(to_offset)._replace(counted=count)

    def _may_emit(self, decoded: Decoded) -> bool:
        late = split_late(decoded.rows, self.progress).late
        return bool(late or decoded.rejected or decoded.forwarded or decoded.operations)

    def _emit(self, late: RowsByDue, decoded: Decoded, judged: OperationResults, new_progress: Progress) -> None:
        """Commit the output of one batch."""
        assert self._tick is not None, "the caller must check may_accept"
        self._outbox.begin(self._tick)
        if late:
            self.counters.transaction.kind = LATE
        self.counters.transaction.unlisted = judged.unlisted
        # [I37] The late rows are fired for the second of `fired_through`, not of the tick: rows due after it are
        # stored, and would be sent twice.
        second, begun = self.progress.fired_through[0], [decoded.definitions[offset] for offset in judged.begun]
        output = self._fired(sorted(late.items()), second, self._tick, begun=begun)._replace(
            rejected=decoded.rejected,
            forwarded=decoded.forwarded,
            verdicts=judged.verdicts,
            republished=[known_row(key, decoded.rows, self._store) for key in judged.superseded],
        )
        self._commit(new_progress, output, sum(map(len, (*late.values(), *output[2:]))))

    @property
    def _through_s(self) -> int | None:
        """The last second whose timers may fire: all acknowledged before it began was read [I17]; None: none may."""
        second = None if self._tick is None else self._tick.second
        return second if second is None or self._barrier is None else self._barrier.through(second)

    # ---- firing --------------------------------------------------------------------------------------------------

    def fire_chunk(self) -> bool:
        """Fire the next chunk of due timers. Call until it returns False.

        Raises:
            Lost: drop this machine and open it again.
        """
        tick = self._tick
        if tick is None or "fire_chunk" not in STEPS[self.state]:
            return False
        start, second = self.progress.fired_through, self._through_s
        if second is None or second < start[0]:
            return False
        full = False
        chunk = Chunk(self.progress, self._limits, self._outbox.chunk.timers)
        # [I3] each chunk is a new scan from fired_through
        scanned = chunk.begun(self._store, second) if self.progress.holds else self._store.scan(start, second)
        for due, rows, due_bytes in runs(scanned, chunk.most_rows, chunk.run_bytes):
            if full:
                break
            free = chunk.free(due, rows, due_bytes)
            alive = free if self._index is None else self._index.alive(free)
            if alive and not chunk.fired:
                self._outbox.begin(tick)
            chunk.fired += alive
            full = chunk.is_full
            if chunk.rest:
                break
        else:
            # [I3] The scan reached its end, and this thread accepted nothing since it began: the second is complete.
            full = chunk.is_cut
        finds_noisy = full and self.progress.level >= HOLDS_LEVEL and self._pace is None
        noisy = chunk.noisy(self.counters.topics) if finds_noisy else ()
        through = chunk.last if full else (second, MAX_OFFSET)
        after = replace(self.progress, fired_through=max(start, through))
        if noisy:
            after = with_noisy(after, noisy, tick.second)
        if chunk.fired:
            if self.progress.holds:
                self.held.others_s = tick.second
            try:
                self._commit(after, self._fired(chunk.fired, second, tick), chunk.count)
            except TooMuch as error:
                if not error.rolled_back:
                    raise
                return True  # nothing was committed: the next chunk begins with the same timer, and is smaller
        else:
            self.progress = after  # no timer fired, so this needs no commit of its own
        if after.holds:
            self.held.note_passed(after, chunk, start)
        if chunk.count:
            # [I3] Delete exactly (old, new], after the commit. Rows of former versions need no commit: they never fire.
            self._store.delete(after.fired_through, chunk.count, chunk.rest, chunk.kept)
        return full

    # ---- holds ---------------------------------------------------------------------------------------------------

    def take(self, commands: Sequence[Command]) -> bool:
        """Take the commands about targets that it has not taken yet, and end pauses whose time is over [I33].

        Call for each tick before it fires, and when all that is due has fired. The commands ascend by number.

        Returns:
            Whether a change was committed.

        Raises:
            Lost: drop this machine and open it again.
        """
        if self._tick is None or "commit_change" not in STEPS[self.state]:
            return False
        rows_of = partial(self.held.count, self.progress)
        after = self.progress.with_commands(commands, self._tick.second, rows_of, is_drained=self.is_drained)
        if is_taken := after is not self.progress and self.commit_change(lambda now: after):
            self.held.note_begun(after)
        return is_taken

    @property
    def is_drained(self) -> bool:
        """Whether all that is due has fired or is held, so that pauses may end."""
        second = self._through_s if "commit_change" in STEPS[self.state] else None
        return second is not None and self.progress.fired_through >= (second, MAX_OFFSET)

    def release_chunk(self) -> bool:
        """Fire the next timers of one hold that may be released. Call when :meth:`fire_chunk` has returned False.

        The holds take turns. While others fire too, what is sent at a time is small, so that those that come due do not
        wait for long [I35].

        Returns:
            Whether more may be released.

        Raises:
            Lost: drop this machine and open it again.
        """
        tick = self._tick
        if not self.progress.holds or tick is None or "release_chunk" not in STEPS[self.state] or self.must_ask_end:
            return False
        second = self._through_s
        hold = None if second is None else self.held.next_in_turn(self.progress, second)
        if second is None or hold is None:
            return False
        release = self.held.next_release(self.progress, hold, second, self._outbox.chunk, self._limits)
        after = self.progress.with_holds(self.progress.holds.changed(hold, release.hold))
        alive = release.rows if self._index is None else self._index.alive(release.rows)
        if alive:
            self._outbox.begin(tick)
            self.counters.transaction.kind = HELD
            try:
                self._commit(after, self._fired(alive, second, tick, hold), release.number)
            except TooMuch as error:
                if not error.rolled_back:
                    raise
                return True
        else:
            self.progress = after
        if release.number:
            self._store.replace(release.left)
        self.held.note_released(hold, release, second)
        return self.held.may_release(self.progress, second)

    def _fired(
        self, due: list[DueRows], second: int, tick: Tick, hold: Hold | None = None, begun: Sequence[Definition] = ()
    ) -> Output:
        """Returns the output for due rows: they fire, or, above the catch-up limit, are postponed. Not what a hold has
        held: it says how fast it is released. Arguments as of :meth:`timers.core.repeating.Repeats.fire`."""
        fired = Output(due) if self._repeats is None else self._repeats.fire(due, second, hold, begun, tick.second)
        if self._pace is None or hold is not None:
            return fired
        due, postponed = self._pace.paced(fired.due, tick.second, self._limits.overdue_s)
        return fired._replace(due=due, postponed=postponed)

    # ---- commits -------------------------------------------------------------------------------------------------

    def _commit(self, after: Progress, output: Output = NO_OUTPUT, timers: int = 0) -> None:
        """Commit a transaction with ``after`` and ``timers`` timers, and then change the state in memory [I2]."""
        # [I29] requests accepted while the topic is compacted may be missing in the log.
        if self.doubts.worker is not None:
            after = noted(after, self.doubts.worker)
        self.counters.transaction.progress = after
        self._outbox.chunk.begun = timers
        try:
            self._outbox.commit(after, output)
        except TooMuch:
            self._outbox.chunk.failed()
            raise
        self.progress = self.committed = after
        if self._horizon is not None:
            self._horizon.note_committed()
        self.counters.count_committed(after)

    def commit_progress(self, *, even_if_idle: bool = False) -> bool:
        """Commit the progress of what was accepted since the last commit, for lag tools and a new owner.

        Args:
            even_if_idle: commit also if only time has passed, so that a new owner starts from a recent second.

        Returns:
            Whether a transaction was committed.

        Raises:
            Lost: drop this machine and open it again.
        """
        if self.rescue_count:
            return False
        mended = NO_OUTPUT if self.recovering else self._tidy()
        if self._store_age is not None:
            self._store_age.note(self.released_s)
        # The first second is committed at once: at the next start, the time must follow what has fired [I20]. Changed
        # settings are committed at once too: an accepted number of partitions counts for all partitions that open
        # later.
        committed, progress = self.committed, self.progress
        changed = (
            (self.doubts.worker is not None and committed.doubt is None)
            or mended is not NO_OUTPUT
            or self._committed_values(committed) != self._committed_values(progress)
            or ((even_if_idle or committed.fired_through == NOTHING_FIRED) and committed != progress)
        )
        if not changed or self._tick is None or "commit_progress" not in STEPS[self.state]:
            return False
        self._outbox.begin(self._tick)
        try:
            self._commit(self.progress, mended, len(mended.mended) + len(mended.broken))
        except TooMuch as error:
            if not error.rolled_back:
                raise
            if self._still is not None:
                self._still.note_again()
        return self.committed is self.progress

    @staticmethod
    def _committed_values(progress: Progress) -> tuple[object, ...]:
        """What is committed soon after it has changed."""
        counted = progress.lineage.counted
        return progress.next_offset, progress.settings, progress.doubt, counted, progress.holds, progress.taken

    def _tidy(self) -> Output:
        """Forget ids, copies and doubts that are over. Returns what lets timers go on that stand still [I37]."""
        mended = NO_OUTPUT
        if self._index is not None:
            swept, released_s = self._index.sweep(self.committed), self.released_s
            if self._still is not None and released_s is not None and self.state is State.ACCEPTING:
                self._still.look(swept, self.committed, released_s)
                mended = self._still.mended(self._outbox, self.progress, released_s)
        if self._horizon is not None:
            self._horizon.sweep()
        remembered_s = 0 if self._index is None else self._index.id_retention_s
        self.progress = self.doubts.settled(self.progress, self.committed, remembered_s)
        return mended

    def raise_level(self, level: int) -> bool:
        """Raise the feature level, as :meth:`commit_change`. It applies to records that are accepted from now on."""
        return self.progress.level >= level or self.commit_change(lambda now: now.with_setting(FEATURE_LEVEL, level))

    def commit_change(
        self, change: Callable[[Progress], Progress], output: Output = NO_OUTPUT, *, in_replay: bool = False
    ) -> bool:
        """Commit a change of the progress, and what goes with it, in a transaction of its own.

        Returns:
            Whether it is committed. If not, there is no tick yet, or (but ``in_replay``) it recovers: try again later.

        Raises:
            Lost: drop this machine and open it again.
        """
        may = "commit_change" in STEPS[self.state] or (in_replay and self.state is State.RECOVERING)
        if self._tick is None or not may:
            return False
        self._outbox.begin(self._tick)
        self._commit(change(self.progress), output, len(output.rejected))
        self._store.note_history(self.progress.settings)  # before the next batch is stored [I4]
        return True

    # ---- what the log has lost -----------------------------------------------------------------------------------

    def rescue_chunk(self) -> None:
        """Write the next dead letters. Call until it raises.

        Raises:
            Lost: all are written, and the store is condemned: open the machine again. Or a transaction failed.
        """
        if self._tick is None or "rescue_chunk" not in STEPS[self.state]:
            return
        rescues = self.progress.rescues[-self.rescue_count :]
        limit = min(self._outbox.chunk.timers, self._limits.chunk_timers)
        timers, cancels, left = next_lost(rescues, self._holes, self._store, limit)
        after = (*self.progress.rescues[: -self.rescue_count], *left) if left else ()
        self._outbox.begin(self._tick)
        output = Output(lost=timers, lost_cancels=cancels)
        try:
            self._commit(replace(self.progress, rescues=after), output, len(timers) + len(cancels))
        except TooMuch as error:
            if not error.rolled_back:
                raise
            return
        if not after:
            self._store.condemn()
            raise Lost("all that only its store held is in dead letters; the log is read again from its start")

    # ---- questions -----------------------------------------------------------------------------------------------

    def waiting(
        self, after: OrderKey, wanted: Callable[[Row], bool] | None = None, sought: Sequence[bytes] = ()
    ) -> Iterator[tuple[OrderKey, Sequence[Row]]]:
        """Yields (key, rows) of timers above ``after`` that will fire, in the order in which they fire.

        All timers at or below the key have been yielded. Rows may be empty. Use the iterator between two steps of the
        machine only.

        Args:
            wanted: leaves out rows before they are looked up in the index, which takes longer than to read them.
            sought: as in :meth:`timers.core.ports.Store.waiting`.
        """
        start = after if self.progress.holds else max(after, self.progress.fired_through)
        for through, rows in self._store.waiting(start, sought):
            left = [*rows] if wanted is None else [row for row in rows if wanted(row)]
            alive = [(through[0], left)] if self._index is None else self._index.alive([(through[0], left)])
            yield through, alive[0][1] if alive else ()

    def find(self, id: bytes) -> Entry | None:
        """Returns the latest version of an id: pending, cold, or fired and remembered."""
        entry = None if self._index is None else self._store.entries([id]).get(id)
        return None if entry is None or not self.remembers(entry) else entry

    def remembers(self, entry: Entry) -> bool:
        """Whether the latest version of an id is not forgotten yet."""
        return self._index is not None and self._index.remembers(entry, self.progress)

    def find_copy(self, offset: int) -> Entry | None:
        """Returns the promoted copy of the cold request at ``offset``, if timers have no ids."""
        return None if self._horizon is None else self._horizon.find_copy(offset)

    def is_cold(self, entry: Entry) -> bool:
        """Whether a version went cold when it was accepted."""
        return self._horizon is not None and self._horizon.is_cold(entry)
