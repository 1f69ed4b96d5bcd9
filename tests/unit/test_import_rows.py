"""Rows of imported files: the request of each row, or the reason why it is wrong."""

from __future__ import annotations

from typing import Any

import click
import pytest

from tests.simulation.kit import SimClock, SimLog, SimWorker
from timers.cli import spark_import as bulk_import
from timers.core.limits import Limits
from timers.kafka.request_formats import REQUEST_FORMATS
from timers.process.config.settings import Settings
from timers.spark import rows
from timers.spark.columns import record_batch
from timers.wire import future
from timers.wire.checks import InvalidRequestError
from timers.wire.formats import RequestRecord, future_by_id
from timers.wire.topics import ID_REQUEST

DUE = 1_893_456_000
LIMIT = 1000
FILE = "file:///rows.csv"


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
        ("", "due is missing"),
        ("  ", "due is missing"),
        ("tomorrow", "'tomorrow' is not a due time: epoch seconds, RFC 3339"),
        ("2030-01-01T00:00:00", "has no offset"),
        ("2030-01-01", "has no offset"),
        ("1969-12-31T23:59:59Z", "is before 1970"),
        ("-5", "due '-5' is negative"),
        ("1893456000000", "is in milliseconds: in seconds it is 1893456000"),
        ("1.8e9", "is not a due time"),
        ("١٢٣", "is not a due time"),
    ],
)
def test_wrong_due_times_are_refused(text: str, expected: str) -> None:
    with pytest.raises(InvalidRequestError, match=expected) as error:
        rows.due_second(text)
    assert error.value.code in ("due-missing", "due-invalid")


def row(**fields: Any) -> dict[str, Any]:
    """A row, whose texts are bytes in UTF-8."""
    base = {"due": str(DUE), "topic": "orders", "key": "key", "value": "body", "headers": None}
    texts = {name: given.encode() if isinstance(given, str) else given for name, given in (base | fields).items()}
    return {rows.BROKEN: None, rows.WHY: None, rows.FILE: FILE} | texts


def entry(as_base64: bool = False, encoding: str | None = "utf-8", **fields: Any) -> tuple[Any, ...]:
    return rows._entry(row(**fields), LIMIT, as_base64, encoding)


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
    _, due_s, value, headers, reason, *_ = entry(headers=given)
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
        ({"due": b"\xff"}, "row-undecodable"),
        ({"topic": b"\xff"}, "row-undecodable"),
        ({"key": b"\xff"}, "row-undecodable"),
        ({"value": b"\xff"}, "row-undecodable"),
        ({"headers": b"\xff"}, "row-undecodable"),
        ({"value": bytes(LIMIT)}, "value-too-large"),
        ({"headers": "{"}, "headers-invalid"),
        ({"headers": "3"}, "headers-invalid"),
        ({"headers": '{"a": 1}'}, "headers-invalid"),
        ({"headers": '["ab"]'}, "headers-invalid"),
        ({"headers": '{"timer-id": "x"}'}, "headers-invalid"),
        ({"headers": '{"a": "1", "a": "2"}'}, "headers-invalid"),
        ({"headers": '[["a", "\\ud800"]]'}, "headers-invalid"),
        ({"headers": '{"\\udc00": "a"}'}, "headers-invalid"),
        ({"headers": "[" * 100_000}, "headers-invalid"),
        ({"headers": [(b"\xff", b"")]}, "headers-invalid"),
    ],
)
def test_a_wrong_row_gets_a_reason(fields: dict[str, Any], code: str) -> None:
    content, due_s, value, headers, reason, whole, file = entry(**fields)
    assert (content, due_s, value, headers) == (None,) * 4
    assert reason.startswith(f"{code}: ") and file == FILE
    assert '"due"' in whole


