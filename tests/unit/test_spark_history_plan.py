"""What a round of ``timers spark history`` reads of a topic, and what it finds to be missing."""

from __future__ import annotations

import time
from threading import Event
from typing import Any

import pytest

from timers.kafka.topic_offsets import Offsets
from timers.process.config.settings import Settings
from timers.spark.audit.history import ANEW, CUT, DELETED, REQUEST, Gap, Known, Position
from timers.spark.jobs.history import FRESH_S, IDLE_S, Params, Total, _Job

TOPIC, NOW_MS, FIRST_MS = "requests", 5000, 4000


class SimOffsets:
    """The offsets of a topic with the id ``02``."""

    def __init__(self, first: dict[int, int], end: dict[int, int]) -> None:
        self._first, self._end = first, end

    def starts(self, names: list[str]) -> Offsets:
        return {TOPIC: self._first}

    def ends(self, names: list[str]) -> Offsets:
        return {TOPIC: self._end}

    def id_of(self, topic: str) -> bytes:
        return b"\x02"

    def first_ms(self, *place: Any) -> int:
        return FIRST_MS

    def whole_since_ms(self, names: list[str], as_of_ms: int) -> dict[str, dict[int, int]]:
        return {TOPIC: dict.fromkeys(self._first, 3000)}


def plan(known: dict[int, tuple[int, int, str]], first: dict[int, int], end: dict[int, int]) -> Any:
    """The plan of a round.

    Args:
        known: partition -> offset, end and id of the topic at the last round.
        first, end: offsets that the topic has now.
    """
    job: Any = _Job.__new__(_Job)
    positions = {(REQUEST, TOPIC, p): Position(offset, of, 0, id, 0) for p, (offset, of, id) in known.items()}
    job._known, job._named = Known(3, positions, 3, 1000), {}
    return job._plan(SimOffsets(first, end), REQUEST, [TOPIC], {TOPIC: end}, NOW_MS, {})


class SimHistory:
    """A table whose commits are counted, and of whose timers the last ones are not made."""

    def __init__(self, as_of_ms: int) -> None:
        self._as_of_ms = as_of_ms
        self.promised_s: list[float] = []

    def known(self) -> Known:
        return Known(3, {}, 2, self._as_of_ms)

    def named(self) -> dict[str, int]:
        return {}

    def gaps(self) -> list[Gap]:
        return []

    def commit(self, batch: int, run: str, found: Any, said: list[dict[str, Any]]) -> tuple[int, dict[str, int]]:
        self.promised_s.append(said[-1]["due_s"] - time.time())
        return batch, {}

    def create_timers(self) -> None:
        """Do nothing."""

    def fence(self, batch: int) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("as_of_ms", "every_s", "is_soon"), [(0, None, True), (0, 10, False), (1000, None, False), (1000, 10, False)]
)
def test_an_audit_that_is_killed_while_it_fills_the_tables_may_start_again_soon(
    as_of_ms: int, every_s: int | None, is_soon: bool
) -> None:
    table: Any = SimHistory(as_of_ms)
    spark: Any = None
    found = _Job(spark, Settings.load({}), Params("t"), table, print, Total(), Event(), every_s)
    promised_s = (*table.promised_s, found._at_work_s)  # of its start, and of a part of many records
    assert [each <= IDLE_S + FRESH_S for each in promised_s] == [is_soon] * 2


def test_what_a_topic_that_was_made_anew_lacks_begins_where_its_last_log_was_read() -> None:
    """However long the new log is. That may lack its first records, too."""
    found = plan({0: (7, 9, "01"), 1: (4, 4, "01")}, {0: 0, 1: 2}, {0: 3, 1: 6})
    assert found.gaps == [
        Gap(TOPIC, 0, 7, 9, FIRST_MS, ANEW, REQUEST),
        Gap(TOPIC, 1, 4, 4, FIRST_MS, ANEW, REQUEST),
        Gap(TOPIC, 1, 0, 2, 3000, DELETED, REQUEST),
    ]
    assert (found.starts, found.ends) == ({TOPIC: {0: 0, 1: 2}}, {TOPIC: {0: 3, 1: 6}})
    assert found.gaps[0].offsets == "from 7 on", "where it ended is not known"


def test_a_partition_that_a_topic_has_no_more_is_a_gap_and_is_not_read() -> None:
    found = plan({0: (7, 9, "01"), 1: (4, 5, "01")}, {0: 0}, {0: 3})
    assert [(gap.partition, gap.start, gap.end) for gap in found.gaps] == [(0, 7, 9), (1, 4, 5)]
    assert {place[2] for place in found.positions} == {0}


def test_a_log_that_has_lost_its_end_lacks_what_was_read_of_it() -> None:
    found = plan({0: (7, 9, "02")}, {0: 0}, {0: 3})
    assert found.gaps == [Gap(TOPIC, 0, 3, 9, NOW_MS, CUT, REQUEST)]
    assert found.starts == {TOPIC: {0: 3}} and found.gaps[0].offsets == "3 to 9"
