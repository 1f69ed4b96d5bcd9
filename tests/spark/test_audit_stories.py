"""What became of timers whose ids are used several times, told from rows: no Kafka."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.audit_rows import (
    AFTER,
    BEFORE,
    DUE,
    became,
    fired,
    firings_of,
    outcomes_of,
    request,
    said,
)
from timers.spark.audit import outcomes
from timers.spark.requests import REQUEST_SCHEMA

pytestmark = pytest.mark.spark

CANCEL: dict[str, Any] = {"kind": "cancel", "due_s": None, "target": None}
ONLY_IF: dict[str, Any] = {"accepted_ms": BEFORE, "conditional": True}


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
        # n: a change is refused, the next one counts; o: a condition without a verdict; p: set after it was forgotten
        *(request(26, id="n"), request(27, id="n", **ONLY_IF), request(28, DUE + 6, id="n", **ONLY_IF)),
        *(request(29, id="o"), request(30, DUE + 7, id="o", **ONLY_IF)),
        *(request(31, id="p"), request(32, DUE + 8, id="p", conditional=True, accepted_ms=AFTER)),
        # q, r: what its partition rejected on arrival, and the audit can decode, ends no version
        *(request(33, id="q"), request(34, DUE + 9, id="q", accepted_ms=BEFORE)),
        *(request(35, id="r"), request(36, id="r", accepted_ms=BEFORE, conditional=True, **CANCEL)),
        # m: one that cannot be read does not end its story
        *(request(24, id="m"), request(25, id=None, kind="rejected", due_s=None, target=None, code="due-missing")),
    ]
    firings = [fired("a", due_s=DUE + 5), *map(fired, ["c", "d", "f", "i", *"jk", "l", "m", "q"])]
    firings += [fired("n", AFTER, due_s=DUE + 6), fired("o"), fired("p", AFTER, due_s=DUE + 8)]
    firings += [fired(id, AFTER + number) for number, id in enumerate("jkk")]
    verdicts = [
        *(("timer-request/0/1", "replaced"), ("timer-request/0/3", "cancelled"), ("timer-request/0/5", "cancelled")),
        *(("timer-request/0/7", "already-fired"), ("timer-request/0/9", "unknown"), ("timer-request/0/17", "replaced")),
        *((f"timer-request/0/{offset}", "already-fired") for offset in (19, 21, 23)),
        *(("timer-request/0/27", "exists"), ("timer-request/0/28", "replaced"), ("timer-request/0/32", "set")),
    ]
    letters = [("timer-request/0/25", 1, "due-missing"), ("timer-request/0/34", 1, "value-too-large")]
    letters += [("timer-request/0/36", 1, "condition-invalid")]
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
        ((26, 27, 28), [("replaced", []), ("refused", []), ("fired", [])]),
        ((29, 30), [("fired", []), ("undecided", [])]),
        ((31, 32), [("lost", ["lost"]), ("fired", [])]),
        ((33, 34), [("fired", []), ("dead-lettered", [])]),
        ((35, 36), [("lost", ["lost"]), ("dead-lettered", [])]),
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
    of = outcomes.of_schedules(spark.createDataFrame(asked, REQUEST_SCHEMA))
    letters = [("timer-request/0/10", 1, "due-missing")]
    return said(outcomes_of(spark, of, firings, letters=letters, ids=True))


def row_fields(row: tuple[object, ...]) -> dict[str, Any]:
    return dict(zip(REQUEST_SCHEMA.names, row, strict=True))


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
    of = outcomes.of_schedules(spark.createDataFrame([request(5, id="a", accepted_ms=late_ms)], REQUEST_SCHEMA))
    rows = [fired("a"), fired("a", late_ms), fired("b")]
    kept = outcomes.without_compacted(firings_of(spark, rows), of)
    assert sorted((row.timer_id, row.fired_ms) for row in kept.collect()) == [
        ("a", late_ms),
        ("b", DUE * 1000 + 20),
    ]
