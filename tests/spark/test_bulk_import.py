"""``timers spark import`` against a real broker: each row once, whatever breaks and however often it runs."""

import json
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.harness.records import Record
from tests.harness.system import System
from timers.errors import SettingsError
from timers.process.config.settings import Settings
from timers.spark import jvm
from timers.spark.frames.rows import RowFiles, format_of, local_files, opened
from timers.spark.frames.timer_columns import RowOptions
from timers.spark.jobs import bulk_import
from timers.spark.jobs.bulk_import import Import, Imported
from timers.spark.kafka import as_json
from timers.wire.formats import RequestRecord, future_by_id
from timers.wire.key_partition import partitions_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

DUE = 1_893_456_000
NOW_NS = 1_800_000_000 * 10**9
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


def job(system: System, path: Path, **more: Any) -> Import:
    urls = tuple(local_files(str(path)))
    with opened(urls[0]) as file:
        form = format_of(file)
    options = RowOptions(key="", name="renewals", gives_ids=False)
    directory = path.parent if path.is_file() else path.parent.parent
    files = RowFiles((str(path),), urls, form, options)
    return Import(
        system.settings, files, "renewals", (directory / "ledger").as_uri(), (directory / "rejects").as_uri(), **more
    )


def run(spark: SparkSession, this: Import, say: Callable[[str], None] = print) -> Imported:
    return bulk_import.run(spark, this, NOW_NS, say)


def written(system: System) -> list[Record]:
    return system.reader(system.settings.id_topic).rest()


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    headers = [row | ({"headers": json.loads(row["headers"])} if "headers" in row else {}) for row in rows]
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in headers))
    return path


