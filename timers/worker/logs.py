"""How the worker's log looks: a line for each event that matters, for eyes or as JSON, and no floods.

Applied to the handlers that Faust has set up, so that ``--loglevel`` and ``--logfile`` stay Faust's.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic

from timers.errors import TimersError

JSON = "json"

REPEAT_S = 10.0
"""What a library says again within this time is counted, not written."""

LIBRARIES = {"aiokafka": logging.INFO, "aiohttp": logging.INFO, "faust": logging.WARNING, "mode": logging.WARNING}
"""Loggers that are not ours, and the level from which they repeat themselves: with a broker away, aiokafka alone writes
a hundred lines a second."""


class JsonFormatter(logging.Formatter):
    """One object a line: ``time`` (UTC, ISO 8601), ``level``, ``logger``, ``message`` and, if there is one,
    ``exception`` (a traceback)."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
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


class Repeats(logging.Filter):
    """Lets each message of a library through once in :data:`REPEAT_S`, then with the number of those held back.

    Messages are alike if their text before arguments are filled in is: "Connect to %s failed" is one message.
    """

    def __init__(self, now_s: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._now_s = now_s
        self._said: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write ``record``."""
        from_level = LIBRARIES.get(record.name.partition(".")[0])
        if from_level is None or record.levelno < from_level:
            return True
        key = record.name, record.levelno, str(record.msg)
        now_s = self._now_s()
        said_s, held_back = self._said.get(key, (float("-inf"), 0))
        if now_s - said_s < REPEAT_S:
            self._said[key] = said_s, held_back + 1
            return False
        if len(self._said) > 1000:  # texts that are never the same twice
            self._said.clear()
        self._said[key] = now_s, 0
        if held_back:
            record.msg = f"{record.getMessage()} ({held_back} more like this in {now_s - said_s:.0f} s)"
            record.args = ()
        return True


class Refusals(logging.Filter):
    """Holds back what libraries write of an error of ours, page by page: it is said once, in its sentence.

    Args:
        fatal: why the worker ends, if it does.
    """

    def __init__(self, fatal: Callable[[], TimersError | None]) -> None:
        super().__init__()
        self._fatal = fatal

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write ``record``."""
        if record.exc_info and known(record.exc_info[1]) is not None:
            return False
        return not (self._fatal() and "We experienced a crash" in str(record.msg))


def known(error: BaseException | None) -> TimersError | None:
    """The error of ours that ``error`` is, or comes from."""
    seen: set[int] = set()  # a chain of contexts can be a circle
    while error is not None and id(error) not in seen:
        if isinstance(error, TimersError):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def set_up(form: str, fatal: Callable[[], TimersError | None]) -> None:
    """Give the root logger's handlers this form."""
    for handler in logging.root.handlers:
        handler.addFilter(Refusals(fatal))
        handler.addFilter(Repeats())
        if form == JSON:
            handler.setFormatter(JsonFormatter())
