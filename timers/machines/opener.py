"""Opens one machine: the only place that says in which order.

The logs have leaders; the former owner is fenced; its progress is read, and compared with the copy of it that the
group has; the log is compared with progress and store; a log that may lack requests is refused; the store is kept or
restored; the machine is made. Whatever fails, the store is closed again. Workers, the engine on Spark and simulated
workers differ in their :class:`Port`.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager, ExitStack
from typing import NamedTuple, Protocol

from timers.core.machine import Machine
from timers.core.ports import Lost
from timers.core.progress import Progress
from timers.core.store_validity import catch_up
from timers.core.timer import TopicPartition
from timers.errors import DoubtfulLog
from timers.kafka.log_lineage import AskLog
from timers.machines.store.failures import forget_frames
from timers.machines.store.opening import (
    Opened,
    Stores,
    close_store,
    closed_if_it_fails,
    may_restore,
    open_partition,
    restore,
)
from timers.machines.store.rocks import RocksStore

LEAST_AHEAD = 10_000
"""Fewer records are read again in the time in which a store is opened once more, so they are not read ahead."""


class Known(NamedTuple):
    """What the opener of a machine knows already, if it has had the machine last: nothing is read again then."""

    progress: Progress
    applied: int
    """Offset up to which its store was written."""


class Port(Protocol):
    """What an opening asks of its process. The methods block, and may raise what an opening may raise."""

    def check(self) -> None:
        """Raise Lost if the machine is not to be opened any more."""

    def check_leaders(self) -> None:
        """Raise Lost if a log of the machine has no leader: each further step would wait for it."""

    def fence(self) -> Known | None:
        """Fence the former owner. Returns what is known after that; None: the progress must be read."""

    def compacted(self) -> str | None:
        """Why the topic is compacted now, in a sentence; None: it is not, or must be."""

    def apps(self) -> Collection[str]:
        """The apps that have snapshots of the request topic, as far as they may be seen."""

    def reading(self) -> AbstractContextManager[object]:
        """Waits for a place among those whose progress is read."""

    def restoring(self) -> AbstractContextManager[object]:
        """Waits for a place among those whose store is restored."""

    def now_s(self) -> float | None:
        """The brokers' time in epoch seconds, by which the age of a store of a compacted topic is judged [I9]; None: it
        is not known, or does not count."""

    def refuse(self, progress: Progress) -> None:
        """Commit that the log may lack requests [I29]."""

    def machine(self, progress: Progress, store: RocksStore, now_s: float | None) -> Machine:
        """Make the machine."""


class OpenedMachine(NamedTuple):
    """A machine, and where its store came from."""

    machine: Machine
    opened: Opened
    is_restored: bool = False


def open_machine(
    stores: Stores, port: Port, tp: TopicPartition, ask: AskLog, *, fences: bool, least_ahead: int = LEAST_AHEAD
) -> OpenedMachine | None:
    """Open a machine. Blocks.

    Args:
        fences: whether to fence the former owner. If not, the machine may only read ahead while that one fires.
        least_ahead: so many records at most are not read ahead.

    Returns:
        The machine; None without a fence, if there is little to read ahead.

    Raises:
        LogMismatch: the machine must not run.
        Fenced: it was taken over while it was opened.
        KafkaException, Lost: a broker did not answer, a partition has no leader, or ``port`` was told to stop.
    """
    port.check_leaders()
    if fences:
        known = port.fence()
        if known is not None and (made := open_known(stores, port, tp, known)) is not None:
            return made
    compacted = port.compacted()
    try:
        with port.reading():
            port.check()
            opened = open_partition(stores, tp, ask, compacted, after_fence=fences)
    except DoubtfulLog as doubtful:
        if fences and compacted is not None:
            port.refuse(doubtful.progress)
        raise
    with closed_if_it_fails(opened.store):
        apps = port.apps() if opened.is_new else ()
        restores = (fences or not opened.is_new) and may_restore(opened, apps)
    present = opened.store
    if restores:
        with ExitStack() as place:
            with closed_if_it_fails(opened.store):
                place.enter_context(port.restoring())
            opened = restore(stores, tp, opened, port.check, apps, port.now_s)
    progress, store, *_ = opened
    if not fences and (progress.rescues or progress.next_offset - store.applied <= least_ahead):
        close_store(store)
        return None
    with closed_if_it_fails(store):
        machine = port.machine(progress, store, None if fences else port.now_s())
        return OpenedMachine(machine, opened, store is not present)


def open_known(stores: Stores, port: Port, tp: TopicPartition, known: Known) -> OpenedMachine | None:
    """Open a machine whose progress is known; None if the store on this disk is another one than then."""
    store = stores.open(tp)
    with closed_if_it_fails(store):
        is_same = store.applied == known.applied and not known.progress.rescues
        try:
            if is_same and catch_up(store, known.progress, indexed=stores.indexed(tp)):
                return OpenedMachine(port.machine(known.progress, store, None), Opened(known.progress, store, 0))
        except Lost as error:  # it is damaged
            forget_frames(error)
    close_store(store)
    return None
