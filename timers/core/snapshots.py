"""Snapshots: what the store of a machine holds at one offset of its log, written to a topic of their own [I30].

A worker without a usable store restores the newest snapshot that progress names, and reads the log from there on
instead of from its start. A restored store *is* a store that stopped at this offset: what follows is what an opening
does with each store. So a snapshot needs no rule about what is in it.

Progress names a snapshot only after the brokers have all of its records, in a transaction of the machine. A worker that
has lost the partition is fenced there. Its records have a number of their own, and no reader takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from hashlib import sha256
from typing import NamedTuple, Protocol, TypeVar

from timers.core.keys import NOTHING_FIRED, OrderKey
from timers.core.machine import Machine
from timers.core.ports import Lost, Page, SnapshotStore, Store, View
from timers.core.progress import COLD_SEAL, History, NamedSnapshot, Progress, SettingChange
from timers.core.steps import State
from timers.core.store_validity import catch_up

SNAPSHOT_CHUNK_BYTES = 512 * 1024
"""Size of a record of a snapshot."""

LEAST_BYTES = 16 * 1024 * 1024
"""A log that has grown by less than this is read again."""

ASSUMED_REQUEST_BYTES = 256
"""Size of a request, until some were read."""

ROWS_A_RECORD = 8
"""So many rows are restored in the time in which one record of the log is read again."""

LEAST_AGE_S = 30
"""A snapshot of an idle machine is not replaced earlier, also if requests are not kept at all."""

FIRST_AFTER_S = 3600
"""A machine without a snapshot gets one after this time at most: a worker may be restarted every day."""

_Store = TypeVar("_Store", bound=SnapshotStore)


class Place(NamedTuple):
    """Which machine a snapshot is of."""

    cluster: str
    app: str
    topic_id: bytes
    """Id of the request topic."""
    partition: int
    request_format: str


class Footer(NamedTuple):
    """The end of a snapshot. It says of itself what progress says of it, in case that the progress is lost."""

    place: Place
    applied: int
    fired_through: OrderKey
    history: tuple[SettingChange, ...]
    """The settings below ``applied``, without the seal: who reads snapshots must not be able to forge copies."""
    history_hash: bytes
    """Of all settings below ``applied``."""
    keys: int
    rows: int
    digest: bytes


class Unreadable(Exception):
    """The brokers answered, and a snapshot is not there, or is another one."""


class Snapshots(Protocol):
    """The snapshots of one partition. Both methods raise :class:`Unreadable`; silent brokers are waited for."""

    def footer(self, named: NamedSnapshot) -> Footer:
        """Returns the footer that stands at the end of a snapshot."""

    def pages(self, named: NamedSnapshot) -> Iterable[Page]:
        """Yields its keys and values. Before the end, the digest of all of them was compared."""


def history_hash(history: Iterable[SettingChange], applied: int) -> bytes:
    """Returns a hash of the settings that decide about the records below ``applied``: of the text
    ``[('<name>', <first offset>, <value>), ('<name>', <first offset>, <value>)]`` in UTF-8."""
    below = (each for each in history if each.from_offset < applied)
    text = ", ".join(f"('{each.name}', {each.from_offset}, {each.value})" for each in below)
    return sha256(f"[{text}]".encode()).digest()


def footer_of(view: View, place: Place, fired_through: OrderKey, keys: int, digest: bytes) -> Footer:
    """Returns the footer of a snapshot."""
    known = tuple(each for each in view.history if each.from_offset < view.applied and each.name != COLD_SEAL)
    hashed = history_hash(view.history, view.applied)
    return Footer(place, view.applied, fired_through, known, hashed, keys, view.rows, digest)


# ---- taking ----------------------------------------------------------------------------------------------------------


def may_take(machine: Machine) -> bool:
    """Whether a view of the machine's store may be taken, and its snapshot be named later."""
    return machine.state is State.ACCEPTING


def may_name(now: Progress, begun: Progress) -> bool:
    """Whether a snapshot may be named that was begun under an earlier progress: since then no other one was named, and
    the log has lost nothing. In an engine on Spark, other processes have the machine in between [I30]."""
    return (now.snapshot, now.cuts) == (begun.snapshot, begun.cuts)


def bytes_of_snapshot(named: NamedSnapshot) -> int:
    """Returns the size of a snapshot, rounded up to whole records."""
    return (named.end_offset - named.first_offset) * SNAPSHOT_CHUNK_BYTES


def offsets_since(progress: Progress) -> int:
    """Returns how many offsets of the log a replay reads after the newest snapshot; without one, all of them."""
    return progress.next_offset - (0 if progress.snapshot is None else progress.snapshot.applied)


