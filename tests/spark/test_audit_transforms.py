"""What became of each request, told from rows: no Kafka."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.testing import assertDataFrameEqual

from timers.spark import columns
from timers.spark.audit import evidence, figures, outcomes, report, versions
from timers.spark.audit.findings import Findings
from timers.spark.audit.outcomes import Moment
from timers.spark.requests import REQUEST
from timers.wire import headers as h

pytestmark = pytest.mark.spark

DUE = 1_700_000_000
MOMENT = Moment(as_of_ms=(DUE + 1000) * 1000, grace_s=60)
"""Everything due at DUE has had its time."""


def request(
    offset: int,
    due_s: int | None = DUE,
    *,
    kind: str = "timer",
    id: str | None = None,
    target: str | None = "orders",
    accepted_ms: int = (DUE - 100) * 1000,
    topic: str = "timer-request",
    code: str | None = None,
) -> tuple[object, ...]:
    name = f"{topic}/0/{offset}"
    timer_id = id or (name if kind == "timer" else None)
    return topic, 0, offset, accepted_ms, kind, timer_id, due_s, due_s, target, 0, name, code, 100


def fired(
    timer_id: str, fired_ms: int = DUE * 1000 + 20, *, due_s: int = DUE, target: str = "orders", late_ms: int = 30
) -> dict[str, Any]:
    return {
        "timer_id": timer_id,
        "due_s": due_s,
        "callback_topic": target,
        "fired_ms": fired_ms,
        "append_ms": fired_ms + late_ms,
        "position": f"{target}/0/{fired_ms}",
    }


FIRED = "timer_id string, due_s long, callback_topic string, fired_ms long, append_ms long, position string"
LETTERS = "request string, letters long, letter_code string"
MOVED = "request string, wait_s long, attempts int"
SINCE = "callback_topic string, whole_since_ms long"
VERDICTS = "asked_by string, verdict string"


def became(
    spark: SparkSession,
    asked: list[tuple[object, ...]],
    firings: list[dict[str, Any]],
    *,
    letters: list[tuple[str, int, str]] | None = None,
    moved: list[tuple[str, int, int]] | None = None,
    whole_since: dict[str, int] | None = None,
    verdicts: list[tuple[str, str]] | None = None,
) -> DataFrame:
    """The outcomes of some requests; ``verdicts`` says that their timers have ids."""
    requests = spark.createDataFrame(asked, REQUEST)
    ids = verdicts is not None
    if ids:
        of = versions.with_ids(requests, spark.createDataFrame(verdicts or [], VERDICTS))
    else:
        of = versions.without_ids(requests)
    return outcomes_of(spark, of, firings, letters=letters, moved=moved, whole_since=whole_since, ids=ids)


def outcomes_of(
    spark: SparkSession,
    of: DataFrame,
    firings: list[dict[str, Any]],
    *,
    letters: list[tuple[str, int, str]] | None = None,
    moved: list[tuple[str, int, int]] | None = None,
    whole_since: dict[str, int] | None = None,
    waiting: DataFrame | None = None,
    ids: bool,
) -> DataFrame:
    """The outcomes of versions."""
    ranked = outcomes.ranked(
        of, spark.createDataFrame(letters or [], LETTERS), spark.createDataFrame(moved or [], MOVED), ids=ids
    )
    rows = [tuple(each.values()) for each in firings]
    since = spark.createDataFrame(list((whole_since or {"orders": 0}).items()), SINCE)
    return outcomes.outcomes(ranked, spark.createDataFrame(rows, FIRED), since, MOMENT, waiting).cache()


def said(found: DataFrame) -> dict[int, tuple[str, list[str]]]:
    """Offset -> status and faults."""
    rows = found.where("request is not null").collect()
    return {row.offset: (row.status, sorted(row.faults)) for row in rows}


def test_each_request_comes_to_one_thing(spark: SparkSession) -> None:
    soon = DUE + 950
    asked = [
        request(0),
        request(1),
        request(2),
        request(3),
        request(4, soon),
        request(5, accepted_ms=soon * 1000),
        request(6, kind="rejected", due_s=None, target=None, code="key-missing"),
        request(7, kind="rejected", due_s=None, target=None, code="key-missing"),
        request(8),
        request(9),
        request(10, target="gone"),
        request(11),
        request(12, DUE + 1),
        request(13, target="other"),
    ]
    firings = [
        fired("timer-request/0/0"),
        fired("timer-request/0/2"),
        fired("timer-request/0/2", DUE * 1000 + 700),
        fired("timer-request/0/3", DUE * 1000 - 1),
        fired("timer-request/0/9"),
        fired("timer-request/0/11", DUE * 1000 - 40, late_ms=45),
        fired("timer-request/0/13"),  # on another topic than it asked for: a receiver's copy
    ]
    found = became(
        spark,
        asked,
        firings,
        letters=[("timer-request/0/1", 1, "topic-unknown"), *[(f"timer-request/0/{o}", 1, "x") for o in (6, 9)]],
        moved=[("timer-request/0/8", soon, 2)],
        whole_since={"orders": 0, "gone": DUE * 1000 + 1, "other": 0},
    )
    assert said(found) == {
        0: ("fired", []),
        1: ("dead-lettered", []),
        2: ("fired", ["duplicate"]),
        3: ("fired", ["early"]),
        4: ("pending", []),  # within the grace
        5: ("pending", []),  # came late, and within the grace
        6: ("dead-lettered", []),
        7: ("lost", ["lost"]),  # it should have a dead letter
        8: ("pending", []),  # put off
        9: ("fired", ["duplicate"]),  # and a dead letter too
        10: ("evidence-gone", []),
        11: ("fired", ["early"]),  # by its tick, though the broker took it in the second
        12: ("lost", ["lost"]),
        13: ("lost", ["lost"]),
    }
    totals = {(row.topic, row.status): row["count"] for row in figures.totals(found).collect()}
    assert sum(totals.values()) == len(asked) and totals["timer-request", "fired"] == 5
    assert [row.timer_id for row in figures.unmatched(found).collect()] == ["timer-request/0/13"]
    lag = {row.offset: row.lag_ms for row in found.collect() if row.lag_ms is not None}
    assert lag == {0: 50, 2: 50, 3: 29, 9: 50, 11: 5}


def test_offenders_come_with_the_records_that_show_them(spark: SparkSession) -> None:
    firings = [fired("timer-request/0/0", DUE * 1000 + at) for at in (900, 20)]
    found = became(spark, [request(0), request(1)], firings)
    offenders = figures.with_positions(
        figures.offenders(found), spark.createDataFrame([tuple(f.values()) for f in firings], FIRED)
    )
    rows = {row.fault: row for row in offenders.collect()}
    assert set(rows) == {"lost", "duplicate"}
    assert rows["duplicate"].positions == [f"orders/0/{DUE * 1000 + 20}", f"orders/0/{DUE * 1000 + 900}"]
    assert (rows["lost"].timer_id, rows["lost"].positions) == ("timer-request/0/1", None)


def test_what_is_cold_is_pending_until_it_is_overdue(spark: SparkSession) -> None:
    asked = [request(0, DUE + 5000), request(1, DUE + 5000), request(2), request(3)]
    of = versions.without_ids(spark.createDataFrame(asked, REQUEST))
    waiting = spark.createDataFrame([(f"timer-request/0/{offset}",) for offset in (0, 2, 3)], "request string")
    found = outcomes_of(spark, of, [fired("timer-request/0/3")], waiting=waiting, ids=False)
    assert said(found) == {0: ("cold", []), 1: ("pending", []), 2: ("lost", ["lost"]), 3: ("fired", [])}
    lost = found.where("status = 'lost'").collect()
    assert [row.cold for row in lost] == [True]
    findings = Findings(MOMENT, listed={"lost": [row.asDict() for row in lost]})
    assert report.hint(findings).startswith("All listed lost timers are in the cold tier")
    assert {row.due_s: row.timers for row in figures.forecast(found).collect()} == {DUE + 5000: 2}


def test_what_no_committed_reader_sees_must_not_fire(spark: SparkSession) -> None:
    firings = [
        fired(name) for name in ("timer-request/0/0", "timer-request/0/1", "timer-request/0/9", "order-1", "a/b/c")
    ]
    found = became(spark, [request(0)], firings)
    known = spark.createDataFrame([("timer-request/0/0",)], "request string")
    unasked = figures.unasked(figures.unmatched(found), known, {"timer-request": {0: range(5)}})
    # 9 is beyond what was read, and the others are no names of requests.
    assert [(row.fault, row.timer_id) for row in unasked.collect()] == [("unasked", "timer-request/0/1")]


BEFORE, AFTER = (DUE - 10) * 1000, (DUE + 10) * 1000
CANCEL: dict[str, Any] = {"kind": "cancel", "due_s": None, "target": None}


@pytest.fixture(scope="module")
def with_ids(spark: SparkSession) -> dict[int, tuple[str, list[str]]]:
    """All stories of ids in one job, for each of them costs a second."""
    asked = [
        # a: replaced in time by a version for later, which fires
        request(0, id="a"),
        request(1, DUE + 5, id="a", accepted_ms=BEFORE),
        # b: cancelled in time; c: told so, and fired all the same; d: the cancel came too late
        *(request(2, id="b"), request(3, id="b", accepted_ms=BEFORE, **CANCEL)),
        *(request(4, id="c"), request(5, id="c", accepted_ms=BEFORE, **CANCEL)),
        *(request(6, id="d"), request(7, id="d", accepted_ms=AFTER, **CANCEL)),
        # e: the cancel came too late, it is told, and it never fired
        *(request(8, id="e"), request(9, id="e", accepted_ms=AFTER, **CANCEL)),
        # f, g: no verdict, and the cancel came after the start of the second: either is right
        *(request(10, id="f"), request(11, id="f", accepted_ms=AFTER, **CANCEL)),
        *(request(12, id="g"), request(13, id="g", accepted_ms=AFTER, **CANCEL)),
        # h: no verdict, cancelled in time
        *(request(14, id="h"), request(15, id="h", accepted_ms=BEFORE, **CANCEL)),
        # i: set again for the same second, and fired once
        *(request(16, id="i"), request(17, id="i", accepted_ms=BEFORE)),
        # j: fired, and set once more for a second that is past: fires again
        *(request(18, id="j"), request(19, id="j", accepted_ms=AFTER)),
        # k: as j, but three firings; l: as j, but one
        *(request(20, id="k"), request(21, id="k", accepted_ms=AFTER)),
        *(request(22, id="l"), request(23, id="l", accepted_ms=AFTER)),
        # m: one that cannot be read does not end its story
        *(request(24, id="m"), request(25, id=None, kind="rejected", due_s=None, target=None, code="due-missing")),
    ]
    firings = [fired("a", due_s=DUE + 5), *map(fired, ["c", "d", "f", "i", *"jj", *"kkk", "l", "m"])]
    verdicts = [
        *(("timer-request/0/1", "replaced"), ("timer-request/0/3", "cancelled"), ("timer-request/0/5", "cancelled")),
        *(("timer-request/0/7", "already-fired"), ("timer-request/0/9", "unknown"), ("timer-request/0/17", "replaced")),
        *((f"timer-request/0/{offset}", "already-fired") for offset in (19, 21, 23)),
    ]
    letters = [("timer-request/0/25", 1, "due-missing")]
    return said(became(spark, asked, firings, verdicts=verdicts, letters=letters))


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ((0, 1), [("replaced", []), ("fired", ["early"])]),
        ((2,), [("cancelled", [])]),
        ((4,), [("fired", ["revoked"])]),
        ((6,), [("fired", [])]),
        ((8,), [("lost", ["lost"])]),
        ((10,), [("fired", [])]),
        ((12,), [("cancelled", [])]),
        ((14,), [("cancelled", [])]),
        ((16, 17), [("replaced", []), ("fired", [])]),
        ((18, 19), [("fired", []), ("fired", [])]),
        ((20, 21), [("fired", ["duplicate"]), ("fired", [])]),
        ((22, 23), [("fired", []), ("lost", ["lost"])]),
        ((24, 25), [("fired", []), ("dead-lettered", [])]),
    ],
)
def test_a_story_of_an_id(
    with_ids: dict[int, tuple[str, list[str]]], offsets: tuple[int, ...], expected: list[tuple[str, list[str]]]
) -> None:
    assert [with_ids[offset] for offset in offsets] == expected


@pytest.fixture(scope="module")
def schedules(spark: SparkSession) -> dict[int, tuple[str, list[str]]]:
    """Stories in a topic of schedules; ``ends`` are tombstones of the engine's, by the version that they name."""

    def ends(offset: int, id: str, version: int) -> tuple[object, ...]:
        row = request(offset, id=id, kind="ended", due_s=None, target=None, accepted_ms=AFTER)
        return tuple({**row_fields(row), "request": f"timer-request/0/{version}"}.values())

    long_before = (DUE - 90) * 1000
    asked = [
        # a: fires, and is ended; b: the engine says that it has left, and it went nowhere
        *(request(0, id="a"), ends(1, "a", 0)),
        *(request(2, id="b"), ends(3, "b", 2)),
        # c: its users replaced it long before; d: deleted it; e: wrote what cannot be read
        *(request(4, id="c"), request(5, DUE + 5, id="c", accepted_ms=long_before), ends(6, "c", 5)),
        *(request(7, id="d"), request(8, id="d", accepted_ms=long_before, **CANCEL)),
        *(request(9, id="e"), rejected(10, "e", long_before)),
        # f: deleted long before, and fired all the same; g: within a minute, which may be a clock's
        *(request(11, id="f"), request(12, id="f", accepted_ms=long_before, **CANCEL)),
        *(request(13, id="g"), request(14, id="g", accepted_ms=BEFORE, **CANCEL)),
        # h: replaced in its very second, when it had left; what it is deleted by later changes nothing
        *(request(15, id="h"), request(16, DUE + 5, id="h", accepted_ms=AFTER), ends(17, "h", 15)),
        # i: a version that comes between a firing and its tombstone is appended again; j: and is not
        *(request(18, id="i"), request(19, DUE + 5, id="i", accepted_ms=DUE * 1000), ends(20, "i", 18)),
        *(request(21, DUE + 5, id="i", accepted_ms=DUE * 1000), ends(22, "i", 21)),
        *(request(23, id="j"), request(24, DUE + 5, id="j", accepted_ms=DUE * 1000), ends(25, "j", 23)),
        # k: compaction took the versions before; l: it waits
        request(30, id="k"),
        request(31, DUE + 5000, id="l"),
    ]
    firings = [*map(fired, ["a", "f", "h", "i", "j", "k"]), fired("i", (DUE + 5) * 1000, due_s=DUE + 5)]
    firings += [fired("c", (DUE + 5) * 1000, due_s=DUE + 5)]
    of = versions.of_schedules(spark.createDataFrame(asked, REQUEST))
    letters = [("timer-request/0/10", 1, "due-missing")]
    return said(outcomes_of(spark, of, firings, letters=letters, ids=True))


