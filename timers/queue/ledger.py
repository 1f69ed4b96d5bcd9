"""The ledger of one partition: which messages are done, delivered, or ready. Pure: no clock and no I/O.

A message is *open* from the moment it is read until it is done. All other offsets below the reading position are done;
some of them never held a message, because offsets have holes. So the ledger keeps the open messages, and computes what
is done only when it is committed (:meth:`Ledger.saved`). An acknowledgement costs one deletion from a dict.

    ready ──take──► held ──ack──► done
      ▲               │ └─bind──► bound ──finish──► done
      └───────────────┘ expire, put_back, wait

A bound message is done when a certain transaction commits, and open until then.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from itertools import chain, pairwise
from typing import Any

from timers.core.lineage import PassedBatch
from timers.queue.brokers_clock import BrokersClock
from timers.queue.metadata import MAX_BYTES, OFFSETS_A_CHARACTER, RESERVE_BYTES, Saved, read_limit
from timers.queue.starts import NOTHING, Starts

READY, HELD, BOUND, WAITING, OVER = range(5)

_NEVER = float("inf")

_ENOUGH = 2048
"""If as many offsets may be read, the limit is not computed again."""

_FEW = 512
"""With so few open messages it costs little to compute the limit."""


class Entry:
    """An open message.

    Attributes:
        item: the message, which the ledger does not read.
        size: its bytes.
        lane: messages of one lane are delivered one after the other; None: in no order.
        attempt: number of the present delivery, or of the next one; counted from 1.
        delivery: changes with each delivery, so that a former receiver's calls are refused.
        until_s: end of the lease of a held message; when a waiting one becomes ready.
        due_s: the same for a waiting one by the brokers' time, in epoch seconds; 0 if it is not known.
        is_suspect: a process ended while the message may have run in it (:mod:`timers.queue.starts`).
        crashes: how often a process ended while only this message ran in it.
        holder: the delivery, while a receiver holds the message.
    """

    __slots__ = (
        *("attempt", "crashes", "delivery", "due_s", "first_attempt", "holder", "is_suspect", "item", "lane"),
        *("offset", "size", "state", "until_s"),
    )

    def __init__(
        self, offset: int, item: Any, lane: bytes | None, attempt: int, first_attempt: int, size: int = 0
    ) -> None:
        self.is_suspect = False
        self.crashes = 0
        self.holder: Any = None
        self.offset = offset
        self.item = item
        self.size = size
        self.lane = lane
        self.attempt = attempt
        self.first_attempt = first_attempt
        self.delivery = 0
        self.until_s = 0.0
        self.due_s = 0
        self.state = READY


class Ledger:
    """The messages of one partition, from the committed offset to the reading position.

    Args:
        saved: what the last commit says.
        max_bytes: longest metadata that the brokers take.
        log_end: end of the partition's log now.
        clock: the brokers' time. While it is not known, no message is delivered that waited when its partition moved.

    Attributes:
        starts: the ready messages.
        held_count: how many messages receivers hold.
        changes: how many calls of receivers it has noted, without those that need a transaction.
        open_bytes: size of all open messages, also of those that wait for earlier ones of their lane.
        crash_count: 1 if a message is known to have killed its process, else 0.
        position: all offsets below it were read.
        lineage: which log was read.
        cuts: where it parted from an earlier one.
        read_limit: messages at this offset and above it should not be read before :meth:`measure` raised it, because
            the metadata could become too long.
    """

    def __init__(
        self,
        saved: Saved,
        max_bytes: int = MAX_BYTES,
        log_end: float = _NEVER,
        clock: BrokersClock | None = None,
    ) -> None:
        self.starts: Starts[Entry] = Starts(saved.start, saved.suspects_end, log_end)
        self.held_count = 0
        self.changes = 0
        self.open_bytes = 0
        self._suspect_count = 0
        self._crashes = dict(saved.crashes)
        self.crash_count = 0
        crashed = self.starts.crashed
        if crashed is not None and saved.is_open(crashed):
            self._crashes[crashed] = self._crashes.get(crashed, 0) + 1
            self.crash_count = 1
        self.position = saved.offset
        self.lineage = saved.lineage
        self.cuts = saved.cuts
        self._unverified = self._verified = -1
        """Leader epochs of records that were read: one that began, and one in which the log is that of before."""
        self.read_limit = saved.offset
        self._done_ahead = deque(saved.done)
        self._attempts = dict(saved.attempts)
        self._waits = dict(saved.waits)
        self._clock = clock or BrokersClock()
        self._undated: list[Entry] = []
        self._room = max_bytes - RESERVE_BYTES
        self._measured = saved.offset, 0
        self._open: dict[int, Entry] = {}
        self._lanes: dict[bytes, deque[Entry]] = {}
        self.pass_holes(saved.offset)
        self.measure()

    # ---- reading -------------------------------------------------------------------------------------------------

    def read(self, offset: int, item: Any, lane: bytes | None = None, attempt: int = 1, size: int = 0) -> bool:
        """Add the message at ``offset``; False if it is done, or was added before.

        Args:
            attempt: number of its first delivery from this record.
            size: its bytes.
        """
        if offset < self.position:
            return False
        if self._done_ahead:
            self.pass_holes(offset)
            if offset < self.position:
                return False
            self.pass_holes(offset + 1)
        else:
            self.position = offset + 1
        entry = Entry(offset, item, lane, attempt, attempt, size)
        self.open_bytes += size
        if offset < self.starts.suspects_end or self._attempts or self._crashes or self._waits:
            self._restore(entry)
        self._open[offset] = entry
        if lane is not None:
            others = self._lanes.setdefault(lane, deque())
            others.append(entry)
            if len(others) > 1:
                entry.state = WAITING
                entry.until_s = _NEVER
                return True
        self._get_ready(entry)
        return True

    def _restore(self, entry: Entry) -> None:
        """Set what the last commit of another process says about a message."""
        entry.attempt = max(entry.attempt, self._attempts.pop(entry.offset, 0))
        entry.crashes = self._crashes.pop(entry.offset, 0)
        entry.due_s = self._waits.pop(entry.offset, 0)
        entry.is_suspect = entry.offset < self.starts.suspects_end
        self._suspect_count += entry.is_suspect

    def _get_ready(self, entry: Entry) -> None:
        """Let a message be delivered next in its lane, or wait if it waited in another process."""
        if entry.due_s:
            entry.state = WAITING
            entry.until_s = _NEVER
            self._undated.append(entry)
        else:
            entry.state = READY
            self.starts.add(entry)

    def _date(self) -> None:
        """Once the brokers' time is known: note by it until when messages wait, and by the own clock until when those
        wait that waited in another process."""
        if not self._undated or not self._clock.is_known:
            return
        undated, self._undated = self._undated, []
        for entry in undated:
            if entry.state == WAITING and entry.due_s:
                entry.until_s = self._clock.own(entry.due_s)
            elif entry.state == WAITING:
                entry.due_s = math.ceil(self._clock.latest(entry.until_s))

    def pass_holes(self, end: int) -> None:
        """Note that there is no message from the position to ``end`` that was not added."""
        ahead = self._done_ahead
        self.position = max(self.position, end)
        while ahead and ahead[0][0] <= self.position:
            self.position = max(self.position, ahead.popleft()[1])

    @property
    def place(self) -> tuple[int, int]:
        """Where to read next, and the leader epoch before it; -1 if it is not known."""
        return self.position, self.lineage.epoch_before(self.position)

    def pass_record(self, passed: PassedBatch) -> None:
        """Note the last record that was read."""
        self.lineage = self.lineage.through([passed], passed[1].last_offset + 1)

    def follows(self, passed: PassedBatch) -> bool:
        """Return whether the log is known to be that of before up to a record that was passed. Else it must be verified
        first, because a leader epoch begins."""
        epoch, batch = passed
        begins = batch.last_offset >= self.lineage.end and epoch != self.lineage.epoch_before(self.lineage.end)
        if not begins or epoch == self._verified or not self.lineage.epochs:
            return True
        self._unverified = epoch
        return False

    def verify(self) -> None:
        """Note that the log is that of before as far as records were read. What was passed as a hole above the last one
        is read again: the log may have lost markers, and have messages in their place."""
        self._verified = self._unverified
        if self.lineage.batch is not None:
            self.position = min(self.position, self.lineage.end)

    def reach_end(self, end: int) -> None:
        """Note that the log ends, and that what is above the last record is no message. If no record was read, that is
        forgotten: nothing would tell that the log lost it."""
        if self.lineage.batch is not None:
            self.pass_holes(end)

    # ---- deliveries ----------------------------------------------------------------------------------------------

    def take(self, until_s: float) -> Entry | None:
        """Deliver the next message that may be started, with a lease until ``until_s``; None if there is none."""
        entry = self.starts.next()
        if entry is None:
            return None
        self.held_count += 1
        entry.state = HELD
        entry.until_s = until_s
        entry.delivery += 1
        return entry

    def ack(self, entry: Entry, delivery: int) -> bool:
        """Note that the message is done. Returns False if this delivery of it is over."""
        if entry.state != HELD or entry.delivery != delivery:
            return False
        self._end_delivery(entry)
        self._remove(entry)
        self.changes += 1
        return True

    def bind(self, entry: Entry, delivery: int) -> bool:
        """Note that the message is done when a transaction commits; then call :meth:`finish`. Returns False if the
        delivery is over."""
        if entry.state != HELD or entry.delivery != delivery:
            return False
        self._end_delivery(entry)
        entry.state = BOUND
        return True

    def finish(self, entry: Entry) -> None:
        """Note that the transaction of a bound message was committed."""
        if entry.state == BOUND:
            self._remove(entry)

    def extend(self, entry: Entry, delivery: int, until_s: float) -> bool:
        """Let the lease end at ``until_s``. Returns False if the delivery is over."""
        if entry.state != HELD or entry.delivery != delivery:
            return False
        entry.until_s = until_s
        return True

    def wait(self, entry: Entry, delivery: int, until_s: float) -> bool:
        """Deliver the message again at ``until_s``, as the next attempt; its lane waits. False if the delivery is
        over."""
        if entry.state != HELD or entry.delivery != delivery:
            return False
        self._end_delivery(entry)
        self.changes += 1
        entry.state = WAITING
        entry.attempt += 1
        entry.until_s = until_s
        self._undated.append(entry)
        return True

    def put_back(self, entry: Entry, delivery: int) -> bool:
        """Deliver the message again at once, with the same number of attempts; False if the delivery is over."""
        if entry.state != HELD or entry.delivery != delivery:
            return False
        self.held_count -= 1
        entry.holder = None
        entry.state = READY
        self.starts.add(entry, first=True)
        return True

    def expire(self, now_s: float) -> list[Entry]:
        """Make the messages ready whose lease or waiting time is over, and return those whose lease was."""
        expired = []
        self._date()
        for entry in self._open.values():
            if entry.until_s <= now_s and entry.state in (HELD, WAITING):
                if entry.state == HELD:
                    self._end_delivery(entry)
                    entry.attempt += 1
                    expired.append(entry)
                entry.state = READY
                entry.due_s = 0
                self.starts.add(entry)
        return expired

    def _end_delivery(self, entry: Entry) -> None:
        """Note that a delivery has ended and the process lives: the message is no suspect any more."""
        self.held_count -= 1
        entry.holder = None
        if entry.is_suspect:
            entry.is_suspect = False
            self._suspect_count -= 1

    def _remove(self, entry: Entry) -> None:
        entry.state = OVER
        self.open_bytes -= entry.size
        del self._open[entry.offset]
        if entry.lane is not None:
            others = self._lanes[entry.lane]
            others.popleft()
            if others:
                self._get_ready(others[0])
            else:
                del self._lanes[entry.lane]

    def drop(self) -> None:
        """End all deliveries, because the partition has another owner."""
        for entry in self._open.values():
            entry.state = OVER
            entry.holder = None
        self._open = {}
        self._undated = []
        self.open_bytes = 0
        self.starts.clear()
        self.held_count = 0
        self._lanes = {}

    # ---- commits -------------------------------------------------------------------------------------------------

    def saved(self, finished: Iterable[Entry] = ()) -> Saved:
        """Return what to commit. ``finished``: bound messages of the transaction that commits it."""
        self._date()
        without = {entry.offset for entry in finished}
        opened = [offset for offset in self._open if offset not in without] if without else list(self._open)
        first = opened[0] if opened else self.position
        ends = pairwise(chain(opened, [self.position]) if opened else ())
        done = [(before + 1, after) for before, after in ends if after - before > 1]
        done += self._done_ahead
        counted = [
            (offset, entry)
            for offset, entry in self._open.items()
            if (entry.attempt > entry.first_attempt or entry.crashes) and offset not in without
        ]
        attempts = {offset: entry.attempt for offset, entry in counted if entry.attempt > entry.first_attempt}
        later = {offset: attempt for offset, attempt in self._attempts.items() if offset >= self.position}
        crashes = {offset: entry.crashes for offset, entry in counted if entry.crashes}
        crashes_later = {offset: count for offset, count in self._crashes.items() if offset >= self.position}
        suspects_end = self.starts.suspects_end
        if self.position >= suspects_end and not self._suspect_count:
            suspects_end = 0
        waits = {offset: self._open[offset].due_s for offset in attempts if self._open[offset].due_s}
        waits.update((offset, due_s) for offset, due_s in self._waits.items() if offset >= self.position)
        counts = {**attempts, **later}, NOTHING, suspects_end, {**crashes, **crashes_later}, waits
        return Saved(first, tuple(done), *counts, self.lineage, self.cuts)

    def measure(self) -> None:
        """Raise ``read_limit`` as far as the metadata fits whatever subset of the read messages is done.

        Acknowledgements only make the metadata shorter, so a limit counts until it is reached. If no offset is further
        away than bits have room for, the limit needs no look at the messages. Else it does, and it is computed again
        when the messages that were read or done since are a quarter of those that are open.
        """
        if not self._done_ahead:
            first = next(iter(self._open), self.position)
            self.read_limit = max(self.read_limit, first + OFFSETS_A_CHARACTER * self._room)
        if self.read_limit - self.position >= _ENOUGH:
            return
        position, count = self._measured
        read = self.position - position
        done = count + read - len(self._open)
        if len(self._open) <= _FEW or 4 * (read + done) >= len(self._open):
            self._measured = self.position, len(self._open)
            self.read_limit = max(
                self.read_limit, read_limit(list(self._open), self.position, self._done_ahead, self._room)
            )

    def holders(self) -> list[Any]:
        """Return the present deliveries."""
        return [entry.holder for entry in self._open.values() if entry.state == HELD]

    @property
    def open_count(self) -> int:
        return len(self._open)

    def undone_count(self, end: int) -> int:
        """Return how many messages are not done, if the log ends at ``end``. Holes that were not read count."""
        ahead = sum(max(0, min(next_end, end) - first) for first, next_end in self._done_ahead)
        return len(self._open) + max(0, end - self.position - ahead)

    @property
    def oldest_item(self) -> Any:
        """The open message with the lowest offset; None if no message is open."""
        entry = next(iter(self._open.values()), None)
        return None if entry is None else entry.item

    @property
    def ready_count(self) -> int:
        return self.starts.ready_count
