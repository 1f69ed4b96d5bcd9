"""Rows of files with foreign bytes and unknown columns: no Kafka."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from timers.errors import SettingsError
from timers.spark import rows
from timers.spark.rows import RowFiles
from timers.v1.future_pb2 import Future

pytestmark = pytest.mark.spark

DUE = 1_893_456_000


def entries(spark: SparkSession, files: RowFiles, *, as_base64: bool = False) -> tuple[list[bytes], dict[str, str]]:
    """The values of the timers, and row -> code of the reason for those that are none."""
    read = rows.entries(files.read(spark), 10_000, as_base64=as_base64, encoding=files.encoding_read).collect()
    values = [Future.FromString(bytes(row.value)).callBack for row in read if row.reason is None]
    rejected = [row for row in read if row.reason is not None]
    assert all(Path(unquote(urlsplit(row.file).path)).is_file() for row in rejected), "each names its file"
    return sorted(values), {row.row: row.reason.partition(":")[0] for row in rejected}


def csv(path: Path, *lines: str, encoding: str = "utf-8", header: str = "due,topic,value") -> RowFiles:
    path.write_bytes("".join(f"{line}\n" for line in (header, *lines)).encode(encoding))
    return RowFiles((str(path),), "csv")


def test_csv_in_another_encoding_is_rejected_or_decoded(spark: SparkSession, tmp_path: Path) -> None:
    lines = f"{DUE},orders,Grüße", f'{DUE},orders,"two\nlines, and ""quotes"""', f"{DUE},orders", f"{DUE},o,ß,4"
    files = csv(tmp_path / "a.csv", *lines, encoding="latin-1")
    values, rejects = entries(spark, files)
    assert values == [b'two\nlines, and "quotes"']
    shown = json.dumps({"due": str(DUE), "topic": "orders", "key": None, "value": "Gr\\xfc\\xdfe", "headers": None})
    assert rejects == {shown: "row-undecodable", f"{DUE},orders": "row-broken", f"{DUE},o,\\xdf,4": "row-broken"}
    values, rejects = entries(spark, RowFiles(files.paths, "csv", "iso8859-1"))
    assert values == ["Grüße".encode(), b'two\nlines, and "quotes"']
    assert rejects == {f"{DUE},orders": "row-broken", f"{DUE},o,ß,4": "row-broken"}


def test_a_file_with_the_mark_of_utf_8_has_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    for number, header in enumerate(("due,topic,value", '"due","topic","value"')):
        files = csv(tmp_path / f"{number}.csv", f"{DUE},orders,Grüße", encoding="utf-8-sig", header=header)
        assert entries(spark, files) == (["Grüße".encode()], {})


def test_a_file_in_utf_16_is_refused_with_a_way_out(spark: SparkSession, tmp_path: Path) -> None:
    files = csv(tmp_path / "a.csv", f"{DUE},orders,a", encoding="utf-16")
    with pytest.raises(SettingsError, match=r"no column due .*They look like UTF-16: .*`iconv -f UTF-16"):
        files.read(spark)


def test_json_in_another_encoding_is_rejected_or_decoded(spark: SparkSession, tmp_path: Path) -> None:
    def line(value: Any, **more: Any) -> str:
        return json.dumps({"due": DUE, "topic": "orders", "value": value} | more, ensure_ascii=False)

    good, foreign = line("a"), line("Grüße")
    broken = [f"{good} {good}", f"{good}, {good}", f"{good} x", "[1]", "null", "5", '{"due"', f"[{good}]"]
    broken += [
        f'{{"due": {DUE}, "topic": "o", "value": "{half}"}}' for half in (r"\ud800", r"\\\udc00", r"\ud800\ud800")
    ]
    repeated = f'{{"due": {DUE}, "topic": "orders", "value": "a", "value": "b"}}'
    unknown = line("a", payload="b")
    whole = [f'{{"due": {DUE}, "topic": "orders", "value": "{text}"}}' for text in (r"\\ud800", r"\ud83d\ude00")]
    path = tmp_path / "a.jsonl"
    path.write_bytes("\n".join([good, foreign, "", "  ", *broken, repeated, unknown, *whole]).encode("latin-1"))
    values, rejects = entries(spark, RowFiles((str(path),), "json"))
    assert values == sorted([b"a", rb"\ud800", "😀".encode()])
    codes = dict.fromkeys(broken, "row-broken") | {repeated: "field-repeated", unknown: "column-unknown"}
    assert rejects == codes | {foreign.encode("latin-1").decode("utf-8", "backslashreplace"): "row-undecodable"}
    values, rejects = entries(spark, RowFiles((str(path),), "json", "cp1252", ("payload",)))
    assert values == sorted([b"a", b"a", rb"\ud800", "😀".encode(), "Grüße".encode()])
    assert rejects == dict.fromkeys(broken, "row-broken") | {repeated: "field-repeated"}