def test_a_line_that_is_no_row_is_shown_whatever_its_bytes() -> None:
    broken = {rows.BROKEN: b"1,\xff,3", rows.WHY: "row-broken: it is"}
    assert rows._entry(row() | broken, LIMIT, False, "utf-8")[4:] == ("row-broken: it is", "1,\\xff,3", FILE)
    assert rows._entry(row() | broken, LIMIT, False, "latin-1")[5] == "1,ÿ,3"


def test_texts_are_decoded_and_values_are_sent_in_utf_8() -> None:
    latin = "ß".encode("latin-1")
    _, _, value, headers, reason, *_ = entry(
        encoding="latin-1", key=latin, value=latin, headers=b'{"a": "' + latin + b'"}'
    )
    assert (reason, value) == (None, future.encode("orders", "ß", "ß".encode()))
    assert headers[0] == ("a", "ß".encode())
    assert entry(encoding=None, value=latin)[2] == future.encode("orders", "key", latin), "in Parquet they are bytes"
    assert entry(encoding=None, value=b"text")[0] == entry(value="text")[0] == entry(encoding="cp1252", value="text")[0]
    for encoding, hint in (("utf-8", "--encoding"), (None, "position 0")):
        reason = entry(encoding=encoding, key=latin)[4]
        assert reason.startswith("row-undecodable: key is not utf-8: byte 0xdf at position 0") and hint in reason


def test_values_may_be_base64() -> None:
    assert entry(True, value=b"Ym9keQ==")[2] == entry(value=b"body")[2] == future.encode("orders", "key", b"body")
    assert entry(True, value=b"body!")[4].startswith("value-not-base64: ")


def test_ids_of_schemas_of_a_row_reach_its_callback() -> None:
    """Those of a ``Future`` do not."""
    _, due_s, value, headers, *_ = entry(headers='{"__value_schema_id": "7", "a": "1"}')
    (by_id,) = (each.request_format for each in REQUEST_FORMATS if each.request_format.has_conditions)
    request = RequestRecord(3, b"id", value, headers, 0, timestamp_type=1)
    [found] = by_id.newest([request], LIMIT).rows[due_s]
    assert found[1:5] == ("orders", b"key", b"body", [("__value_schema_id", b"7"), ("a", b"1")])


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
    assert record_batch([good, bad], rows.ENTRY).num_rows == 2


def test_a_row_that_is_sent_again_fires_once() -> None:
    """Spark repeats the task of a lost executor: the timers of past rows have fired by then."""
    settings, limits = (
        Settings(id_topic=ID_REQUEST),
        Limits(chunk_timers=100, chunk_bytes=10**6, max_request_bytes=LIMIT),
    )
    log = SimLog(SimClock(DUE + 100), partitions=1)
    worker = SimWorker("worker", log, settings, limits)
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
        for id, (_, _, value, headers, *_) in sent.items():
            log.append(ID_REQUEST, id, value, headers, partition=0)
        second(number)
    assert [record.value for record in log.committed if record.topic == "orders"] == [b"body", b"body"]


@pytest.mark.parametrize("name", ["utf-8", "UTF8", "latin-1", "windows-1252", "iso-8859-15", "shift_jis", "gb18030"])
def test_an_encoding_that_extends_ascii_can_be_read(name: str) -> None:
    assert "ab,\"'\n".encode(bulk_import._encoding(name, "csv")) == b"ab,\"'\n"


@pytest.mark.parametrize(
    "name", ["utf-16", "utf-7", "utf-32", "cp037", "idna", "unicode_escape", "hex", "no-such", "iso2022_jp", ""]
)
def test_another_encoding_is_refused_with_a_way_out(name: str) -> None:
    with pytest.raises(
        click.UsageError, match=f"--encoding '{name}' cannot be read: expected is utf-8, latin-1.*iconv"
    ):
        bulk_import._encoding(name, "json")


def test_parquet_has_no_other_encoding() -> None:
    assert bulk_import._encoding("utf-8", "parquet") == bulk_import._encoding("utf-8-sig", "parquet") == "utf-8"
    with pytest.raises(click.UsageError, match="is for CSV and JSON"):
        bulk_import._encoding("latin-1", "parquet")
