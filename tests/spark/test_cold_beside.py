"""The cold tables beside programs of users, which change them at the same moment, and beside their own upkeep."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.spark.cold_rows import NOW_S, fill
from tests.spark.held_tasks import Gate, forever
from tests.spark.sim_engine import SimEngine, SimLogs
from timers.kafka.topic_offsets import Offsets
from timers.process.config.settings import Settings
from timers.spark import cold, kafka, storage
from timers.spark.cold import DAY_S, HELD_SCHEMA, PROMOTED_SCHEMA, ColdTables
from timers.spark.columns import RECORD_SCHEMA
from timers.spark.jobs import hold, promote
from timers.spark.jobs.promote import Promote
from timers.spark.storage import retried
from timers.wire import headers as h

pytestmark = pytest.mark.spark


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> ColdTables:
    made = ColdTables((tmp_path / "cold").as_uri())
    made.create(spark)
    return made


def held(spark: SparkSession, tables: ColdTables) -> DataFrame:
    return spark.read.format("delta").load(tables.held)


def alter(spark: SparkSession, tables: ColdTables) -> None:
    spark.sql(f"ALTER TABLE delta.`{tables.held}` SET TBLPROPERTIES ('nightly' = 'yes')")


def test_a_commit_that_another_one_interrupts_is_done_again(
    spark: SparkSession, tables: ColdTables, tmp_path: Path
) -> None:
    fill(spark, tables, 10, days=1)
    gate = Gate(tmp_path)
    changing = gate.then(partial(alter, spark, tables))
    late = held(spark, tables).limit(1).withColumn("source", F.lit("timer-request/0/99"))
    cold.append(gate.holds(late), tables.held, HELD_SCHEMA)
    changing.join()
    assert held(spark, tables).count() == 11

    def refused() -> None:
        raise ValueError("no conflict")

    with pytest.raises(ValueError, match="no conflict"):
        retried(refused)


def test_a_micro_batch_that_another_commit_interrupts_is_held_once(
    spark: SparkSession, tables: ColdTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = [
        (h.TIMER_SOURCE, b"timer-request/3/17"),
        (h.TIMER_DUE, b"%d" % NOW_S),
        (h.TIMER_APPENDED, b"1700000000123"),
        (h.TIMER_SEAL, b"0" * 32),
    ]
    gate, records, said = Gate(tmp_path), tmp_path / "records", list[str]()
    spark.createDataFrame([("timer-cold", 0, 0, 0, 1, b"k", b"v", headers)], RECORD_SCHEMA).write.parquet(str(records))
    stream = spark.readStream.schema(RECORD_SCHEMA).parquet(str(records))
    monkeypatch.setattr(kafka, "stream", lambda *_, **__: gate.holds(stream))
    monkeypatch.setattr(hold, "TopicOffsets", lambda settings: Existing())
    changing = gate.then(partial(alter, spark, tables))
    assert hold.run(spark, Settings(), tables, said.append) == 1
    changing.join()
    assert "the micro-batch is repeated" in said[0]
    assert [row.source for row in held(spark, tables).collect()] == ["timer-request/3/17"]


class Existing:
    def id_of(self, _: str) -> bytes:
        return b"topic id"

    def existing(self, topics: list[str]) -> list[str]:
        return topics


def test_no_timer_waits_for_upkeep(
    spark: SparkSession, tables: ColdTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round begins while the tables are maintained; the end of the job does not wait for it for long."""
    begun, stop, said, promoted = Event(), Event(), list[str](), list[int]()

    def maintain(*_: object) -> str:
        begun.set()
        spark.range(0, 1, 1, 1).mapInArrow(forever, "id bigint").collect()  # one task, so a core is left
        raise AssertionError("it is interrupted")

    def ended(rows: int, _: float) -> None:
        promoted.append(rows)
        if len(promoted) == 1:
            fill(spark, tables, 5, days=1)
        elif rows:
            stop.set()
        elif len(promoted) == 2:
            assert begun.wait(60)

    monkeypatch.setattr(promote, "maintain", maintain)
    logs = SimLogs(spark, SimEngine(NOW_S, 60), tmp_path / "copies")
    job = Promote(tables, lead_s=DAY_S, rate_per_s=1_000_000)
    assert promote.run(spark, job, logs, lambda: NOW_S, said.append, every_s=1, stop=stop, ended=ended) == 5
    assert begun.is_set() and not any("maintained" in line for line in said)


