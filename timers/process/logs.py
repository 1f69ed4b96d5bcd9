"""Formats and filters of logs, for each process of this project: text of others is safe, and no login is written.

They are added to the handlers that a process has, so its level and its file still apply.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from copy import copy
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any

from timers.core.printable import PartitionName, printable, printable_json

REPEAT_S = 10.0
"""A library's message that was written less than this ago is counted, not written."""

LIBRARIES = {"aiokafka": logging.INFO, "aiohttp": logging.INFO, "faust": logging.WARNING, "mode": logging.WARNING}
"""Library -> lowest level of messages whose repetitions are filtered: while a broker is away, aiokafka writes a hundred
lines a second."""

_MAX_TEXTS = 1000


class PrintableFormatter(logging.Formatter):
    """Formats a record as another formatter does, but what others have sent is :func:`printable`.

    A message has several lines only if its text in the code has: else others could write lines of this log.
    """

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self._formatter = formatter

    def format(self, record: logging.LogRecord) -> str:
        """The text of ``record``."""
        safe = copy(record)
        message = record.getMessage()
        safe.msg, safe.args = _lines(message) if "\n" in str(record.msg) else printable(message), ()
        if record.exc_info and record.exc_info[0] is not None:
            safe.exc_text = _lines(self.formatException(record.exc_info))
        return self._formatter.format(safe)


def _lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


class JsonFormatter(logging.Formatter):
    """One object a line: ``time`` (UTC, ISO 8601), ``severity``, the same as ``level``, ``logger``, ``message``; if the
    line is about one partition, ``topic`` and ``partition``; with an error, ``exception`` (its traceback).

    Args:
        fields: the same in each line, such as ``worker``.
    """

    def __init__(self, **fields: str) -> None:
        super().__init__()
        self._fields = fields

    def format(self, record: logging.LogRecord) -> str:
        """The JSON object of ``record``."""
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "severity": record.levelname,
            "level": record.levelname,
            **self._fields,
            "logger": record.name,
            "message": record.getMessage(),
        }
        named = [each for each in record.args or () if isinstance(each, PartitionName)]
        if named and len(set(named)) == 1:
            topic, _, partition = named[0].rpartition("/")
            line |= {"topic": topic, "partition": int(partition)}
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        return printable_json(json.dumps(line, ensure_ascii=False))


def _shorten_bad_request(record: logging.LogRecord) -> bool:
    """Shortens a record of aiohttp about a request that it cannot read to one line without the request's content: this
    may be a login, and anyone may send it."""
    error = record.exc_info[1] if record.exc_info else None
    if record.name == "aiohttp.server" and type(error).__module__.partition(".")[0] == "aiohttp":
        record.msg = f"{record.msg}: {type(error).__name__}"
        record.exc_info = record.exc_text = None
    return True


class RepeatFilter(logging.Filter):
    """Passes each message of a library once in :data:`REPEAT_S`, with the number of messages not written since then.

    Messages with the same text before arguments are filled in are the same: "Connect to %s failed" is one message.
    """

    def __init__(self, now_s: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._now_s = now_s
        self._written: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write ``record``."""
        from_level = LIBRARIES.get(record.name.partition(".")[0])
        if from_level is None or record.levelno < from_level:
            return True
        key = record.name, record.levelno, str(record.msg)
        now_s = self._now_s()
        written_s, skipped = self._written.get(key, (float("-inf"), 0))
        if now_s - written_s < REPEAT_S:
            self._written[key] = written_s, skipped + 1
            return False
        if len(self._written) > _MAX_TEXTS:  # bounds memory if no text is repeated
            self._written.clear()
        self._written[key] = now_s, 0
        if skipped:
            record.msg = f"{record.getMessage()} ({skipped} more like this in {now_s - written_s:.0f} s)"
            record.args = ()
        return True


def make_safe(handlers: Iterable[logging.Handler | None]) -> None:
    """Add the filters to handlers, and make what they write printable. A second call changes nothing."""
    for handler in handlers:
        if handler is None or isinstance(handler.formatter, PrintableFormatter | JsonFormatter):
            continue
        handler.setFormatter(PrintableFormatter(handler.formatter or logging.Formatter()))
        handler.addFilter(_shorten_bad_request)
        handler.addFilter(RepeatFilter())


def rotate(path: Path, kept: int) -> None:
    """Rename the log of the last run to ``.1``, that of the run before to ``.2`` and so on; ``kept`` logs stay."""
    names = [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, kept + 1))]
    for newer, older in reversed(list(pairwise(names))):
        if newer.exists():
            newer.replace(older)
