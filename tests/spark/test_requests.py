"""Requests as the request formats read them, in a DataFrame."""

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from timers.core.levels import REPEATS_LEVEL
from timers.core.progress import FEATURE_LEVEL, Progress
from timers.core.rescue import Cut
from timers.core.timer import Headers, Origin
from timers.kafka.request_formats import enabled_formats
from timers.process.config.settings import Settings
from timers.spark import columns, requests
from timers.spark.audit import reading
from timers.wire import future
from timers.wire import headers as h
from timers.wire.formats import RequestRecord, future_by_id, schedule

pytestmark = pytest.mark.spark

SETTINGS = Settings.load(
    {
        "TIMERS_BROKERS": "127.0.0.1:1",
        "TIMERS_ID_TOPIC": "by-id",
        "TIMERS_COUNTDOWN_TOPIC": "waits",
        "TIMERS_SCHEDULE_TOPICS": "schedules",
    }
)
LIMIT = 1000
NATIVE, BY_ID, RETRY = SETTINGS.request_topic, SETTINGS.id_topic, SETTINGS.retry_topic

VALUE = future.encode("orders", "key", b"payload")
DUE = future_by_id.encode_headers(1_700_000_000)
RETRIED = future.encode_retry("orders", "key", b"payload", [("a", b"1")], Origin("order-1", 1700, 2, "by-id/0/5"))
RETRIED_NATIVE = future.encode_retry("orders", "key", b"payload", None, Origin("timer-request/0/9", 1700, 1))
PUT_OFF = future.encode_retry("orders", "key", b"payload", None, Origin("timer-request/0/10", 1700, 0))

SCHEDULED = schedule.encode_headers(1_700_000_000, "orders", b"key")
SCHEDULE = Origin("\udcff\udcfe", 1700, 1, "schedules/0/0")
RETRIED_SCHEDULE = future.encode_retry("orders", "key", b"payload", None, SCHEDULE)

COPY_OF = [(h.TIMER_PROMOTED, b"timer-request/2/0"), (h.TIMER_SEAL, b"0" * 32)]

RECORDS: list[tuple[str, int, int, bytes | None, bytes | None, Headers]] = [
    (NATIVE, 0, 5, b"1700000000", VALUE, []),
    (NATIVE, 0, 9, b"007", VALUE, [("timer-id", b"forged"), ("trace", None)]),
    (NATIVE, 0, 11, None, VALUE, []),
    (NATIVE, 0, 12, b"1700000000", None, []),
    (NATIVE, 1, 0, b"1700000000", b"\xff", []),
    (NATIVE, 1, 1, b"1700000001", VALUE + b"\x1a" + b"\xe8\x07" + bytes(1000), []),
    (BY_ID, 0, 5, b"order-1", VALUE, DUE),
    (BY_ID, 0, 6, b"order-1", None, []),
    (BY_ID, 0, 7, "größe".encode(), VALUE, [("trace", b"x"), *DUE]),
    (BY_ID, 0, 8, b"order-2", VALUE, []),
    (BY_ID, 0, 9, b"order-2", VALUE, [*DUE, (h.TIMER_IF, b"absent")]),
    (NATIVE, 2, 5, b"1700000000", VALUE, [("trace", b"x"), *COPY_OF]),
    ("waits", 0, 0, b"key", b'{"topic": "orders", "message": "body", "countdown": 120.5}', []),
    ("waits", 0, 1, b"order-3", b'{"id": "order-3", "cancel": true}', []),
    ("schedules", 0, 0, b"\xff\xfe", b"v", SCHEDULED),
    ("schedules", 0, 1, b"video", b"v", [("scheduler-epoch", b"soon")]),
    ("schedules", 0, 2, b"video", None, []),
    ("schedules", 0, 3, b"\xff\xfe", None, schedule.tombstone_headers(0)),
    ("schedules", 0, 4, b"video", None, [("timer-fired-offset", b"9")]),
    ("schedules", 0, 5, None, b"v", SCHEDULED),
    (RETRY, 0, 4, b"1902", *RETRIED_SCHEDULE),
    (RETRY, 0, 0, b"1800", *RETRIED),
    (RETRY, 0, 1, b"1900", *RETRIED_NATIVE),
    (RETRY, 0, 2, b"1900", VALUE, []),
    (RETRY, 0, 3, b"1901", *PUT_OFF),
]