def test_upkeep_that_fails_is_said_and_tried_again(
    spark: SparkSession, tables: ColdTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, said, stop = [NOW_S], list[str](), Event()

    def maintain(*_: object) -> str:
        if len(said) < 1:
            spark.sql("SELECT raise_error('the storage is full')").collect()
        stop.set()
        return "tables maintained"

    def ended(*_: object) -> None:
        now_s[0] += promote.RETRY_CARE_S if said else 0

    monkeypatch.setattr(promote, "maintain", maintain)
    logs = SimLogs(spark, SimEngine(NOW_S, 60), tmp_path / "copies")
    promote.run(spark, Promote(tables), logs, lambda: now_s[0], said.append, every_s=1, stop=stop, ended=ended)
    assert "the tables are not maintained" in said[0] and "the storage is full" in said[0]
    assert said[1:] == ["tables maintained"]


def test_upkeep_deletes_though_hold_appends(
    spark: SparkSession, tables: ColdTables, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In steps: an append interrupts one of them, which is done again. What is appended stays, also of the same due
    seconds."""
    caplog.set_level("INFO", storage.logger.name)
    monkeypatch.setattr(cold, "_STEP_ROWS", 30)
    fill(spark, tables, 100, days=1)
    due = cold.unpromoted(spark, tables, NOW_S + DAY_S, F.lit(True)).where("due_s % 5 != 0")
    left = 100 - due.count()
    assert 0 < left < 60
    cold.append(due.withColumn("batch", F.lit("batch")), tables.promoted, PROMOTED_SCHEMA)
    stop, appended = Event(), list[int]()

    def holding() -> None:
        while not stop.is_set() and "another program has changed the table" not in caplog.text:
            fill(spark, tables, 10, days=1, first=1000 + 10 * len(appended))
            appended.append(10)

    appending = Thread(target=holding)
    appending.start()
    try:
        assert cold.delete_promoted(spark, tables, NOW_S + 3 * DAY_S) == 100 - left
    finally:
        stop.set()
        appending.join()
    assert "another program has changed the table" in caplog.text, "hold has not interrupted it"
    rows = held(spark, tables)
    assert rows.count() == rows.select("source").distinct().count() == left + sum(appended)
    assert cold.unpromoted(spark, tables, NOW_S + DAY_S, F.lit(True)).count() == left + sum(appended)
    merges = DeltaTable.forPath(spark, tables.held).history().where("operation = 'MERGE'").count()
    assert merges == -(-(100 - left) // 30)


def test_a_round_that_fails_ends_the_upkeep(
    spark: SparkSession, tables: ColdTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ends = Event(), Event()

    def maintain(*_: object) -> str:
        begun.set()
        try:
            spark.range(0, 1, 1, 1).mapInArrow(forever, "id bigint").collect()
        finally:
            ends.set()
        raise AssertionError("it is interrupted")

    def ended(*_: object) -> None:
        if begun.is_set():
            raise ZeroDivisionError

    monkeypatch.setattr(promote, "maintain", maintain)
    logs = SimLogs(spark, SimEngine(NOW_S, 60), tmp_path / "copies")
    with pytest.raises(ZeroDivisionError):
        promote.run(spark, Promote(tables), logs, lambda: NOW_S, print, every_s=1, ended=ended)
    assert ends.is_set()


class Delivering(SimLogs):
    """Copies reach the log at once."""

    def copies_since(self, starts: Offsets) -> DataFrame:
        self.deliver()
        return super().copies_since(starts)


def deleted(spark: SparkSession, tables: ColdTables, number: int) -> None:
    DeltaTable.forPath(spark, tables.held).delete(f"source = 'timer-request/0/{number}'")


def promoted(spark: SparkSession, tables: ColdTables) -> list[int]:
    """The numbers of the requests that were promoted."""
    rows = spark.read.format("delta").load(tables.promoted).collect()
    return sorted(int(row.source.rpartition("/")[2]) for row in rows)


def test_a_request_that_a_user_deletes_after_the_search_does_not_end_the_job(
    spark: SparkSession, tables: ColdTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays away, and a new search follows."""
    fill(spark, tables, 8, days=1)
    logs, job = Delivering(spark, SimEngine(NOW_S, 60), tmp_path / "copies"), Promote(tables, DAY_S, 1_000_000, chunk=3)
    read = cold.whole_requests

    def delete_and_read(*chosen: Any) -> DataFrame:
        deleted(spark, tables, 1)
        return read(*chosen)

    monkeypatch.setattr(cold, "whole_requests", delete_and_read)
    first = promote.promote_chunk(spark, job, logs, NOW_S)
    assert (first.promoted, first.more, first.left) == (2, True, None)
    assert promoted(spark, tables) == [0, 2]
    assert tables.steps(spark).unfinished() == []
    second = promote.promote_chunk(spark, job, logs, NOW_S)
    assert (second.promoted, second.more) == (3, True) and second.left is not None
    deleted(spark, tables, 7)  # a deletion of this session, such as one of upkeep, has Spark read the others again
    tables.steps(spark).add("older", storage.BEGUN, NOW_S, "{}")  # whose logs are trimmed: a search may take hours
    searches = logs.searches
    third = promote.promote_chunk(spark, job, logs, NOW_S, (), second.left)
    assert logs.searches == searches + 1, "only for the copies of this batch"
    assert (third.promoted, third.more, third.left) == (1, True, None), "by the search of the second"
    assert promote.promote_chunk(spark, job, logs, NOW_S).promoted == 0
    assert promoted(spark, tables) == [0, *range(2, 7)]
    assert [each.batch for each in tables.steps(spark).unfinished()] == ["older"]


def test_rounds_of_one_search_are_one_batch(
    spark: SparkSession, tables: ColdTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some rounds for each search. A promoter that is stopped between two of them ends the batch; of one that is killed
    in the second, what both have written is known."""
    monkeypatch.setattr(promote, "maintain", lambda *_: "tables maintained")
    monkeypatch.setattr(promote, "BATCH_ROUNDS", 3)
    fill(spark, tables, 20, days=1)
    logs, job = Delivering(spark, SimEngine(NOW_S, 60), tmp_path / "copies"), Promote(tables, DAY_S, 1_000_000, chunk=2)
    stop, rounds = Event(), list[int]()

    def ended(rows: int, _: float) -> None:
        rounds.append(rows)
        if len(rounds) == 4:
            stop.set()

    assert promote.run(spark, job, logs, lambda: NOW_S, print, every_s=1, stop=stop, ended=ended) == 8
    assert promoted(spark, tables) == [*range(8)]
    journal = spark.read.format("delta").load(tables.batches).groupBy("batch").agg(F.collect_set("state"), F.count("*"))
    assert [(set(states), rows) for _, states, rows in journal.collect()] == [({"begun", "done"}, 2)] * 2
    first = promote.promote_chunk(spark, job, logs, NOW_S)
    logs.dies = True
    with pytest.raises(Exception, match="killed after the commit"):
        promote.promote_chunk(spark, job, logs, NOW_S, (), first.left)
    logs.dies = False
    assert promoted(spark, tables) == [*range(8)]
    said = list[str]()
    assert promote.run(spark, job, logs, lambda: NOW_S, said.append) == 8
    assert said[0] == "promote: 4 had been written back when the previous run ended"
    assert promoted(spark, tables) == [*range(20)]
    assert len((tmp_path / "copies").read_text().splitlines()) == 20


@pytest.mark.long
def test_a_nightly_job_beside_the_jobs_loses_nothing(
    spark: SparkSession, tables: ColdTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPTIMIZE, VACUUM, ALTER TABLE and DELETE of a user, our upkeep, new timers and rounds, all at the same time."""
    monkeypatch.setattr(promote, "CARE_S", 0)
    logs = SimLogs(spark, SimEngine(NOW_S, 60), tmp_path / "copies")
    stop, said, failures = Event(), list[str](), list[BaseException]()
    count, parts = 400, 8

    def nightly() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            for path in (tables.held, tables.promoted):
                for change in (
                    f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('nightly' = '{number}')",
                    f"OPTIMIZE delta.`{path}`" + (" FULL" if number % 2 else ""),
                    f"DELETE FROM delta.`{path}` WHERE source = 'timer-request/0/-{number}'",
                    f"VACUUM delta.`{path}`",
                ):
                    retried(lambda change=change: spark.sql(change).collect())  # type: ignore[misc]

    def holding() -> None:
        for part in range(parts):
            fill(spark, tables, count // parts, days=1, first=part * count // parts)

    def guarded(run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            failures.append(error)
            stop.set()
            raise

    others = [Thread(target=guarded, args=(each,)) for each in (nightly, holding)]
    for each in others:
        each.start()
    rounds = iter(range(1000))

    def ended(rows: int, _: float) -> None:
        if next(rounds) >= 12 and not rows and not others[1].is_alive():
            stop.set()

    job = Promote(tables, lead_s=DAY_S, rate_per_s=1_000_000, chunk=50)
    total = promote.run(spark, job, logs, lambda: NOW_S + 3 * DAY_S, said.append, every_s=1, stop=stop, ended=ended)
    for each in others:
        each.join()
    assert not failures
    copies = [json.loads(line) for line in (tmp_path / "copies").read_text().splitlines()]
    sources = [bytes.fromhex(dict(headers)[h.TIMER_PROMOTED]).decode() for *_, headers in copies]
    assert sorted(sources) == sorted(f"timer-request/0/{number}" for number in range(count))
    assert total == count
