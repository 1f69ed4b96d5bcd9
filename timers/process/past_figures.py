"""The last day of a worker's own figures: a point each 5 s for an hour, and one each minute for 24 hours.

Each point has what was counted in its time, and not totals: so they go on after a restart, and the points of several
workers can be added up. Its lags are a histogram, from which quantiles of all workers follow.

The points of minutes are also in a file of the data directory, which the next start of the worker reads. A thread of
its own appends a line each minute: if the disk stalls, this thread alone waits (ADR 26). A worker that is killed
loses the figures of its last minute, and one whose disk takes none those that it has not written.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from timers.core.counters import LAG_BOUNDS_S, added, subtracted
from timers.process.threads import call_in_thread

logger = logging.getLogger(__name__)

FIGURES_STEP_S, MINUTE_S, DAY_S = 5, 60, 86_400
_FINE, _COARSE = 3600 // FIGURES_STEP_S, DAY_S // MINUTE_S

MOST_BYTES = 1024 * 1024
"""A file that would be longer is written anew, with what is in memory."""

KEPT_BYTES = MOST_BYTES * 3 // 4
"""So many bytes of points are kept of each kind: if points are larger than about 500 bytes, fewer of them."""

_LONGEST_LINE, _MOST_DIGITS, _MOST = 8192, 11, 1e18
_STATES = ("pending", "overdue_s", "memory_bytes")


class _Points:
    """The newest points, as (epoch second, line), ascending."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0
        self.kept: deque[tuple[int, bytes]] = deque()

    def add(self, at_s: int, line: bytes) -> None:
        """Add a point. What is not older than it goes: the clock has gone back."""
        while self.kept and self.kept[-1][0] >= at_s:
            self._bytes -= len(self.kept.pop()[1])
        self.kept.append((at_s, line))
        self._bytes += len(line)
        while len(self.kept) > self._most or self._bytes > KEPT_BYTES:
            self._bytes -= len(self.kept.popleft()[1])

    def add_older(self, points: Sequence[tuple[int, bytes]]) -> None:
        """Add earlier points, as many as there is room for."""
        first_s = self.kept[0][0] if self.kept else float("inf")
        for at_s, line in reversed(points):
            if len(self.kept) == self._most or self._bytes + len(line) > KEPT_BYTES:
                return
            if at_s < first_s:
                self.kept.appendleft((at_s, line))
                self._bytes += len(line)


class PastFigures:
    """Keeps the points. Its owner calls :meth:`note` each :data:`FIGURES_STEP_S`, in one thread.

    Args:
        path: of the file, which need not exist; None: only in memory.
        now_s: returns epoch seconds.
    """

    def __init__(self, path: Path | None, now_s: Callable[[], float]) -> None:
        self._path = path
        self._now_s = now_s
        self._totals: Mapping[str, float] | None = None
        self._noted_s = 0.0
        self._fine, self._coarse = _Points(_FINE), _Points(_COARSE)
        self._found: list[tuple[int, bytes]] = []
        self._minute: dict[str, Any] | None = None
        self._unwritten: list[bytes] = []
        self._writing: Future[None] | None = None

    def load(self) -> None:
        """Read what an earlier process of this worker has written. A file that cannot be read, or that another program
        has written, is as an empty one. Blocks: call it in a thread. The owner takes what it found."""
        now_s, lines = self._now_s(), list[bytes]()
        if self._path is None:
            return
        with suppress(OSError), self._path.open("rb") as file:
            file.seek(max(0, self._path.stat().st_size - MOST_BYTES))
            lines = file.read(MOST_BYTES).split(b"\n")
        found = {at_s: line for line in lines if (at_s := _time_of(line)) is not None and now_s - DAY_S < at_s <= now_s}
        self._found = sorted(found.items())

    def _take_found(self) -> None:
        found, self._found = self._found, []
        self._coarse.add_older(found)

    def note(self, totals: Mapping[str, float], state: Mapping[str, float]) -> None:
        """Keep what was counted since the last call, and what there is now.

        Args:
            totals: since the start of the worker, by names of its own: see :meth:`Counters.numbers`.
            state: such as ``pending``.
        """
        before, self._totals = self._totals, totals
        noted_s, self._noted_s = self._noted_s, self._now_s()
        if before is None:
            return
        now_s, seconds = int(self._noted_s), round(self._noted_s - noted_s)
        point: dict[str, Any] = {
            "at": now_s,
            "s": min(max(1, seconds), MINUTE_S),
            "counts": subtracted(totals, before),
            **state,
        }
        self._fine.add(now_s, _line(point))
        self._minute = minute = point if self._minute is None else _one(self._minute, point)
        if minute["s"] >= MINUTE_S:
            self._minute = None
            self._take_found()
            self._coarse.add(now_s, line := _line(minute))
            self._write(line)

    def end(self) -> Future[None] | None:
        """Write the minute that is not over. Returns the write; None if there is none."""
        if self._minute is not None:
            line, self._minute = _line(self._minute), None
            self._write(line)
        return self._writing

    def page(self, since_s: float, head: Mapping[str, Any]) -> bytes:
        """The points after a time as JSON, the oldest first: minutes, and then steps of 5 s.

        Args:
            head: further members of the object.
        """
        self._take_found()
        fine = self._fine.kept
        fine_from_s = fine[0][0] if fine else float("inf")
        kept = [line for at_s, line in self._coarse.kept if since_s < at_s < fine_from_s]
        kept += [line for at_s, line in fine if at_s > since_s]
        begin = json.dumps({**head, "bounds_s": LAG_BOUNDS_S})[:-1].encode()
        return begin + b', "points": [' + b",".join(kept) + b"]}\n"

    def _write(self, line: bytes) -> None:
        """Append a line, in a thread, unless earlier ones are still being written."""
        if self._path is None:
            return
        self._unwritten = [*self._unwritten, line][-_COARSE:]
        if self._writing is None or self._writing.done():
            lines, self._unwritten = self._unwritten, []
            self._writing = call_in_thread("timers-past-figures", self._append, self._path, lines, [*self._coarse.kept])

    @staticmethod
    def _append(path: Path, lines: Sequence[bytes], kept: Sequence[tuple[int, bytes]]) -> None:
        written = b"".join(line + b"\n" for line in lines)
        try:
            if path.exists() and path.stat().st_size + len(written) > MOST_BYTES:
                anew = path.with_suffix(".new")
                anew.write_bytes(b"".join(line + b"\n" for _, line in kept))
                anew.replace(path)
                return
            with path.open("ab") as file:
                file.write(written)
        except OSError as error:
            logger.debug("the figures of the last minutes are not written: %s", error)


def since(text: str) -> int:
    """The epoch second that a caller gave; 0, the beginning, for another text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else 0


def _line(point: Mapping[str, Any]) -> bytes:
    return json.dumps(point, separators=(",", ":")).encode()


def _time_of(line: bytes) -> int | None:
    """The time of a point; None if the line is none: the disk may have been full, or the process killed."""
    with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
        if len(line) <= _LONGEST_LINE:
            point = json.loads(line)
            numbers = [*point["counts"].values(), *(point[name] for name in _STATES)]
            are_numbers = all(type(each) in (int, float) and abs(each) < _MOST for each in numbers)
            if are_numbers and type(point["at"]) is type(point["s"]) is int:
                return int(point["at"])
    return None


def _one(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """One point for the time of two."""
    counts, overdue_s = added(first["counts"], second["counts"]), max(first["overdue_s"], second["overdue_s"])
    return {**second, "s": first["s"] + second["s"], "counts": counts, "overdue_s": overdue_s}
