"""Timers that repeat go on after the log has lost their next occurrence [I37].

Brokers that lose the end of a log may keep a record whose timer has fired, and lose the occurrence that followed it in
the same transaction. Then nothing is pending of a timer that should go on. The machine reads the record again, and
appends what follows. If the occurrence is in the log all the same, it comes first, and the other one does not count.

If that record is deleted, the timer ends with a dead letter. Before that, all is read that the log had when this was
found: what follows may stand behind an open transaction of another producer, and may have been appended before the
machine was opened.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice

from timers.core.index import Suspect, Sweeper
from timers.core.operation import Entry, RepeatingVersion, append_s_of, key_of, offset_of, repeating, request_of
from timers.core.ports import NO_OUTPUT, Deleted, Follower, Lost, Outbox, Output, Store
from timers.core.progress import Progress
from timers.core.reading import RecordDecoder
from timers.core.repeating import Repeats

STANDS_S = 60
"""Seconds, after the log was read to its end, for which a timer must have stood still."""

SEARCH_INTERVAL_S = 60
"""Seconds between two searches of the newest entries, of which there may be 150,000: 15 ms."""

MOST_SUSPECTS = 10_000
MOST_ROWS = 200
"""So many rows are looked for at a time."""
MOST_AT_ONCE = 100
"""Their records are read again together, in about 50 ms."""


class StandingStill:
    """The timers of one machine that repeat, and of which nothing is pending.

    Args:
        sweeper: keeps what is noted, also for a machine that is open for moments only.
        repeats: says what follows a record.
    """

    def __init__(self, store: Store, sweeper: Sweeper, reader: RecordDecoder, repeats: Repeats) -> None:
        self._store = store
        self._sweeper = sweeper
        self._reader = reader
        self._repeats = repeats
        self._taken: tuple[Suspect, ...] = ()
        self._ends: dict[tuple[bytes, int], int] = {}
        """(Id, offset of its latest record, which is deleted) -> up to where the log must be read before it ends."""

    def look(self, entries: Sequence[tuple[bytes, Entry]], committed: Progress, released_s: int) -> None:
        """Note which timers seem to stand still. Call once a second.

        Args:
            entries: those that a sweep has read.
            committed: a crash does not undo what it has fired.
            released_s: the log was read up to what it held when this second began.
        """
        self._note(entries, committed, released_s)
        if released_s >= self._sweeper.swept.look_s:
            has_more = self._note(self._store.newest_entries(), committed, released_s)
            look_s = released_s + (1 if has_more else SEARCH_INTERVAL_S)
            self._sweeper.swept = self._sweeper.swept._replace(look_s=look_s)

    def _note(self, entries: Sequence[tuple[bytes, Entry]], committed: Progress, released_s: int) -> bool:
        """Note those of some entries whose timers seem to stand still. Returns whether there may be more."""
        suspects = self._sweeper.swept.suspects
        known = {id for id, _, _ in suspects}
        chains = (
            (id, chain)
            for id, entry in entries
            if (chain := repeating(entry)) is not None
            and id not in known
            and self._has_fired(chain, committed, released_s)
        )
        found = [*islice(chains, MOST_ROWS)]
        new = [
            (id, offset_of(chain), released_s + STANDS_S)
            for id, chain in found
            if self._store.row(key_of(chain)) is None
        ]
        suspects = (*suspects, *new)[:MOST_SUSPECTS]
        self._sweeper.swept = self._sweeper.swept._replace(suspects=suspects)
        return len(found) == MOST_ROWS and len(suspects) < MOST_SUSPECTS

    @staticmethod
    def _has_fired(chain: RepeatingVersion, progress: Progress, released_s: int) -> bool:
        """Whether the latest record of a timer has fired some time ago. What a hold may hold has not; nor has what was
        moved to another app."""
        key = key_of(chain)
        if append_s_of(chain) + STANDS_S > released_s or not progress.is_past(key):
            return False
        return not progress.is_elsewhere(key[1]) and not progress.holds.may_hold(key, progress.holes)

    def mended(self, outbox: Outbox, progress: Progress, released_s: int) -> Output:
        """Returns what follows the records of timers that stand still for certain. Reads their log.

        Args:
            progress: with which it is committed.
            released_s: as in :meth:`look`.
        """
        self._taken = ()
        # Records that the machine itself has appended may stand behind an open transaction of another producer.
        is_read = all(each < self._store.applied for each in outbox.held_from)
        most = min(MOST_AT_ONCE, outbox.chunk.timers)
        found = self._found(progress, released_s, most) if is_read else []
        if not found:
            return NO_OUTPUT
        try:
            records = outbox.read_again([offset_of(chain) for _, chain in found])
        except Lost:  # no transaction was begun
            self._put_off({id for id, _ in found}, released_s)
            return NO_OUTPUT
        followers: list[Follower] = []
        broken: list[tuple[bytes, int, int]] = []
        unread = {id for id, chain in found if offset_of(chain) not in records}
        for id, chain in found:
            offset = offset_of(chain)
            record = records.get(offset)
            if isinstance(record, Deleted):
                if self._ends.setdefault((id, offset), record.end) <= self._store.applied:
                    # If the transaction is rolled back, the log is read once more before the timer is ended.
                    del self._ends[id, offset]
                    broken.append((id, offset, request_of(chain)))
                else:
                    unread.add(id)
            elif record is not None and record.key == id:
                decoded = self._reader.decode([record], offset + 1, progress)
                decided_s = progress.fired_before_cut(key_of(chain))
                follower = self._repeats.go_on(decoded, offset, decided_s, progress.fired_through[0])
                if follower is not None:  # else this version of the project cannot read the rule: another version may
                    followers.append(follower)
        self._put_off(unread, released_s)
        return Output(mended=followers, broken=broken) if followers or broken else NO_OUTPUT

    def _put_off(self, ids: Collection[bytes], released_s: int) -> None:
        """Look again later, behind the others, at what :meth:`_found` has found and cannot be decided now."""
        later = tuple((id, offset, released_s + SEARCH_INTERVAL_S) for id, offset, _ in self._taken if id in ids)
        self._taken = tuple(each for each in self._taken if each[0] not in ids)
        swept = self._sweeper.swept
        self._sweeper.swept = swept._replace(suspects=(*swept.suspects, *later))

    def note_again(self) -> None:
        """Note again what :meth:`mended` has taken last: its transaction was rolled back."""
        swept, taken, self._taken = self._sweeper.swept, self._taken, ()
        self._sweeper.swept = swept._replace(suspects=(*taken, *swept.suspects))

    def _found(self, progress: Progress, released_s: int, most: int) -> list[tuple[bytes, RepeatingVersion]]:
        """Returns some of those that stand still for certain, and forgets them: if they still do, a sweep notes them
        again, which may take long."""
        suspects = self._sweeper.swept.suspects
        sure = {id: offset for id, offset, from_s in suspects[:most] if released_s >= from_s}
        if not sure:
            return []
        left = tuple(each for each in suspects if each[0] not in sure)
        self._taken = tuple(each for each in suspects if each[0] in sure)
        self._sweeper.swept = self._sweeper.swept._replace(suspects=left)
        entries = self._store.entries(sure)
        found = []
        for id, offset in sure.items():
            chain = repeating(entries.get(id))
            if (
                chain is not None
                and offset_of(chain) == offset
                and self._has_fired(chain, progress, released_s)
                and self._store.row(key_of(chain)) is None
            ):
                found.append((id, chain))
            else:
                self._ends.pop((id, offset), None)
        return found
