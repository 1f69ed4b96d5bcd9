"""Files of rows as the tools of the field write them: each row is a timer, or has a sentence. No Kafka, no Spark.

The files in ``row_files`` were written with the defaults of pandas 3.1.1, polars 2.1.0, DuckDB 2.0.1 and pyarrow
26.0.1, and by spreadsheets.
"""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.harness.constants import Constants
from timers.errors import InvalidTimerError, SettingsError
from timers.spark import columns
from timers.spark.frames import rows
from timers.spark.frames.rows import CSV, JSON, PARQUET, RowFiles, format_of, local_files, opened
from timers.spark.frames.timer_columns import RowOptions
from timers.v1.future_pb2 import Future

FILES = Path(__file__).with_name("row_files")
DUE = 1_893_456_000
NOW_NS = 1_800_000_000 * 10**9
NOW_S = NOW_NS // 10**9

THREE = [(DUE, "a", '{"n":1}'), (DUE + 1, "b", 'two, "quoted"'), (DUE + 2, "c", "ä\nline")]
DUCKS = [(DUE + n, f"k{n}", f'v,"{n}') for n in range(3)]
LOCAL = {"zone": "UTC"}
UUID = bytes.fromhex("0123456789abcdef8123456789abcdef")
NAIVE = "column due is of type timestamp.*: the option zone, such as Europe/Berlin"
TEXT_NAIVE = "names no offset"


def files(path: Path | str, form: str | None = None, /, **more: Any) -> RowFiles:
    urls = tuple(local_files(str(path)))
    if form is None:
        with opened(urls[0]) as file:
            form = format_of(file)
    encoding, ignored = more.pop("encoding", "utf-8"), tuple(more.pop("ignored", ()))
    as_base64 = more.pop("as_base64", False)
    options = RowOptions(**{"key": "", "name": "n", "gives_ids": False, **more})
    return RowFiles((str(path),), urls, form, options, encoding, ignored, as_base64)


def read(read_files: RowFiles) -> tuple[list[tuple[Any, ...]], list[str]]:
    """Due second, key and value of each timer, and the sentences about the other rows."""
    timers, sentences = [], []
    for url in read_files.urls or ():
        with opened(url) as file:
            read_files.check_file(url, file)
            file.seek(0)
            for line in read_files.rows(file, read_files._places(url), NOW_NS):
                if isinstance(line.timer, InvalidTimerError):
                    sentences.append(f"{line.number}: {line.timer}")
                else:
                    request = line.timer.request
                    assert request.topic == "orders"
                    key, value = map(_shown, (request.key, request.value))
                    timers.append((request.at, key, value))
    return timers, sentences


