"""The index of messages that consumers of kafka-mq-go are working on. Markers say how far each message is.

A message is delivered again when no further marker of it comes in time. Its id is its place in the queue topic::

    Start      id -> (due second, source offset, append second, key, value)
    KeepAlive  the same id with a new due second, if it was appended before the former due second began
    End        id -> no entry

A KeepAlive does not hold the message, so the entry does. Whether a KeepAlive counts depends on append times only, and
not on what has fired: so a replay builds the same index [I26]. A KeepAlive after an End or without a Start has no
effect.

When a message is delivered again, the engine appends an End in the same transaction, as the redelivery tracker does:
the copy is a message of its own. So each entry ends, and nothing must be remembered of messages that have ended.
"""

from __future__ import annotations

from timers.core.index import Index
from timers.core.keys import OrderKey
from timers.core.operation import Entries, OperationResults, due_s_of, id_of, key_of, message_of
from timers.core.ports import Store
from timers.core.timer import Decoded, Origin, Row, RowsByDue, id_text


class MarkerIndex(Index):
    """An index whose entries hold the messages.

    Args:
        callback_topic: the queue topic.
    """

    def __init__(self, store: Store, callback_topic: str) -> None:
        super().__init__(store, retention_s=0)
        self._callback_topic = callback_topic

    @property
    def remembered_s(self) -> int | None:
        """None: an entry holds its message for as long as markers of it come."""
        return None

    def settle(
        self, decoded: Decoded, fired_through: OrderKey, committed: OrderKey
    ) -> tuple[RowsByDue, OperationResults]:
        """Returns a row for each message that has a new due second, and the entries. There are no verdicts."""
        rows, entries = self.replay(decoded)
        return rows, OperationResults(entries)

    def replay(self, decoded: Decoded) -> tuple[RowsByDue, Entries]:
        """Returns the same as :meth:`settle`. A message that ends in the same batch has no row."""
        entries = self._fold(decoded)
        rows: RowsByDue = {}
        for id, entry in sorted(entries.items(), key=lambda each: each[1] or ()):
            if entry is not None and (message := message_of(entry)) is not None:
                (due_s, offset), (key, value) = key_of(entry), message
                row: Row = (offset, self._callback_topic, key, value, None, Origin(id_text(id), due_s, 0))
                rows.setdefault(due_s, []).append(row)
        return rows, entries

    def sweep(self, fired_through: OrderKey) -> None:
        """Do nothing: the engine's End removes the entry."""

    def _fold(self, decoded: Decoded) -> Entries:
        """Returns the entries that markers change."""
        started = {row[0]: row for rows in decoded.rows.values() for row in rows}
        known = self._store.entries(set(map(id_of, decoded.operations)))
        entries: Entries = {}
        for id, offset, due_s, append_s in decoded.operations:
            former = known.get(id)
            start = started.get(offset)
            if due_s is None:
                known[id] = entries[id] = None
            elif start is not None:
                key, value = start[2], start[3]
                assert isinstance(key, bytes), "the key of a marker is bytes"
                known[id] = entries[id] = (due_s, offset, append_s, key, value)
            elif (
                former is not None and (message := message_of(former)) and self._is_in_time(due_s_of(former), append_s)
            ):
                known[id] = entries[id] = (due_s, offset, append_s, *message)
        return entries

    def _is_in_time(self, former_due_s: int, append_s: int) -> bool:
        """Whether a KeepAlive was appended before the due second that it moves."""
        return append_s < former_due_s