def is_due(
    progress: Progress,
    pending: int,
    forgotten: int,
    record_bytes: float,
    *,
    factor: float,
    most_records: int,
    is_behind: bool,
    unnamed_bytes: int,
) -> bool:
    """Whether to take a snapshot: the log has grown, or what is named is much larger than what a store has now.

    Args:
        forgotten: number of ids in the newest snapshot that it has forgotten since.
        factor: how many times as large as the last snapshot the log becomes before the next one.
        most_records: after so many records a snapshot is taken although they are small, so that a replay stays short.
        is_behind: whether timers are due that have not fired. Then a snapshot waits for twice as much.
        unnamed_bytes: of snapshots that were given up. They count as if the log had grown: only what is named next lets
            brokers delete them.
    """
    newest, times = progress.snapshot, 2 if is_behind else 1
    size = 0 if newest is None else bytes_of_snapshot(newest)
    records = offsets_since(progress)
    grown = records * record_bytes + unnamed_bytes
    if records > times * most_records or grown > times * max(factor * size, LEAST_BYTES):
        return True
    if newest is None or not newest.keys:
        return False
    left = min(pending / newest.rows if newest.rows else 1, max(0, newest.keys - forgotten) / newest.keys)
    return size > times * (factor * size * left + LEAST_BYTES)


def is_outdated(progress: Progress, pending: int, age_s: float, keep_s: float, bytes_per_s: float) -> bool:
    """Whether to take a snapshot although the log has hardly grown: the named ones hold timers that have fired since.

    So the requests of an app that is idle are deleted, too, and all that has fired is gone within twice ``keep_s``.

    Args:
        pending: number of rows in the store of the machine.
        age_s: of the newest snapshot; without one, how long the machine has been open.
        keep_s: how long requests are kept that nothing needs.
        bytes_per_s: how fast snapshots are written. This rule asks for a tenth of the time at most.
    """
    writing_s = 0 if progress.snapshot is None else bytes_of_snapshot(progress.snapshot) / bytes_per_s
    interval_s = max(keep_s / 2, LEAST_AGE_S, 10 * writing_s)
    if age_s < (min(interval_s, FIRST_AFTER_S) if progress.snapshot is None else interval_s):
        return False
    older = progress.older_snapshot
    then = (0, 0) if older is None else (older.applied, older.rows)
    return then != (progress.next_offset, pending)


def with_named(progress: Progress, new: NamedSnapshot, *, newest_is_whole: bool) -> Progress:
    """Returns the progress that names a snapshot, all of whose records the brokers have.

    Args:
        newest_is_whole: whether the snapshot that was the newest one until now is still there, by its footer. If not,
            it does not become the older one.
    """
    older = progress.snapshot if newest_is_whole else progress.older_snapshot
    return replace(progress, snapshot=new, older_snapshot=older)


def replaced_before(progress: Progress) -> int:
    """Returns the offset below which the topic of snapshots has none that is named; 0: nothing may be deleted there.

    If the topic was deleted and made anew since, the older snapshot was in the former one: its offsets say nothing
    about the newest one, which may be the only one.
    """
    newest, older = progress.snapshot, progress.older_snapshot
    if newest is None or older is None or newest.topic_id != older.topic_id:
        return 0
    return older.first_offset


# ---- what may be deleted of the log ----------------------------------------------------------------------------------


def deletable_before(progress: Progress) -> int:
    """Returns the offset below which no named snapshot needs the log; 0 while progress does not name two."""
    newest, older = progress.snapshot, progress.older_snapshot
    return 0 if newest is None or older is None else min(newest.applied, older.applied)


def trimmed_to(committed: Progress, kept_from: int | None) -> int:
    """Returns the offset below which the log may be deleted; 0: nothing may be [I31].

    Args:
        committed: as the brokers have it: a naming that is not committed yet may never be.
        kept_from: first offset that is not old enough; None: all are.
    """
    if not committed.settings.trims or committed.doubt is not None or committed.rescues:
        return 0
    bound = deletable_before(committed)
    return bound if kept_from is None else min(bound, kept_from)


# ---- restoring -------------------------------------------------------------------------------------------------------


