"""What happens when a log has lost its end, and perhaps has grown again [I28].

The partition stops until an operator accepts the loss. Then the history of its machine notes a *cut*, and the log is
read again: all that is in it fires. Timers and cancels that only the store holds were acknowledged, so they are not
thrown away: each becomes one dead letter, from which it can be sent again. They cannot be appended to the log: a worker
has no right to write there, and a newer version of an id may be in it. The store is emptied after that, never before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from timers.core.fired import Holds, Hole, reached
from timers.core.keys import NOTHING_FIRED, OrderKey, decode, encode
from timers.core.lineage import Parted, Unknown
from timers.core.operation import offset_of
from timers.core.ports import Store
from timers.core.progress import Progress, Rescue
from timers.core.timer import Row, id_bytes

_CANCELS = b"\xfe"
"""First byte of a cursor behind all rows; an id follows."""


class Cut(NamedTuple):
    """From which offset on a log is not the one that was accepted."""

    offset: int
    only_in_store: bool = False
    """Whether only the store holds requests that the log has lost: it was written further than any commit. Another
    owner accepted the requests that took their place, and some of these may have fired."""

    def applied_to(self, progress: Progress) -> Progress:
        """Returns the progress after this loss."""
        return progress.without_end_of_store(self.offset) if self.only_in_store else progress.shortened(self.offset)


def cut_of(
    progress: Progress, store: Store, answers: Sequence[Parted | Unknown | None], log_start: int, log_end: int
) -> Cut | None:
    """Returns from where on the log is not the one that was accepted; None if it is that one.

    Args:
        answers: of the leader, for the lineages of progress and store.
        log_start, log_end: first offset and end of the log.
    """
    of_progress, of_store = answers
    cut, found = cut_below(progress.next_offset, of_progress, log_start, log_end), None
    if store.applied > progress.next_offset and progress.has_same_history(store.history, store.applied):
        found = cut_below(store.applied, of_store, log_start, log_end)
    if found is not None and (cut is None or found < cut):
        return Cut(found, only_in_store=cut is None)
    return None if cut is None else Cut(cut)


def cut_below(position: int, answer: Parted | Unknown | None, log_start: int, log_end: int) -> int | None:
    """Returns from which offset on the log is not the one that was read up to ``position``; None if it is that one.

    Args:
        answer: of the leader, for the lineage of ``position``.
        log_start, log_end: first offset and end of the log.
    """
    cuts = [log_end] if log_end < position else []
    if isinstance(answer, Parted):
        cuts.append(log_start if answer.offset is None else answer.offset)
    return min(cuts, default=None)


class StoreUse(Enum):
    """What an opening does with the store that it found."""

    APPLY = "apply"
    """Apply the progress to it."""
    EMPTY = "empty"
    """Empty it, and read the log again."""
    RESCUE = "rescue"
    """Leave it as it is: the machine writes the dead letters of what only this store holds."""


def decide_use(
    progress: Progress,
    store: Store,
    answers: Sequence[Parted | Unknown | None],
    log_start: int,
    log_end: int,
    accept: Callable[[Progress, Cut], Progress],
) -> tuple[Progress, StoreUse]:
    """Decide with which progress a machine opens, and what happens to its store, after the log was compared.

    Args:
        answers, log_start, log_end: as those of :func:`cut_of`.
        accept: returns the progress after a cut. Raises :class:`timers.errors.LogMismatch` if the loss was
            not accepted; then the store stays as it is.
    """
    cut = cut_of(progress, store, answers, log_start, log_end)
    if cut is not None:
        progress = accept(progress, cut)
    progress = progress.with_log_start(log_start)
    is_of_this_log = answers[1] is None and store.applied <= log_end
    if not is_of_this_log and progress.rescues_of(store.history, store.applied):
        return progress, StoreUse.RESCUE
    return progress, StoreUse.APPLY if is_of_this_log else StoreUse.EMPTY


class Held(NamedTuple):
    """What a store holds of the range that the log has lost."""

    timers: int
    cancels: int


def held(progress: Progress, store: Store, cut: Cut) -> Held:
    """Count what becomes dead letters if this cut is accepted. It reads all of the store."""
    rescues = cut.applied_to(progress).rescues_of(store.history, store.applied)
    timers = sum(len(rows) for _, rows in _lost_rows(rescues, progress.holes, store)) if rescues else 0
    return Held(timers, sum(1 for _ in _lost_cancels(rescues, store)))


def _rescue_of(rescues: Sequence[Rescue], offset: int) -> Rescue | None:
    """Returns the rescue that the request at ``offset`` belongs to."""
    return next((each for each in rescues if offset >= each.from_offset), None)


def _lost_rows(rescues: Sequence[Rescue], holes: Sequence[Hole], store: Store) -> Iterator[tuple[OrderKey, list[Row]]]:
    """Yields (key, rows) of one due second each: rows that have not fired, of requests that the log has lost."""
    through = min(each.through for each in rescues)
    if through.startswith(_CANCELS):
        return
    for key, rows in store.waiting(decode(through) if through else NOTHING_FIRED):
        lost = [row for row in rows if _is_lost(rescues, holes, key[0], row)]
        ids = [id_bytes(row[5][0]) for row in lost if row[5] is not None]
        latest = store.entries(ids) if ids else {}
        if latest:  # an older version of an id is left out: it would undo the newer one
            lost = [
                row
                for row in lost
                if row[5] is None or (entry := latest.get(id_bytes(row[5][0]))) is None or offset_of(entry) == row[0]
            ]
        yield key, lost


def _is_lost(rescues: Sequence[Rescue], holes: Sequence[Hole], due_s: int, row: Row) -> bool:
    offset, target = row[:2]
    rescue, key = _rescue_of(rescues, offset), (due_s, offset)
    if rescue is None or encode(key) <= rescue.through:
        return False
    if offset >= rescue.next_offset or key > reached(rescue.fired_through, holes, offset):
        return True
    return Holds(rescue.holds).of(key, target, holes) is not None


def _lost_cancels(rescues: Sequence[Rescue], store: Store) -> Iterator[tuple[bytes, tuple[bytes, int]]]:
    """Yields (cursor behind it, cancel) of each cancel that the log has lost."""
    through = min((each.through for each in rescues), default=b"")
    after = through[1:] if through.startswith(_CANCELS) else b""
    for cancel in store.cancels_from(rescues[-1].from_offset, after) if rescues else ():
        cursor, rescue = _CANCELS + cancel[0], _rescue_of(rescues, cancel[1])
        if rescue is not None and cursor > rescue.through:
            yield cursor, cancel


class LostRecords(NamedTuple):
    """What becomes dead letters in one transaction."""

    timers: list[tuple[int, Row]]
    """(due second, row)"""
    cancels: list[tuple[bytes, int]]
    """(id, offset)"""
    left: tuple[Rescue, ...]
    """The rescues that are not at their end then."""


def next_lost(rescues: Sequence[Rescue], holes: Sequence[Hole], store: Store, limit: int) -> LostRecords:
    """Returns the next lost timers, and after the last of them the next lost cancels: at most ``limit`` together."""
    timers: list[tuple[int, Row]] = []
    cancels: list[tuple[bytes, int]] = []
    through = b""
    for cursor, timer, cancel in _lost(rescues, holes, store):
        if len(timers) + len(cancels) == limit:
            left = tuple(each._replace(through=max(each.through, through)) for each in rescues)
            return LostRecords(timers, cancels, left)
        timers += [timer] if timer else []
        cancels += [cancel] if cancel else []
        through = cursor
    return LostRecords(timers, cancels, ())


def _lost(
    rescues: Sequence[Rescue], holes: Sequence[Hole], store: Store
) -> Iterator[tuple[bytes, tuple[int, Row] | None, tuple[bytes, int] | None]]:
    """Yields (cursor behind it, timer with its due second, cancel) of each lost timer, and then of each cancel."""
    for (due_s, _), rows in _lost_rows(rescues, holes, store):
        yield from ((encode((due_s, row[0])), (due_s, row), None) for row in rows)
    for cursor, cancel in _lost_cancels(rescues, store):
        yield cursor, None, cancel
