"""What a round of ``timers spark history`` reads of a topic, and what it finds to be missing."""

import time
from threading import Event
from typing import Any

import pytest

from timers.kafka import clients
from timers.kafka.topic_offsets import Offsets
from timers.process.config.settings import Settings
from timers.spark.audit.history import LOG_CUT, RECORDS_DELETED, REQUEST, TOPIC_MADE_ANEW, Gap, Known, Position
from timers.spark.jobs import history as job
from timers.spark.jobs.history import FRESH_S, IDLE_S, Params, Total, _Job
from timers.spark.monitoring import MAX_WORK_S, Monitor

TOPIC, NOW_MS, FIRST_MS = "requests", 5000, 4000
GONE = "deleted"


class SimOffsets:
    """The offsets of a topic with the id ``02``."""

    def __init__(self, first: dict[int, int], end: dict[int, int]) -> None:
        self._first, self._end = first, end

    def starts(self, names: list[str]) -> Offsets:
        return {TOPIC: self._first}

    def ends(self, names: list[str]) -> Offsets:
        return {TOPIC: self._end}

    def id_of(self, topic: str) -> bytes:
        return b"" if topic == GONE else b"\x02"

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
def test_a_killed_audit_may_fill_the_tables_again_soon(as_of_ms: int, every_s: int | None, is_soon: bool) -> None:
    table: Any = SimHistory(as_of_ms)
    spark: Any = None
    found = _Job(spark, Settings.load({}), Params("t"), table, print, Total(), Event(), every_s, Monitor("history", 0))
    promised_s = (*table.promised_s, found._at_work_s)  # of its start, and of a part of many records
    assert [each <= IDLE_S + FRESH_S for each in promised_s] == [is_soon] * 2


def test_what_a_topic_that_was_made_anew_lacks_begins_where_its_last_log_was_read() -> None:
    """However long the new log is. That may lack its first records, too."""
    found = plan({0: (7, 9, "01"), 1: (4, 4, "01")}, {0: 0, 1: 2}, {0: 3, 1: 6})
    assert found.gaps == [
        Gap(TOPIC, 0, 7, 9, FIRST_MS, TOPIC_MADE_ANEW, REQUEST),
        Gap(TOPIC, 1, 4, 4, FIRST_MS, TOPIC_MADE_ANEW, REQUEST),
        Gap(TOPIC, 1, 0, 2, 3000, RECORDS_DELETED, REQUEST),
    ]
    assert (found.starts, found.ends) == ({TOPIC: {0: 0, 1: 2}}, {TOPIC: {0: 3, 1: 6}})
    assert found.gaps[0].offsets == "from 7 on", "where it ended is not known"


def test_a_partition_that_a_topic_has_no_more_is_a_gap_and_is_not_read() -> None:
    found = plan({0: (7, 9, "01"), 1: (4, 5, "01")}, {0: 0}, {0: 3})
    assert [(gap.partition, gap.start, gap.end) for gap in found.gaps] == [(0, 7, 9), (1, 4, 5)]
    assert {place[2] for place in found.positions} == {0}


def test_a_log_that_has_lost_its_end_lacks_what_was_read_of_it() -> None:
    found = plan({0: (7, 9, "02")}, {0: 0}, {0: 3})
    assert found.gaps == [Gap(TOPIC, 0, 3, 9, NOW_MS, LOG_CUT, REQUEST)]
    assert found.starts == {TOPIC: {0: 3}} and found.gaps[0].offsets == "3 to 9"