def _shown(content: Any) -> Any:
    try:
        return content.decode() if isinstance(content, bytes) else content
    except UnicodeDecodeError:
        return content


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("pandas-utc.parquet", {}, THREE),
        ("pandas-naive.parquet", {}, NAIVE),
        ("pandas-naive.parquet", LOCAL, THREE),
        ("pandas-ns.parquet", {}, THREE),
        ("pandas-filtered.parquet", {}, [THREE[0], THREE[2]]),
        ("pandas-float.parquet", {}, [THREE[0], (DUE + 1, *THREE[1][1:]), "3: no due time"]),
        (
            "pandas-uuid.parquet",
            {},
            [(DUE + n, (2**120 + n).to_bytes(16).decode(), v) for n, v in enumerate((b"\xff\0", "", ""))],
        ),
        (
            "pandas-timedelta.parquet",
            {},
            [(NOW_S + s, *each[1:]) for s, each in zip((60, 90, 3600), THREE, strict=True)],
        ),
        ("pandas.csv", {}, THREE),
        ("pandas.csv.gz", {}, THREE),
        ("pandas-index.csv", {}, "column '' is no field of a timer .pandas writes its index so: index=False"),
        ("pandas-index.csv", {"ignored": [""]}, THREE),
        (
            "pandas.jsonl",
            {},
            [f"{n + 1}: at={DUE + n}000 has more than 11 digits: it looks like milliseconds" for n in range(3)],
        ),
        ("polars-utc.parquet", {}, THREE),
        ("polars-ns.parquet", {}, THREE),
        ("polars-naive.parquet", LOCAL, THREE),
        ("polars.csv", {}, THREE),
        ("polars-naive.csv", {}, [f"{n}: .* {TEXT_NAIVE}" for n in (2, 3, 4)]),
        ("polars-naive.csv", LOCAL, THREE),
        ("polars.ndjson", {}, THREE),
        (
            "polars-decimal-struct.parquet",
            {},
            [(DUE + 1, "10.50", '{"n":1,"tags":["x",null],"when":"2030-01-01T00:00:00+00:00","price":1.10}')] * 3,
        ),
        ("polars-binary-headers.parquet", {}, [(DUE, b"\xff", ""), (DUE + 1, "", ""), (DUE + 2, "", "")]),
        ("duckdb-tz.parquet", {}, DUCKS),
        ("duckdb-naive.parquet", {}, NAIVE),
        ("duckdb-tz.csv", {}, DUCKS),
        ("duckdb-naive.csv", LOCAL, DUCKS),
        ("duckdb-tz.json", {}, DUCKS),
        ("duckdb-nested.parquet", {}, [(DUE, UUID, f'{{"n":{n},"m":{{"x":{n}}}}}') for n in range(3)]),
        ("duckdb-interval.parquet", {}, "column delay is of type .*: expected is seconds, an interval, or text"),
        ("pyarrow-map.parquet", {}, THREE),
        ("pyarrow.csv", {}, THREE),
        ("pyarrow-date.parquet", {}, "a date: the option zone"),
        ("pyarrow-date.parquet", LOCAL, [(DUE, "", each[2]) for each in THREE]),
        ("spark-int96.parquet", {}, THREE),
        ("spreadsheet-semicolon.csv", {}, [(DUE, "a", "x;y"), (DUE + 1, "b", "ä")]),
        ("spreadsheet-german.csv", {}, ["2: '01.01.2030 00:00' is not a time: write RFC 3339"]),
        ("spreadsheet-latin.csv", {}, ["2: value 'Gr.*e' is not UTF-8"]),
        ("spreadsheet-latin.csv", {"encoding": "cp1252"}, [(DUE, "", "Grüße")]),
        ("millis.jsonl", {}, ["did you mean 1893456000"]),
        ("orders.jsonl", {}, [(DUE, "17", '{"n":10.50}'), (NOW_S + 900, "", "")]),
    ],
    ids=lambda part: part if isinstance(part, str) and "." in part and " " not in part else "",
)
def test_the_files_of_the_field(name: str, options: dict[str, Any], expected: Any) -> None:
    if isinstance(expected, str):
        with pytest.raises(SettingsError, match=expected) as refused:
            read(files(FILES / name, **options))
        assert str(refused.value).startswith(str(FILES / name)) and "\n" not in str(refused.value)
        return
    timers, sentences = read(files(FILES / name, **options))
    assert timers == [each for each in expected if not isinstance(each, str)]
    wanted = [each for each in expected if isinstance(each, str)]
    assert len(sentences) == len(wanted)
    for sentence, pattern in zip(sentences, wanted, strict=True):
        with pytest.raises(InvalidTimerError, match=pattern):
            raise InvalidTimerError(sentence)


def entries(read_files: RowFiles) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for url in read_files.urls or ():
        with opened(url) as file:
            for batch in read_files.entries(url, file, NOW_NS, 10_000):
                found += batch.to_pylist()
    return found


def values(found: list[dict[str, Any]]) -> list[bytes]:
    return sorted(Future.FromString(each["value"]).callBack for each in found if each["row"] is None)


