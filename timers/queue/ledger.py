"""The ledger of one partition: which messages are done, delivered, ready, or may be started. Pure: no clock and no I/O.

A message is *open* from the moment it is read until it is done. All other offsets below the reading position are done;
some of them never held a message, because offsets have holes. So the ledger keeps the open messages, and computes what
is done only when it is committed (:meth:`Ledger.saved`). An acknowledgement costs one deletion from a dict.

    ready ──take──► held ──DONE──► done
      ▲               │ └──BIND──► bound ──finish──► done
      └───────────────┘ BACK, and LATER and EXPIRED after it has waited

A bound message is done when a certain transaction commits, and open until then. :class:`~timers.queue.entry.Settlement`
says how a delivery may end. One whose lease is over may still end as DONE, BIND or LATER until the message is taken
again. Which messages may be started is in :mod:`timers.queue.starts`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, pairwise
from typing import Any, TypeVar

from timers.core.lineage import Batch, PassedBatch
from timers.queue.entry import BOUND, EXPIRED, HELD, OVER, READY, WAITING, Entry, Settlement
from timers.queue.metadata import (
    MAX_METADATA_BYTES,
    NO_START,
    OFFSETS_A_CHARACTER,
    RESERVE_BYTES,
    BrokersClock,
    Saved,
    Start,
    read_limit,
)
from timers.queue.starts import LEAST_SHARED_GROUP, Starts

_NEVER = float("inf")

_ENOUGH = 2048
"""If as many offsets may be read, the limit is not computed again."""

_FEW = 512
"""With so few open messages it costs little to compute the limit."""


def passed(record: Any) -> PassedBatch:
    """Return what is kept of a record that was read.

    A time before 1970, which librdkafka sends and brokers take, is kept as -1: the metadata have no other negative
    time, and a record with another time than was kept would be taken for one of another log.
    """
    offset, epoch = record.offset(), record.leader_epoch()
    return -1 if epoch is None else epoch, Batch(offset, offset, max(-1, record.timestamp()[1]), 0)


class Ledger:
    """The messages of one partition, from the committed offset to the reading position.

    Args:
        saved: what the last commit says.
        max_bytes: longest metadata that the brokers take.
        log_end: end of the partition's log now.
        clock: the brokers' time. While it is not known, no message is delivered that waited when its partition moved.

    Attributes:
        starts: the ready messages.
        undated: messages that waited when the brokers' time was not known.
        held_count: how many messages receivers hold.
        new_count: how many of them were taken a short time ago.
        changes: how many calls of receivers it has noted, without those that need a transaction.
        suspect_count: how many open messages are suspects.
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
        max_bytes: int = MAX_METADATA_BYTES,
        log_end: float = _NEVER,
        clock: BrokersClock | None = None,
    ) -> None:
        self.starts: Starts = Starts(saved.start, saved.suspects_end, log_end)
        self.held_count = self.new_count = 0
        self.changes = 0
        self.open_bytes = 0
        self.suspect_count = 0
        self._crashes = dict(saved.crashes)
        self.crash_count = 0
        crashed = self.starts.crashed
        if crashed is not None and saved.is_open(crashed):
            self._crashes[crashed] = self._crashes.get(crashed, 0) + 1
            self.crash_count = 1
        self._newest_ms = 0
        """The largest time that a producer gave to a message that was read."""
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
        self.undated: list[Entry] = []
        self._room = max_bytes - RESERVE_BYTES
        self._measured = saved.offset, 0
        self._open: dict[int, Entry] = {}
        self._lanes: dict[bytes, deque[Entry]] = {}
        self.pass_holes(saved.offset)
        self.measure()

    # ---- reading -------------------------------------------------------------------------------------------------

    def came_ms(self, time_ms: int, now_s: float, *, is_brokers: bool) -> int:
        """Return when the next message that is read came to its topic, in epoch milliseconds; 0: not known.

        A time that its producer gave may be any number: it is at least that of the messages before, and at most now.

        Args:
            now_s: by the own clock.
            is_brokers: whether a broker gave the time.
        """
        if is_brokers:
            return time_ms
        if not self._clock.is_known:
            return max(self._newest_ms, time_ms)
        now_ms = int(1000 * self._clock.latest(now_s))
        if time_ms <= now_ms:
            self._newest_ms = max(self._newest_ms, time_ms)
        return self._newest_ms or now_ms

    def read(
        self,
        offset: int,
        item: Any,
        lane: bytes | None = None,
        attempt: int = 1,
        size: int = 0,
        returned: Any = None,
        came_ms: int = 0,
    ) -> bool:
        """Add the message at ``offset``; False if it is done, or was added before.

        Args:
            attempt: number of its first delivery from this record.
            size: its bytes.
            returned: what it is, if it came back.
            came_ms: as :meth:`came_ms` has it.
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
        entry = Entry(offset, item, lane, attempt, attempt, size, returned, came_ms)
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
        self.suspect_count += entry.is_suspect

    def _get_ready(self, entry: Entry) -> None:
        """Let a message be delivered next in its lane, or wait if it waited in another process."""
        if entry.due_s:
            entry.state = WAITING
            entry.until_s = _NEVER
            self.undated.append(entry)
        else:
            entry.state = READY
            self.starts.add(entry)

    def _date(self) -> None:
        """Once the brokers' time is known: note by it until when messages wait, and by the own clock until when those
        wait that waited in another process."""
        if not self.undated or not self._clock.is_known:
            return
        undated, self.undated = self.undated, []
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
        """Note the last record that was read.

        A leader epoch counts from the end of the record that was noted before. It may begin later: markers are not
        seen. If the log parts there, offsets without a message are read again; a later one would leave messages out.
        """
        epoch, batch = passed
        first = self.lineage.end if self.lineage.epochs else batch.base_offset
        lineage = self.lineage.through([(epoch, batch._replace(base_offset=first))], batch.last_offset + 1)
        if lineage is not self.lineage:
            self.lineage = lineage._replace(batch=batch)

    def follows(self, passed: PassedBatch) -> bool:
        """Return whether the log is known to be that of before up to a record that was passed. Else it must be verified
        first, because its leader epoch is another one than before: also if the record is read again, because the log
        may have lost its end since it was loaded."""
        epoch, batch = passed
        end = min(batch.last_offset + 1, self.lineage.end)
        before = self.lineage.epoch_before(end)
        is_same = epoch == before or (before < 0 and end < self.lineage.end)  # the oldest epochs are not kept
        if is_same or epoch == self._verified or not self.lineage.epochs:
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

    def take(self, until_s: float, new_until_s: float = _NEVER) -> Entry | None:
        """Deliver the next message that may be started, with a lease until ``until_s``; None if there is none."""
        entry = self.starts.next()
        if entry is None:
            return None
        self.held_count += 1
        self.new_count += 1
        entry.state = HELD
        entry.until_s, entry.new_until_s = until_s, new_until_s
        entry.delivery += 1
        return entry

    def settle(self, entry: Entry, delivery: int, how: Settlement, until_s: float = 0.0) -> bool:
        """Settle a delivery. Returns False if it is over.

        The end of a lease ends a delivery only when the message is taken again: until then no other receiver has had
        it, and what its handler did late counts.

        Args:
            until_s: end of its longer lease, or of the time that the message waits.
        """
        if entry.is_over(delivery) or (entry.state != HELD and not how.has_run):
            return False
        if entry.state == HELD == how.state:
            entry.until_s = until_s
            return True
        if entry.state == HELD:
            self.held_count -= 1
            self.new_count -= entry.new_until_s > 0
            entry.attempt += how.attempts
        elif entry.state == READY:
            self.starts.remove(entry)
        entry.state, has_run, changes, _ = how
        entry.delivery += how is not EXPIRED
        entry.holder = None
        if has_run and entry.is_suspect:
            entry.is_suspect = False
            self.suspect_count -= 1
        self.changes += changes
        if entry.state == OVER:
            self._remove(entry)
        elif entry.state == WAITING:
            entry.until_s, entry.due_s = until_s, 0
            self.undated.append(entry)
        elif entry.state == READY:
            self.starts.add(entry, first=not has_run)
        return True

    def finish(self, entry: Entry) -> None:
        """Note that the transaction of a bound message was committed."""
        if entry.state == BOUND:
            self._remove(entry)

    def commit(self, start: Start, finished: Iterable[Entry]) -> None:
        """Note that a commit allowed starts, and that bound messages are done with it."""
        for entry in finished:
            self.finish(entry)
        self.starts.allow(start)

    def expire(self, now_s: float, delay_s: Callable[[Entry], float], only: Iterable[Entry] | None = None) -> int:
        """Make the messages ready whose waiting time is over, or ``only`` these. Let those wait for ``delay_s`` whose
        lease is over, and return how many they are."""
        expired = 0
        self._date()
        for entry in self._open.values() if only is None else only:
            if entry.until_s <= now_s and entry.state == HELD:
                expired += self.settle(entry, entry.delivery, EXPIRED, entry.until_s + delay_s(entry))
            if entry.state == HELD and 0 < entry.new_until_s <= now_s:
                self.new_count -= 1
                entry.new_until_s = 0.0
            if entry.until_s <= now_s and entry.state == WAITING:
                entry.state = READY
                self.starts.add(entry)
                entry.due_s = 0
        return expired

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
        self.undated = []
        self.open_bytes = 0
        self.starts.clear()
        self.held_count = self.new_count = 0
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
        if self.position >= suspects_end and not self.suspect_count:
            suspects_end = 0
        waits = {offset: self._open[offset].due_s for offset in attempts if self._open[offset].due_s}
        waits.update((offset, due_s) for offset, due_s in self._waits.items() if offset >= self.position)
        counts = {**attempts, **later}, NO_START, suspects_end, {**crashes, **crashes_later}, waits
        return Saved(first, tuple(done), *counts, self.lineage, self.cuts)

    def measure(self) -> None:
        """Raise ``read_limit`` as far as the metadata fits whatever subset of the read messages is done.

        Acknowledgements only make the metadata shorter, so a limit stays valid until reading reaches it. While bits
        have room for all open offsets, it is computed without looking at the messages. Otherwise it is computed from
        all open messages, and again when the messages that were read or done since then are a quarter of the open ones.
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

    @property
    def held_span(self) -> tuple[int, int] | None:
        """The first and the end of the messages that receivers hold; None if there are none."""
        held = [entry.offset for entry in self._open.values() if entry.state == HELD] if self.held_count else []
        return (min(held), max(held) + 1) if held else None

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
    def oldest_ms(self) -> int:
        """When the open message with the lowest offset came to its topic, in epoch milliseconds; 0: none is open, or it
        is not known."""
        entry = next(iter(self._open.values()), None)
        return 0 if entry is None else entry.came_ms