def expected(topic: str, partition: int, offset: int, *said: object) -> tuple[object, ...]:
    return topic, partition, offset, 1_600_000_000_000 + offset, *said


EXPECTED = [
    expected(NATIVE, 0, 5, "timer", "timer-request/0/5", *[1_700_000_000] * 2, "orders", 0, "timer-request/0/5", None),
    expected(NATIVE, 0, 9, "timer", "timer-request/0/9", 7, 7, "orders", 0, "timer-request/0/9", None),
    expected(NATIVE, 0, 11, "rejected", None, None, None, None, 0, "timer-request/0/11", "key-missing"),
    expected(NATIVE, 0, 12, "rejected", None, None, None, None, 0, "timer-request/0/12", "value-missing"),
    expected(NATIVE, 1, 0, "rejected", None, None, None, None, 0, "timer-request/1/0", "value-not-a-future"),
    expected(NATIVE, 1, 1, "rejected", None, None, None, None, 0, "timer-request/1/1", "value-too-large"),
    expected(BY_ID, 0, 5, "timer", "order-1", *[1_700_000_000] * 2, "orders", 0, "by-id/0/5", None),
    expected(BY_ID, 0, 6, "cancel", "order-1", None, None, None, 0, "by-id/0/6", None),
    expected(BY_ID, 0, 7, "timer", "größe", *[1_700_000_000] * 2, "orders", 0, "by-id/0/7", None),
    expected(BY_ID, 0, 8, "rejected", None, None, None, None, 0, "by-id/0/8", "due-missing"),
    expected(BY_ID, 0, 9, "timer", "order-2", *[1_700_000_000] * 2, "orders", 0, "by-id/0/9", None),
    expected(NATIVE, 2, 5, "copy", None, None, None, None, 0, "timer-request/2/5", None),
    expected("waits", 0, 0, "timer", "waits/0/0", *[1_600_000_121] * 2, "orders", 0, "waits/0/0", None),
    expected("waits", 0, 1, "cancel", "order-3", None, None, None, 0, "waits/0/1", None),
    expected("schedules", 0, 0, "timer", "\\xfffe", *[1_700_000_000] * 2, "orders", 0, "schedules/0/0", None),
    expected("schedules", 0, 1, "rejected", "video", None, None, None, 0, "schedules/0/1", "key-not-a-number"),
    expected("schedules", 0, 2, "cancel", "video", None, None, None, 0, "schedules/0/2", None),
    expected("schedules", 0, 3, "ended", "\\xfffe", None, None, None, 0, "schedules/0/0", None),
    expected("schedules", 0, 4, "cancel", "video", None, None, None, 0, "schedules/0/4", None),
    expected("schedules", 0, 5, "rejected", None, None, None, None, 0, "schedules/0/5", "id-missing"),
    expected(RETRY, 0, 4, "timer", "\\xfffe", 1700, 1902, "orders", 1, "schedules/0/0", None),
    expected(RETRY, 0, 0, "timer", "order-1", 1700, 1800, "orders", 2, "by-id/0/5", None),
    expected(RETRY, 0, 1, "timer", "timer-request/0/9", 1700, 1900, "orders", 1, "timer-request/0/9", None),
    expected(RETRY, 0, 2, "rejected", None, None, None, None, 0, f"{RETRY}/0/2", "retry-headers-missing"),
    expected(RETRY, 0, 3, "timer", "timer-request/0/10", 1700, 1901, "orders", 0, "timer-request/0/10", None),
]


REQUEST_NAMES = requests.REQUEST_SCHEMA.names


def size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    return len(key or b"") + len(value or b"") + sum(len(name) + len(data or b"") for name, data in headers)


