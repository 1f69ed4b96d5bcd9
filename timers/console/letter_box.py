"""Reads and retries dead letters for the console. Its functions block: the console calls them in threads."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import Any, NamedTuple, TypeAlias

from timers.clock import Clock
from timers.config.settings import Settings
from timers.dead_letters.letter_log import LetterLog
from timers.dead_letters.letters import LetterFilter
from timers.dead_letters.newest import LetterPage, newest
from timers.dead_letters.retrier import Retrier
from timers.dead_letters.retrying import Retry
from timers.kafka.connection import TIMEOUT_S
from timers.wire.dead_letter import Mark

MAX_READING_S = 5.0
MAX_RETRYING_S = 10.0
"""A page, or a retry of many, ends after this time; the next one goes on from there."""

_SHOWN = 100

Marks: TypeAlias = dict[tuple[str, str], Mark]
"""Name of a dead letter -> its newest mark."""


class RetryResult(NamedTuple):
    """What a retry did, or would do."""

    requests: int
    """Requests that it would publish."""
    overdue: int
    """Those of them that fire at once."""
    left_out: dict[str, int]
    """Reason -> letters that are not retried."""
    published: int
    more: bool
    """Whether it ended early: send it again."""
    retried: list[dict[str, Any]]
    """The first hundred that were published."""


def read_page(
    settings: Settings, letter_filter: LetterFilter, limit: int, ends: Mapping[int, int] | None
) -> tuple[LetterPage, Marks]:
    """A page of dead letters, the newest first, and which of them were retried."""
    end_s = monotonic() + MAX_READING_S
    with LetterLog(settings, shows_progress=False, timeout_s=TIMEOUT_S) as log:
        return newest(log, letter_filter, limit, ends, lambda: monotonic() > end_s), log.marks()


def retry(settings: Settings, letter_filter: LetterFilter, *, only_look: bool) -> RetryResult:
    """Publish the requests of dead letters again, or say what that would do."""
    end_s = monotonic() + MAX_RETRYING_S
    # First: this stops any other retry, so that all its marks are read below.
    retrier = None if only_look else Retrier(settings)
    with LetterLog(settings, shows_progress=False, timeout_s=TIMEOUT_S) as log:
        plan = Retry(settings, log, letter_filter, force=False)
        preview = plan.preview(Clock().now_s())
        published = 0
        retried: list[dict[str, Any]] = []
        if retrier is not None:
            for letter, source in plan.publish(retrier):
                published += 1
                if len(retried) < _SHOWN:
                    retried.append({"position": letter.position, "retried_as": source})
                if monotonic() > end_s:
                    break
    more = retrier is not None and published < preview.requests
    return RetryResult(preview.requests, preview.overdue, dict(preview.left_out), published, more, retried)