_P = TypeVar("_P")


def plan_starts(ledgers: Mapping[_P, Ledger]) -> dict[_P, Start]:
    """Return what the next commit of a process allows in each partition."""
    alone = _are_alone(ledgers.values())
    for ledger in ledgers.values():
        ledger.starts.is_held_back = alone
    if not alone:
        return {partition: ledger.starts.wanted(ledger.position) for partition, ledger in ledgers.items()}
    if _are_busy(ledgers.values()):
        return {
            partition: NO_START if ledger.starts.is_stopped else ledger.starts.start
            for partition, ledger in ledgers.items()
        }
    running = {partition: span for partition, ledger in ledgers.items() if (span := ledger.held_span) is not None}
    allowed = {
        partition: NO_START if ledger.starts.is_stopped or partition not in running else Start(0, running[partition][1])
        for partition, ledger in ledgers.items()
    }
    for ledger in ledgers.values():
        ledger.starts.forbid()
    for partition, ledger in ledgers.items():
        if ledger.starts.has_suspects:
            first, end, size = ledger.starts.next_group()
            held = running.get(partition, (first, end))
            allowed[partition] = Start(
                min(first, held[0]), max(end, held[1]), max(size, LEAST_SHARED_GROUP if running else 1)
            )
            break
    return allowed


def wants_commit(ledgers: Mapping[_P, Ledger]) -> bool:
    """Whether ready messages wait for a commit, and not for receivers."""
    if _are_alone(ledgers.values()):
        return not _are_busy(ledgers.values())
    return any(ledger.starts.is_starved or ledger.starts.is_held_back for ledger in ledgers.values())


def _are_alone(ledgers: Iterable[Ledger]) -> bool:
    """Whether there are suspects to be started, or messages of a group run."""
    return any(
        ledger.starts.has_suspects or ledger.starts.has_group or (ledger.new_count and ledger.starts.start.group)
        for ledger in ledgers
    )


def _are_busy(ledgers: Iterable[Ledger]) -> bool:
    """Whether receivers have just taken messages, or may take one of a group."""
    return any(ledger.new_count or ledger.starts.has_group for ledger in ledgers)
