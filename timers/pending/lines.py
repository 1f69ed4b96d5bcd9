"""The file of pending timers: JSON, one object a line. Each encoder stands beside its decoder.

The first line says where the timers come from, and the last one how many there are, with a hash of all lines before it.
So a file that is cut off or was changed is refused. A line in between is one timer::

    {"topic": "orders", "key": "order-17", "value": "expired", "at": 1899999999, "headers": [["trace", "abc"]],
     "id": "order-17", "source": "timer-request-by-id/0/4711"}        (in the file this is one line)

Bytes that are not text are ``{"base64": "..."}``. ``id`` is only there if the sender gave one, ``failed`` (a number of
attempts) only if the timer has been tried and waits for another attempt.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from timers.client.timer_lines import data_of, parse_object
from timers.core.timer import Origin, Row, key_bytes
from timers.errors import InvalidTimerError, TimersError
from timers.wire import topics
from timers.wire.printable import json_value

VERSION = 1


class Head(NamedTuple):
    """The first line of a file."""

    export: int
    """Number of the export: what was imported of it is remembered under this number."""
    app: str
    cluster: str
    moved: bool
    """Whether the app does not fire these timers any more."""


class PendingTimer(NamedTuple):
    """One timer of a file."""

    row: Row
    origin: Origin


class Writer:
    """Writes a file.

    Args:
        file: open for writing bytes.
        head: its first line.

    Attributes:
        count: number of timers so far.
    """

    def __init__(self, file: Any, head: Head) -> None:
        self.count = 0
        self._file, self._hash = file, hashlib.sha256()
        self._add({"timers-export": VERSION, **head._asdict()})

    def _add(self, fields: dict[str, Any]) -> None:
        line = json.dumps(fields, separators=(",", ":")).encode() + b"\n"
        self._hash.update(line)
        self._file.write(line)

    def add(self, row: Row, origin: Origin) -> None:
        """Add a timer. One that has failed before has no id: the id may be that of a newer timer by now."""
        _, topic, key, value, headers, _ = row
        fields: dict[str, Any] = {
            "topic": topic,
            "key": json_value(key_bytes(key)),
            "value": json_value(value),
            "at": origin.due_s,
        }
        if headers:
            fields["headers"] = [[name, json_value(data)] for name, data in headers]
        if origin.attempt:
            fields["failed"] = origin.attempt
        elif origin.has_id:
            fields["id"] = origin.timer_id
        self._add({**fields, "source": origin.request})
        self.count += 1

    def end(self) -> None:
        """Write the last line."""
        line = json.dumps({"timers": self.count, "sha256": self._hash.hexdigest()})
        self._file.write(line.encode() + b"\n")


class Reader:
    """Reads a file.

    Args:
        lines: of the file.

    Attributes:
        head: its first line.
        count: number of timers that were read.

    Raises:
        TimersError: the first line is that of no export.
    """

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = iter(lines)
        self._hash = hashlib.sha256()
        self.count = 0
        first = next(self._lines, b"")
        self._hash.update(first)
        try:
            fields = parse_object(first)
            version = fields["timers-export"]
            self.head = Head(*(fields[name] for name in Head._fields))
        except (InvalidTimerError, KeyError):
            raise TimersError("this is no file of `timers export`: its first line names no export") from None
        if version != VERSION:
            raise TimersError(f"the file has version {version} of exports, and this version of timers reads {VERSION}")

    def __iter__(self) -> Iterator[PendingTimer]:
        """Yields the timers.

        Raises:
            TimersError: a line cannot be read, or the file is not whole: the sentence names the line.
        """
        for line in self._lines:
            try:
                fields = parse_object(line)
                if "sha256" in fields:
                    self._check_end(fields)
                    return
                timer = _timer(fields)
            except (InvalidTimerError, KeyError, TypeError, ValueError) as error:
                raise TimersError(f"line {self.count + 2} of the file is no timer: {error}") from None
            self._hash.update(line)
            self.count += 1
            yield timer
        raise TimersError(f"the file is cut off after {self.count:,} timers: it has no last line")

    def _check_end(self, fields: dict[str, Any]) -> None:
        if (fields["timers"], fields["sha256"]) != (self.count, self._hash.hexdigest()):
            raise TimersError(
                f"the file was changed: its last line says {fields['timers']:,} timers and a hash of them, and there "
                f"are {self.count:,} timers with another hash"
            )


def _timer(fields: dict[str, Any]) -> PendingTimer:
    """The timer of one line. Inverse of :meth:`Writer.add`."""
    source, due_s = fields["source"], fields["at"]
    if topics.parse_source(source) is None or type(due_s) is not int:
        raise InvalidTimerError(f"its source {source!r} or its second {due_s!r} is none")
    headers = [(str(name), _bytes(data)) for name, data in fields.get("headers", ())]
    origin = Origin(fields.get("id", source), due_s, fields.get("failed", 0), source)
    row = (0, str(fields["topic"]), data_of("key", fields["key"]), _bytes(fields["value"]) or b"", headers, None)
    return PendingTimer(row, origin)


def _bytes(value: Any) -> bytes | None:
    data = data_of("value", value)
    return data.encode() if isinstance(data, str) else data
