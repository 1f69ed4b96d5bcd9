"""What became of each request, told from rows: no Kafka."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from tests.spark.audit_rows import (
    AFTER,
    DUE,
    LETTERS,
    MOMENT,
    VERDICTS,
    became,
    fired,
    firings_of,
    outcomes_of,
    request,
    said,
)
from timers.spark import columns
from timers.spark.audit import findings as figures
from timers.spark.audit import gaps, outcomes, report
from timers.spark.audit.findings import Findings, HourLag, Objective, Reached
from timers.spark.audit.gaps import inside
from timers.spark.requests import REQUEST_SCHEMA
from timers.wire import headers as h

pytestmark = pytest.mark.spark


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
        moved=[("timer-request/0/8", soon)],
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
        10: ("lost", ["lost"]),
        11: ("fired", ["early"]),  # by its tick, though the broker took it in the second
        12: ("lost", ["lost"]),
        13: ("lost", ["lost"]),
    }
    totals = {(row.topic, row.status): row["count"] for row in figures.totals(found).collect()}
    assert sum(totals.values()) == len(asked) and totals["timer-request", "fired"] == 5
    assert [row.request for row in found.where("status is null").collect()] == ["timer-request/0/13"]
    lag = {row.offset: row.lag_ms for row in found.collect() if row.lag_ms is not None}
    assert lag == {0: 50, 2: 50, 3: 29, 9: 50, 11: 5}


def test_each_fault_of_a_firing_has_a_name(spark: SparkSession) -> None:
    accepted_ms, hour_ms = (DUE - 100) * 1000, 3_600_000
    asked = [*map(request, range(6)), request(8)]
    asked += [request(6, accepted_ms=(DUE + 100) * 1000), request(7, accepted_ms=(DUE + 100) * 1000)]
    firings = [
        fired("timer-request/0/0", content=8),
        fired("timer-request/0/1"),
        fired("timer-request/0/1", content=8),  # the second one only
        fired("timer-request/0/2", DUE * 1000 + hour_ms),
        fired("timer-request/0/3", DUE * 1000 + hour_ms + 1),
        fired("timer-request/0/4", accepted_ms - 100),
        fired("timer-request/0/5", DUE * 1000 + hour_ms + 60_000),  # after it was put off
        fired("timer-request/0/6", (DUE + 100) * 1000, late_ms=-1),  # it was late, and is older than its request
        fired("timer-request/0/7", (DUE + 99) * 1000, late_ms=1000),  # by a tick that was older, which is right
        fired("timer-request/0/8") | {"fired_ms": None},  # it does not say at which tick
    ]
    found = became(spark, asked, firings, moved=[("timer-request/0/5", DUE + 120)])
    assert {offset: faults for offset, (_, faults) in said(found).items()} == {
        0: ["altered"],
        1: ["altered", "duplicate"],
        2: ["slow"],
        3: ["slow"],
        4: ["early", "older-than-request"],
        5: [],
        6: ["older-than-request"],
        7: [],
        8: ["altered"],
    }


def test_what_is_altered_is_named_with_both_hashes(spark: SparkSession) -> None:
    """Also if the same timer fired as it was requested, too; and if a row of an earlier version does not say it."""
    key, value, header = (1 << columns.PART_BITS * place for place in (2, 1, 0))
    asked = [request(offset, parts=0) for offset in range(6)]
    firings = [
        fired("timer-request/0/0", content=26, parts=key),
        fired("timer-request/0/1", content=5, parts=value | header),
        fired("timer-request/0/2", content=5, parts=header),
        fired("timer-request/0/2", parts=0),
        fired("timer-request/0/3") | {"fired_ms": None},
        fired("timer-request/0/4", content=8) | {"parts": None},
        fired("timer-request/0/5", parts=0),
    ]
    found = became(spark, asked, firings).collect()
    assert {row.offset: row.altered for row in found} == {
        0: "key: 7 in the request, 1a",
        1: "value, header: 7 in the request, 5",
        2: "header: 7 in the request, 5",
        3: "the time of its tick",
        4: "a part that is not known: 7 in the request, 8",
        5: None,
    }


def test_the_clocks_of_two_brokers_may_differ(spark: SparkSession) -> None:
    """One broker appends the tick, another one the callback: only the time of the tick is exact."""
    asked = outcomes.without_ids(spark.createDataFrame([request(offset) for offset in range(3)], REQUEST_SCHEMA))
    firings = [
        fired("timer-request/0/0", DUE * 1000 + 10, late_ms=-40),
        fired("timer-request/0/1", DUE * 1000 + 10, late_ms=-2011),
        fired("timer-request/0/2", DUE * 1000 - 1),
    ]
    moment = replace(MOMENT, clocks_ms=2000)
    found = said(outcomes_of(spark, asked, firings, moment=moment, ids=False))
    assert found == {0: ("fired", []), 1: ("fired", ["early"]), 2: ("fired", ["early"])}


def test_ranges_of_many_partitions_are_one_expression(spark: SparkSession) -> None:
    ranges = {"a": {p: range(p, 2 * p) for p in range(0, 4000, 2)}, "b": {0: range(10**18)}, "c": {}}
    places = [("a", "4", 4), ("a", "4", 7), ("b", "0", 10**17), ("a", "3998", 4000)]
    outside = [("a", "4", 3), ("a", "4", 8), ("a", "5", 5), ("a", "04", 5), ("a", "x", 5), ("b", "1", 0), ("c", "0", 0)]
    outside += [("a", "-1", 5), ("a", "4000", 4001), ("a", "99999999999", 5), ("d", "0", 0)]
    rows = spark.createDataFrame([*places, *outside], "topic string, partition string, offset long")
    topic, partition, offset = (F.col(name) for name in rows.columns)
    found = rows.where(inside(ranges, topic, partition, offset)).collect()
    assert sorted(map(tuple, found)) == sorted(places)
    of_numbers = rows.where("topic = 'b'").withColumn("partition", F.col("partition").cast("int"))
    assert of_numbers.where(inside(ranges, topic, partition, offset)).count() == 1
    assert of_numbers.where(~inside({}, topic, partition, offset)).count() == 2


def test_a_misspelt_pattern_matches_nothing(spark: SparkSession) -> None:
    requests = spark.createDataFrame([(name,) for name in ("order-1", "orders", "abc", None)], "callback_topic string")
    found = gaps.unused_patterns(["order-*", "ordres", "a.c"], requests)
    assert [each.text.split("'")[1] for each in found] == ["ordres", "a.c"]


def test_of_two_like_timers_the_one_that_never_fired_is_lost(spark: SparkSession) -> None:
    """An id was set twice for the same second and topic, and the callbacks name their versions."""
    asked = [request(0, id="a"), request(1, id="a", accepted_ms=AFTER)]
    twice = [fired("a", at, source="timer-request/0/0") for at in (DUE * 1000 + 20, DUE * 1000 + 11_000)]
    told = [("timer-request/0/1", "already-fired")]
    assert said(became(spark, asked, twice, verdicts=told)) == {0: ("fired", ["duplicate"]), 1: ("lost", ["lost"])}


def test_offenders_come_with_the_records_that_show_them(spark: SparkSession) -> None:
    firings = [fired("timer-request/0/0", DUE * 1000 + at) for at in (900, 20)]
    found = became(spark, [request(0), request(1)], firings)
    offenders = figures.with_positions(figures.offenders(found), firings_of(spark, firings))
    rows = {row.fault: row for row in offenders.collect()}
    many = firings_of(spark, [*firings, *(fired("timer-request/0/0", DUE * 1000 + 1000 + at) for at in range(30))])
    positions = figures.with_positions(figures.offenders(found), many).where("fault = 'duplicate'").first()
    assert positions is not None and len(positions.positions) == figures.MAX_POSITIONS
    assert positions.positions[:3] == [f"orders/0/{DUE * 1000 + at}" for at in (20, 900, 1000)]
    assert set(rows) == {"lost", "duplicate"}
    assert rows["duplicate"].positions == [f"orders/0/{DUE * 1000 + 20}", f"orders/0/{DUE * 1000 + 900}"]
    assert (rows["lost"].timer_id, rows["lost"].positions) == ("timer-request/0/1", None)


def test_what_is_cold_is_pending_until_it_is_overdue(spark: SparkSession) -> None:
    asked = [request(0, DUE + 5000), request(1, DUE + 5000), request(2), request(3)]
    of = outcomes.without_ids(spark.createDataFrame(asked, REQUEST_SCHEMA))
    waiting = spark.createDataFrame([(f"timer-request/0/{offset}",) for offset in (0, 2, 3)], "request string")
    found = outcomes_of(spark, of, [fired("timer-request/0/3")], waiting=waiting, ids=False)
    assert said(found) == {0: ("cold", []), 1: ("pending", []), 2: ("lost", ["lost"]), 3: ("fired", [])}
    lost = found.where("status = 'lost'").collect()
    assert [row.cold for row in lost] == [True]
    findings = Findings(MOMENT, listed={"lost": [row.asDict() for row in lost]})
    assert report.hint(findings).startswith("All listed lost timers are in the cold tier")
    assert {row.due_s: row.timers for row in figures.forecast(found).collect()} == {DUE + 5000: 2}


LOG = gaps.Log(
    ends={"timer-request": {0: range(9), 1: range(4)}, "schedules": {0: range(7)}},
    read={"timer-request": {0: range(2, 5)}},
)
"""Of partition 0 the audit reads a part, of partition 1 nothing. Compaction deletes schedules."""


def test_each_callback_without_a_request_is_a_fault_or_counted(spark: SparkSession) -> None:
    asked = [request(3), request(4, kind="cancel", due_s=None, target=None), request(2, target="other")]
    reasons = {
        # Nothing was committed there, and 9 is the end of the log. There is no partition 2.
        "unasked": [
            "timer-request/0/9",
            "timer-request/0/9~1",
            "timer-request/0/9999999",
            "timer-request/1/4",
            "timer-request/2/0",
        ],
        # Before the part that was read, after it, in another partition, and perhaps compacted.
        "not-in-scope": [
            "timer-request/0/1",
            "timer-request/0/5",
            "timer-request/0/8",
            "timer-request/0/8~1",
            "timer-request/1/3",
            "schedules/0/6",
        ],
        "other-topic": ["timer-requests/0/3", "orders/0/0"],
        "no-source": ["order-1", "a/b/c", "", "timer-request/x"],
        "copy": ["timer-request/0/2"],
    }
    # It is in the part that was read: a cancel; a name that the engine does not write; the end of a compacted log.
    reasons["unasked"] += ["timer-request/0/4", "schedules/0/7"]
    firings = [fired(name) for names in reasons.values() for name in names]
    firings += [fired("order-2", source=f"timer-request/{wrong}") for wrong in ("0/03", "0", "00/3", "0/" + 30 * "9")]
    reasons["unasked"] += ["order-2"] * 4
    firings += [fired("timer-request/0/3", due_s=DUE + 1), fired("timer-request/0/3") | {"due_s": None}]
    reasons["unasked"] += ["timer-request/0/3"]  # for a second that was not asked for
    reasons["incomplete"] = ["timer-request/0/3"]
    firings += [fired("timer-request/0/3")] * 2 + [fired("orders/0/0")]
    requests = spark.createDataFrame(asked, REQUEST_SCHEMA)
    found = outcomes_of(spark, outcomes.without_ids(requests), firings, ids=False)
    callbacks = gaps.unplaced_callbacks(found, requests, LOG).localCheckpoint()
    seen: dict[str, list[str]] = {reason: [] for reason in reasons}
    for row in callbacks.collect():
        seen[row.reason].append(row.timer_id)
    assert {reason: sorted(names) for reason, names in seen.items()} == {
        reason: sorted(names) for reason, names in reasons.items()
    }
    named = {"what": F.lit("callbacks"), "records": F.col("firings"), "example": F.col("request")}
    counts = {each.reason: (each.records, each.example) for each in gaps.count_unplaced(callbacks.withColumns(named))}
    assert counts["other-topic"] == (3, "orders/0/0") and "unasked" not in counts
    assert sum(records for records, _ in counts.values()) + len(reasons["unasked"]) + 2 == len(firings)


def test_a_callback_of_a_version_that_is_not_judged_is_counted(spark: SparkSession) -> None:
    """Such as one that was accepted after ``--to``, and is read because it may replace another."""
    requests = spark.createDataFrame([request(3), request(4)], REQUEST_SCHEMA)
    judged = outcomes.without_ids(requests.where("offset = 3"))
    found = outcomes_of(spark, judged, [fired("timer-request/0/4")], ids=False)
    callbacks = gaps.unplaced_callbacks(found, requests, LOG).collect()
    assert [(row.request, row.reason) for row in callbacks] == [("timer-request/0/4", "not-in-scope")]


def test_dead_letters_and_retries_without_a_request_are_counted(spark: SparkSession) -> None:
    outputs = [
        ("dead letters", "timer-request/0/3", 2),
        ("dead letters", "timer-request/0/9", 2),
        ("dead letters", "timer-request/0/8", 1),
        ("dead letters", "jobs/0/1", 1),
        ("dead letters", "jobs/0/0", 3),
        ("dead letters", "?", 1),
        ("dead letters", None, 1),
        ("timers on the retry topic", "timer-request/0/9", 1),
    ]
    frame = spark.createDataFrame(outputs, "what string, request string, records long")
    others = gaps.unplaced_others(frame, spark.createDataFrame([request(3)], REQUEST_SCHEMA), LOG)
    assert [tuple(each) for each in gaps.count_unplaced(others.withColumn("example", F.col("request")))] == [
        ("dead letters", "incomplete", 1, None),
        ("dead letters", "no-request", 2, "timer-request/0/9"),
        ("dead letters", "no-source", 1, "?"),
        ("dead letters", "not-in-scope", 1, "timer-request/0/8"),
        ("dead letters", "other-topic", 4, "jobs/0/0"),
        ("timers on the retry topic", "no-request", 1, "timer-request/0/9"),
    ]


CANCEL: dict[str, Any] = {"kind": "cancel", "due_s": None, "target": None}


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
    named: list[tuple[str, bytes | None]] = [(h.TIMER_SOURCE, b"by-id/0/5"), *ours]
    records.append(record("orders", named))
    # Without an id, or without a due second, it belongs to no request.
    records += [record("orders", ours[1:]), record("orders", [ours[0], (h.TIMER_DUE, b"soon"), ours[2]])]
    firings = outcomes.firings(spark.createDataFrame(records, columns.RECORD_SCHEMA), "timer-request").drop(
        "content", "parts"
    )
    expected: list[tuple[object, ...]] = [
        (request, "order-1", DUE, "orders", DUE * 1000 + 20, append_ms, "orders/1/7")
        for request, append_ms in (("order-1", 123_456), ("order-1", None), ("by-id/0/5", 123_456))
    ]
    expected += [(name, name, None, "orders", DUE * 1000 + 20, 123_456, "orders/1/7") for name in (None, "order-1")]
    assertDataFrameEqual(firings, spark.createDataFrame(expected, firings.schema))
    error: list[tuple[str, bytes | None]] = [
        (h.TIMER_ERROR, b"topic-unknown"),
        (h.TIMER_ERROR_MESSAGE, b"no such topic"),
        (h.TIMER_SOURCE, b"timer-request/0/5"),
    ]
    letters = [record("dead", error), record("dead", [("other", None), *error])]
    # Such as a callback that a receiver could not handle, with the headers that it had.
    no_letters = [record("dead", headers) for headers in ([], named, error[1:], [*error, ("other", b"x")])]
    assertDataFrameEqual(
        outcomes.letters(spark.createDataFrame([*letters, *no_letters], columns.RECORD_SCHEMA)),
        spark.createDataFrame([("timer-request/0/5", 2, "topic-unknown"), (None, 4, None)], LETTERS),
    )
    verdict = b'{"id": "order-1", "verdict": "already-fired", "due": 1}'
    told = [record("verdicts", [(h.TIMER_SOURCE, b"by-id/0/5")], verdict), record("verdicts", [], b"other")]
    assertDataFrameEqual(
        outcomes.verdicts(spark.createDataFrame(told, columns.RECORD_SCHEMA)),
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
    rows = figures.lags(found, figures.span_s(60).alias("minute_s"), "callback_topic").orderBy("minute_s").collect()
    minute = DUE - DUE % 60
    assert [tuple(row) for row in rows] == [
        (minute, "orders", 3, 50, 70, 70, 70),
        (minute + 60, "orders", 3, 60, 80, 80, 80),
    ]
    tables = {"totals": figures.totals(found), "forecast": figures.forecast(found)}
    tables["offenders"] = figures.offenders(found)
    collected = figures.collect(tables, found, MOMENT, Objective(Decimal(50), 60))
    assert collected.lags_by_hour == [HourLag(DUE - DUE % 3600, "orders", 6, 50, 80, 80, 80)]
    assert collected.reached == [Reached("orders", 6, 4)] and collected.reached[0].meets(collected.objective)
    assert [row["lag_ms"] for row in collected.missed] == [80, 70]
    assert [(each.topic, each.timers) for each in collected.pending_by_hour] == [("orders", 3)]
    ahead = figures.forecast(found).orderBy("due_s").collect()
    assert [tuple(row) for row in ahead] == [(DUE + 5000, "orders", 2, 200), (DUE + 5001, "orders", 1, 100)]
