"""Request formats: how the records of a request topic are read, one file for each kind. All of them pure."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from timers.core.ports import Decoder
from timers.core.timer import Decoded, Headers, Origin, Row
from timers.wire.headers import Header


class Sent(NamedTuple):
    """A record of a request topic, as a request format reads it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    timestamp: int
    """Epoch milliseconds."""


Anew: TypeAlias = Callable[[Row, Origin], tuple[bytes | None, bytes, list[Header]]]
"""Key, value and headers of the record that asks for a timer."""


class RequestFormat(NamedTuple):
    """A topic that timers come in by."""

    name: str
    """For people: what kind of records it takes."""
    decode: Decoder
    anew: Anew
    """Writes a request again where its record is gone: one that asks for the same timer."""
    indexed: bool = False
    """Its timers have ids, or may have, by which they are replaced and cancelled; each id keeps to one partition."""
    may_go_cold: bool = False
    """Records may be written back to its topic, by their own keys (:mod:`timers.core.horizon`)."""
    grows: bool = False
    """Its topic may get more partitions, although ids then come by others than before: most of its timers have none."""
    repeats: bool = True
    """The same record again asks for just the same timer. Where it does not, one that is published again after its
    timer has failed says ``timer-again``."""
    compacted: bool = False
    """Its topic is its users' own and may be compacted: what has fired is ended there by a tombstone, and nobody is
    told what became of a cancel."""
    decode_rejecting: Decoder | None = None
    """How it is read where overdue timers are rejected, if that can be chosen."""

    def read(self, sent: Sent) -> Decoded:
        """What one record of the topic means, whatever its size."""
        return self.decode([sent], len(sent.value or b""))

    def asks_for(self, sent: Sent, row: Row, origin: Origin) -> bool:
        """Whether a record of the topic asks for just this timer: an offset may have come to mean another one."""
        rows = self.read(sent).rows.get(origin.due_s, [])
        asked = [(each[1:4], each[5] and each[5].timer_id) for each in rows]
        return asked == [(tuple(row[1:4]), origin.timer_id if origin.has_id else None)]
