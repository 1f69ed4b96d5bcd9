"""One delivery of a message, and how it may end. Pure: no I/O, no clock and no lock.

What becomes of a call on a message (:meth:`timers.queue.member.Member.settle`) depends on how its delivery stands:

==========  =====================================  =====================================  ==================
call        held by a member of the group          held, and other processes may own the  the partition moved
                                                   partition
==========  =====================================  =====================================  ==================
``ack``     done; with outputs when their          it waits for the next commit: then as  cancels the guard
            transaction is committed               before, or the delivery is over
``retry``   done when the transaction with its     the same                               leaves it to the
            timer is committed; in an ordered                                             guard
            queue it waits
``reject``  done when the transaction with its     the same                               writes the letter,
            dead letter is committed                                                      then cancels
``extend``  its lease is longer                    the same                               is refused
==========  =====================================  =====================================  ==================

A delivery that is over is refused each call: the message was settled before or delivered again after its lease, or its
partition has another owner and it has no guard. When only its lease is over, all calls but ``extend`` count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias, TypeVar

from timers.kafka.records import headers_of
from timers.queue import records
from timers.queue.entry import DONE, EXTEND_LEASE, Entry, Settlement
from timers.queue.ledger import Ledger
from timers.queue.metadata import Partition
from timers.queue.port import Counters, Job
from timers.queue.records import Identity, returned_value
from timers.queue.sending import Guard

ACKED, RETRIED = "acked", "retried"
"""Ends of deliveries. The others are the codes of dead letters."""


class Verdict(Enum):
    """What becomes of a call on a message: it counts; the delivery is over; it is to be made again when the next
    commit is accepted; its guard says it."""

    COUNTS, OVER, UNSURE, GUARDED = range(4)


@dataclass(slots=True, eq=False, repr=False)
class Delivery:
    """One delivery of a message.

    Attributes:
        guard: the timer that delivers the message again, if its partition moved meanwhile; None if there is none.
        attempt: number of this delivery, counted from 1.
    """

    _partition: Partition
    _ledger: Ledger
    _entry: Entry
    _received_s: float
    _outputs: Sequence[records.Record] = field(init=False, default=())
    guard: Guard | None = field(init=False, default=None)
    _delivery: int = field(init=False)
    _until_s: float = field(init=False)
    attempt: int = field(init=False)

    def __post_init__(self) -> None:
        entry = self._entry
        self._delivery, self._until_s, self.attempt = entry.delivery, entry.until_s, entry.attempt
        entry.holder = self

    # ---- its end -------------------------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Whether the message is settled, or this delivery is over."""
        if self.guard is not None:
            return self.guard.is_over
        return self._entry.is_over(self._delivery)

    def end(self, how: Settlement, until_s: float = 0.0) -> bool:
        """Settle it; False if it is over.

        Args:
            until_s: end of its lease, which lasts longer if it already does, or of the time that the message waits.
        """
        if how is EXTEND_LEASE:
            until_s = max(until_s, self._until_s)
        if not self._ledger.settle(self._entry, self._delivery, how, until_s):
            return False
        if how is EXTEND_LEASE:
            self._until_s = until_s
        return True

    def acknowledge(self, now_s: float, totals: Counters) -> bool:
        """Settle and count it as acknowledged, in one call; False if it is over."""
        if not self._ledger.settle(self._entry, self._delivery, DONE):
            return False
        totals.acked += 1
        totals.handling_s += now_s - self._received_s
        return True

    def expire(self, now_s: float, pause_s: Callable[[Entry], float]) -> int:
        """End its lease if it is over: then the message waits for ``pause_s``. Returns how many leases ended."""
        return self._ledger.expire(now_s, pause_s, [self._entry])

    def lasts(self, how: Settlement, until_s: float) -> bool:
        """Let its lease last while a call waits for a commit; False if the call would come too late then, too."""
        is_longer = self._ledger.settle(self._entry, self._delivery, EXTEND_LEASE, max(self._entry.until_s, until_s))
        may_wait = is_longer or (how.has_run and not self._entry.is_over(self._delivery))
        if may_wait:
            self.note_wait(until_s)
        return may_wait

    def note_wait(self, until_s: float) -> None:
        """Note that its handler waits for the brokers, and does not hang."""
        self._until_s = max(self._until_s, until_s)

    def add_output(self, make: Callable[[], records.Record]) -> bool:
        """Keep an output until the message is acknowledged; False if the delivery is over, or guarded."""
        if self.guard is not None or self.is_settled:
            return False
        self._outputs = [*self._outputs, make()]
        return True

    def job(
        self,
        written: Sequence[records.Record],
        on_commit: Callable[[], None] | None = None,
        letter: Callable[[str, str], records.Record] | None = None,
    ) -> Job:
        """Return the job that writes records in the transaction in which the message is done; see :class:`Job`."""
        return Job(self._partition, self._ledger, self._entry, written, on_commit, letter)

    # ---- what is known of it -------------------------------------------------------------------------------------

    @property
    def place(self) -> tuple[Partition, Ledger]:
        """The partition and the ledger that it is of."""
        return self._partition, self._ledger

    @property
    def has_outputs(self) -> bool:
        """Whether records are written when it is acknowledged."""
        return bool(self._outputs)

    @property
    def doubt(self) -> str:
        """Why it is not believed that the queue sent the message back; empty if it did, or never sent it."""
        return "" if self._entry.returned is None else self._entry.returned.doubt

    @property
    def crashes(self) -> int:
        """How often a process ended while only this message ran in it."""
        return self._entry.crashes

    def note_crash(self) -> int:
        """Count that the process of its handler ended; return how often that happened."""
        self._entry.crashes += 1
        return self._entry.crashes

    def held_s(self, now_s: float) -> float:
        """Return for how many seconds a receiver has had it."""
        return now_s - self._received_s

    def left_s(self, now_s: float) -> float:
        """Return how many seconds its lease still lasts."""
        return max(0.0, self._entry.until_s - now_s)

    # ---- the message ---------------------------------------------------------------------------------------------

    @property
    def key(self) -> bytes | None:
        key: bytes | None = self._entry.item.key()
        return key

    @property
    def value(self) -> bytes | None:
        value: bytes | None = self._entry.item.value()
        return value if self._entry.returned is None else returned_value(value, headers_of(self._entry.item))

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """The headers that it was sent with. Those that begin with ``timer-`` do not survive a retry.

        A name that is not UTF-8 has U+FFFD in the place of its wrong bytes.
        """
        return records.user_headers(headers_of(self._entry.item), returned=self._entry.returned is not None)

    @property
    def _identity(self) -> Identity:
        returned: Identity | None = self._entry.returned
        return returned or records.identity(self._entry.item, None, self._ledger.cuts)

    @property
    def source(self) -> str:
        """``<topic>/<partition>/<offset>`` of the message on the queue's topic, the same in all deliveries.

        If the log has lost its end and has grown again, ``~`` and the number of this loss follow.
        """
        return self._identity.source

    @property
    def sent_ms(self) -> int:
        """Epoch milliseconds at which it was sent to the queue's topic."""
        return self._identity.sent_ms

    @property
    def content(self) -> records.Content:
        """What timers and dead letters of the message have."""
        return records.Content(self.source, self.sent_ms, self.attempt, self.key, self.value, self.headers)


D = TypeVar("D", bound=Delivery)

Make: TypeAlias = Callable[..., D]
"""Makes a delivery of a partition, its ledger, an entry, and the time; see :class:`Delivery`."""
