"""Columns of Arrow as timers: each type that a field may have, and a sentence for each other one."""

import subprocess
import sys
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from timers.client.request import Encoder, TimerRequest
from timers.errors import InvalidTimerError, SettingsError
from timers.process.config.settings import Settings
from timers.spark.frames import data_source
from timers.spark.frames.timer_columns import RowOptions, TimerColumns, TimerRow, row_hash
from timers.wire.formats import RequestRecord, future_by_id

ROOT = Path(__file__).parents[2]
DUE = 1_893_456_000
"""2030-01-01T00:00:00Z"""

NOW_NS = 1_800_000_000 * 10**9
NAMED = RowOptions(name="n", topic="orders")
BERLIN = RowOptions(zone="Europe/Berlin", name="n", topic="orders")


def rows(
    options: RowOptions = NAMED,
    **columns: Any,
) -> list[TimerRow | InvalidTimerError]:
    """The rows of columns, ``due`` among them."""
    arrays = {name: each if isinstance(each, pa.Array) else pa.array(each) for name, each in columns.items()}
    if not {"due", "at", "delay"} & arrays.keys():
        arrays["due"] = pa.array([DUE] * len(next(iter(arrays.values()))))
    batch = pa.RecordBatch.from_pydict(arrays)
    return [*TimerColumns(batch.schema, options).rows(batch, NOW_NS)]


def requests(options: RowOptions = NAMED, **columns: Any) -> list[TimerRequest]:
    found = rows(options, **columns)
    assert all(isinstance(each, TimerRow) for each in found), found
    return [each.request for each in found if isinstance(each, TimerRow)]


def refused(options: RowOptions = NAMED, **columns: Any) -> str:
    """The sentence about the schema, or about the only row."""
    try:
        (found,) = rows(options, **columns)
    except SettingsError as error:
        return str(error)
    assert isinstance(found, InvalidTimerError), found
    return str(found)


INSTANT = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "due",
    [
        *(pa.array([INSTANT], pa.timestamp(unit, "America/New_York")) for unit in ("s", "ms", "us", "ns")),
        pa.array([(DUE - 1) * 10**9 + 1], pa.timestamp("ns", "UTC")),
        *(pa.array([DUE], kind) for kind in (pa.int64(), pa.uint64(), pa.int32(), pa.decimal128(20, 0))),
        pa.array([DUE - 0.25]),
        pa.array([Decimal("1893455999.000001")]),
        pa.array(["2030-01-01T00:00:00Z"]),
        pa.array([" 2030-01-01 01:00:00+01 "]).dictionary_encode(),
        pa.array(["2030-01-01T01:00:00 Europe/Berlin"], pa.large_string()),
        pa.array(["1893456000"]),
        pa.array(["1893455999.5"], pa.string_view()),
    ],
    ids=lambda array: str(array.type),
)
def test_a_due_time_of_each_type_is_the_same_second(due: pa.Array) -> None:
    assert [each.at for each in requests(due=due)] == [DUE]
    assert [each.at for each in requests(at=pa.concat_arrays([due, due]))] == [DUE, DUE]


@pytest.mark.parametrize(
    "due",
    [
        pa.array([datetime(2030, 1, 1, 1)]),  # noqa: DTZ001
        pa.array([(DUE + 3600) * 10**9], pa.timestamp("ns")),
        pa.array(["2030-01-01 01:00:00"]),
        pa.array(["2030-01-01T00:00:00Z"]),
    ],
)
def test_a_time_without_a_zone_needs_that_of_the_writer(due: pa.Array) -> None:
    assert [each.at for each in requests(BERLIN, due=due)] == [DUE]


def test_a_date_is_its_midnight_in_the_zone() -> None:
    assert [each.at for each in requests(BERLIN, due=[date(2030, 1, 1)])] == [DUE - 3600]


