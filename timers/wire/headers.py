"""Every record header this system writes or reads. Names are wire format: they change only with a version."""

from collections.abc import Sequence
from typing import TypeAlias

Header: TypeAlias = tuple[str, bytes | None]
"""One record header. Kafka allows repeats, keeps their order, and allows null values."""

PREFIX = "timer-"
"""Our name space. On a request such headers are dropped: receivers copy headers, so they prove nothing."""

TIMER_ID = "timer-id"
"""On a fired message: stable identity of the timer, ``<topic>/<partition>/<offset>`` of its request."""

TIMER_DUE = "timer-due"
"""On a fired message: the due epoch second, in ASCII digits."""

TIMER_FIRED = "timer-fired"
"""On a fired message: epoch milliseconds of the tick that fired it, in ASCII digits."""

TIMER_ATTEMPT = "timer-attempt"
"""On the retry topic only: how often sending has failed so far, in ASCII digits."""

TIMER_KEY = "timer-key"
"""On a request: the callback's key where a ``Future`` cannot hold it, since it is no text, or null."""

TIMER_AGAIN = "timer-again"
"""On a request that is published again after its timer had failed: the due epoch second that it had, in ASCII digits.
It is then a timer without an id, whatever its record says: what that id means by now stays as it is. Says nothing where
that second is not over when the record is appended."""

TIMER_ERROR = "timer-error"
"""On a dead letter: the code of what was wrong."""

TIMER_ERROR_MESSAGE = "timer-error-message"
"""On a dead letter: one sentence for a person."""

TIMER_SOURCE = "timer-source"
"""On a dead letter, a verdict and a cold request: the record that asked, ``<topic>/<partition>/<offset>``. On the retry
topic: the request of a timer with an id, or that was cold."""

TIMER_PROMOTED = "timer-promoted"
"""On a request that was cold and comes back: the record that asked, ``<topic>/<partition>/<offset>``. Believed only
with its seal, and only as the last two headers."""

TIMER_APPENDED = "timer-appended"
"""On a cold request: epoch milliseconds of its append time, in ASCII digits."""

TIMER_SEAL = "timer-seal"
"""On a cold request and on a promoted one: proves that its partition's own machine sent it away, as it is."""

TIMER_TIMESTAMP = "timer-timestamp"
"""Never on a record: beside a stored schedule's headers, its timestamp in epoch milliseconds."""

TIMER_FIRED_OFFSET = "timer-fired-offset"
"""On a tombstone of ours in a topic of schedules: offset of the version that has fired, in ASCII digits."""

DEPTH = "callback-depth"
"""On a request that a timer made and that makes another: how many set each other before it, in ASCII digits. Not
`timer-*`: it must come through. A producer's own is believed, since it only brings the limit nearer."""

MAX_DEPTH_DIGITS = 9

TOKEN = "callback-token"
"""A cancellation token, put on a request by our client and read by the receiver. Not `timer-*`: those do not travel."""


def depth(headers: Sequence[Header]) -> int:
    """How many timers set each other before this request; 0 if it says nothing that can be read."""
    text = next((value for name, value in reversed(headers) if name == DEPTH), None)
    return int(text) if text is not None and text.isdigit() and len(text) <= MAX_DEPTH_DIGITS else 0


def republished_due(headers: Sequence[Header]) -> bytes | None:
    """The due second of a request that is published again; None if it is not."""
    return next((value for name, value in reversed(headers) if name == TIMER_AGAIN), None)


def callback_key(headers: Sequence[Header], key: str | bytes | None) -> str | bytes | None:
    """The callback's key: the one in the headers where there is one, else ``key``."""
    return next((value for name, value in reversed(headers) if name == TIMER_KEY), key)


HEX = "\\x"
"""What an id begins with that is shown by its bytes."""


def id_shown(id: bytes) -> str:
    """A timer's id as text, for people and for tables: itself, but ``\\x`` and hex digits where it is not UTF-8.

    No two ids are shown alike: one that begins as hex digits do is shown by them, too.
    """
    try:
        text = id.decode()
    except UnicodeDecodeError:
        return HEX + id.hex()
    return HEX + id.hex() if text.startswith(HEX) else text


def without_timer_headers(headers: Sequence[Header]) -> list[Header]:
    """The headers that travel from a request to its fired message, in order, repeats and nulls included."""
    return [header for header in headers if not header[0].startswith(PREFIX)]
