"""Doors: how the records of a request topic are read, one file for each kind. All of them pure."""

from types import SimpleNamespace
from typing import NamedTuple

from timers.core.ports import Decoder
from timers.core.timer import Headers, Origin, Row


class Door(NamedTuple):
    """A topic that timers come in by."""

    name: str
    """For people: what kind of records it takes."""
    decode: Decoder
    indexed: bool = False
    """Its timers have ids, by which they are replaced and cancelled; each id keeps to one partition."""
    may_go_cold: bool = False
    """Records may be written back to its topic, by their own keys (:mod:`timers.core.horizon`)."""

    def asks_for(
        self, key: bytes | None, value: bytes | None, headers: Headers | None, row: Row, origin: Origin
    ) -> bool:
        """Whether a record of the topic asks for just this timer: an offset may have come to mean another one."""
        record = SimpleNamespace(offset=row[0], key=key, value=value, headers=headers, timestamp=0)
        rows = self.decode([record], len(value or b"")).rows.get(origin.due_s, [])
        asked = [(each[1:4], each[5] and each[5].timer_id) for each in rows]
        return asked == [(tuple(row[1:4]), origin.timer_id if self.indexed else None)]
