"""Turns text, bytes and times of others into text for a terminal, a log or JSON, and reads their JSON."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

_HEX_WIDTH = 16

UNSAFE_CHARACTERS = r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ud800-\udfff]"
"""Control characters, line separators, marks of the writing direction, and halves of surrogate pairs. The joiners
U+200C and U+200D are not among them: Persian words and emoji need them. A regular expression for Python and, with the
flag ``u``, for JavaScript."""

_UNSAFE = re.compile(UNSAFE_CHARACTERS)

_FIRST_BYTE, _LAST_BYTE = "\udc80", "\udcff"
"""How Python reads the bytes 80 to ff of a command line or a header, if they are not UTF-8."""


class PartitionName(str):
    """The name of a partition. An argument of a log's line that is one gives the line its topic and its partition."""

    __slots__ = ()


def utc_text(epoch_s: float) -> str:
    """Return an epoch second as RFC 3339 in UTC, such as ``2030-01-31T12:00:00Z``; as a number if its year is not 1 to
    9999. Fractions are cut off."""
    try:
        return datetime.fromtimestamp(int(epoch_s), UTC).isoformat()[:-6] + "Z"  # 0.5 µs; strftime takes 2
    except (OverflowError, ValueError, OSError):
        return f"{epoch_s:.0f}"


def printable(text: str) -> str:
    """Return text on one line which cannot control a terminal, and cannot change the direction of other text.

    It is escaped as in Python: ``\\x1b``, ``\\u202e``. A byte that is not UTF-8 is ``\\xff``. A second call changes
    nothing.
    """
    return _UNSAFE.sub(_escaped, text)


def printable_in_html(value: Any) -> Any:
    """Return what ``{{ value }}`` prints in a template of HTML, before it is escaped. What is HTML is unchanged."""
    return value if hasattr(value, "__html__") else printable(str(value))


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    if _FIRST_BYTE <= character <= _LAST_BYTE:
        return f"\\x{ord(character) - 0xDC00:02x}"
    return repr(character)[1:-1]


_WHOLE = re.compile(r"(?<!\\)((?:\\\\)*)\\(u(?:200[cd]|dc[89a-f].)|U000(?:1f...|e00[2-7].))")


def quoted(value: object) -> str:
    """Return the ``repr`` of a value for a sentence, in which the joiners of Persian words and emoji are not escaped.

    Python's own escapes them, and emoji that are younger than it. A byte that is not UTF-8 is ``\\xff``. Bytes are
    quoted as text. It never fails: a value without a ``repr`` is shown as its type.
    """
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    try:
        text = repr(value)
    except Exception:  # an int of more than 4,300 digits, or an object of a caller whose repr fails
        text = f"<{type(value).__name__}>"
    return _WHOLE.sub(_whole, text)


def _whole(found: re.Match[str]) -> str:
    character = chr(int(found[2][1:], 16))
    return found[1] + (_UNSAFE.sub(_escaped, character))


def printable_json(text: str) -> str:
    """Return a JSON text that has the same meaning, and is as safe as :func:`printable` makes text."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def is_utf8(text: str | bytes) -> bool:
    """Whether UTF-8 can carry a text, which may have halves of surrogate pairs; or whether bytes are UTF-8."""
    try:
        text.encode() if isinstance(text, str) else text.decode()
    except UnicodeError:
        return False
    return True


def hexdump(data: bytes) -> Iterator[str]:
    """Lines of 16 bytes: their offset, their hexadecimal digits, and those that are characters of ASCII."""
    for start in range(0, len(data), _HEX_WIDTH):
        row = data[start : start + _HEX_WIDTH]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{start:06x}  {row.hex(' '):<{3 * _HEX_WIDTH}} {shown}"


def one_line(data: bytes | None) -> str:
    """Return bytes as :func:`printable` text; ``null`` for None."""
    return "null" if data is None else printable(data.decode("utf-8", "backslashreplace"))


def json_value(data: bytes | None) -> str | dict[str, str] | None:
    """Return the bytes as a JSON string, or as ``{"base64": ...}`` if they are not UTF-8; None for None."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def decode_json(text: str | bytes) -> Any:
    """Return the value of a JSON text that another program may have written.

    Raises:
        ValueError: it is not JSON in UTF-8, or it is nested more deeply than Python's parser can read.
    """
    try:
        # Python's parser would guess the encoding of bytes, and take halves of surrogate pairs in them.
        return json.loads(text if isinstance(text, str) else text.decode("utf-8-sig"))
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