def to_restore(progress: Progress, store: Store, log_start: int) -> list[NamedSnapshot]:
    """Returns the snapshots to restore instead of reading the log from where a store ended, in the order to try them.

    A store from which the log can be read on is kept if this takes less time. A doubtful log is not read, so a store
    that is whole is all that counts [I29], as is one that holds what its log has lost at its end [I28].

    Args:
        store: after :func:`timers.core.store_validity.catch_up`, or empty.
    """
    if progress.doubt is not None or progress.rescues_of(store.history, store.applied):
        return []
    named = [each for each in (progress.snapshot, progress.older_snapshot) if each and each.applied >= log_start]
    if store.applied < log_start:
        return named
    return [each for each in named if store.applied + each.rows // ROWS_A_RECORD < each.applied]


def check_footer(footer: Footer, named: NamedSnapshot, place: Place, progress: Progress) -> None:
    """Compare the footer of a snapshot with what progress says.

    Raises:
        Unreadable: it is another snapshot, or was made under other settings.
    """
    if footer.place != place:
        raise Unreadable(f"it is a snapshot of {footer.place}, not of {place}")
    if (footer.applied, footer.keys, footer.rows, footer.digest) != (named.applied, *named[-3:]):
        raise Unreadable("it is not the snapshot that the progress names")
    if not _is_of(progress, footer):
        raise Unreadable("it was made under other settings than those of the progress")


def _is_of(progress: Progress, footer: Footer) -> bool:
    """Whether the settings of a progress are those under which a snapshot was made. A progress that was lost, and made
    anew from a footer, has no seal."""
    below = [each for each in progress.settings if each.from_offset < footer.applied]
    if any(each.name == COLD_SEAL for each in below):
        return footer.history_hash == history_hash(below, footer.applied)
    return footer.history == tuple(below)


def restored(
    store: _Store,
    progress: Progress,
    place: Place,
    log_start: int,
    snapshots: Snapshots,
    beside: Callable[[], _Store],
    is_fresh: Callable[[_Store], bool],
    names: Callable[[NamedSnapshot], bool],
    report: Callable[[NamedSnapshot, Unreadable | None], None],
) -> _Store:
    """Returns a store that was restored from the newest snapshot that can be read; the present one, if there is none.

    The present store is not changed: it may be the last copy of what is pending.

    Args:
        beside: returns an empty store beside the present one; one that it returned before is not used any more.
        is_fresh: whether a restored store is as new as it must be (:func:`timers.core.store_validity.is_fresh`).
        names: whether the progress, read again, names a snapshot.
        report: called with each snapshot that was tried, and why it cannot be read.

    Raises:
        Lost: another worker has taken the machine over, and has deleted a snapshot since.
    """
    for named in to_restore(progress, store, log_start):
        try:
            check_footer(snapshots.footer(named), named, place, progress)
            new = beside()
            below = tuple(each for each in progress.settings if each.from_offset < named.applied)
            new.restore(snapshots.pages(named), named.applied, below)
            if not is_fresh(new):
                raise Unreadable("its topic is compacted, and may have lost records since that the snapshot needs")
        except Unreadable as why:
            if not names(named):
                raise Lost(f"the progress does not name its snapshot at offset {named.applied} any more") from None
            report(named, why)
            continue
        catch_up(new, progress)  # the restored store gets the settings of the progress
        report(named, None)
        return new
    return store


# ---- if the progress was lost ----------------------------------------------------------------------------------------


def usable(
    whole: Iterable[tuple[NamedSnapshot, Footer]], place: Place, progress: Progress, log_start: int, log_end: int
) -> list[tuple[NamedSnapshot, Footer]]:
    """Returns the snapshots of a machine whose progress does not name them any more, the newest first.

    Args:
        whole: snapshots of which all records are there, with their footers.
        progress: what is known of it. If nothing is, its ``next_offset`` is 0.
        log_start, log_end: first offset and end of the log.
    """
    most = min(log_end, progress.next_offset or log_end)
    fit = [each for each in whole if each[1].place == place and log_start <= each[1].applied <= most]
    return sorted(fit, key=lambda each: each[0].end_offset, reverse=True)


def progress_from(named: NamedSnapshot, footer: Footer, progress: Progress) -> Progress:
    """Returns the progress with which a machine goes on from a snapshot that an operator lets it use.

    What has fired since then fires again, if the progress does not say up to where it has fired.

    Args:
        progress: what is known of it.
    """
    is_unknown = progress.fired_through == NOTHING_FIRED and not progress.holes
    later = (each for each in progress.settings if each.from_offset >= footer.applied)
    return replace(
        progress,
        next_offset=max(progress.next_offset, footer.applied),
        fired_through=footer.fired_through if is_unknown else progress.fired_through,
        settings=progress.settings if _is_of(progress, footer) else History((*footer.history, *later)),
        snapshot=named,
        older_snapshot=None,
    )