def rejects(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [json.loads(each["row"]) for each in found if each["row"] is not None]


def test_a_rejected_row_can_be_mended_and_imported(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(f"due,topic,value\nsoon,orders,a\n{DUE},orders,b\n{DUE},orders\n{DUE},no topic,c\n".encode())
    found = entries(files(path))
    assert values(found) == [b"b"]
    bad = rejects(found)
    assert [(each["_file"], each["_line"]) for each in bad] == [(str(path), 2), (str(path), 4), (str(path), 5)]
    assert bad[0] | {"_reason": ""} == {
        "at": "soon",
        "topic": "orders",
        "value": "a",
        "_file": str(path),
        "_line": 2,
        "_reason": "",
    }
    assert "this row has 2 cells, and the header line has 3" in bad[1]["_reason"]
    mended = tmp_path / "part-0.txt"
    mended.write_text("".join(f"{json.dumps(each)}\n" for each in (bad[0] | {"at": DUE}, bad[2] | {"topic": "orders"})))
    again = entries(files(mended))
    assert values(again) == [b"a", b"c"] and rejects(again) == []


def test_a_row_that_is_past_keeps_its_id_because_an_earlier_run_may_have_sent_it(tmp_path: Path) -> None:
    row = {"due": NOW_S - 1, "topic": "orders", "value": "a"}
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(row | {'id': 'order-17'})}\n")
    pq.write_table(pa.table({name: [each] for name, each in row.items()}), tmp_path / "a.parquet")
    by_hash, by_id = entries(files(tmp_path / "a.jsonl"))
    (of_parquet,) = entries(files(tmp_path / "a.parquet"))
    assert (by_hash["id"], by_id["content"], by_id["id"]) == (None, None, "order-17")
    for found in (by_hash, of_parquet):
        (sent,) = entries(files(tmp_path / "a.parquet", past="fire"))
        assert (found["content"], found["due_s"], found["value"]) == (sent["content"], NOW_S - 1, None)
        assert "is in the past" in json.loads(found["row"])["_reason"] and sent["row"] is None


def test_a_row_has_one_id_in_whatever_file_it_is(tmp_path: Path) -> None:
    row: dict[str, Any] = {"due": DUE, "topic": "orders", "key": "k", "value": "v", "headers": {"a": "1"}}
    (tmp_path / "a.json").write_text(json.dumps(row))
    (tmp_path / "b.csv").write_text('due,topic,key,value,headers\n2030-01-01T00:00:00Z,orders,k,v,"[[""a"",""1""]]"\n')
    columns = {"due": [float(DUE)], "topic": ["orders"], "key": [b"k"], "value": [b"v"], "headers": [{"a": "1"}]}
    pq.write_table(pa.table(columns), tmp_path / "c.parquet")
    ids = {entries(files(tmp_path / name))[0]["content"] for name in ("a.json", "b.csv", "c.parquet")}
    assert len(ids) == 1
    others: list[dict[str, Any]] = [
        {"due": DUE + 1},
        {"topic": "o"},
        {"key": "kv"},
        {"value": "w"},
        {"headers": {}},
        {"token": "t"},
    ]
    for number, other in enumerate(others):
        (tmp_path / f"{number}.jsonl").write_text(json.dumps(row | other))
        ids.add(entries(files(tmp_path / f"{number}.jsonl"))[0]["content"])
    assert len(ids) == 1 + len(others)
    (tmp_path / "id.jsonl").write_text(json.dumps(row | {"id": "order-17"}))
    (found,) = entries(files(tmp_path / "id.jsonl"))
    assert (found["content"], found["id"]) == (None, "order-17")


def test_lines_that_are_no_rows_get_a_reason(tmp_path: Path) -> None:
    good = json.dumps({"due": DUE, "topic": "orders", "value": "a"})
    lines = [
        f"{good} {good}",
        "[1]",
        "null",
        '{"due"',
        f'{{"due": {DUE}, "due": 1, "topic": "o"}}',
        r'{"topic": "\ud800"}',
    ]
    lines += [json.dumps({"due": DUE, "topic": "o", "payload": 1}), json.dumps({"topic": "o", "repeat": {"every": 60}})]
    path = tmp_path / "a.jsonl"
    path.write_bytes("\n".join([good, "", *lines]).encode() + b'\n{"due": 1, "topic": "o", "value": "\xff"}\n')
    bad = rejects(entries(files(path)))
    assert [each["_line"] for each in bad] == [*range(3, 12)]
    assert "there is no field 'payload'" in bad[6]["_reason"] and "`timers apply`" in bad[7]["_reason"]
    assert values(entries(files(path, ignored=["payload"]))) == [b"", b"a"]


def test_what_json_cannot_have_is_named_in_a_rejected_row_which_must_be_mended(tmp_path: Path) -> None:
    """Another row of the file is read, and the mended field alone does not send the row without the other one."""
    columns = {
        "due": pa.array([DUE, 0, 0]),
        "topic": ["orders"] * 3,
        "value": pa.array([0, 253_402_300_800, 0], pa.int64()).view(pa.timestamp("s", "PST")),
        "headers": pa.StringArray.from_buffers(3, *pa.array([b"", b"", b"\xff"]).buffers()[1:]),
    }
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), path)
    found = entries(files(path))
    of_value, of_headers = rejects(found)
    assert values(found) == [b"1970-01-01T00:00:00+00:00"]
    assert "value" not in of_value and "out of range" in of_value["value cannot be shown"]
    assert "headers" not in of_headers and "not UTF-8" in of_headers["headers cannot be shown"]
    (tmp_path / "mended.jsonl").write_text(json.dumps(of_value | {"due": DUE}))
    (again,) = rejects(entries(files(tmp_path / "mended.jsonl")))
    assert "there is no field 'value cannot be shown'" in again["_reason"]

    pq.write_table(pa.table({"due": [float("nan")], "topic": ["orders"]}), path)
    assert "due cannot be shown" in rejects(entries(files(path)))[0]
    deep = tmp_path / "deep.jsonl"
    deep.write_text('{"due": NaN, "topic": "orders", "value": "a"}\n{"value": ' + "[" * 600 + "]" * 600 + "}\n")
    assert [each["_line"] for each in rejects(entries(files(deep)))] == [1, 2]


