"""The machine: one partition of a request topic as a state machine over its log.

::

    pending = requests with offset < next_offset and key > fired_through

The code keeps this sentence true even if the process dies between any two lines. Marks such as ``[I1]`` name the
invariants in ``docs/design.md``. The simulator (``tests/simulation``) also runs mutations of this code, which break
one invariant each, and must find every mutation.

:mod:`timers.core.accepting` reads requests, :mod:`timers.core.firing` fires timers, :mod:`timers.core.machine_state`
holds the state that both share, and :mod:`timers.core.loop` decides the order. :mod:`timers.partition` makes a machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from timers.core.accepting import Accepting
from timers.core.doubts import Leftovers, noted, remembered_s
from timers.core.firing import Firing
from timers.core.keys import NEVER, OrderKey
from timers.core.operation import Entry
from timers.core.progress import FEATURE_LEVEL, MAX_REQUEST_BYTES
from timers.core.rescue import Rescuing
from timers.core.timer import Row


class Machine(Accepting, Firing, Rescuing):
    """Accepts requests, and fires them when their second has begun.

    Not thread-safe: one thread owns it. So nothing is accepted between the scan of a chunk and its delete [I3].

    Args:
        progress: newest committed progress.
        store: of the partition, after :func:`timers.core.store_validity.catch_up`.
        outbox: sends what the machine emits.
        limits: of the machine.
        variant: the objects that differ between request formats.
        counters: totals of the partition, for metrics; shared with the outbox and with earlier machines.

    Attributes:
        progress: the last committed progress, and later changes that need no commit of their own.
        replayed: number of records read again since opening.
        counters: as passed.
    """

    @property
    def fires_first(self) -> bool:
        """Whether accepting waits while timers are due. The second barrier is kept in both cases."""
        return self._index.fires_first

    @property
    def value_limit(self) -> int:
        """The size in bytes above which no value is accepted, at any offset of the log [I23]."""
        return max(self._limits.max_request_bytes, self.progress.largest(MAX_REQUEST_BYTES))

    @property
    def pending(self) -> int:
        """Number of stored timers; of timers with an id, also versions that were replaced or cancelled."""
        return self._store.pending

    @property
    def oldest_due_s(self) -> int | None:
        """Due second of the next timer to fire; None: no timer is stored."""
        return self._store.oldest_due_s()

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
        for through, rows in self._store.waiting(max(after, self.progress.fired_through), sought):
            left = [*rows] if wanted is None else [row for row in rows if wanted(row)]
            alive = self._index.alive([(through[0], left)])
            yield through, alive[0][1] if alive else ()

    def find(self, id: bytes) -> Entry | None:
        """Returns the latest version of an id: pending, cold, or fired and remembered."""
        return self._index.find(id, self.progress.fired_through)

    def find_copy(self, offset: int) -> Entry | None:
        """Returns the promoted copy of the cold request at ``offset``, if timers have no ids."""
        return self._horizon.find_copy(offset)

    def is_cold(self, entry: Entry) -> bool:
        """Whether a version went cold when it was accepted."""
        return self._horizon.is_cold(entry)

    def raise_level(self, level: int) -> bool:
        """Raise the feature level, in a transaction of its own. It applies to records that are accepted from now on.

        Returns:
            Whether the machine has the level. If not, it recovers or has no tick yet: try again later.

        Raises:
            Lost: drop this machine and open it again.
        """
        if self.progress.level >= level:
            return True
        if self.recovering or self.rescuing or self._tick is None:
            return False
        self._outbox.begin(self._tick)
        self._commit(self.progress.with_setting(FEATURE_LEVEL, level))
        self._store.note_history(self.progress.settings)  # before the next batch is stored [I4]
        return True

    def note_compaction(self, worker: str, *, is_compacted: bool) -> None:
        """Note what the last comparison of the topic's configuration says. Call it when the machine is opened, and
        after each change. While it recovers, a machine of a compacted topic must be closed instead.

        Args:
            worker: id of this worker, whose store is whole.
            is_compacted: whether brokers may delete requests that wait [I29].
        """
        if is_compacted:
            self._doubting = worker
        elif self._doubting is not None or not self._was_compared:
            # What was accepted since the last comparison may be gone, too.
            self._doubting, self._extends_doubt, self._was_compared = None, worker, True

    def _settle_doubt(self) -> None:
        """Extend or end the doubt about the log. For once a second."""
        if self._doubting is None and self._extends_doubt is not None:
            if self.progress.doubt is not None:
                self.progress = noted(self.progress, self._extends_doubt)
            self._extends_doubt = None
        doubt = self.progress.doubt
        if doubt is None or self._doubting is not None or not self._was_compared or doubt != self._committed.doubt:
            return
        if self._leftovers is None or self._leftovers.doubt != doubt:
            bound_s = remembered_s(self.progress, self._index.remembered_s)
            self._leftovers = Leftovers(self._store, doubt, bound_s)
        if self._doubt_is_over(self._leftovers):
            self.progress = replace(self.progress, doubt=None)

    def _doubt_is_over(self, leftovers: Leftovers) -> bool:
        return leftovers.are_gone(self._committed.fired_through)

    def commit_progress(self, *, even_if_idle: bool = False) -> bool:
        """Commit the progress of what was accepted since the last commit, for lag tools and a new owner.

        Args:
            even_if_idle: commit also if only time has passed, so that a new owner starts from a recent second.

        Returns:
            Whether a transaction was committed.

        Raises:
            Lost: drop this machine and open it again.
        """
        if self.rescuing:
            return False
        if not self.recovering:
            self._index.sweep(self._committed.fired_through)  # the committed one: a crash does not undo it
            self._horizon.sweep()
            self._settle_doubt()
        self._store_age.note(self.released_s)
        # The first second is committed at once: at the next start, the time must follow what has fired [I20]. Settings
        # are, too: an accepted number of partitions counts for all partitions that open later.
        committed, progress = self._committed, self.progress
        known = committed.next_offset, committed.settings, committed.doubt
        begins_doubt = self._doubting is not None and committed.doubt is None
        changed = (
            begins_doubt
            or known != (progress.next_offset, progress.settings, progress.doubt)
            or ((even_if_idle or committed.fired_through == NEVER) and committed != progress)
        )
        if not changed or self.recovering or self._tick is None:
            return False
        self._outbox.begin(self._tick)
        self._commit(self.progress)
        return True

    @property
    def has_old_witness(self) -> bool:
        """Whether :meth:`tell_group` should be called as soon as there is nothing else to do."""
        return self._outbox.has_old_witness

    def tell_group(self) -> None:
        """Let the consumer group have a copy of the committed progress [I8].

        Raises:
            Lost: drop this machine and open it again.
        """
        self._outbox.tell_group()