def row_fields(row: tuple[object, ...]) -> dict[str, Any]:
    return dict(zip(REQUEST.names, row, strict=True))


def rejected(offset: int, id: str, accepted_ms: int) -> tuple[object, ...]:
    said: dict[str, Any] = {"kind": "rejected", "due_s": None, "target": None, "code": "due-missing"}
    return request(offset, id=id, accepted_ms=accepted_ms, **said)


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ((0,), [("fired", [])]),
        ((2,), [("lost", ["lost"])]),
        ((4, 5), [("replaced", []), ("fired", [])]),
        ((7,), [("cancelled", [])]),
        ((9, 10), [("replaced", []), ("dead-lettered", [])]),
        ((11,), [("fired", ["revoked"])]),
        ((13,), [("cancelled", [])]),
        ((15, 16), [("fired", []), ("lost", ["lost"])]),
        ((18, 19, 21), [("fired", []), None, ("fired", [])]),
        ((23, 24), [("fired", []), ("lost", ["lost"])]),
        ((30,), [("fired", [])]),
        ((31,), [("pending", [])]),
    ],
)
def test_a_story_of_a_schedule(
    schedules: dict[int, tuple[str, list[str]]],
    offsets: tuple[int, ...],
    expected: list[tuple[str, list[str]] | None],
) -> None:
    assert [schedules.get(offset) for offset in offsets] == expected


