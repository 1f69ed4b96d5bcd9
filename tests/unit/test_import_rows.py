"""Rows of imported files: the request of each row, or the reason why it is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from timers.config.settings import Settings
from timers.core.levels import CONDITIONS
from timers.core.limits import Limits
from timers.spark import rows
from timers.spark.arrow import record_batch
from timers.testing import SimClock, SimLog, SimWorker
from timers.wire import future
from timers.wire.checks import InvalidRequestError
from timers.wire.formats import RequestRecord, future_by_id
from timers.wire.topics import ID_REQUEST

DUE = 1_893_456_000
LIMIT = 1000


@pytest.mark.parametrize(
    ("text", "due_s"),
    [
        ("1893456000", DUE),
        (" 1893456000 ", DUE),
        ("1893456000.0", DUE),
        ("1893455999.25", DUE),
        ("1893456000.", DUE),
        ("0", 0),
        ("2030-01-01T00:00:00Z", DUE),
        ("2030-01-01 02:00:00+02:00", DUE),
        ("2029-12-31T23:59:59.5Z", DUE),
        ("2029-12-31T23:59:59.000000001Z", DUE),
        ("2030-01-01T00:00:00.000000000Z", DUE),
    ],
)
def test_a_due_time_is_rounded_up_to_a_second(text: str, due_s: int) -> None:
    assert rows.due_second(text) == due_s


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "due is missing"),
        ("  ", "due is missing"),
        ("tomorrow", "'tomorrow' is not a due time: epoch seconds, or RFC 3339"),
        ("2030-01-01T00:00:00", "has no offset"),
        ("2030-01-01", "has no offset"),
        ("1969-12-31T23:59:59Z", "is before 1970"),
        ("-5", "due '-5' is negative"),
        ("1893456000000", "is in milliseconds: in seconds it is 1893456000"),
        ("1.8e9", "is not a due time"),
        ("١٢٣", "is not a due time"),
    ],
)
def test_wrong_due_times_are_refused(text: str | None, expected: str) -> None:
    with pytest.raises(InvalidRequestError, match=expected) as error:
        rows.due_second(text)
    assert error.value.code in ("due-missing", "due-invalid")


def row(**fields: Any) -> dict[str, Any]:
    base = {"due": str(DUE), "topic": "orders", "key": b"key", "value": b"body", "headers": None, rows.BROKEN: None}
    return base | fields


def entry(as_base64: bool = False, **fields: Any) -> tuple[Any, ...]:
    return rows._entry(row(**fields), LIMIT, as_base64)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, []),
        ("", []),
        ('{"a": "1", "b": null}', [("a", b"1"), ("b", None)]),
        ('[["a", "1"], ["a", "2"]]', [("a", b"1"), ("a", b"2")]),
        ([("a", b"\xff"), ("b", "text")], [("a", b"\xff"), ("b", b"text")]),  # a map of Parquet
        ([{"key": "a", "value": b"1"}], [("a", b"1")]),  # a list of structs
    ],
)
def test_the_request_of_a_row_is_read_as_its_timer(given: Any, expected: list[tuple[str, bytes | None]]) -> None:
    _, due_s, value, headers, reason, _ = entry(headers=given)
    assert (due_s, reason) == (DUE, None)
    decoded = future_by_id.decode([RequestRecord(7, b"an-id", value, headers, 0)], LIMIT)
    [(_, topic, key, body, travelling, origin)] = decoded.rows[DUE]
    assert (topic, key, body, travelling or []) == ("orders", "key", b"body", expected)
    assert origin is not None and origin.timer_id == "an-id"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"due": "soon"}, "due-invalid"),
        ({"topic": None}, "topic-missing"),
        ({"topic": "no topic"}, "topic-invalid"),
        ({"key": b"\xff"}, "key-not-text"),
        ({"value": bytes(LIMIT)}, "value-too-large"),
        ({"headers": "{"}, "headers-invalid"),
        ({"headers": "3"}, "headers-invalid"),
        ({"headers": '{"a": 1}'}, "headers-invalid"),
        ({"headers": '["ab"]'}, "headers-invalid"),
        ({"headers": '{"timer-id": "x"}'}, "headers-invalid"),
        ({rows.BROKEN: "1,2,3"}, "row-broken"),
    ],
)
def test_a_wrong_row_gets_a_reason(fields: dict[str, Any], code: str) -> None:
    content, due_s, value, headers, reason, whole = entry(**fields)
    assert (content, due_s, value, headers) == (None,) * 4
    assert reason.startswith(f"{code}: ")
    assert whole == "1,2,3" if rows.BROKEN in fields else '"due"' in whole


def test_values_may_be_base64() -> None:
    assert entry(True, value=b"Ym9keQ==")[2] == entry(value=b"body")[2] == future.encode("orders", "key", b"body")
    assert entry(True, value=b"body!")[4].startswith("value-not-base64: ")


def test_the_content_hash_covers_all_fields_of_a_row() -> None:
    alike = [entry(), entry(due="2030-01-01T00:00:00Z"), entry(headers="{}")]
    others = [
        *(entry(due=str(DUE + 1)), entry(topic="orders2"), entry(key=b"ke", value=b"ybody"), entry(value=b"")),
        *(entry(headers='{"a": ""}'), entry(headers='{"a": null}'), entry(headers='{"": "a"}')),
    ]
    assert len({each[0] for each in alike}) == 1
    assert len({each[0] for each in (alike[0], *others)}) == 1 + len(others)


def test_entries_fit_the_table() -> None:
    good, bad = entry(headers='{"a": "1"}'), entry(due="soon")
    for values in zip(good, bad, strict=True):
        assert len(values) == 2
    assert record_batch([good, bad], rows._ARROW).num_rows == 2


def test_a_row_that_is_sent_again_fires_once() -> None:
    """Spark repeats the task of a lost executor: the timers of past rows have fired by then."""
    settings, limits = (
        Settings(id_topic=ID_REQUEST),
        Limits(chunk_timers=100, chunk_bytes=10**6, max_request_bytes=LIMIT),
    )
    log = SimLog(SimClock(DUE + 100), partitions=1)
    worker = SimWorker("worker", log, settings, limits)
    worker.first_level = CONDITIONS
    worker.start()
    worker.assign([(ID_REQUEST, 0)])

    def second(number: int) -> None:
        log.clock.now_ms = (DUE + number) * 1000
        log.append(settings.oscillator_topic, b"%d" % (DUE + number), b"1", partition=0)
        worker.poll_ticks()
        worker.settle((ID_REQUEST, 0))

    second(100)
    sent = {b"past": entry(), b"soon": entry(due=str(DUE + 105))}
    for number in (101, 110, 120):
        for id, (_, _, value, headers, _, _) in sent.items():
            log.append(ID_REQUEST, id, value, headers, partition=0)
        second(number)
    assert [record.value for record in log.committed if record.topic == "orders"] == [b"body", b"body"]
