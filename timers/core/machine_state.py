"""The state of a machine, and how ticks and commits change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from timers.core.counters import Counters
from timers.core.doubts import Leftovers, noted
from timers.core.limits import Limits
from timers.core.lineage import Leader, Lineage, PassedBatch
from timers.core.pace import Pace
from timers.core.ports import Outbox, Store, TooMuch
from timers.core.progress import Cuts, Progress
from timers.core.ticking import CLOCK_STEP_BACK_S, latest_tick
from timers.core.timer import DueRows, Tick
from timers.core.variant import Variant


class MachineState:
    """The state that accepting and firing share; :class:`timers.core.machine.Machine` explains its arguments.

    Attributes:
        rescuing: the number of cuts whose losses its store holds. If there are some, the machine does nothing but write
            their dead letters [I28].
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
        self.rescuing = len(progress.rescues_of(store.history, store.applied))
        if store.applied > progress.next_offset and not self.rescuing:
            opened = replace(progress, next_offset=store.applied, lineage=store.lineage)
        for name, value in variant.settings.items():
            opened = opened.with_setting(name, value)
        self.progress = variant.horizon.enter(opened)
        if not self.rescuing:
            store.note_history(self.progress.settings)
        self.replayed = 0
        self.counters = counters or Counters()
        self.counters.resume(progress, store.applied)
        self._committed = progress
        self._holes = progress.holes
        self._store = store
        self._passed: Sequence[PassedBatch] = ()
        # The log was compared just now: the first connection is trusted.
        self._trusted = Leader(max((epoch for each in self.lineages for epoch, _ in each.epochs), default=-1), -1)
        self._outbox = outbox
        self._limits = limits
        self._pace = Pace(limits.catch_up_per_s)
        self._tick: Tick | None = None
        self._clock_is_behind = False
        self._reader = variant.reader
        self._index = variant.index
        self._index.enter(self.progress)
        self._horizon = variant.horizon
        self._barrier = variant.barrier
        self._store_age = variant.store_age
        self._doubting: str | None = None
        self._extends_doubt: str | None = None
        self._was_compared = False
        self._leftovers: Leftovers | None = None

    @property
    def position(self) -> int:
        """Offset at or before which the next fetch must begin."""
        return self.progress.next_offset if self.rescuing else self._store.applied

    @property
    def cuts(self) -> Cuts:
        """The cuts that are part of the sources of what it emits. What it rescues is older than the last ones."""
        return self.progress.cuts[: -self.rescuing] if self.rescuing else self.progress.cuts

    @property
    def lineages(self) -> tuple[Lineage, Lineage]:
        """Which log was read below :attr:`position`, and below the ``next_offset`` of the progress. Any thread."""
        known = self.progress.lineage
        return known if self.rescuing else self._store.lineage, known

    @property
    def committed(self) -> Progress:
        """The last committed progress."""
        return self._committed

    @property
    def recovering(self) -> bool:
        """Whether accepted records are still being read again; until then no timer fires."""
        return self._store.applied < self.progress.next_offset

    @property
    def remaining(self) -> int:
        """Number of offsets to read again before timers may fire."""
        return max(0, self.progress.next_offset - self._store.applied)

    @property
    def clock_is_behind(self) -> bool:
        """Whether no request is accepted, because the broker's clock is behind what has fired [I10]."""
        return self._clock_is_behind

    @property
    def may_accept(self) -> bool:
        """Whether a fetch may be accepted.

        New requests need a tick, because late ones fire at once. A replay needs a tick only if the store's age must be
        checked first [I9].
        """
        if self.rescuing:
            return False
        if self._tick is None:
            return self.recovering and not self._store_age.needs_tick
        return self.recovering or not self._clock_is_behind

    @property
    def released_s(self) -> int | None:
        """Last second that the second barrier released; None if timers have no ids, or before the first second."""
        return self._barrier.second

    def observe(self, tick: Tick, end: int | None = None) -> None:
        """Take the time from a tick. Old and duplicate ticks have no effect; a later tick also stands for missed ones.

        Args:
            tick: the time.
            end: end of the log for committed readers, read after the tick was appended. Timers with ids fire only after
                ticks with a known end; other machines do not use it.

        Raises:
            Lost: the store is too old [I9]; when it is opened again, it is empty.
        """
        self._store_age.check(tick.second, self.released_s)
        fired_s = self.progress.fired_through[0]
        self._clock_is_behind = tick.second < (fired_s if self._clock_is_behind else fired_s - CLOCK_STEP_BACK_S)
        went_back = self._tick is not None and tick.second < self._tick.second - CLOCK_STEP_BACK_S
        self._tick = latest_tick(self._tick, tick)
        if went_back:
            self._barrier.close()
        if end is not None and tick == self._tick:
            self._barrier.tick(tick.second, end, self.position)

    def _fire(self, due: list[DueRows], tick: Tick) -> None:
        """Add rows to the transaction. Above the catch-up limit, postpone them to later seconds."""
        if not self._pace.has_limit:
            self._outbox.fire(due)
            return
        for due_s, rows in due:
            if due_s >= tick.second - self._limits.overdue_s:
                self._outbox.fire([(due_s, rows)])
                continue
            start = 0
            for second, count in self._pace.spread(tick.second, len(rows)):
                part = rows[start : start + count]
                start += count
                if second == tick.second:
                    self._outbox.fire([(due_s, part)])
                else:
                    self._outbox.postpone(due_s, part, second)

    def _commit(self, after: Progress, timers: int = 0) -> None:
        """Commit the transaction with ``after`` and ``timers`` timers, and then change the state in memory [I2]."""
        if self._doubting is not None:  # [I29] the log may lack all that is accepted while its topic is compacted
            after = noted(after, self._doubting)
        self.counters.transaction.progress = after
        self._outbox.chunk.begin(timers)
        try:
            self._outbox.commit(after)
        except TooMuch:
            self._outbox.chunk.failed()
            raise
        self.progress = self._committed = after
        self._horizon.commit()
        self.counters.count_committed(after)
