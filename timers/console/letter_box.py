"""Reads and retries dead letters. Its methods block: threads call them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, NamedTuple, TypeAlias

from timers.console.problems import Problem
from timers.console.threads import check
from timers.errors import TimersError
from timers.kafka.connection import CALL_TIMEOUT_S
from timers.offline.dead_letters.letters import LetterFilter, LetterLog, LetterPage, Marks, Span, newest
from timers.offline.dead_letters.retrying import Retrier, Retry
from timers.process.clock import Clock
from timers.process.config.settings import Settings
from timers.wire.dead_letter import Mark

MAX_PAGE_S = 5.0
MAX_RETRYING_S = 10.0
"""A page, or a retry of many, ends after this time; the next one goes on from there."""

MIN_MARKS_S = 1.0
"""Time for the marks of a page, however long the page took."""

_MAX_RETRIED_LISTED = 100
"""Letters of a retry that its answer lists."""

MAX_MARKS = 100_000
"""Newest marks of retries that are kept, in some 40 MB at most."""

Ranges: TypeAlias = Mapping[int, tuple[int, int]]
"""Partition -> the first offset to read, and the end."""


class FoundLetters(NamedTuple):
    """A page of dead letters, the newest first."""

    page: LetterPage
    marks: Mapping[tuple[str, str], Mark]
    """:attr:`Letter.mark_key` -> its mark, for those of them that were retried."""
    unsure: frozenset[str]
    """Positions of those that may have been retried: their marks are not read yet, or not kept."""
    missing: Mapping[str, str]
    """Partition that could not be read -> why."""


class RetryResult(NamedTuple):
    """What a retry did, or would do."""

    requests: int
    """Requests that it found to publish."""
    overdue: int
    """Those of them that fire at once."""
    left_out: dict[str, int]
    """Reason -> letters that are not retried."""
    published: int
    more: bool
    """Whether it ended early."""
    retried: list[dict[str, Any]]
    """The first hundred that were published."""
    missing: Mapping[str, str]
    """Partition that could not be read -> why."""
    rest: Ranges
    """What the next step must read: after a look all of it, else what this step has not read."""


class LetterBox:
    """The dead letters of an app, for the threads of a console. Keeps the marks of retries that it has read."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._marks = Marks(MAX_MARKS)
        self._lock = threading.Lock()

    def read_page(self, letter_filter: LetterFilter, limit: int, ends: Mapping[int, int] | None) -> FoundLetters:
        """A page of dead letters, and which of them were retried."""
        end_s = monotonic() + MAX_PAGE_S
        with self._log(check) as log:
            page = newest(log, letter_filter, limit, ends, lambda: monotonic() > end_s)
            try:
                marks, are_whole = self._read_marks(log, max(end_s, monotonic() + MIN_MARKS_S))
            except TimersError:  # the letters are known
                marks, are_whole = self._marks, False
        found = {letter.mark_key: mark for letter in page.letters if (mark := marks.of(letter)) is not None}
        unmarked = [letter for letter in page.letters if letter.mark_key not in found]
        unsure = [letter.position for letter in unmarked if not are_whole or marks.may_be_forgotten(letter)]
        return FoundLetters(page, found, frozenset(unsure), log.missing)

    def retry(self, letter_filter: LetterFilter, ranges: Ranges | None, *, only_look: bool) -> RetryResult:
        """Publish the requests of dead letters again, or say what that would do.

        Args:
            ranges: ``rest`` of the step before; None: all that there is. Named letters are retried in one step, all or
                none.
        """
        end_s = monotonic() + MAX_RETRYING_S
        # First: this stops any other retry, so that all its marks are read below.
        retrier = None if only_look else Retrier(self._settings)
        # A retry that has begun goes to the end of its step, even if its client is gone.
        with self._log(check if only_look else lambda: None) as log:
            marks, are_whole = self._read_marks(log, end_s)
            if not are_whole:
                why = "the marks of earlier retries are not all read yet: send the request again, reading goes on"
                raise Problem("busy", why, {"Retry-After": "1"})
            spans = log.spans(letter_filter)
            if ranges is not None:
                both = [(span, *ranges[span.partition]) for span in spans if span.partition in ranges]
                spans = [Span(span.partition, max(span.start, low), min(span.end, high)) for span, low, high in both]
            named = bool(letter_filter.names)
            plan = Retry(
                self._settings,
                log,
                letter_filter,
                spans,
                marks,
                Clock().now_s(),
                force=False,
                is_over=lambda: not named and monotonic() > end_s,
            )
            if retrier is None or named:
                plan.preview()
            published = 0
            retried: list[dict[str, Any]] = []
            for letter, source in () if retrier is None else plan.publish(retrier):
                published += 1
                if len(retried) < _MAX_RETRIED_LISTED:
                    retried.append({"position": letter.position, "retried_as": source})
        rest = {span.partition: (span.start, span.end) for span in (spans if retrier is None else plan.rest)}
        counts = plan.seen.requests, plan.seen.overdue, dict(plan.seen.left_out), published
        return RetryResult(*counts, bool(plan.rest), retried, log.missing, rest)

    def _log(self, check: Callable[[], None]) -> LetterLog:
        return LetterLog(self._settings, shows_progress=False, timeout_s=CALL_TIMEOUT_S, check=check)

    def _read_marks(self, log: LetterLog, end_s: float) -> tuple[Marks, bool]:
        """The marks, and whether all that there are were read, which may take several requests."""
        if not self._lock.acquire(timeout=max(0.0, end_s - monotonic())):
            return self._marks, False
        try:
            self._marks = log.read_marks(self._marks, lambda: monotonic() > end_s)
            return self._marks, self._marks.is_whole
        finally:
            self._lock.release()
