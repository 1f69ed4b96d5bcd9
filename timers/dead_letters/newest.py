"""Reads dead letters from the newest to the oldest, page by page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from timers.dead_letters.letter_log import LetterLog, Span
from timers.dead_letters.letters import Letter, LetterFilter

WINDOW = 1000
"""Offsets of a partition that are read at a time."""


class LetterPage(NamedTuple):
    """Some dead letters, the newest first."""

    letters: list[Letter]
    ends: dict[int, int]
    """Partition -> the offset before which the next page reads; empty: this is the last page."""


def newest(
    log: LetterLog,
    letter_filter: LetterFilter,
    limit: int,
    ends: Mapping[int, int] | None,
    is_over: Callable[[], bool],
) -> LetterPage:
    """At most ``limit`` of the newest dead letters.

    Args:
        ends: of the page before; None for the first page.
        is_over: whether the page must end now. It may then be empty and still have a next one.
    """
    spans = log.spans(letter_filter)
    if ends is not None:
        spans = [span._replace(end=ends[span.partition]) for span in spans if span.partition in ends]
    readers = [_Backwards(log, letter_filter, span, is_over) for span in spans]
    letters: list[Letter] = []
    while len(letters) < limit:
        first = max(readers, key=_Backwards.newest_ms, default=None)
        if first is None or first.newest_ms() < 0:
            break
        letters.append(first.take())
    return LetterPage(letters, {reader.partition: reader.end for reader in readers if reader.end > reader.start})


class _Backwards:
    """The letters of one partition, the newest first."""

    def __init__(self, log: LetterLog, letter_filter: LetterFilter, span: Span, is_over: Callable[[], bool]) -> None:
        self._log = log
        self._filter = letter_filter
        self._is_over = is_over
        self.partition, self.start, self.end = span
        self._unread = self.end
        self._found: list[Letter] = []

    def newest_ms(self) -> int:
        """Time of the next letter; -1 if there is none, or if the page must end before it is found."""
        while not self._found and self._unread > self.start and not self._is_over():
            first = max(self.start, self._unread - WINDOW)
            self._found = list(self._log.read(self._filter, [Span(self.partition, first, self._unread)]))
            self._unread = first
            self._note_end()
        return max(0, self._found[-1].timestamp_ms) if self._found else -1

    def take(self) -> Letter:
        """The next letter."""
        letter = self._found.pop()
        self._note_end()
        return letter

    def _note_end(self) -> None:
        self.end = self._found[-1].offset + 1 if self._found else self._unread
