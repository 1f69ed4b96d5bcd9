"""Pages of many sources are one list: for all sizes, no timer is left out, listed twice or out of order."""

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.unicode_text import TEXT
from timers.core.keys import NOTHING_FIRED
from timers.core.listing import LIST_START, Listed, NoAnswer, Page, Position, key_after, merge
from timers.core.machine import Machine
from timers.core.progress import Progress
from timers.core.timer import Key, Origin, Row, RowsByDue, id_text
from timers.machines.queries import reading
from timers.machines.queries.reading import Place
from timers.machines.store import layout, rocks
from timers.machines.store.memory_limit import RocksMemory
from timers.machines.store.rocks import RocksStore
from timers.wire import query as wire

POSITIONS = st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.integers(0, 2), st.integers(0, 5))


class Sim:
    """A partition that is read ``step`` timers at a time, of which a filter may leave none; it may fall silent."""

    def __init__(
        self, positions: Sequence[Position], step: int, keep: Callable[[Position], bool], answers: int
    ) -> None:
        self._positions = positions
        self._step = step
        self._keep = keep
        self._answers = answers
        self.silent = False

    async def read(self, after: Position, limit: int) -> Page:
        self._answers -= 1
        if self._answers < 0:
            self.silent = True
            raise NoAnswer
        rest = [each for each in self._positions if each > after]
        part = rest[: min(self._step, limit)]
        return Page(
            [Listed(each, each) for each in part if self._keep(each)], part[-1] if len(part) < len(rest) else None
        )


def by_partition(positions: set[Position]) -> list[list[Position]]:
    found: dict[tuple[str, int], list[Position]] = {}
    for each in sorted(positions):
        found.setdefault(each[1:3], []).append(each)
    return list(found.values())


@given(
    st.sets(POSITIONS),
    st.lists(st.integers(1, 4), min_size=6, max_size=6),
    st.integers(1, 5),
    st.sets(st.integers(0, 5)),
    st.lists(st.booleans(), max_size=60),
)
def test_pages_put_together_are_the_list(
    positions: set[Position], steps: list[int], limit: int, offsets: set[int], enough: list[bool]
) -> None:
    """Also where a page ends early because its time is up."""
    keep = lambda position: position[3] in offsets  # noqa: E731
    parts = by_partition(positions)
    listed: list[Position] = []
    after: Position | None = LIST_START
    while after is not None:
        sources = [Sim(part, step, keep, 10**6) for part, step in zip(parts, steps, strict=False)]
        page = asyncio.run(merge(sources, after, limit, lambda: bool(enough) and enough.pop()))
        assert len(page.listed) <= limit
        assert page.through is None or page.through > after
        listed += [each.timer for each in page.listed]
        after = page.through
    assert listed == sorted(filter(keep, positions))


@given(st.sets(POSITIONS), st.lists(st.integers(0, 4), min_size=6, max_size=6))
def test_a_source_that_falls_silent_takes_nothing_else_with_it(positions: set[Position], answers: list[int]) -> None:
    parts = by_partition(positions)
    sources = [Sim(part, 2, lambda _: True, count) for part, count in zip(parts, answers, strict=False)]
    page = asyncio.run(merge(sources, LIST_START, 1000, lambda: False))
    whole = [each for part, source in zip(parts, sources, strict=False) if not source.silent for each in part]
    listed = [each.timer for each in page.listed]
    assert page.through is None
    assert set(whole) <= set(listed) <= positions
    assert listed == sorted(set(listed))


@given(POSITIONS | st.just(LIST_START), POSITIONS)
def test_where_a_partition_goes_on_is_where_all_went_on(after: Position, timer: Position) -> None:
    due_s, topic, partition, offset = timer
    key = max(key_after(after, topic, partition), NOTHING_FIRED)
    assert ((due_s, offset) > key) == (timer > after)


@given(POSITIONS)
def test_a_cursor_is_its_position(position: Position) -> None:
    assert wire.parse_cursor(wire.cursor(position)) == position


