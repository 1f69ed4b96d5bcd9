"""Format and filters of the worker's log: text or JSON, without repeated lines of libraries.

They are added to the handlers that Faust has set up, so Faust's ``--loglevel`` and ``--logfile`` still apply.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic

from aiokafka.errors import KafkaError

from timers.errors import TimersError

JSON = "json"

REPEAT_S = 10.0
"""A library's message that was written less than this ago is counted, not written."""

LIBRARIES = {"aiokafka": logging.INFO, "aiohttp": logging.INFO, "faust": logging.WARNING, "mode": logging.WARNING}
"""Library -> lowest level of messages whose repetitions are filtered: while a broker is away, aiokafka writes a hundred
lines a second."""


class JsonFormatter(logging.Formatter):
    """One object a line: ``time`` (UTC, ISO 8601), ``level``, ``logger``, ``message`` and, with an error, ``exception``
    (its traceback)."""

    def format(self, record: logging.LogRecord) -> str:
        """The JSON object of ``record``."""
        at = datetime.fromtimestamp(record.created, UTC)
        line = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


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
        if len(self._written) > 1000:  # bounds memory if no text is repeated
            self._written.clear()
        self._written[key] = now_s, 0
        if skipped:
            record.msg = f"{record.getMessage()} ({skipped} more like this in {now_s - written_s:.0f} s)"
            record.args = ()
        return True


class OwnErrorFilter(logging.Filter):
    """Drops libraries' tracebacks of a :class:`TimersError`: the worker logs it once, as one sentence.

    Args:
        fatal: returns the error that ends the worker, if there is one.
    """

    def __init__(self, fatal: Callable[[], TimersError | None]) -> None:
        super().__init__()
        self._fatal = fatal

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write ``record``."""
        if record.exc_info and timers_error_in(record.exc_info[1]) is not None:
            return False
        return not (self._fatal() and "We experienced a crash" in str(record.msg))


class KafkaErrorFilter(logging.Filter):
    """Replaces the traceback of a Kafka error that aiokafka logs by the error: a broker that is away is nothing
    unforeseen, and what the worker does about it is in its own lines."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Always True."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, KafkaError) and record.name.partition(".")[0] == "aiokafka":
            record.msg, record.args = f"{record.getMessage()}: {error}", ()
            record.exc_info = record.exc_text = None
        return True


def timers_error_in(error: BaseException | None) -> TimersError | None:
    """The first :class:`TimersError` among ``error`` and its causes; None if there is none."""
    seen: set[int] = set()  # the contexts of exceptions can form a cycle
    while error is not None and id(error) not in seen:
        if isinstance(error, TimersError):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def set_up(log_format: str, fatal: Callable[[], TimersError | None]) -> None:
    """Set format and filters of the root logger's handlers."""
    for handler in logging.root.handlers:
        handler.addFilter(OwnErrorFilter(fatal))
        handler.addFilter(RepeatFilter())
        handler.addFilter(KafkaErrorFilter())
        if log_format == JSON:
            handler.setFormatter(JsonFormatter())
