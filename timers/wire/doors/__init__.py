"""Doors: how the records of a request topic are read, one file for each kind. All of them pure."""

from types import SimpleNamespace
from typing import NamedTuple

from timers.core.ports import Decoder
from timers.core.timer import Decoded, Headers, Origin, Row


class Door(NamedTuple):
    """A topic that timers come in by."""

    name: str
    """For people: what kind of records it takes."""
    decode: Decoder
    indexed: bool = False
    """Its timers have ids, by which they are replaced and cancelled; each id keeps to one partition."""
    may_go_cold: bool = False
    """Records may be written back to its topic, by their own keys (:mod:`timers.core.horizon`)."""

    def read(
        self, offset: int, key: bytes | None, value: bytes | None, headers: Headers | None, timestamp_ms: int = 0
    ) -> Decoded:
        """What one record of the topic means, whatever its size."""
        record = SimpleNamespace(offset=offset, key=key, value=value, headers=headers, timestamp=timestamp_ms)
        return self.decode([record], len(value or b""))

    def asks_for(
        self, key: bytes | None, value: bytes | None, headers: Headers | None, row: Row, origin: Origin
    ) -> bool:
        """Whether a record of the topic asks for just this timer: an offset may have come to mean another one."""
        rows = self.read(row[0], key, value, headers).rows.get(origin.due_s, [])
        asked = [(each[1:4], each[5] and each[5].timer_id) for each in rows]
        return asked == [(tuple(row[1:4]), origin.timer_id if self.indexed else None)]