class SimCluster(SimOffsets):
    """A topic of requests with three records, an empty one of callbacks, and one of other programs, whose partition has
    no leader."""

    brokers = 1
    strange = "strange"

    def __init__(self) -> None:
        super().__init__({0: 1}, {0: 4})

    def newest_append_ms(self, topic: str) -> dict[int, Any]:
        return {}

    def all(self) -> list[str]:
        return [TOPIC, "timer-dead-letter", self.strange]

    def existing(self, names: Any) -> list[str]:
        return sorted({*names} & {*self.all()})

    def starts(self, names: list[str]) -> Offsets:
        return {topic: ({0: 1} if topic == TOPIC else {0: 0}) for topic in self._answered(names)}

    def ends(self, names: list[str]) -> Offsets:
        return {topic: ({0: 4} if topic == TOPIC else {0: 0}) for topic in self._answered(names)}

    high_watermarks = ends

    def _answered(self, names: list[str]) -> list[str]:
        assert self.strange not in names, "its leader does not answer"
        return names


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any]]:
    """A job whose commits, and notes of what it needs, are listed in their order: (name, offset of the requests)."""
    steps: list[Any] = []
    settings = Settings.load({"TIMERS_REQUEST_TOPIC": TOPIC, "TIMERS_ID_TOPIC": ""})
    sim: Any = SimHistory(1000)
    spark: Any = None
    made = _Job(spark, settings, Params("t", max_records=1), sim, print, Total(), Event(), 10, Monitor("history", 10))
    made._known = made._known._replace(through=3, batch=3)

    def add(plans: Any, progress: Any, as_of_ms: int | None, again_s: int | None) -> None:
        for each in plans:
            made._known = made._known._replace(positions={**made._known.positions, **each.after()})
        steps.append(("committed", made._known.positions[REQUEST, TOPIC, 0].offset))

    class Group:
        def commit(self, *, offsets: list[Any], asynchronous: bool) -> None:
            steps.append(("noted", *(each.offset for each in offsets)))

        def close(self) -> None:
            """Do nothing."""

    monkeypatch.setattr(made, "_add", add)
    monkeypatch.setattr(made, "_open", lambda plan: steps.append(("snapshot read",)))
    monkeypatch.setattr(job, "TopicOffsets", lambda *_: SimCluster())
    monkeypatch.setattr(job, "progress_of", lambda *_: {})
    monkeypatch.setattr(clients, "reader", lambda *_, **__: Group())
    return made, steps


def test_nothing_is_trimmed_that_a_round_has_not_read(rounds: tuple[Any, list[Any]]) -> None:
    """Also during the first one, which may take hours. A topic of other programs is not asked for."""
    made, steps = rounds
    assert made.round() == 3
    expected: list[Any] = [("noted", 1), ("snapshot read",)]
    for offset in (2, 3, 4, 4):
        expected += [("committed", offset), ("noted", offset)]
    assert steps == expected


def test_a_topic_that_is_deleted_while_a_round_plans_is_not_made_anew() -> None:
    made: Any = _Job.__new__(_Job)
    made._known, made._named = Known(3, {(REQUEST, GONE, 0): Position(7, 9, 0, "01", 0)}, 3, 1000), {}
    cluster: Any = SimOffsets({0: 0}, {0: 3})
    cluster.starts = cluster.ends = lambda names: {GONE: {0: 3}}
    found = made._plan(cluster, REQUEST, [GONE], {GONE: {0: 3}}, NOW_MS, {})
    assert (found.gaps, found.positions) == ([], {})
    cluster.starts = cluster.ends = lambda names: {}
    assert made._plan(cluster, REQUEST, [GONE], {}, NOW_MS, {}).positions == {}


def test_upkeep_and_a_make_of_all_timers_may_take_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor that ended the job before would end it again each time: nothing of them is kept."""
    now_s, table = [0.0], SimHistory(1000)
    monitor, spark, sim = Monitor("history", 10, lambda: now_s[0]), None, table
    made: Any = _Job(spark, Settings.load({}), Params("t"), sim, print, Total(), Event(), 10, monitor)  # type: ignore[arg-type]

    def make(*_: Any) -> int:
        now_s[0] += MAX_WORK_S - 60
        assert list(monitor.unlive()) == []
        assert list(monitor.unready()) != [], "it reads nothing"
        return 0

    monkeypatch.setattr(table, "make", make, raising=False)
    made._make()
    with made.at_work():
        make()
    assert list(monitor.unlive()) == []
    now_s[0] += MAX_WORK_S - 60
    assert list(monitor.unlive()) != [], "nothing is at work"
