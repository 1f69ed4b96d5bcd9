"""The second witness of a progress: text beside the offset that a machine commits for its consumer group [I8].

The progress topic may lose its newest records, or get an older record as its newest one. Then timers would fire again.
The group's offsets are on another topic, mostly on other brokers. So they also hold the values that a later opening
compares. They hold neither the settings history nor a seal: anyone who may read the group may read them.
"""

from __future__ import annotations

from timers.core.progress import Witness

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