def test_rows_are_imported_once_from_any_format(spark: SparkSession, by_id: System, tmp_path: Path) -> None:
    first = lines(tmp_path / "rows.jsonl", [*ROWS, *BAD])
    first.write_bytes(first.read_bytes() + b"{no json\nGr\xfc\xdfe\n")
    dry = bulk_import.run(spark, job(by_id, first, dry_run=True), NOW_NS, print)
    assert dry == Imported(26, 4, 0, 22, DUE, DUE + 6, ((DUE, 22),)) and written(by_id) == []
    sent = run(spark, job(by_id, first))
    assert sent == Imported(26, 4, 0, 22)
    records = written(by_id)
    _are_the_rows(by_id, records)
    for name in (dry.rejects, sent.rejects):
        assert name is not None and Path(name).parent == tmp_path / "rejects"
        parts = [Path(part).read_text() for part in local_files(name)]
        rejected = [json.loads(line) for part in parts for line in part.splitlines()]
        assert {(row["_file"], row["_line"]) for row in rejected} == {(str(first), n) for n in (23, 24, 25, 26)}

    # The same rows as CSV, the columns in another order, and as Parquet, with types of its own: nothing is new.
    csv = tmp_path / "rows.csv"
    cells = [[row.get(name, "") for name in ("topic", "due", "headers", "key", "value")] for row in reversed(ROWS)]
    quoted = [",".join('"' + cell.replace('"', '""') + '"' for cell in line) for line in cells]
    csv.write_text("\n".join(["topic,due,headers,key,value", *quoted]) + "\n")
    runs, said = _leave_marks_that_are_not_whole(tmp_path / "ledger" / "begun"), list[str]()
    for _ in range(2):
        assert run(spark, job(by_id, csv), said.append) == Imported(22, 0, 22, 0)
    told = [line.split()[4] for line in said if "is not whole" in line]
    assert sorted(told) == sorted(runs), "each is named once"
    parquet = tmp_path / "rows.parquet"
    seconds = [DUE + index // 3 for index in range(20)] + [DUE] * 2
    columns = {
        "due": pa.array([second * 1_000_000 for second in seconds], pa.timestamp("us", "UTC")),
        "topic": ["orders"] * 22,
        "key": [row.get("key") for row in ROWS],
        "value": pa.array([row["value"].encode() if "value" in row else None for row in ROWS], pa.binary()),
        "headers": pa.array([None] * 21 + [[("trace", b"x")]], pa.map_(pa.string(), pa.binary())),
    }
    pq.write_table(pa.table(columns), parquet)
    assert run(spark, job(by_id, parquet)) == Imported(22, 0, 22, 0)
    assert len(written(by_id)) == len(records)
    _a_file_that_has_grown_adds_its_new_rows(spark, by_id, tmp_path)

    # Ids of their own, in files that Spark has written; an id that comes twice is refused.
    ids = spark.range(30).select(
        F.timestamp_seconds(F.lit(DUE)).alias("due"),
        F.lit("orders").alias("topic"),
        F.concat(F.lit("o-"), "id").alias("id"),
    )
    ids.repartition(3).write.parquet(str(tmp_path / "own" / "ids"))
    assert run(spark, job(by_id, tmp_path / "own" / "ids")) == Imported(30, 0, 0, 30)
    assert {record.key for record in written(by_id)} >= {b"o-%d" % n for n in range(30)}
    ids.write.mode("append").parquet(str(tmp_path / "own" / "ids"))
    with pytest.raises(SettingsError, match=r"the id 'o-.*' is there twice"):
        run(spark, job(by_id, tmp_path / "own" / "ids"))
    by_id.close()


def _a_file_that_has_grown_adds_its_new_rows(spark: SparkSession, system: System, tmp_path: Path) -> None:
    """Its first rows are past by now, and an earlier run has sent them."""
    before = len(written(system))
    new = [{"due": str(DUE + due_s), "topic": "orders", "value": "new"} for due_s in (10, 20, 30)]
    grown = job(system, lines(tmp_path / "grown.jsonl", [*ROWS, *new]))
    later = bulk_import.run(spark, grown, (DUE + 15) * 10**9, print)
    assert later == Imported(25, 1, 22, 2) and later.rejects is not None
    (rejected,) = (json.loads(Path(part).read_text()) for part in local_files(later.rejects))
    assert rejected["_line"] == 23 and "is in the past" in rejected["_reason"]
    assert len(written(system)) == before + 2


def _leave_marks_that_are_not_whole(begun: Path) -> list[str]:
    """Returns the runs whose marks these are."""
    (begun / uuid4().hex).mkdir()
    wrong_sum = uuid4().hex
    (begun / f".{wrong_sum}.crc").write_bytes(b"crc\0\0\0\2\0\0\0\0\0")
    marks = [
        (uuid4().hex, ""),
        (uuid4().hex, '{"orders": {"0"'),
        (wrong_sum, "{}"),
        (uuid4().hex, "null"),
        (uuid4().hex, '{"orders": 5}'),
        (".DS_Store", "a"),
        ("notes", "{}"),
    ]
    for name, left in marks:  # a full disk, a kill, a power loss and strangers leave them
        (begun / name).write_text(left)
    return [name for name, _ in marks[:5]]


def test_the_mark_of_a_run_is_seen_when_it_is_whole(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an import on another machine, which waits for no lock of this one."""
    ledger, said = bulk_import.ImportLedger(spark, tmp_path.as_uri()), list[str]()
    run, starts = uuid4().hex, {"orders": {0: 5}}
    write = jvm.write_text

    def write_half(spark: SparkSession, url: str, text: str) -> None:
        write(spark, url, text[:3])
        assert ledger.unfinished(said.append, 0) == []
        write(spark, url, text)

    monkeypatch.setattr(jvm, "write_text", write_half)
    ledger.begin(run, as_json(starts))
    assert (ledger.unfinished(said.append, 0), said) == ([(run, starts)], [])
    ledger.end(run)
    assert ledger.unfinished(said.append, 0) == []

    def killed(*_: Any) -> None:
        raise Crash

    with monkeypatch.context() as patched, pytest.raises(Crash):
        patched.setattr(jvm, "move", killed)
        ledger.begin(run, as_json(starts))
    (left,) = (each for each in (tmp_path / "begun").iterdir() if not each.name.startswith("."))
    for days, is_kept in ((0.9, True), (1.1, False)):
        now_ns = left.stat().st_mtime_ns + int(days * 86_400 * 10**9)
        assert ledger.unfinished(said.append, now_ns) == []
        assert left.exists() == is_kept
    assert [*(tmp_path / "begun").iterdir()] == []


def test_a_mark_that_cannot_be_opened_is_no_mark_that_was_deleted(
    spark: SparkSession, tmp_path: Path, unopened: Callable[[], AbstractContextManager[None]]
) -> None:
    """Its run was interrupted: without the mark, all that it has sent would be sent again."""
    ledger, run, starts = bulk_import.ImportLedger(spark, tmp_path.as_uri()), uuid4().hex, {"orders": {0: 5}}
    ledger.begin(run, as_json(starts))
    with unopened(), pytest.raises(Py4JJavaError, match="FileNotFoundException"):
        ledger.unfinished(print, 0)
    assert ledger.unfinished(print, 0) == [(run, starts)]


def test_no_run_deletes_a_file_that_it_did_not_write(
    spark: SparkSession, by_id: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that a person has fixed, and other files, stay until they are sent, whatever --rejects names."""
    first = lines(tmp_path / "rows.jsonl", [GOOD[0], BAD[0]])
    beside = lines(tmp_path / "rejects" / "mine.jsonl", GOOD[1:2])
    found = run(spark, replace(job(by_id, first), rejects=(tmp_path / "rejects").as_uri()))
    assert (found.sent, found.rejected) == (1, 1) and found.rejects is not None
    mended = Path(found.rejects)
    (part,) = local_files(str(mended))
    row = json.loads(Path(part).read_text())
    text = json.dumps(row | {"due": str(DUE + 60)})
    Path(part).write_text(text)
    again = replace(job(by_id, mended), rejects=(tmp_path / "rejects").as_uri(), ledger=(tmp_path / "ledger").as_uri())

    def left() -> list[str]:
        return [Path(part).read_text(), beside.read_text()]

    assert run(spark, replace(again, dry_run=True)).sent == 1
    assert left() == [text, f"{json.dumps(GOOD[1])}\n"]

    def fails(*_: Any) -> None:
        raise Crash

    with monkeypatch.context() as patched, pytest.raises(Crash):
        patched.setattr(bulk_import, "_send", fails)
        run(spark, again)
    assert left()[0] == text
    assert run(spark, again) == Imported(1, 0, 0, 1)
    assert run(spark, again) == Imported(1, 0, 1, 0)
    assert left() == [text, f"{json.dumps(GOOD[1])}\n"]
    by_id.close()


def _are_the_rows(system: System, records: list[Record]) -> None:
    ids = [(record.key or b"") for record in records]
    assert len(set(ids)) == len(ROWS) and all(id.startswith(b"renewals-") for id in ids)
    assert [record.partition for record in records] == partitions_of(ids, system.settings.partitions)
    asked = []
    for record in records:
        request = RequestRecord(record.offset, record.key, record.value, record.headers, 0)
        decoded = future_by_id.decode([request], 10_000)
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
    this = job(by_id, lines(tmp_path / "rows.jsonl", GOOD))
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
            run(spark, this)
        assert len(written(by_id)) == there
    monkeypatch.setattr(bulk_import, "_send", send)
    said: list[str] = []
    # An import with another name and the same ledger comes first. It finds what the other one had sent.
    other = lines(tmp_path / "other.jsonl", GOOD[:1])
    assert run(spark, replace(job(by_id, other), name="other"), said.append).sent == 1
    assert said[0] == "an interrupted run had sent 13 timers"
    assert run(spark, this, said.append) == Imported(20, 0, 20, 0)
    assert len({record.key for record in written(by_id)}) == len(written(by_id)) == 21

    # The topic has lost records since a run was interrupted.
    topic, ledger = by_id.settings.id_topic, bulk_import.ImportLedger(spark, this.ledger)
    ledger.begin(uuid4().hex, as_json({topic: {0: 0, 99: 5}, "nowhere": {0: 3}}))
    by_id.cluster.delete_records(topic, {0: 1})
    said.clear()
    assert run(spark, this, said.append) == Imported(20, 0, 20, 0)
    assert said[1] == "its topic has lost 1 record since; timers in these are sent again"
    by_id.close()


def test_additions_to_a_ledger_leave_files_of_others_alone(spark: SparkSession, tmp_path: Path) -> None:
    """Those of an import on another machine, which has finished a task and not its job, and of an earlier version."""
    ledger, ids = bulk_import.ImportLedger(spark, tmp_path.as_uri()), tmp_path / "ids"
    pq.write_table(pa.table({"id": ["earlier"], "due_s": [DUE], "run": ["a"]}), tmp_path / "part-0.parquet")
    finished = ids / "_temporary" / "0" / "task_202601010000000000000000_0000_m_000000" / "part-1.parquet"
    finished.parent.mkdir(parents=True)
    for path in (finished, ids / "part-0.parquet"):
        path.write_bytes((tmp_path / "part-0.parquet").read_bytes())
    for id in ("first", "second"):
        ledger.add("b", spark.createDataFrame([(id, DUE)], "id string, due_s long"))
    sent = ledger.sent()
    assert sent is not None and sorted(row.id for row in sent.collect()) == ["earlier", "first", "second"]
    assert finished.exists()


def test_one_import_uses_a_ledger_at_a_time(tmp_path: Path) -> None:
    said: list[str] = []
    order: list[str] = []
    waits = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        waits.set()

    def second() -> None:
        with bulk_import._alone(tmp_path.as_uri(), say):
            order.append("second")

    with bulk_import._alone(tmp_path.as_uri(), said.append):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(30)
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"] and "another import uses the ledger" in said[0]
