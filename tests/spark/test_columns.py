"""Column expressions say what the functions of the wire format say."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from timers.spark import columns
from timers.wire import checks
from timers.wire import headers as h
from timers.wire.checks import InvalidRequestError

pytestmark = pytest.mark.spark

DUE = [
    *(b"0", b"1893456000", b"007", b"99999999999", b"100000000000", b"1893456000000", b"-1", b"+1", b" 1", b"1 "),
    *(b"1\n", b"\n1", b"1\r\n", b"", b"1.0", b"1e3", b"0x10", b"abc", b"1_000", b"\xff", b"1\xff", b"\x00", b"1\x00"),
    *("١٢٣".encode(), "１２".encode(), None),
]


def decode_due(key: bytes | None) -> int | None:
    try:
        return checks.decode_due(key)
    except InvalidRequestError:
        return None


def record(
    offset: int, key: bytes | None = None, headers: list[tuple[str, bytes | None]] | None = None
) -> tuple[object, ...]:
    pairs = None if headers is None else [Row(key=name, value=value) for name, value in headers]
    return "timer-request", 3, offset, 1700000000123, 1, key, b"value", pairs


def test_a_due_second_is_what_the_wire_format_takes(spark: SparkSession) -> None:
    """One job for all keys: those above, and what Hypothesis makes of digits and what looks like them."""
    keys: list[bytes | None] = list(DUE)

    @settings(max_examples=300, database=None, derandomize=True)
    @example(b"12345678901")
    @given(st.one_of(st.from_regex(rb"[0-9]{1,15}\s?", fullmatch=True), st.binary(max_size=13)))
    def collect(key: bytes) -> None:
        keys.append(key)

    collect()
    rows = [record(offset, key) for offset, key in enumerate(keys)]
    frame = spark.createDataFrame(rows, columns.RECORD_SCHEMA).select(
        "offset", columns.due_second(F.col("key")).alias("due")
    )
    said = {row.offset: row.due for row in frame.collect()}
    assert [said[offset] for offset in range(len(keys))] == [decode_due(key) for key in keys]


IDS = [
    *(b"", b"order-1", "größe".encode(), b"\xff\xfe", b"a\xffb", b"\\xfffe", b"\\x", b"\\X", b"0xfffe", b"\x00"),
    *(b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", "𝄞".encode(), b"\xe2\x82"),
]


def test_ids_are_shown_alike_by_sql_and_python_and_each_by_a_text_of_its_own(spark: SparkSession) -> None:
    rows = list(enumerate([*IDS, None]))
    frame = spark.createDataFrame(rows, "number int, id binary").select("number", columns.id_shown(F.col("id")))
    shown = [row[1] for row in sorted(frame.collect())]
    assert shown == [*map(h.id_shown, IDS), None]
    assert len(set(shown)) == len(shown)
    assert shown[1:4] == ["order-1", "größe", "\\xfffe"]


def test_of_headers_with_one_name_the_last_counts(spark: SparkSession) -> None:
    fired: list[tuple[str, bytes | None]] = [
        ("timer-id", b"forged"),
        ("other", None),
        (h.TIMER_ID, "größe/1".encode()),
        (h.TIMER_DUE, b"1700000000"),
        (h.TIMER_FIRED, b"1700000000456"),
    ]
    rows = [
        record(7, b"k", fired),
        record(8, b"k", [(h.TIMER_FIRED, b"x")]),
        record(9, None, None),
        record(10, b"", [(h.TIMER_ID, None)]),
    ]
    frame = spark.createDataFrame(rows, columns.RECORD_SCHEMA).select(
        "offset",
        columns.source().alias("source"),
        columns.timer_id().alias("id"),
        columns.timer_due().alias("due"),
        columns.timer_fired().alias("fired"),
        columns.size_bytes().alias("bytes"),
    )
    by_offset = {row.offset: tuple(row)[1:] for row in frame.collect()}
    size = 1 + 5 + sum(len(name.encode()) + len(value or b"") for name, value in fired)
    assert by_offset == {
        7: ("timer-request/3/7", "größe/1", 1700000000, 1700000000456, size),
        8: ("timer-request/3/8", None, None, None, 6 + len(h.TIMER_FIRED) + 1),
        9: ("timer-request/3/9", None, None, None, 5),
        10: ("timer-request/3/10", None, None, None, 5 + len(h.TIMER_ID)),
    }