def test_each_record_is_what_its_request_format_says(spark: SparkSession) -> None:
    rows = [
        (topic, partition, offset, 1_600_000_000_000 + offset, 1, key, value, headers or None)
        for topic, partition, offset, key, value, headers in RECORDS
    ]
    frame = spark.createDataFrame(rows, columns.RECORD_SCHEMA).coalesce(1)
    decoded = requests.decode(frame, enabled_formats(SETTINGS), LIMIT, NATIVE)
    assert decoded.schema == requests.REQUEST_SCHEMA
    sizes: dict[tuple[object, ...], int] = {
        row[:3]: size(*record[3:]) for row, record in zip(rows, RECORDS, strict=True)
    }
    keys: dict[tuple[object, ...], bytes | None] = {record[:3]: record[3] for record in RECORDS}
    chain = REQUEST_NAMES[REQUEST_NAMES.index("content") :]
    found = decoded.drop("callback_key", *chain)
    whole = [(*row[:4], 1, sizes[row[:3]], keys[row[:3]], row[:3] == (BY_ID, 0, 9), *row[4:]) for row in EXPECTED]
    assertDataFrameEqual(found, spark.createDataFrame(whole, found.schema))


def test_each_record_is_read_at_its_feature_level(spark: SparkSession) -> None:
    """Partition 0 has timers that repeat from offset 6 on."""
    headers = [(h.TIMER_TOPIC, b"orders"), (h.TIMER_REPEAT, b"every=10")]
    rows = [(BY_ID, partition, offset, 0, 1, b"id", b"{}", headers) for partition in (0, 1) for offset in (5, 6)]
    frame = spark.createDataFrame(rows, columns.RECORD_SCHEMA).coalesce(1)
    raised = {(BY_ID, 0): Progress(6).with_setting(FEATURE_LEVEL, REPEATS_LEVEL)}
    decoded = requests.decode(frame, enabled_formats(SETTINGS), LIMIT, NATIVE, raised)
    found = {(row.partition, row.offset): (row.kind, row.code, row.callback_topic) for row in decoded.collect()}
    rejected = "rejected", "level-too-low", None
    assert found == {(0, 5): rejected, (0, 6): ("definition", None, "orders"), (1, 5): rejected, (1, 6): rejected}


def test_records_above_a_cut_have_other_names_than_those_that_the_log_has_lost(spark: SparkSession) -> None:
    """Their callbacks have these names [I28]."""
    rows = [(NATIVE, 0, offset, 0, 1, b"1700000000", VALUE, None) for offset in (5, 6)]
    frame = spark.createDataFrame(rows, columns.RECORD_SCHEMA).coalesce(1)
    cut = {(NATIVE, 0): Cut(6).applied_to(Progress(9))}
    decoded = requests.decode(frame, enabled_formats(SETTINGS), LIMIT, NATIVE, cut)
    names = {(row.timer_id, row.request) for row in decoded.collect()}
    assert names == {(name, name) for name in (f"{NATIVE}/0/5", f"{NATIVE}/0/6~1")}


def test_a_record_with_a_source_keeps_it_beside_a_later_record_at_its_offset(spark: SparkSession) -> None:
    """The cold tier holds a request that its log has lost: its copy fires under the name that it had [I28]."""
    sources = [f"{NATIVE}/0/6", f"{NATIVE}/0/6~1", f"{NATIVE}/0/7~1"]
    rows = [
        (NATIVE, 0, offset, 0, 1, b"170000000%d" % due, VALUE, None, source)
        for due, (offset, source) in enumerate(zip((6, 6, 7), sources, strict=True))
    ]
    frame = spark.createDataFrame(rows, reading.NAMED).coalesce(1)
    cut = {(NATIVE, 0): Cut(6).applied_to(Progress(9))}
    decoded = requests.decode(frame, enabled_formats(SETTINGS), LIMIT, NATIVE, cut)
    found = {(row.request, row.timer_id, row.due_s) for row in decoded.collect()}
    assert found == {(source, source, 1_700_000_000 + due) for due, source in enumerate(sources)}


def test_no_record_is_left_out_by_a_request_format() -> None:
    """What the table rests on: of each record a request format makes just one row, cancel or rejection."""
    formats = enabled_formats(SETTINGS)
    for topic, _, offset, key, value, headers in RECORDS:
        decoded = formats[topic].decode([RequestRecord(offset, key, value, headers, 0)], LIMIT)
        rows = sum(map(len, decoded.rows.values()))
        rejected = {each.offset for each in decoded.rejected}  # which may end an id as well
        cancels = sum(each[2] is None and each[1] not in rejected for each in decoded.operations)
        assert rows + cancels + len(rejected) == 1


