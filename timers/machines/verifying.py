"""Compares a log with two snapshots of it: the older one and the log after it must give the newer one [I31].

A store is a cache of its log, and a bug in it does no lasting harm while the log can be read again. When the log is
deleted, a snapshot takes its place. So the log is folded once more before that, by another store, and what will fire is
compared row by row. The bytes differ, because each store groups rows in its own way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from heapq import merge
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import msgpack

from timers.core.keys import NOTHING_FIRED, OrderKey
from timers.core.keys import pack as pack_key
from timers.core.lineage import Lineage
from timers.core.machine import Machine
from timers.core.operation import Entry
from timers.core.ports import Lost, Outbox, Page, SnapshotStore, Store
from timers.core.progress import HOT_HORIZON, VERDICT_RETENTION, NamedSnapshot, Progress
from timers.core.snapshots import Place, Snapshots, check_footer
from timers.core.store_validity import catch_up
from timers.core.timer import TopicPartition
from timers.kafka.aiokafka_internals.batch_pieces import UnreadableBatch
from timers.kafka.request_reader import RequestReader
from timers.machines.partition import PartitionSpec, spec_of
from timers.machines.store import layout
from timers.machines.store.database import Database
from timers.machines.store.failures import Condemnations
from timers.machines.store.opening import Stores
from timers.machines.store.rocks import RocksStore
from timers.process.config.settings import Settings
from timers.wire.formats import RequestFormat

CHECKED = 64
"""So many entries are read between two calls of ``check``."""


def replayed(
    settings: Settings,
    request_format: RequestFormat,
    tp: TopicPartition,
    progress: Progress,
    store: Store,
    check: Callable[[], None],
) -> Machine:
    """Returns a machine whose store holds what it holds at ``next_offset`` of a progress. Blocks.

    Args:
        store: after :func:`timers.core.store_validity.catch_up`; the log is read from where it ends.
        check: called after each fetch; may raise to stop.

    Raises:
        Lost: the log begins later, or cannot be read.
    """
    machine = spec_at(settings, request_format, tp, progress).machine(progress, store, cast(Outbox, None))
    passes_over, value_limit = progress.settings.passes_over, machine.largest_value_limit

    def on_unreadable(_: Any, batch: UnreadableBatch) -> bool:
        if not passes_over(batch.from_offset, batch.end_offset):
            raise batch
        return True

    # As a worker reads: librdkafka cannot unpack all that Java's consumer reads.
    reader = RequestReader(settings, {}, "read_committed", lambda _: value_limit, on_unreadable)
    with closing(reader):
        try:
            for fetched in reader.fetches(tp, machine.position, progress.next_offset, check):
                machine.accept(fetched)
                check()
        except UnreadableBatch as batch:
            raise Lost(batch.args[0]) from batch
    return machine


def spec_at(settings: Settings, request_format: RequestFormat, tp: TopicPartition, progress: Progress) -> PartitionSpec:
    """Returns the specification of a machine that replays as that of a progress did."""
    spec = spec_of(settings, tp, request_format, 1)
    horizon_s = progress.setting_at(HOT_HORIZON, progress.next_offset, 0)
    retention_s = progress.setting_at(VERDICT_RETENTION, progress.next_offset, spec.retention_s)
    return replace(spec, hot_horizon_s=horizon_s, retention_s=retention_s)


_K = TypeVar("_K", bound=Any)
_T = TypeVar("_T")

MOST_NAMED = 5
"""Differences that are named. The others are counted."""


class Verified(NamedTuple):
    """What a comparison has found."""

    from_offset: int
    to_offset: int
    """The part of the log that was read."""
    timers: int
    """Number of timers that will fire, in the newer snapshot."""
    differences: tuple[str, ...]
    """The first ones, as sentences."""
    different: int
    """Number of all."""


def way_on(log_start: int) -> str:
    """Returns what an operator may do about a difference. What was pending in requests that are deleted is only in
    snapshots and in stores, whatever is wrong with them.

    Args:
        log_start: first offset of the log.
    """
    if log_start:
        return (
            f"its log begins at offset {log_start:,}, so its snapshots and its stores on disks are the only copies of "
            "what was pending below: delete none of them, and see "
            "docs/operations.md#a-trimmed-log-differs-from-its-snapshots"
        )
    return "its log is whole, so nothing is lost: see docs/operations.md#log-and-snapshots-differ"


def verify(
    stores: Stores,
    tp: TopicPartition,
    progress: Progress,
    snapshots: Snapshots,
    directory: Path,
    check: Callable[[], None],
) -> Verified | None:
    """Compare the log of a partition with the two snapshots that its progress names. Blocks.

    Args:
        directory: for two stores, which are deleted at the end.
        check: called often; may raise to stop.

    Returns:
        None if progress does not name two, or the topic is compacted: it may lack requests that a snapshot holds.

    Raises:
        Unreadable: a snapshot is not there.
        Lost: the log begins after the older snapshot.
        KafkaException: the brokers do not answer, or refuse.
    """
    named, request_format = in_order(progress), stores.formats[tp[0]]
    if named is None or request_format.topic_is_compacted:
        return None
    at, place = progress_at(progress, named[1].applied), stores.place_of(tp)
    paths = directory / "older", directory / "newer"
    with ExitStack() as stack:
        opened = []
        for each, path in zip(named, paths, strict=True):
            Database.wipe(path)
            stack.callback(Database.wipe, path)
            how = f"verified {place}", stores.memory, Condemnations()
            store = RocksStore.open(path, *how, indexed=request_format.has_ids)
            stack.callback(store.close)
            restored(store, at, each, place, snapshots, check)
            opened.append(store)
        machines = [replayed(stores.settings, request_format, tp, at, store, check) for store in opened]
        return compared((machines[0], opened[0]), (machines[1], opened[1]), named[0].applied, check)


def progress_at(progress: Progress, applied: int) -> Progress:
    """Returns the progress with which a log is read up to ``applied``: what has fired by now is left out."""
    return replace(progress, next_offset=applied, lineage=Lineage(), rescues=(), doubt=None)


def in_order(progress: Progress) -> tuple[NamedSnapshot, NamedSnapshot] | None:
    """Returns the named snapshots, the one with the lower offset first; None unless there are two."""
    newest, older = progress.snapshot, progress.older_snapshot
    if newest is None or older is None:
        return None
    return (older, newest) if older.applied <= newest.applied else (newest, older)


def restored(
    store: SnapshotStore,
    progress: Progress,
    named: NamedSnapshot,
    place: Place,
    snapshots: Snapshots,
    check: Callable[[], None],
) -> None:
    """Restore a snapshot into an empty store, without what has fired before the second of ``fired_through``.

    Raises:
        Unreadable: the brokers do not have it.
    """
    check_footer(snapshots.footer(named), named, place, progress)
    below = tuple(each for each in progress.settings if each.from_offset < named.applied)
    # Held rows may be before that second. Rows before it that have fired are dropped afterwards.
    unfired = pack_key(0 if progress.holds else max(0, progress.fired_through[0]), 0)

    def pages() -> Iterator[Page]:
        for page in snapshots.pages(named):
            check()  # a page takes some milliseconds
            yield [item for item in page if item[0] >= unfired]

    store.restore(pages(), named.applied, below)
    catch_up(store, progress)


def _checked(items: Iterable[_T], check: Callable[[], None]) -> Iterator[_T]:
    """Yields all items, and calls ``check`` often."""
    for number, item in enumerate(items):
        if number % CHECKED == 0:
            check()
        yield item


def compared(
    folded: tuple[Machine, SnapshotStore],
    newer: tuple[Machine, SnapshotStore],
    from_offset: int,
    check: Callable[[], None],
) -> Verified:
    """Returns how two stores differ that were read up to the same offset: in what will fire, in ids that are known, and
    in the number of records of the log.

    Args:
        folded: from the older snapshot and the log.
        newer: from the newer snapshot.
        from_offset: where the log was read from, for the result.
        check: called often; may raise to stop.
    """
    found: list[str] = []
    timers = different = 0
    for key, one, two in _pairs(_timers(folded[0], check), _timers(newer[0], check), check):
        timers += two is not None
        if one != two:
            different += 1
            if len(found) < MOST_NAMED:
                found.append(_sentence(key, one, two))
    for index_key, *entries in _pairs(_entries(folded[1], check), _entries(newer[1], check), check):
        if entries[0] == entries[1]:
            continue
        now, then = (None if entry is None else layout.unpack_entry(entry) for entry in entries)
        sides = (now, folded[0]), (then, newer[0])
        known = [entry if entry is not None and side.remembers(entry) else None for entry, side in sides]
        if known[0] != known[1]:  # else neither side must remember the id any more
            different += 1
            if len(found) < MOST_NAMED:
                found.append(f"the id {index_key[1:]!r} has {then} in the newer snapshot, and {now} by the log")
    has, had = folded[1].lineage.counted, newer[1].lineage.counted
    if has is not None and had is not None and has[:2] == had[:2] and has.records != had.records:
        different += abs(had.records - has.records)
        found.append(f"the log has {has.records} records from offset {had.since} to {had.to}, and had {had.records}")
    return Verified(from_offset, newer[1].applied, timers, tuple(found), different)


def _timers(machine: Machine, check: Callable[[], None]) -> Iterator[tuple[OrderKey, bytes]]:
    """Yields key and row of each timer that will fire, in the order of keys."""
    pack = layout.packer()
    for (due_s, _), rows in machine.waiting(NOTHING_FIRED):
        check()
        for row in rows:
            yield (due_s, row[0]), pack([row])


def _entries(store: SnapshotStore, check: Callable[[], None]) -> Iterator[tuple[bytes, bytes]]:
    """Yields keys and values of the index of a store, in the order of ids, without those that were removed."""
    journal: dict[bytes, Entry | None] = {}
    first = layout.OTHER, b""
    with closing(store.view()) as view:
        items = chain(_checked(view, check), [first])
        for first in items:
            if first[0] >= layout.INDEX:
                break
            if first[0] >= layout.JOURNAL:  # the journal is small; it is read first, because its entries are newer
                journal |= msgpack.unpackb(first[1], use_list=False)
        newer = {layout.INDEX + id: entry for id, entry in journal.items()}
        left = sorted(newer, reverse=True)
        for key, value in chain([first], items):
            while left and left[-1] <= key:
                next_key = left.pop()
                if (entry := newer[next_key]) is not None:
                    yield next_key, layout.pack_entry(entry)
            if key < layout.OTHER and key not in newer:
                yield key, value


def _pairs(
    one: Iterator[tuple[_K, bytes]], two: Iterator[tuple[_K, bytes]], check: Callable[[], None]
) -> Iterator[tuple[_K, bytes | None, bytes | None]]:
    """Yields each key of two sorted sequences, and its value in both; None: it is not there."""
    # No two entries have the same key and the same side, so no values are compared.
    sides = ((key, 0, value) for key, value in one), ((key, 1, value) for key, value in two)
    for key, found in groupby(merge(*sides), itemgetter(0)):
        check()
        values = {side: value for _, side, value in found}
        yield key, values.get(0), values.get(1)


def _sentence(key: OrderKey, one: bytes | None, two: bytes | None) -> str:
    what = f"the timer of offset {key[1]}, due at second {key[0]},"
    if two is None:
        return f"{what} is in the log, and not in the newer snapshot"
    if one is None:
        return f"{what} is in the newer snapshot, and not in the log"
    return f"{what} has other fields in the newer snapshot than in the log"
