"""Pages of dead letters from the newest to the oldest: each letter once, in order, whatever the sizes are."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.harness.constants import Constants
from timers.offline.dead_letters import letters as module
from timers.offline.dead_letters.letters import Letter, LetterFilter, Span, newest
from timers.wire.dead_letter import DecodedDeadLetter
from timers.wire.formats import RequestRecord


def letter(partition: int, offset: int, ms: int, code: str) -> Letter:
    request = RequestRecord(offset, None, None, [], ms)
    return Letter("d", partition, offset, ms, request, DecodedDeadLetter(code, "", "r/0/1", [], None, ""))


class SimLog:
    """A log of two partitions: every third offset has a letter."""

    def __init__(self) -> None:
        self.letters = [letter(n % 2, n, 1000 + n, "a" if n % 9 else "b") for n in range(0, 120, 3)]
        self.read_windows: list[Span] = []

    def spans(self, _: LetterFilter) -> list[Span]:
        return [Span(0, 0, 120), Span(1, 10, 120)]

    def read(self, letter_filter: LetterFilter, spans: Iterable[Span]) -> Iterator[Letter]:
        for span in spans:
            self.read_windows.append(span)
            for each in self.letters:
                if each.partition == span.partition and span.start <= each.offset < span.end and each in letter_filter:
                    yield each


@pytest.mark.parametrize("window", [1, 7, 50, 1000])
@pytest.mark.parametrize("limit", [1, 4, 1000])
@pytest.mark.parametrize("codes", [(), ("b",), ("c",)])
def test_pages_have_each_letter_once_from_the_newest_on(
    window: int, limit: int, codes: tuple[str, ...], constants: Constants
) -> None:
    constants(module, WINDOW=window)
    log: Any = SimLog()
    letter_filter = LetterFilter(codes=codes)
    seen: list[Letter] = []
    ends: dict[int, int] | None = None
    while ends != {}:
        page = newest(log, letter_filter, limit, ends, lambda: False)
        assert len(page.letters) <= limit
        seen += page.letters
        ends = page.ends
    wanted = [each for each in log.letters if each in letter_filter and (each.partition == 0 or each.offset >= 10)]
    assert seen == sorted(wanted, key=lambda each: -each.timestamp_ms)


def test_a_page_whose_time_is_over_goes_on_where_it_stopped(constants: Constants) -> None:
    constants(module, WINDOW=10)
    log: Any = SimLog()
    letter_filter = LetterFilter(codes=("c",))
    page = newest(log, letter_filter, 10, None, lambda: len(log.read_windows) >= 3)
    assert page.letters == [] and sum(page.ends.values()) == 240 - 30
    assert newest(log, letter_filter, 10, page.ends, lambda: True) == page


def test_named_letters_of_one_partition_are_all_there() -> None:
    log: Any = SimLog()
    log.spans = lambda _: [Span(0, offset, offset + 1) for offset in (6, 12, 18)]
    page = newest(log, LetterFilter(), 3, None, lambda: False)
    assert ([each.offset for each in page.letters], page.ends) == ([18, 12, 6], {})
