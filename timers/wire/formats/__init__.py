"""Request formats: how the records of a request topic are read. One module for each format; all of them are pure."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from timers.core.ports import Decoder
from timers.core.repeating import is_occurrence
from timers.core.timer import Decoded, Origin, Row
from timers.wire.headers import Header
from timers.wire.record import RequestRecord as RequestRecord

CREATE_TIME, LOG_APPEND_TIME = 0, 1
"""Kafka's timestamp types: of records whose time the producer set, and of those whose time the broker set."""


RequestBuilder: TypeAlias = Callable[[Row, Origin], tuple[bytes | None, bytes, list[Header]]]
"""Returns key, value and headers of a record that asks for the given timer."""


class RequestFormat(NamedTuple):
    """How the records of a request topic are read, and what such a topic allows."""

    name: str
    """Shown by ``timers formats`` and in the metrics label ``format``."""
    decode: Decoder
    rebuild_request: RequestBuilder
    """Builds a record for a timer whose own request record is no longer in the topic."""
    has_ids: bool = False
    """Its timers may have ids. A later request with the same id replaces or cancels the timer. All requests of an id
    are on one partition."""
    allows_cold_tier: bool = False
    """Requests may go to the cold tier and come back to this topic (:mod:`timers.core.horizon`)."""
    partitions_may_increase: bool = False
    """The topic may get more partitions, although an id may then move to another one: most timers have no id."""
    copy_needs_timer_again: bool = False
    """A copy of a request asks for the same timer only with the header ``timer-again``."""
    has_conditions: bool = False
    """Its requests may have the header ``timer-if``."""
    has_markers: bool = False
    """Its records are markers of messages (:mod:`timers.core.index`). The engine appends End markers to the topic."""
    callback_topic: str = ""
    """Topic of all callbacks, if the records do not name it."""
    own_max_request_bytes: int | None = None
    """Largest value in bytes, in place of TIMERS_MAX_REQUEST_BYTES; None: that setting counts."""
    topic_is_compacted: bool = False
    """The topic belongs to its users and may be compacted. The engine ends a fired timer there with a tombstone, and
    does not write verdicts."""
    decode_rejecting_overdue: Decoder | None = None
    """Decoder that rejects overdue timers, for ``TIMERS_SCHEDULE_OVERDUE=reject``; None if the format has none."""
    decode_from_level: Mapping[int, Decoder] = MappingProxyType({})
    """Feature level -> the decoder that replaces ``decode`` from that level on (:mod:`timers.core.levels`)."""

    @property
    def all_have_ids(self) -> bool:
        """Whether each pending timer has the id of its sender. A countdown may have none, and a timer with an id that
        is published again too late does not keep it."""
        return self.has_ids and not self.copy_needs_timer_again

    def decoder(self, level: int, rejects_overdue: bool) -> Decoder:
        if rejects_overdue and self.decode_rejecting_overdue is not None:
            return self.decode_rejecting_overdue
        levels = [each for each in self.decode_from_level if each <= level]
        return self.decode_from_level[max(levels)] if levels else self.decode

    @property
    def newest(self) -> Decoder:
        """The decoder of the newest feature level: what a record asks for if it is published now."""
        return self.decoder(max(self.decode_from_level, default=0), rejects_overdue=False)

    def read(self, record: RequestRecord) -> Decoded:
        """Decode one record at the newest feature level, without a size limit."""
        return self.newest([record], len(record.value or b""))

    def is_request_of(self, record: RequestRecord, row: Row, origin: Origin) -> bool:
        """Return whether ``record`` asks for this timer: the topic may be a new one, with other requests."""
        for decode in (self.decode, *self.decode_from_level.values()):
            by_due = decode([record], len(record.value or b"")).rows
            # An occurrence may send the callback of a later one, which is due then.
            rows = [each for due_s in by_due for each in by_due[due_s] if due_s == origin.due_s or is_occurrence(each)]
            asked = [(each[1:4], each[5] and each[5].timer_id) for each in rows]
            if asked == [(tuple(row[1:4]), origin.timer_id if origin.has_id else None)]:
                return True
        return False