def test_what_an_encoding_does_not_have_is_rejected(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"due": 1, "topic": "o", "value": "\x81"}\n{"due": 1, "topic": "o", "value": "\x80"}\n')
    values, rejects = entries(spark, RowFiles((str(path),), "json", "cp1252"))
    assert (values, [*rejects.values()]) == (["€".encode()], ["row-undecodable"])


def test_parquet_keeps_the_bytes_of_values_and_rejects_other_texts(spark: SparkSession, tmp_path: Path) -> None:
    foreign = "Grüße".encode("latin-1")
    texts = pa.array([b"orders", foreign, b"orders", b"orders"], pa.binary())
    columns = {
        "due": pa.array([str(DUE)] * 4),
        # Text by its type, as a foreign program writes it.
        "topic": pa.StringArray.from_buffers(4, *texts.buffers()[1:]),
        "value": pa.array([foreign, b"b", b"c", b"d"], pa.binary()),
        "key": pa.array([1, 2, 3, 4]),
        "headers": pa.array([[], [], [(b"a", b"\xff")], [(b"\xff", b"")]], pa.map_(pa.binary(), pa.binary())),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    values, rejects = entries(spark, RowFiles((str(tmp_path / "a.parquet"),), "parquet"))
    assert values == sorted([foreign, b"c"])
    assert sorted(rejects.values()) == ["headers-invalid", "row-undecodable"]


@pytest.mark.parametrize("form", ["csv", "parquet", "json"])
def test_an_unknown_column_is_refused_or_left_out(spark: SparkSession, tmp_path: Path, form: str) -> None:
    directory = tmp_path / form
    directory.mkdir()
    if form == "csv":
        csv(directory / "a.csv", f"{DUE},orders,a,b,c", header="due,topic,value,payload,_broken")
    elif form == "parquet":
        table = pa.table({name: ["a"] for name in ("due", "topic", "value", "payload", "_broken")})
        pq.write_table(table.set_column(0, "due", pa.array([DUE])), directory / "a.parquet")
    else:
        (directory / "payload=b" / "_broken=c").mkdir(parents=True)
        (directory / "payload=b" / "_broken=c" / "a.json").write_text(f'{{"due": {DUE}, "topic": "o", "value": "a"}}')
    with pytest.raises(SettingsError, match=r"'_broken' of the rows is no field.*--ignore-column _broken"):
        RowFiles((str(directory),), form).read(spark)
    files = RowFiles((str(directory),), form, ignored=("payload", "_broken"))
    assert entries(spark, files) == ([b"a"], {})
    with pytest.raises(SettingsError, match="no column topic: expected are due, topic, key, value, headers; found are"):
        RowFiles((str(directory),), form, ignored=("payload", "_broken", "topic")).read(spark)


def test_a_directory_may_name_the_topic_of_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "topic=orders").mkdir()
    (tmp_path / "topic=orders" / "a.json").write_text(
        f'{{"due": {DUE}, "value": "a"}}\n{{"due": {DUE}, "topic": "b"}}\n'
    )
    values, rejects = entries(spark, RowFiles((str(tmp_path),), "json"))
    assert (values, [*rejects.values()]) == ([b"a"], ["column-unknown"])