@pytest.mark.parametrize(
    ("due", "sentence"),
    [
        (pa.array([datetime(2030, 1, 1)]), "a timestamp without a zone: the option zone, such as Europe/Berlin"),  # noqa: DTZ001
        (pa.array([date(2030, 1, 1)]), "a date: the option zone"),
        (pa.array(["2030-01-01T00:00:00"]), "names no offset"),
        (pa.array([DUE * 1000]), "looks like milliseconds.* did you mean 1893456000"),
        (pa.array([DUE * 10**6]), "looks like microseconds.* did you mean 1893456000"),
        (pa.array([DUE * 10**9]), "looks like nanoseconds.* did you mean 1893456000"),
        (pa.array([float("nan")]), "is not a due time"),
        (pa.array([DUE * 1000.0]), "looks like milliseconds"),
        (pa.array([900]), "did you mean delay=900"),
        (pa.array([None], pa.int64()), "no due time"),
        (pa.array([1_700_000_000]), "2023-11-14T22:13:20Z is in the past.*past=fire"),
        (pa.array([-5], pa.timestamp("s", "UTC")), "before 1970"),
        (pa.array([b"x"]), "column due is of type binary: expected is a timestamp"),
        (pa.array([True]), "column due is of type bool"),
        (pa.array([timedelta(1)]), "column due is of type duration"),
        (pa.array(["31.01.2030 12:00"]), "is not a time: write RFC 3339"),
    ],
    ids=lambda part: part if isinstance(part, str) else str(part.type),
)
def test_a_wrong_due_time_gets_a_sentence(due: pa.Array, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(refused(due=due))


def test_delays_count_from_the_write_and_need_ids() -> None:
    now_s = NOW_NS // 10**9
    for delay in (pa.array([900]), pa.array([899.5]), pa.array(["15m"]), pa.array([timedelta(minutes=15)])):
        assert [each.at for each in requests(delay=delay, id=["a"])] == [now_s + 900]
    assert [each.at for each in requests(due=[DUE, None], delay=[None, 5], id=["a", "b"])] == [DUE, now_s + 5]
    assert "two due times" in refused(due=[DUE], delay=[5], id=["a"])
    assert "is not a duration" in refused(delay=["soon"], id=["a"])
    another_day = "the same row of another day is another timer"
    assert another_day in refused(delay=[5])
    assert another_day in refused(delay=[5], id=pa.array([None], pa.string()))


def test_past_rows_fire_if_told() -> None:
    assert requests(RowOptions(name="n", topic="t", past="fire"), due=[1_700_000_000])[0].at == 1_700_000_000
    assert "past='skip' is not one of refuse and fire" in refused(RowOptions(name="n", past="skip"), topic=["a"])


UUID = uuid.UUID("01234567-89ab-cdef-8123-456789abcdef")


@pytest.mark.parametrize(
    ("array", "content"),
    [
        (pa.array(["Grüße"]), "Grüße".encode()),
        (pa.array([b"\xff\x00"]), b"\xff\x00"),
        (pa.array([UUID.bytes], pa.binary(16)), UUID.bytes),
        (pa.array([UUID.bytes], pa.uuid()), UUID.bytes),
        (pa.array([17]), b"17"),
        (pa.array([True]), b"true"),
        (pa.array([1.5]), b"1.5"),
        (pa.array([Decimal("10.50")]), b"10.50"),
        (pa.array([INSTANT]), b"2030-01-01T00:00:00+00:00"),
    ],
    ids=lambda part: str(part.type) if isinstance(part, pa.Array) else "",
)
def test_keys_and_values_are_sent_as_they_are(array: pa.Array, content: bytes) -> None:
    (request,) = requests(key=array, value=array)
    key, value, headers = Encoder(10_000)(request)
    decoded = future_by_id.decode([RequestRecord(7, key, value, headers, 0)], 10_000)
    [(_, topic, sent_key, body, *_)] = decoded.rows[DUE]
    assert (topic, sent_key if isinstance(sent_key, bytes) else sent_key.encode(), body) == ("orders", content, content)  # type: ignore[union-attr]


def test_what_has_no_key_and_no_value_is_no_error() -> None:
    (request,) = requests(key=pa.array([None], pa.string()), value=pa.array([None]))
    assert (request.key, request.value) == (None, b"")


def test_structures_are_sent_as_json() -> None:
    kind = pa.struct(
        {
            "n": pa.int64(),
            "price": pa.decimal128(20, 2),
            "tags": pa.list_(pa.string()),
            "m": pa.map_(pa.string(), pa.date32()),
        }
    )
    value = {"n": 1, "price": Decimal("99999999999999999.90"), "tags": ["ä", None], "m": [("d", date(2030, 1, 1))]}
    (request,) = requests(value=pa.array([value], kind))
    assert request.value == '{"n":1,"price":99999999999999999.90,"tags":["ä",null],"m":{"d":"2030-01-01"}}'.encode()
    assert "cannot be sent as JSON" in refused(value=pa.array([[float("nan")]]))
    assert "expected is text, bytes, a number" in refused(value=pa.array([timedelta(1)]))


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([[("a", "1"), ("a", None)]], pa.map_(pa.string(), pa.string())), [("a", "1"), ("a", None)]),
        (pa.array([[("a", b"\xff")]], pa.map_(pa.string(), pa.binary())), [("a", b"\xff")]),
        (pa.array([[{"key": "a", "value": b"1"}]]), [("a", b"1")]),
        (pa.array([{"a": "1", "b": None}]), [("a", "1")]),
        (pa.array(['{"a": "1"}']), [("a", "1")]),
        (pa.array(['[["a", "1"], ["a", {"base64": "/w=="}]]']), [("a", "1"), ("a", b"\xff")]),
        (pa.array([""]), []),
        (pa.array([None]), []),
    ],
    ids=lambda part: str(part.type) if isinstance(part, pa.Array) else "",
)
def test_headers_of_each_type(array: pa.Array, expected: list[Any]) -> None:
    assert requests(headers=array)[0].headers == (expected or ())


