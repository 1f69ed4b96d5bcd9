"""``timers spark import`` against a real broker: each row once, whatever breaks and however often it runs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from tests.harness.records import Record
from tests.harness.system import System
from timers.process.config.settings import Settings
from timers.spark import rows
from timers.spark.jobs import bulk_import
from timers.spark.jobs.bulk_import import Import, Imported
from timers.spark.kafka import as_json
from timers.spark.rows import RowFiles
from timers.spark.session import sentence_of
from timers.spark.storage import BEGUN
from timers.wire.formats import RequestRecord, future_by_id
from timers.wire.key_partition import partitions_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

DUE = 1_893_456_000
GOOD = [
    {"due": str(DUE + number // 3), "topic": "orders", "key": f"order-{number}", "value": f'body, "{number}"\n'}
    for number in range(20)
]
ROWS = [*GOOD, GOOD[0], {"due": "2030-01-01T00:00:00Z", "topic": "orders", "headers": '{"trace": "x"}'}]
"""Two are alike: two timers."""
BAD = [{"due": "soon", "topic": "orders"}, {"due": str(DUE), "topic": "no topic"}]


class Crash(Exception):
    """The job ends in the middle."""


@pytest.fixture
def by_id(broker_address: str, tmp_path: Path) -> System:
    ids = f"import-{tmp_path.parent.name}-{tmp_path.name}"
    system = System(broker_address, tmp_path, TIMERS_ID_TOPIC=ids, TIMERS_VERDICT_TOPIC=f"{ids}-verdicts")
    system.create_own_topics()
    return system


def job(system: System, path: Path, form: str, tmp_path: Path) -> Import:
    files = RowFiles((str(path),), form)
    return Import(system.settings, files, "renewals", (tmp_path / "ledger").as_uri(), str(tmp_path / "rejects"))


def written(system: System) -> list[Record]:
    return system.reader(system.settings.id_topic).rest()


def test_rows_are_imported_once_from_any_format(spark: SparkSession, by_id: System, tmp_path: Path) -> None:
    lines = tmp_path / "rows.jsonl"
    lines.write_bytes("".join(f"{json.dumps(row)}\n" for row in [*ROWS, *BAD]).encode() + b"{no json\nGr\xfc\xdfe\n")
    assert bulk_import.run(spark, job(by_id, lines, "json", tmp_path), print) == Imported(26, 4, 0, 22)
    records = written(by_id)
    _are_the_rows(by_id, records)
    rejected = spark.read.json(str(tmp_path / "rejects")).collect()
    assert {row.file.rpartition("/")[2] for row in rejected} == {lines.name}
    rejects = {row.row: row.reason.partition(":")[0] for row in rejected}
    assert sorted(rejects.values()) == ["due-invalid", "row-broken", "row-undecodable", "topic-invalid"]
    assert {"{no json", "Gr\\xfc\\xdfe"} <= rejects.keys()

    # The same rows as CSV, the columns in another order, and as Parquet, with types of its own: nothing is new.
    csv = tmp_path / "rows.csv"
    cells = [[row.get(name, "") for name in ("topic", "due", "headers", "key", "value")] for row in reversed(ROWS)]
    quoted = [",".join('"' + cell.replace('"', '""') + '"' for cell in line) for line in cells]
    csv.write_text("\n".join(["topic,due,headers,key,value", *quoted]) + "\n")
    assert bulk_import.run(spark, job(by_id, csv, "csv", tmp_path), print) == Imported(22, 0, 22, 0)
    parquet = tmp_path / "rows.parquet"
    pq.write_table(
        pa.table(
            {
                "due": pa.array(
                    [DUE * 1_000_000 + index // 3 * 1_000_000 for index in range(20)] + [DUE * 1_000_000] * 2,
                    pa.timestamp("us", "UTC"),
                ),
                "topic": ["orders"] * 22,
                "key": [row.get("key") for row in ROWS],
                "value": pa.array([row["value"].encode() if "value" in row else None for row in ROWS], pa.binary()),
                "headers": pa.array([None] * 21 + [[("trace", b"x")]], pa.map_(pa.string(), pa.binary())),
            }
        ),
        parquet,
    )
    assert bulk_import.run(spark, job(by_id, parquet, "parquet", tmp_path), print) == Imported(22, 0, 22, 0)
    assert len(written(by_id)) == len(records)
    by_id.close()


def test_files_of_one_import_may_have_other_columns(spark: SparkSession, tmp_path: Path) -> None:
    """In Parquet. The header lines of CSV must be the same: Spark would read a topic as a key."""

    def read(form: str) -> DataFrame:
        return RowFiles((str(tmp_path / form),), form).read(spark)

    columns = {"due": ["1", "2"], "topic": ["orders", "orders"], "value": [b"a", b"b"]}
    for directory in ("parquet", "csv"):
        (tmp_path / directory).mkdir()
    for number, names in enumerate((["due", "topic"], ["topic", "due", "value"])):
        pq.write_table(pa.table({name: columns[name] for name in names}), tmp_path / "parquet" / f"{number}.parquet")
    for number, header in enumerate(("due,topic,value", "topic,due,value")):
        (tmp_path / "csv" / f"{number}.csv").write_text(f"{header}\nx,x,x\n")
    assert sorted(row.value or b"" for row in read("parquet").collect()) == [b"", b"", b"a", b"b"]
    with pytest.raises(Py4JJavaError, match="CSV header does not conform"):
        read("csv").collect()
    (tmp_path / "csv" / "0.csv").write_text("\ufefftopic,due,value\nx,x,x\n")
    with pytest.raises(Py4JJavaError) as failed:
        read("csv").collect()
    assert re.search(r"CSV file: file:.*/[01]\.csv \(all files need the same header line", sentence_of(failed.value))
    (tmp_path / "csv" / "0.csv").unlink()
    (row,) = read("csv").collect()
    assert (row.topic, row.due, row.value, row[rows.BROKEN]) == (b"x", b"x", b"x", None)


def _are_the_rows(system: System, records: list[Record]) -> None:
    ids = [(record.key or b"") for record in records]
    assert len(set(ids)) == len(ROWS) and all(id.startswith(b"renewals-") for id in ids)
    assert [record.partition for record in records] == partitions_of(ids, system.settings.partitions)
    asked = []
    for record in records:
        decoded = future_by_id.decode(
            [RequestRecord(record.offset, record.key, record.value, record.headers, 0)], 10_000
        )
        [(due_s, [row])] = decoded.rows.items()
        asked.append((due_s, *row[1:4], row[4] or []))
    expected: list[Any] = [
        (DUE + number // 3, "orders", row["key"], row["value"].encode(), []) for number, row in enumerate(GOOD)
    ]
    expected += [expected[0], (DUE, "orders", "", b"", [("trace", b"x")])]
    assert sorted(asked, key=str) == sorted(expected, key=str)


@pytest.mark.long
def test_a_broken_run_is_made_good(
    spark: SparkSession, by_id: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It breaks while it sends, then after that and before the ledger knows."""
    lines = tmp_path / "rows.jsonl"
    lines.write_text("".join(f"{json.dumps(row)}\n" for row in GOOD))
    this = job(by_id, lines, "json", tmp_path)
    send = bulk_import._send

    def send_some(requests: DataFrame, settings: Settings, topic: str) -> None:
        send(requests.orderBy("id").limit(7), settings, topic)
        raise Crash

    def send_all(requests: DataFrame, settings: Settings, topic: str) -> None:
        send(requests, settings, topic)
        raise Crash

    for crash, there in ((send_some, 7), (send_all, 20)):
        monkeypatch.setattr(bulk_import, "_send", crash)
        with pytest.raises(Crash):
            bulk_import.run(spark, this, print)
        assert len(written(by_id)) == there
    monkeypatch.setattr(bulk_import, "_send", send)
    said: list[str] = []
    # An import with another name and the same ledger comes first. It finds what the other one had sent.
    other = lines.with_name("other.jsonl")
    other.write_text(json.dumps(GOOD[0]))
    assert bulk_import.run(spark, replace(job(by_id, other, "json", tmp_path), name="other"), said.append).sent == 1
    assert said[0] == "an interrupted run had sent 13 timers"
    assert bulk_import.run(spark, this, said.append) == Imported(20, 0, 20, 0)
    assert len({record.key for record in written(by_id)}) == len(written(by_id)) == 21
    assert bulk_import.run(spark, this, said.append) == Imported(20, 0, 20, 0)

    # The topic has lost records since a run was interrupted.
    topic, ledger = by_id.settings.id_topic, bulk_import.ImportLedger(spark, this.ledger)
    ledger.runs.add("interrupted", BEGUN, as_json({topic: {0: 0, 99: 5}, "nowhere": {0: 3}}))
    by_id.cluster.delete_records(topic, {0: 1})
    said.clear()
    assert bulk_import.run(spark, this, said.append) == Imported(20, 0, 20, 0)
    assert said[1] == "its topic has lost 1 record since; timers in these are sent again"
    by_id.close()
