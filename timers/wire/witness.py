"""The second witness of a progress: text beside the offset that a machine commits for its consumer group [I8].

The progress topic may lose its newest records, or get an older record as its newest one. Then timers would fire again.
The group's offsets are on another topic, mostly on other brokers. So they also hold the values that a later opening
compares. They hold neither the settings history nor a seal: anyone who may read the group may read them.
"""

from __future__ import annotations

from timers.core.progress import Progress, Witness

EVERY_S = 5.0
"""Seconds after which the group must have the newest committed values. What fired in the last seconds before the
progress topic lost its end may fire again."""

_BEGIN = "timers-progress-1"
"""First word of the text; a reader of another version reads nothing from it."""

_END = "\0"
"""librdkafka 2.16 copies the text without an end, and confluent-kafka reads on to the next NUL: then random bytes
follow the text, or it is no UTF-8."""


def encode(witness: Witness, topic_id: bytes) -> str:
    """Return the text of a witness, with the id of the request topic. Inverse: :func:`decode`."""
    due_s, offset = witness.fired_through
    values = (witness.next_offset, due_s, offset, witness.level, witness.cut, witness.holes)
    return " ".join((_BEGIN, topic_id.hex(), *map(str, values))) + _END


def decode(text: str | None) -> tuple[Witness, bytes] | None:
    """Return the witness and the id of its request topic; None if the text is none: any client may write there."""
    begin, *values = (text or "").partition(_END)[0].split(" ")
    if begin != _BEGIN or len(values) != 7:
        return None
    try:
        next_offset, due_s, offset, level, cut, holes = map(int, values[1:])
        return Witness(next_offset, (due_s, offset), level, cut, holes), bytes.fromhex(values[0])
    except ValueError:
        return None


class WitnessClock:
    """Says when a machine commits its offset and its witness with a transaction.

    It does so when its offset has changed, and when the witness is older than :data:`EVERY_S`.
    """

    def __init__(self) -> None:
        self._committed = self._sent = (-1, "")
        self._tried_s = 0.0

    def begin(self, progress: Progress, topic_id: bytes, now_s: float) -> None:
        """Note the progress with which a machine opens: the group may lack it, if the former owner was killed.

        So the group gets it with the next transaction, which comes after :data:`EVERY_S` at the latest.
        """
        if progress.witness != Progress().witness:
            self._committed = progress.next_offset, encode(progress.witness, topic_id)
            self._tried_s = now_s

    def due(self, progress: Progress, topic_id: bytes, now_s: float) -> tuple[int, str] | None:
        """Return offset and text for the transaction that commits ``progress``; None if they can wait.

        Args:
            now_s: of a clock that never goes back.
        """
        new = progress.next_offset, encode(progress.witness, topic_id)
        wanted = new[0] != self._sent[0] or (new != self._sent and now_s >= self._tried_s + EVERY_S)
        return new if wanted else None

    def note(self, progress: Progress, topic_id: bytes, now_s: float, *, tried: bool, sent: bool) -> None:
        """Note a transaction that was committed: whether it had the offset, and whether the group has it now.

        While the group's coordinator is away, the offset is left out, and tried again after :data:`EVERY_S`.
        """
        self._committed = progress.next_offset, encode(progress.witness, topic_id)
        if tried:
            self._tried_s = now_s
        if sent:
            self._sent = self._committed

    def is_old(self, now_s: float) -> bool:
        """Whether the group needs the newest committed values now, although nothing else is to be committed."""
        return self._committed != self._sent and now_s >= self._tried_s + EVERY_S

    def left(self) -> tuple[int, str] | None:
        """Return offset and text that were committed without the group; None if it has the newest ones."""
        return None if self._committed == self._sent else self._committed
