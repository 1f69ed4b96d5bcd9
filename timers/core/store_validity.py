"""Checks whether a store may still be used: it is a cache of the log, and must agree with it."""

from __future__ import annotations

from timers.core.ports import HeldOf, Lost, Store
from timers.core.progress import Progress


def catch_up(store: Store, progress: Progress, *, indexed: bool = False) -> bool:
    """Apply to a store what was committed since it was written. Call before a machine is made of both.

    Returns:
        False: empty the store and read the log again. Another owner read the same requests under other settings [I4];
        or it moved ``fired_through`` past requests that only this store holds, and an index keeps no older versions.
    """
    held_of = HeldOf(progress.held, progress.holds_group) if progress.holds else None
    if not store.drop_through(progress.fired_through, progress.next_offset, held_of, indexed=indexed):
        return False
    for hole in progress.holes:
        # A store with a higher `applied` was written after the hole was known. If not, its history differs: then the
        # result is False.
        if store.applied <= hole.before_offset:
            store.drop_through(hole.through, hole.before_offset, held_of)
    return progress.has_same_history(store.history, store.applied)


def is_fresh(store: Store, now_s: float, stale_after_s: int) -> bool:
    """Whether the age of a store of a compacted topic, which a snapshot was restored to, is known and below the limit.

    If it is older, compaction may have removed records after the snapshot that it needs [I9]. If its age is not known,
    it would count from now on, and schedules that were deleted would fire.
    """
    return store.read_through_s is not None and abs(now_s - store.read_through_s) <= stale_after_s


class StoreTooOld(Lost):
    """The store of a compacted topic has not read its log for too long [I9]."""


class StoreAge:
    """Checks that a store of a compacted topic is not old [I9].

    The age depends on the time, so nothing may be accepted before :meth:`check`.

    Compaction may have removed both a version that the store holds and the tombstone after it. A tombstone stays for at
    least ``delete.retention.ms`` after a reader began, so a read of the whole log may take as long as that.

    Args:
        stale_after_s: maximum age in seconds.

    Attributes:
        is_checked: whether the age was compared with the limit, and was below it.
    """

    def __init__(self, store: Store, stale_after_s: int) -> None:
        self.is_checked = False
        self._store = store
        self._stale_after_s = stale_after_s

    def check(self, second: int, released_s: int | None) -> None:
        """Compare the store's age with the limit.

        Args:
            released_s: last second that the second barrier released.

        Raises:
            StoreTooOld: when the store is opened again, it is empty.
        """
        known_s = self._store.read_through_s
        if known_s is None:  # a store without this second is new: nothing was accepted before
            self._store.note_read_through(second)
            self.is_checked = True
            return
        behind_s = second - max(known_s, released_s or 0)
        if abs(behind_s) > self._stale_after_s:  # a large negative number: the clock went back, so the age is not known
            self._store.condemn()
            raise StoreTooOld(
                f"the store has not read its log for {behind_s} s; compaction may have removed records that it needs: "
                "the log is read again from its start"
            )
        self.is_checked = True

    def note(self, released_s: int | None) -> None:
        """Store ``released_s`` as the read-through time, if it is newer by more than 1 % of the limit."""
        known_s = self._store.read_through_s
        if released_s is not None and known_s is not None and released_s - known_s > self._stale_after_s // 100:
            self._store.note_read_through(released_s)