def test_ids_are_those_of_the_column_or_hashes_under_a_name() -> None:
    assert [each.id for each in requests(RowOptions(topic="t"), id=["a", "b"])] == ["a", "b"]
    assert [each.id for each in requests(RowOptions(topic="t"), id=[17])] == ["17"]
    assert "id is null" in refused(RowOptions(topic="t"), id=pa.array([None], pa.string()))
    expected = row_hash(DUE, "orders", "order-17", b"body", [("trace", b"x")])
    assert expected == "a0353852547cbec35ab7309a19f1eec9ca6cf69c", "ids of imports must never change"
    forms: list[dict[str, Any]] = [
        {"due": [DUE], "key": ["order-17"], "value": ["body"], "headers": ['{"trace": "x"}']},
        {"at": pa.array([INSTANT]), "key": [b"order-17"], "value": [b"body"], "headers": pa.array([{"trace": "x"}])},
    ]
    assert {each.id for form in forms for each in requests(**form)} == {f"n-{expected}"}
    assert requests(key=pa.array([None], pa.string()))[0].id != requests(key=[""])[0].id


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        ({"due": [1], "Topic": ["a"]}, {}, "column 'Topic' is no field of a timer: did you mean 'topic'?"),
        ({"due": [1], "payload": ["a"]}, {}, "column 'payload' is no field of a timer: the columns are due, at, delay"),
        ({"due": [1], "": ["a"]}, {}, "pandas writes its index so: index=False"),
        ({"due": [1], "at": [1]}, {}, "the columns due and at are there, which are one field"),
        ({"topic": ["a"], "key": ["b"]}, {}, "there is no column due .or delay.:.* found are 'topic', 'key'"),
        ({"due": [1]}, {}, "there is no column topic: add it, or give the option topic"),
        ({"due": [1], "topic": ["a"]}, {"name": None}, "there is no column id: add one, or give the option name"),
        ({"due": [1], "topic": [1]}, {}, "column topic is of type int64: expected is text"),
        ({"due": [1], "topic": ["a"], "id": [b"x"]}, {}, "column id is of type binary: expected is text"),
        ({"due": [1], "topic": ["a"], "headers": [1]}, {}, "column headers is of type int64: expected is a map"),
        ({"due": [1], "topic": ["a"]}, {"zone": "Europe/Berln"}, "zone='Europe/Berln': .*Europe/Berlin"),
    ],
)
def test_a_wrong_schema_gets_a_sentence(columns: dict[str, Any], options: dict[str, Any], sentence: str) -> None:
    batch = pa.RecordBatch.from_pydict(columns)
    with pytest.raises(SettingsError, match=sentence):
        TimerColumns(batch.schema, RowOptions(**{"name": "n", **options}))


def test_the_index_of_a_filtered_frame_is_left_out() -> None:
    assert len(requests(due=[DUE], __index_level_0__=[3])) == 1


def test_an_instant_is_one_text_whatever_the_zone_of_the_session_is() -> None:
    kinds = [pa.timestamp("us", "UTC"), pa.timestamp("us", "Asia/Tokyo")]
    texts = {requests(value=pa.array([INSTANT], kind))[0].value for kind in kinds}
    texts |= {requests(value=pa.array([{"at": INSTANT}], pa.struct({"at": kind})))[0].value for kind in kinds}
    assert texts == {b"2030-01-01T00:00:00+00:00", b'{"at":"2030-01-01T00:00:00+00:00"}'}


ZONES = ("Z", "-08", "+8", "+01:00:00", "GMT+8", "GMT+08:00", "UTC+1", "PST", "IST", "+08:00", "America/New_York")
"""As ``spark.sql.session.timeZone`` may be. pyarrow knows the last two."""


def nested(times: pa.Array) -> dict[str, pa.Array]:
    """The times in each type that may hold them."""
    bounds, names = pa.array(range(len(times) + 1), pa.int32()), pa.array(["a"] * len(times))
    return {
        "plain": times,
        "dictionary": times.dictionary_encode(),
        "struct": pa.StructArray.from_arrays([times.dictionary_encode()], ["a"]),
        "list": pa.ListArray.from_arrays(bounds, times),
        "large list": pa.LargeListArray.from_arrays(bounds.cast(pa.int64()), times),
        "fixed list": pa.FixedSizeListArray.from_arrays(times, 1),
        "map": pa.MapArray.from_arrays(bounds, names, times),
        "list of structs": pa.ListArray.from_arrays(bounds, pa.StructArray.from_arrays([times], ["a"])),
    }