def test_what_a_schedule_that_compaction_took_has_fired_is_not_its_successors(spark: SparkSession) -> None:
    """Set again, for the same second and topic, when it had fired: the first version and its tombstone are gone."""
    late_ms = (DUE + 120) * 1000
    of = versions.of_schedules(spark.createDataFrame([request(5, id="a", accepted_ms=late_ms)], REQUEST))
    rows = [fired("a"), fired("a", late_ms), fired("b")]
    firings = spark.createDataFrame([tuple(each.values()) for each in rows], FIRED)
    kept = evidence.without_compacted(firings, of)
    assert sorted((row.timer_id, row.fired_ms) for row in kept.collect()) == [
        ("a", late_ms),
        ("b", DUE * 1000 + 20),
    ]


def test_evidence_is_what_the_headers_say(spark: SparkSession) -> None:
    def record(
        topic: str, headers: list[tuple[str, bytes | None]], value: bytes | None = None, type: int = 1
    ) -> tuple[object, ...]:
        pairs = [Row(key=name, value=data) for name, data in headers]
        return topic, 1, 7, 123_456, type, b"key", value, pairs

    ours: list[tuple[str, bytes | None]] = [
        (h.TIMER_ID, b"order-1"),
        (h.TIMER_DUE, b"1700000000"),
        (h.TIMER_FIRED, b"1700000000020"),
    ]
    records = [record("orders", ours), record("orders", ours, type=0), record("orders", [("other", b"x")])]
    firings = evidence.firings(spark.createDataFrame(records, columns.RECORD))
    expected = [("order-1", DUE, "orders", DUE * 1000 + 20, append_ms, "orders/1/7") for append_ms in (123_456, None)]
    assertDataFrameEqual(firings, spark.createDataFrame(expected, FIRED))
    letters = [record("dead", [(h.TIMER_ERROR, b"topic-unknown"), (h.TIMER_SOURCE, b"timer-request/0/5")])] * 2
    assertDataFrameEqual(
        evidence.letters(spark.createDataFrame([*letters, record("dead", [])], columns.RECORD)),
        spark.createDataFrame([("timer-request/0/5", 2, "topic-unknown")], LETTERS),
    )
    verdict = b'{"id": "order-1", "verdict": "already-fired", "due": 1}'
    told = [record("verdicts", [(h.TIMER_SOURCE, b"by-id/0/5")], verdict), record("verdicts", [], b"other")]
    assertDataFrameEqual(
        evidence.verdicts(spark.createDataFrame(told, columns.RECORD)),
        spark.createDataFrame([("by-id/0/5", "already-fired")], VERDICTS),
    )


def test_lags_and_what_lies_ahead(spark: SparkSession) -> None:
    asked = [request(offset, DUE + 60 * (offset % 2)) for offset in range(6)]
    asked += [request(offset, DUE + 5000 + offset // 8) for offset in range(6, 9)]
    firings = [
        fired(
            f"timer-request/0/{offset}", (DUE + 60 * (offset % 2)) * 1000 + 10 * offset, due_s=DUE + 60 * (offset % 2)
        )
        for offset in range(6)
    ]
    found = became(spark, asked, firings)
    rows = figures.lags(found, figures.minute_s(), "callback_topic").orderBy("minute_s").collect()
    minute = DUE - DUE % 60
    assert [tuple(row) for row in rows] == [
        (minute, "orders", 3, 50, 70, 70, 70),
        (minute + 60, "orders", 3, 60, 80, 80, 80),
    ]
    ahead = figures.forecast(found).orderBy("due_s").collect()
    assert [tuple(row) for row in ahead] == [(DUE + 5000, "orders", 2, 200), (DUE + 5001, "orders", 1, 100)]
