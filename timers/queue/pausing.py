"""Decides when the thread of a queue reads on, waits for receivers, or pauses partitions."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from timers.queue.settling import Partition
from timers.queue.state import State

MAX_READY = 4000
"""Messages that may wait for receivers. Above that, nothing is read until receivers have taken half of them."""

MAX_PAUSED = 2 * MAX_READY
MAX_OPEN_BYTES = 256 * 1024 * 1024
"""Messages that wait, and bytes of all open messages of a process, above which partitions are paused. The client then
drops what it has fetched of them, and the brokers send it again, so this is for receivers that are slow or have ended.
Each partition has an equal part of the bytes, so that one of large messages does not stop the others."""


class Reading(Protocol):
    """What this module uses of the transport."""

    def pause(self, partitions: Collection[Partition]) -> None: ...
    def resume(self, partitions: Collection[Partition]) -> None: ...
    def end(self, partition: Partition) -> int: ...


class Pausing:
    """The paused partitions of one process. Only the thread of the queue uses it."""

    def __init__(self, state: State, transport: Reading) -> None:
        self._state = state
        self._transport = transport
        self._paused: set[Partition] = set()

    def forget(self, partitions: Collection[Partition]) -> None:
        """Note that these partitions have another owner."""
        self._paused -= set(partitions)

    def wait_for_room(self, has_work: Callable[[], bool], wait_s: float) -> bool:
        """Return whether receivers need more messages. If not, wait a moment, or until there is other work."""
        state = self._state
        with state.lock:
            if state.ready_count <= MAX_READY:
                return True
            state.wait_for_takes(lambda: state.ready_count <= MAX_READY // 2 or has_work(), wait_s)
            return state.ready_count <= MAX_READY

    def control(self) -> None:
        """End leases, and pause partitions whose ledger has no room or whose messages are too large together, and all
        if too many messages wait for receivers."""
        with self._state.lock:
            ledgers = self._state.settler.ledgers
            now_s = self._state.now_s()
            for ledger in ledgers.values():
                self._state.totals.leases_lost += len(ledger.expire(now_s))
                ledger.measure()
            share = self._state.ready_count / MAX_PAUSED
            full = {
                each
                for each, ledger in ledgers.items()
                if ledger.position >= ledger.read_limit or ledger.open_bytes * len(ledgers) > MAX_OPEN_BYTES
            }
            wanted = full | (set(ledgers) if share > 1 else self._paused & ledgers.keys() if share > 0.5 else set())
            self._state.lock.notify_all()
        self._state.note_ends({each: self._transport.end(each) for each in ledgers}, wanted)
        self._transport.pause(wanted - self._paused)
        self._transport.resume((self._paused - wanted) & ledgers.keys())
        self._paused = wanted