@pytest.mark.parametrize("zone", ZONES)
def test_instants_in_each_zone_of_a_session_are_sent_in_utc(zone: str) -> None:
    instants = pa.array([DUE * 10**6], pa.int64()).view(pa.timestamp("us", zone))
    for array in nested(instants).values():
        (request,) = requests(key=array, value=array)
        assert b"2030-01-01T00:00:00+00:00" in request.value and request.key == request.value


@pytest.mark.parametrize("kind", [pa.date32(), *(pa.timestamp("s", zone) for zone in (None, "UTC", "-08"))], ids=str)
def test_a_time_that_python_does_not_have_is_a_sentence_about_its_row(kind: pa.DataType) -> None:
    """Such as 9999-12-31 in a session west of Greenwich, or the sentinels of other systems."""
    far = 3_000_000 if kind == pa.date32() else 253_402_300_800  # 10000-01-01, and later
    times = pa.array([0, far], pa.int32() if kind == pa.date32() else pa.int64()).view(kind)
    for array in nested(times).values():
        for name in ("key", "value"):
            first, second = rows(**{name: array})
            assert isinstance(first, TimerRow) and "cannot be read: date value out of range" in str(second)
    (sent,) = requests(value=pa.array([253_402_300_799], pa.int64()).view(pa.timestamp("s", "-08")))
    assert sent.value == b"9999-12-31T23:59:59+00:00"


def test_a_time_before_2002_can_be_sent() -> None:
    (row,) = rows(RowOptions(name="n", topic="t", past="fire"), due=pa.array([5], pa.timestamp("s", "UTC")))
    assert isinstance(row, TimerRow) and row.due_s == 5
    _, _, headers = Encoder(10_000)(row.request)
    assert headers is not None and ("timer-due", b"5") in headers


def test_text_that_is_not_utf_8_is_a_sentence_about_its_row() -> None:
    good, bad = b"a", b"\xff"
    texts = pa.StringArray.from_buffers(2, *pa.array([good, bad], pa.binary()).buffers()[1:])
    pairs = pa.MapArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array(["n", "n"]), texts)
    for columns in ({"value": pa.StructArray.from_arrays([texts], ["t"])}, {"headers": pairs}):
        first, second = rows(**columns)
        assert isinstance(first, TimerRow) and "is not UTF-8" in str(second)
    twice = pa.StructArray.from_arrays([pa.array(["a"]), pa.array(["b"])], ["n", "n"])
    assert "column value is of type struct" in refused(value=twice)
    assert "column headers is of type struct" in refused(headers=twice)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"topic": "bad topic!"}, "topic='bad topic!' is not a legal topic name"),
        ({"name": "n" * 500}, "begins no id"),
        ({"name": ""}, "begins no id"),
        ({"began": "soon"}, "began: 'soon' is not a time"),
    ],
)
def test_options_are_checked_without_rows(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        RowOptions(**options).check()  # type: ignore[arg-type]


@pytest.mark.parametrize(("id", "named"), [(b"order-17", " (id 'order-17')"), (b"\xff", ""), (None, "")])
def test_the_sentence_about_a_row_of_a_frame_names_its_id_and_never_its_key(id: bytes | None, named: str) -> None:
    """Spark writes it to its logs and its UI."""
    ids = pa.StringArray.from_buffers(1, *pa.array([id or b""], pa.binary()).buffers()[1:])
    columns = {"due": [900], "topic": ["orders"], "key": ["Ada Lovelace"], **({} if id is None else {"id": ids})}
    batch = pa.RecordBatch.from_pydict(columns)
    writer = data_source.TimersWriter(Settings(), RowOptions(name="n"), NOW_NS)
    with pytest.raises(InvalidTimerError) as refused:
        [*writer._requests(iter([batch]), NOW_NS)]
    sentence = str(refused.value)
    assert sentence.startswith(f"row 0 of a task{named}: ") and "Ada" not in sentence and "did you mean" in sentence


def test_settings_among_the_options_are_checked() -> None:
    assert data_source._settings({"timers_app_id": "a", "brokers": "b:1"})[0].brokers == "b:1"
    with pytest.raises(SettingsError, match="'timers_ap_id' is no setting: did you mean TIMERS_APP_ID"):
        data_source._settings({"timers_ap_id": "a"})
    with pytest.raises(SettingsError, match="are one"):
        data_source._settings({"timers_brokers": "a:1", "brokers": "b:1"})


def test_spark_can_look_for_sources_where_the_extra_is_not_installed() -> None:
    """Were the import to fail, Spark would know no data source in Python."""
    missing = "pyarrow", "pandas", "delta", "rocksdict", "aiokafka", "msgpack", "jgo", "matplotlib", "jinja2"
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({missing})); import pyspark_timers; pyspark_timers.DefaultSource"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
