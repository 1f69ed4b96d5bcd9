"""The broker's log: it is rotated at each start, and searched for the error after a failure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from timers import java

_OLD_LOGS = 2
"""Number of older logs that are kept; the same as in log4j2.properties."""

_LOG_LINE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:.]+ (?P<level>[A-Z]+) +(?P<text>.*)")
_EXCEPTION = re.compile(r'(?:Caused by: |Exception in thread "[^"]*" )?(?P<text>[\w.$]+(?:Exception|Error)\b.*)')
_IGNORED = re.compile(r"\s|WARNING: |\.\.\. [0-9]+ more")


def rotate(log: Path) -> None:
    """Rename the log of the last run, so that the present log has only this run."""
    for number in range(_OLD_LOGS, 0, -1):
        older = log.with_name(f"{log.name}.{number}")
        newer = log.with_name(f"{log.name}.{number - 1}") if number > 1 else log
        if newer.exists():
            newer.replace(older)


def last_lines(log: Path, count: int) -> list[str]:
    """Return the last ``count`` lines; none if there is no log yet."""
    try:
        with log.open(encoding="utf-8", errors="replace") as file:
            return [line.rstrip("\n") for line in deque(file, maxlen=count)]
    except FileNotFoundError:
        return []


def main_error(lines: Iterable[str]) -> str:
    """Return the line that best explains why Kafka ended: the cause of the last error, or else the last line of text.

    Java prints the outermost exception first and its cause last. Lines about the shutdown after it are ignored. A cause
    that Java does not name is given in words of ours.
    """
    text = ""
    rank = 0
    for line in lines:
        log_line = _LOG_LINE.match(line)
        exception = _EXCEPTION.match(line)
        if log_line:
            line_rank = 2 if log_line["level"] in ("ERROR", "FATAL") else 1
            line_text = log_line["text"]
        elif exception:
            line_rank, line_text = 2, exception["text"]
        elif line.startswith("Error"):
            line_rank, line_text = 2, line
        elif not line or _IGNORED.match(line):
            continue
        else:
            line_rank, line_text = 1, line
        if line_rank >= rank:
            rank, text = line_rank, line_text
    return java.cause(text) or text or "its log is empty"