def test_a_callback_has_the_hash_of_its_request(spark: SparkSession) -> None:
    """Of each format, with the headers of the engine after those of the request; and another hash if it is altered."""
    callbacks: dict[tuple[str, int], tuple[bytes | None, bytes, Headers]] = {
        (NATIVE, 5): (b"key", b"payload", []),
        (NATIVE, 9): (b"key", b"payload", [("trace", None)]),
        (BY_ID, 7): (b"key", b"payload", [("trace", b"x")]),
        ("waits", 0): (b"key", b"body", []),
        ("schedules", 0): (
            b"key",
            b"v",
            [(schedule.TIMESTAMP, b"1600000000"), (schedule.KEY, b"\xff\xfe"), (schedule.TOPIC, b"schedules")],
        ),
    }
    asked = [
        (topic, partition, offset, 1_600_000_000_000 + offset, 1, key, value, headers or None)
        for topic, partition, offset, key, value, headers in RECORDS
        if (topic, offset) in callbacks and partition == 0
    ]
    decoded = requests.decode(
        spark.createDataFrame(asked, columns.RECORD_SCHEMA).coalesce(1), enabled_formats(SETTINGS), LIMIT, NATIVE
    )
    expected = {(row.topic, row.offset): row.content for row in decoded.collect()}
    ours: Headers = [(h.TIMER_SOURCE, b"x"), (h.TIMER_ID, b"x"), (h.TIMER_DUE, b"1"), (h.TIMER_FIRED, b"2")]
    altered: list[tuple[bytes | None, bytes | None, Headers]] = [
        (b"other", b"payload", []),
        (None, b"payload", []),
        (b"key", b"payloae", []),
        (b"key", None, []),
        (b"key", b"payload", [("trace", None)]),
        (b"key", b"payload", [("trace", b"")]),
        (b"payload", b"key", []),
        (b"keypayload", b"", []),
        (None, b"keypayload", []),
    ]
    sent: list[tuple[bytes | None, bytes | None, Headers]] = [*callbacks.values(), *altered]
    fired = [
        ("orders", 0, offset, 0, 1, key, value, [*headers, *ours]) for offset, (key, value, headers) in enumerate(sent)
    ]
    hash = columns.content(F.col("topic"), F.col("key"), F.col("value"), NATIVE)
    parts = columns.parts(F.col("topic"), F.col("key"), F.col("value"), NATIVE)
    each = (columns.part(parts, place) for place in (2, 1, 0))
    found = (
        spark.createDataFrame(fired, columns.RECORD_SCHEMA)
        .select(hash.alias("hash"), F.array(*each).alias("parts"))
        .collect()
    )
    hashes = [row.hash for row in found]
    assert hashes[: len(callbacks)] == [expected[place] for place in callbacks]
    of = dict(
        zip(((key, value, tuple(headers)) for key, value, headers in sent), (row.parts for row in found), strict=True)
    )
    trace = (b"key", b"payload", (("trace", None),))
    assert [a == b for a, b in zip(of[b"other", b"payload", ()], of[None, b"payload", ()], strict=True)] == [
        False,
        True,
        True,
    ]
    assert [a == b for a, b in zip(of[b"key", b"payloae", ()], of[b"key", None, ()], strict=True)] == [
        True,
        False,
        True,
    ]
    differs = zip(of[trace], of[b"key", b"payload", (("trace", b""),)], strict=True)
    assert [a == b for a, b in differs] == [True, True, False]
    assert len(set(hashes)) == len(hashes) - 1, "of the altered ones only that with a header is another callback"


def test_the_depth_of_a_chain_is_counted_by_the_engine(spark: SparkSession) -> None:
    """A header of the same name counts for other topics."""
    asked = [
        (topic, 0, 0, 0, 1, b"key", b"value", depth)
        for topic in (NATIVE, "orders")
        for depth in (None, [(h.DEPTH, b"1")], [(h.DEPTH, b"2")])
    ]
    hash = columns.content(F.col("topic"), F.col("key"), F.col("value"), NATIVE)
    hashes = [
        row.hash for row in spark.createDataFrame(asked, columns.RECORD_SCHEMA).select(hash.alias("hash")).collect()
    ]
    assert len(set(hashes[:3])) == 1 and len(set(hashes[3:])) == 3
