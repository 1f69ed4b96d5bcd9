"""Writes what timers that repeat need into a transaction: what follows an occurrence, or that nothing follows [I37]."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from timers.core.ports import Follower, NextOccurrence
from timers.core.printable import quoted
from timers.core.timer import Origin, Rejected, Row, id_text
from timers.machines.firing.transaction import Transaction
from timers.process.counted import counted
from timers.wire import headers as h
from timers.wire.dead_letter import REPEAT_GONE, REPEAT_LOST, REPEAT_TOO_LARGE
from timers.wire.formats import future_by_id
from timers.wire.occurrences import encode_occurrences
from timers.wire.topics import parse_source

logger = logging.getLogger(__name__)

MOST_LACKED = 20
"""Any client can write a name that is no zone: so many are logged."""

NAMED = 10
"""So many ids a line of the log names."""

NO_RULE = b"every=1; from=0"
"""Rule of an occurrence that sends nothing, and that none follows."""

LACKS = (
    "%s/%d: repeating timers with the zone %s wait, because this worker does not know it; all others fire: see "
    "docs/operations.md#timerszoneunknown"
)

MENDED = (
    "%s/%d: the log lost the next occurrence of %s, which stood still; it is written again, such as that of %s: what "
    "came due meanwhile is caught up by the rule of each"
)


def limit_now(transaction: Transaction, records: Sequence[Any]) -> int | None:
    """The largest batch that the machine's own topic takes, if a record (key, value, headers) may make a larger one;
    None: each fits. An operator may have raised the limit, and what is given up stays so: the brokers are asked."""
    limit = transaction.largest_own
    if limit is None or all(transaction.size_alone(*record) <= limit for record in records):
        return None
    return transaction.largest_own_now()


class Followers:
    """Writes the occurrences of one machine.

    Args:
        transaction: of the machine.
    """

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._lacked: set[str] = set()

    def follow(self, followers: Sequence[Follower]) -> int:
        """Add occurrences of timers that repeat to the partition of their ids. A timer whose next occurrence is too
        large for the topic, because an operator has lowered its limit, ends: the others must not wait for it. Returns
        how many were added."""
        transaction = self._transaction
        records: Iterable[Any] = encode_occurrences(followers, transaction.source)
        if transaction.largest_own is not None:
            records = [*records]
            if (limit := limit_now(transaction, records)) is not None:
                pairs = zip(followers, records, strict=True)
                records = [record for each, record in pairs if self._fits(each, record, limit)]
        number = transaction.add_own(records)
        transaction.counts.followed += number
        return number

    def _fits(self, follower: Follower, record: tuple[bytes, bytes, list[h.Header]], limit: int) -> bool:
        """Whether an occurrence is not larger than a batch of the topic may be. Else its timer ends."""
        key, size = record[0], self._transaction.size_alone(*record)
        if size <= limit:
            return True
        place = None if follower.version is None else parse_source(follower.version.decode())
        version = follower.row[0] if place is None else place[2]
        reason = REPEAT_TOO_LARGE.format(quoted(key), size, limit, quoted(self._transaction.machine[0]))
        self._end(key, Rejected(version, REPEAT_LOST, reason, *future_by_id.definition_of(*record)))
        return False

    def mend(self, followers: Sequence[Follower]) -> None:
        """Add occurrences of timers that stood still."""
        number = self.follow(followers)
        self._transaction.counts.mended += number
        ids = quoted(", ".join(each.id for each in followers[:NAMED]))
        logger.warning(MENDED, *self._transaction.machine, counted(number, "repeating timer"), ids)

    def break_off(self, id: bytes, offset: int, version: int) -> None:
        """End a timer that repeats and cannot go on: write its dead letter, and a last occurrence that sends nothing.
        If the next one is in the log all the same, it is before this one, which does not count then: a cancel of the
        version would.

        Args:
            offset: of its latest record.
            version: offset of its definition.
        """
        transaction = self._transaction
        transaction.reject(Rejected(version, REPEAT_LOST, REPEAT_GONE.format(quoted(id)), None, None, ()))
        second = transaction.tick.second
        end = NextOccurrence(second, None, second, None, NO_RULE, is_last=True)
        row: Row = (offset, transaction.machine[0], None, b"", None, Origin(id_text(id), second, 0))
        follower = Follower(row, transaction.source(version).encode(), end)
        transaction.add_own(encode_occurrences([follower], transaction.source))

    def _end(self, id: bytes, rejected: Rejected) -> None:
        """Write the dead letter of a timer that repeats and has fired just now, and a cancel of this version of it.

        Args:
            rejected: at the offset of its definition.
        """
        self._transaction.reject(rejected)
        condition = future_by_id.encode_condition(self._transaction.source(rejected.offset))
        self._transaction.add_own([(id, None, condition)])

    def lack(self, zones: Mapping[str, int]) -> None:
        """Count timers whose time zone is not known here, and say so once for each zone.

        Args:
            zones: zone -> timers.
        """
        self._transaction.counts.lacking.update(zones)
        for zone in zones.keys() - self._lacked if len(self._lacked) < MOST_LACKED else ():
            self._lacked.add(zone)
            logger.error(LACKS, *self._transaction.machine, quoted(zone))
