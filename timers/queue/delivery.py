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

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias, TypeVar

from timers.kafka.records import headers_of
from timers.queue import records
from timers.queue.entry import Entry
from timers.queue.ledger import Ledger
from timers.queue.metadata import Partition
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
        attempt: number of this delivery, counted from 1.
    """

    _partition: Partition
    _ledger: Ledger
    _entry: Entry
    _received_s: float
    _outputs: list[records.Record] = field(init=False, default_factory=list)
    _guard: Guard | None = field(init=False, default=None)
    _delivery: int = field(init=False)
    _until_s: float = field(init=False)
    attempt: int = field(init=False)

    def __post_init__(self) -> None:
        entry = self._entry
        self._delivery, self._until_s, self.attempt = entry.delivery, entry.until_s, entry.attempt
        entry.holder = self

    @property
    def is_settled(self) -> bool:
        """Whether the message is settled, or this delivery is over."""
        if self._guard is not None:
            return self._guard.is_over
        return self._entry.is_over(self._delivery)

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
    def _content(self) -> records.Content:
        return records.Content(self.source, self.sent_ms, self.attempt, self.key, self.value, self.headers)


D = TypeVar("D", bound=Delivery)

Make: TypeAlias = Callable[..., D]
"""Makes a delivery of a partition, its ledger, an entry, and the time; see :class:`Delivery`."""