def test_times_of_96_bits_are_those_of_each_century(tmp_path: Path) -> None:
    seconds = [DUE, 11_000_000_000, 95_617_584_000]  # 2030, 2318 and 5000
    times = pa.array(seconds, pa.int64()).view(pa.timestamp("s"))
    pq.write_table(
        pa.table({"due": times, "topic": ["orders"] * 3}), tmp_path / "a", use_deprecated_int96_timestamps=True
    )
    assert [each["due_s"] for each in entries(files(tmp_path / "a"))] == seconds


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_large_rows_are_read_in_batches_of_limited_size(tmp_path: Path, constants: Constants, name: str) -> None:
    """With 10,000 of them in one, Arrow has no column that is large enough."""
    limit, path, value_bytes = 100_000, tmp_path / name, 1000
    constants(columns, MAX_BATCH_BYTES=limit)
    constants(rows, MAX_BATCH_BYTES=limit)
    rejected = [{"due": 0, "topic": "orders", "value": "r" * value_bytes}] * 150
    cells = [{"due": DUE, "topic": "orders", "value": f"{n:0{value_bytes}}"} for n in range(150)] + rejected
    if name == "a.parquet":
        pq.write_table(pa.Table.from_pylist(cells), path, use_dictionary=False)
        assert rows._rows_at_once(pq.ParquetFile(path)) * value_bytes <= limit
    else:
        path.write_text("".join(f"{json.dumps(each)}\n" for each in cells))
    with path.open("rb") as file:
        found = [*files(path).entries(str(path), file, NOW_NS, 10_000)]
    sizes = [each.nbytes for each in found]
    assert sum(map(len, found)) == 300 and len(found) >= 3 and max(sizes) < 2 * limit


def test_values_may_be_base64(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"due,topic,value\n{DUE},orders,/wA=\n{DUE},orders,a!\n")
    pq.write_table(
        pa.table({"due": [DUE] * 2, "topic": ["orders"] * 2, "value": ["/wA=", "a!"]}), tmp_path / "a.parquet"
    )
    for name in ("a.csv", "a.parquet"):
        found = entries(files(tmp_path / name, as_base64=True))
        assert values(found) == [b"\xff\x00"] and "is no" in rejects(found)[0]["_reason"] + "is no base64"


def test_a_directory_may_name_a_column_of_its_rows(tmp_path: Path) -> None:
    (tmp_path / "topic=orders").mkdir()
    (tmp_path / "topic=orders" / "a.json").write_text(f'{{"due": {DUE}, "value": "a"}}\n')
    pq.write_table(pa.table({"due": [DUE]}), tmp_path / "topic=orders" / "a.parquet")
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / "topic=orders" / ".a.crc").write_text("")
    assert [Path(each).name for each in local_files(str(tmp_path))] == ["a.json", "a.parquet"]
    for name in ("a.json", "a.parquet"):
        urls = (str(tmp_path / "topic=orders" / name),)
        form = JSON if name == "a.json" else PARQUET
        here = RowFiles((str(tmp_path),), urls, form, RowOptions(key="", name="n", gives_ids=False))
        here.check()
        assert read(here)[0][0][0] == DUE


@pytest.mark.parametrize("name", ["a.json", "a.parquet"])
def test_a_directory_may_say_that_its_rows_have_no_topic(tmp_path: Path, name: str) -> None:
    path = tmp_path / "topic=__HIVE_DEFAULT_PARTITION__" / "key=__HIVE_DEFAULT_PARTITION__" / name
    path.parent.mkdir(parents=True)
    if name == "a.json":
        path.write_text(f'{{"due": {DUE}}}\n')
    else:
        pq.write_table(pa.table({"due": [DUE]}), path)
    form = JSON if name == "a.json" else PARQUET
    found = []
    for topic in (None, "orders"):
        options = RowOptions(topic, key="", name="n", gives_ids=False)
        here = RowFiles((str(tmp_path),), (str(path),), form, options)
        found.append(read(here))
    (_, (sentence,)), (timers, _) = found
    assert re.search("topic is null|there is no topic", sentence) and timers == [(DUE, "", "")]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", b"due,topic,payload\n1,o,a\n", "column 'payload' is no field .*--ignore-column"),
        ("a.csv", b"due,due,topic\n1,o,a\n", "is there twice"),
        ("a.csv", b"", "the file is empty"),
        ("a.csv", b"1893456000,orders,a\n", "column '1893456000' is no field of a timer"),
        ("a.csv", "due,topic\n1,o\n".encode("utf-16"), "looks like UTF-16.*iconv"),
        ("a.parquet", b"PAR1 and no more", "no whole file of Parquet"),
    ],
)
def test_a_wrong_file_gets_a_sentence_before_spark(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=sentence) as refused:
        files(path).check()
    assert str(path) in str(refused.value)


def test_a_file_that_is_not_there_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is no file and no directory with files"):
        local_files(str(tmp_path / "none*.csv"))
    assert CSV == "csv"