SELECTION = (
    st.none() | st.sampled_from(["orders", "a.b_c-D"]),
    st.integers(0, 10**11 - 1),
    st.none() | st.integers(0, 10**11 - 1),
)
AFTER = POSITIONS | st.just(LIST_START)
QUERIES = st.builds(
    partial(wire.Query, by_s=0, partition=None, is_part_of_quick=False),  # a header says the last, and no parameter
    *SELECTION,
    st.integers(1, wire.MAX_LIMIT),
    AFTER,
    st.booleans(),
    TEXT,
    st.none() | TEXT,
    TEXT,
    TEXT,
)
PLACES = st.none() | st.tuples(st.just("orders"), st.integers(0, 99))
COUNTS = st.builds(wire.Query, *SELECTION, after=AFTER, by_s=st.integers(1, wire.MAX_GROUP_S), partition=PLACES).map(
    lambda query: query._replace(
        limit=wire.DEFAULT_LIMIT, with_values=False, prefix="", key=None, set="", contains="", is_part_of_quick=False
    )
)


@given(QUERIES)
def test_a_question_is_understood_as_it_was_meant(query: wire.Query) -> None:
    assert wire.parse_query(wire.parameters_of(query)) == query


@given(COUNTS)
def test_a_count_is_understood_as_it_was_meant(query: wire.Query) -> None:
    assert wire.parse_count_query(wire.parameters_of(query)) == query


PLACE = Place("req", 1, moved=False, hidden_topic="canary")
MEMORY = RocksMemory(16 * 1024 * 1024)
TOPICS = ("t", "tt", "canary")
GIVEN_IDS = (None, b"req/1/0", b"a", b"a-b", "ü1".encode(), b"\xff", b"a\xff", b"\xc3", "a\ufffd".encode())
KEYS = st.sampled_from([None, "", b"", "a", b"a", "ü", "ü".encode(), b"\xff"])
ROWS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(TOPICS), st.sampled_from(GIVEN_IDS), KEYS), max_size=12)
PREFIXES = ("", "req/1/", "req/1/1", "re", "req/10", "a", "a-", "ü", "\ufffd", "a\ufffd", "t", "\ud800", "none")

PARTS = ("q/1", "/1/1", "1", "/", "b", "-", "ü", "\ufffd", "t", "\ud800", "none")


@pytest.mark.slow
@settings(max_examples=40)  # each opens a store
@given(
    ROWS,
    st.sampled_from([None, *TOPICS, "none"]),
    st.sampled_from(PREFIXES),
    st.sampled_from(["", "", *PARTS]),
    st.sampled_from([None, None, "", "a", "ü", "none"]),
    st.sampled_from([1, 2, 100]),
    st.booleans(),
)
def test_a_filtered_list_is_the_list_without_the_others(
    given_rows: list[tuple[int, str, bytes | None, Key]],
    topic: str | None,
    prefix: str,
    part: str,
    key: str | None,
    limit: int,
    has_ids: bool,
) -> None:
    """A store on disk leaves out entries that cannot match without decoding them."""
    rows: RowsByDue = {}
    for offset, (due_s, target, id, its_key) in enumerate(given_rows):
        origin = None if id is None and not has_ids else Origin(id_text(id or b"1"), due_s, 0)
        row: Row = (offset, target, its_key, b"", None, origin)
        rows.setdefault(due_s, []).append(row)
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "GROUP_ROWS", 2)
        patch.setattr(reading, "SLICE_ROWS", 3)
        patch.setattr(rocks, "MAX_GROUPS_LEFT_OUT", 2)
        store = RocksStore.open(Path(directory) / "store", "here", MEMORY)
        try:
            store.write(rows, len(given_rows))
            machine: Any = SimpleNamespace(_store=store, _index=None, recovering=False, progress=Progress())
            machine.waiting = partial(Machine.waiting, machine)
            every = _ids(machine, PLACE._replace(hidden_topic=""), wire.Query(), 100)
            place = PLACE._replace(all_have_ids=has_ids)
            found = _ids(machine, place, wire.Query(topic, prefix=prefix, key=key, contains=part), limit)
        finally:
            store.close()
    assert found == [
        (due_s, target, id, its_key)
        for due_s, target, id, its_key in every
        if (target == topic or (topic is None and target != "canary")) and id.startswith(prefix)
        if key is None or its_key == key
        if part in id or (isinstance(its_key, str) and part in its_key)
    ]


def _ids(machine: Any, place: Place, query: wire.Query, limit: int) -> list[tuple[int, str, str, Any]]:
    """Due second, topic, id and key of all timers of a query, page by page."""
    found, after = [], LIST_START
    while True:
        page = reading.page(machine, place, query, after, limit)
        found += [(each.timer["due"], each.timer["topic"], each.timer["id"], each.timer["key"]) for each in page.listed]
        if page.through is None:
            return found
        assert page.through > after
        after = page.through
