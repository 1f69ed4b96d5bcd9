"""``timers spark history`` against a real broker: each timer once, whatever happens between two rounds."""

import shutil
import time
from collections import Counter
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.harness.planted import ProductWriter
from tests.harness.records import Publisher, Request
from tests.harness.system import System, timers
from tests.harness.waiting import due_in
from tests.spark.audit_world import AuditedSystem, world
from timers.errors import SettingsError, SparkError
from timers.spark.audit import history
from timers.spark.audit.anew import told_apart
from timers.spark.audit.history import History
from timers.spark.jobs import history as job
from timers.spark.monitoring import MAX_WORK_S, Monitor
from timers.spark.storage import KNOWN_LAYOUT, LAYOUT_PROPERTY
from timers.wire.formats import future_by_id

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]


def add(spark: SparkSession, system: System, table: Path, **more: bool) -> job.Total:
    """Bring the history up to what the topics have."""
    return job.run(spark, system.settings, job.Params(str(table), **more), print)


def rows(spark: SparkSession, table: Path) -> DataFrame:
    return spark.read.format("delta").load(History(spark, str(table)).timers)


def test_what_became_of_each_timer_is_there_once(spark: SparkSession, broker_address: str, tmp_path: Path) -> None:
    """Fired, late, dead-lettered, replaced, cancelled in time and too late, pending: as a consumer counts them."""
    ids, verdicts = f"by-id-{tmp_path.name}", f"verdicts-{tmp_path.name}"
    system = System(broker_address, tmp_path, TIMERS_ID_TOPIC=ids, TIMERS_VERDICT_TOPIC=verdicts)
    system.worker().start().ready()
    target, table = system.target(partitions=2), tmp_path / "history"
    due_s = due_in(8)
    soon = timers(target, 60, due_s, 3, b"payload")
    overdue, far = timers(target, 20, due_s - 1000, 1), timers(target, 5, due_s + 86_400, 2)
    system.send(*soon, *overdue, *far, Request("no-such-topic", due_s))
    Publisher(system.address, system.request_topic).send_raw(b"not-a-second", b"", [], 0)
    by_id = Publisher(system.address, ids)

    def put(id: str, due: int) -> None:
        by_id.queue_raw(id.encode(), Request(target, due).wire_value, future_by_id.encode_headers(due), 0)

    for number in range(20):
        put(f"order-{number}", due_s + 1000 * (number < 10))
    by_id.flush()
    add(spark, system, table)
    for number in range(5):
        put(f"order-{number}", due_s)
        by_id.queue_raw(f"order-{number + 5}".encode(), None, [], 0)
    by_id.flush()
    reader = system.reader(target)
    seen = reader.take(60 + 20 + 15)
    by_id.send_raw(b"order-19", None, [], 0)  # too late
    put("order-18", due_s)  # again, for a second that is past
    by_id.flush()
    seen += reader.take(1)
    system.dead_letters().take(2)
    add(spark, system, table)
    found = rows(spark, table).collect()
    assert Counter(row.outcome for row in found) == {
        "fired": 60 + 20 + 15 + 1,
        "dead-lettered": 2,
        "replaced": 5,
        "cancelled": 5,
    }
    assert len({row.request for row in found}) == len(found)
    fired = {(row.timer_id, row.due_s, row.fired.timestamp()) for row in found if row.outcome == "fired"}
    assert len(fired) == len(seen)
    for record in seen:
        headers = {name: value or b"" for name, value in record.headers}
        assert (record.timer_id, int(headers["timer-due"]), int(headers["timer-fired"]) / 1000) in fired
    assert Counter(row.way for row in found) == {"native": 60 + 20 + 1, "with-id": 20 + 5 + 1, "retried": 1}
    assert {row.code for row in found if row.outcome == "dead-lettered"} == {"topic-unknown", "topic-missing"}
    assert not [row.faults for row in found if row.faults]
    events = History(spark, str(table)).read(history.REQUEST, history.CALLBACK)
    assert not events.where("event = 'request' and callback_key is not null and timer_id like 'order-0'").collect()
    names = events.groupBy("event", "topic", "partition", "offset").count()
    assert names.where("count > 1").isEmpty(), "a record is there twice"

    again = add(spark, system, table)
    assert (again.timers, rows(spark, table).count()) == (0, len(found))
    system.close()


def test_a_topic_that_was_made_anew_has_other_requests_with_the_same_offsets(
    spark: SparkSession, audited: AuditedSystem, tmp_path: Path
) -> None:
    """Plain requests, and versions of one id, which are due in the same second."""
    planted, table, settings = world(audited, ProductWriter(audited)), tmp_path / "history", audited.settings

    def ask_and_fire() -> set[str]:
        """Bring the history up to what is there then, and return the sources of the requests."""
        by_id = planted.writer.ask_by_id(planted.target, "order", planted.due_s, planted.asked_ms)
        asked = planted.ask(), by_id
        for each in asked:
            planted.writer.fire(each, int(time.time() * 1000) + 5)
        add(spark, audited, table)
        return {each.source for each in asked}

    sources = ask_and_fire()
    for _ in range(2):
        for topic in (settings.request_topic, settings.id_topic):
            audited.delete_topic(topic)
        audited.create_own_topics()
        assert ask_and_fire() == sources
    assert add(spark, audited, table).timers == 0
    found = rows(spark, table).collect()
    names = {source.replace("/", f"{log}/", 1) for source in sources for log in ("", "@1", "@2")}
    assert {(row.request, row.outcome, row.firings, row.faults) for row in found} == {
        (name, "fired", 1, None) for name in names
    }
    plain = {source for source in sources if source.startswith(f"{settings.request_topic}/")}
    assert {row.timer_id for row in found} == {*plain, "order"}
    assert {gap.code for gap in History(spark, str(table)).gaps()} == {"topic-made-anew"}


def test_a_topic_that_is_made_anew_while_nothing_is_asked_is_counted_once(
    spark: SparkSession, audited: AuditedSystem, tmp_path: Path
) -> None:
    """Rounds follow each other, and none has a record."""
    planted, tables = world(audited, ProductWriter(audited)), History(spark, str(tmp_path / "history"))
    settings, topic, said = audited.settings, audited.settings.id_topic, list[str]()
    planted.writer.ask_by_id(planted.target, "order", planted.due_s, planted.asked_ms)
    tables.open(job._owner(settings), keys=False)
    params, monitor = job.Params(tables.root), Monitor("history", 10)
    running = job._Job(spark, settings, params, tables, said.append, job.Total(), Event(), 10, monitor)
    assert running.round() == 1
    audited.delete_topic(topic)
    audited.create_own_topics()
    assert [running.round() for _ in range(3)] == [0, 0, 0]
    assert len([line for line in said if "the topic was made anew" in line]) == len(tables.gaps())
    planted.writer.ask_by_id(planted.target, "order", planted.due_s, planted.asked_ms)
    running.round()
    asked = tables.read(history.REQUEST).orderBy("batch").collect()
    assert [row.topic for row in asked] == [topic, f"{topic}@1"]
    assert len(history.made_anew(tables.gaps(), [topic])[topic]) == 1


def test_a_topic_is_as_often_made_anew_as_this_version_has_found_it_as_a_topic_of_requests(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Not once more for what is missing of the callbacks in it, or for what an earlier version found."""
    tables = History(spark, str(tmp_path))
    tables.open("app@cluster", keys=False)
    gap = history.Gap("requests", 0, 0, 5, 1000, history.TOPIC_MADE_ANEW)
    before = [gap._replace(until_ms=500), gap._replace(until_ms=600, role=history.OUTPUT)]
    tables.commit(1, "run", None, [*map(history.gap_row, before), {"event": history.MADE}])
    for batch in (2, 3):  # their first records have the same time
        found = [gap._replace(partition=partition, role=history.REQUEST) for partition in (0, 1)]
        tables.commit(batch, "run", None, [*map(history.gap_row, found), {"event": history.MADE}])
    assert history.made_anew(tables.gaps(), ["requests", "other"]) == {"requests": {2: 1000, 3: 1000}}
    assert len(tables.accept_gaps()) == 6
    assert all(each.is_accepted for each in tables.gaps())


def test_a_record_names_the_log_that_has_it_whatever_time_its_producer_has_set(spark: SparkSession) -> None:
    """Of its own topic; of another one, and in callbacks, that of its time."""
    times = {"requests": [1000, 2000], "cold": [1500]}
    said = [
        ("requests", 999, "requests/0/5", "requests/0/4"),
        ("requests", 1600, "cold/0/5", "cold/0/5"),
        ("requests", 1499, "cold/0/5", "cold/0/5"),
        ("other", 999, "other/0/5", None),
    ]
    events = spark.createDataFrame(said, "topic string, timestamp_ms bigint, request string, version string")
    assert [tuple(row) for row in told_apart(events, times, is_asked=True).collect()] == [
        ("requests@2", 999, "requests@2/0/5", "requests@2/0/4"),
        ("requests@2", 1600, "cold@1/0/5", "cold@1/0/5"),
        ("requests@2", 1499, "cold/0/5", "cold/0/5"),
        ("other", 999, "other/0/5", None),
    ]
    fired = told_apart(events.where("topic = 'requests'"), times, is_asked=False).select("topic", "request")
    assert [tuple(row) for row in fired.collect()] == [
        ("requests", "requests/0/5"),
        ("requests", "cold@1/0/5"),
        ("requests", "cold/0/5"),
    ]


def test_timers_that_are_lost_are_made_of_all_batches_whoever_opens_the_tables_first(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: Any = None
    monkeypatch.setattr(job, "_owner", lambda _: "app@cluster")

    def opened() -> History:
        tables = History(spark, str(tmp_path))
        tables.open("app@cluster", keys=False)
        return tables

    tables = opened()
    tables.commit(1, "run", None, [{"event": history.MADE, "offset": 0, "end": 1}])
    tables.create_timers()
    tables.commit(2, "run", None, [{"event": history.MADE, "offset": 1, "end": 0, "timestamp_ms": 5}])
    assert opened().known().through == 2
    shutil.rmtree(tmp_path / "timers")
    assert list(job.accept_gaps(spark, settings, job.Params(str(tmp_path)))) == []
    assert job.is_kept_up(spark, settings, str(tmp_path), 5, print)
    assert not (tmp_path / "timers").exists()
    tables = opened()
    assert tables.known().through == 0
    tables.commit(3, "run", None, [{"event": history.MADE, "offset": 0, "end": 0}])
    tables.create_timers()
    assert opened().known().through == 0


class Killed(Exception):
    """Ends a job, as SIGKILL would: at once."""


def test_a_killed_job_leaves_nothing_out_and_nothing_twice(
    spark: SparkSession, audited: AuditedSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two commits, and after one, before it has noted it. A table that is lost is made again."""
    planted, table = world(audited, ProductWriter(audited)), tmp_path / "history"
    known = 0

    def fire(number: int) -> None:
        nonlocal known
        for _ in range(number):
            planted.writer.fire(planted.ask())
        known += number

    def killed(name: str, *, after: bool) -> None:
        """Add to the history in a job that is killed before or after it has written something."""
        whole = getattr(History, name)

        def dies(self: History, *arguments: Any) -> Any:
            if name == "commit" and arguments[2] is None:  # it has no records
                return whole(self, *arguments)
            if after:
                whole(self, *arguments)
            raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(History, name, dies)
            with pytest.raises(Killed):
                add(spark, audited, table)

    def is_whole() -> None:
        add(spark, audited, table)
        found = rows(spark, table).collect()
        assert len(found) == len({row.request for row in found}) == known
        assert {row.outcome for row in found} == {"fired"} and not [row.faults for row in found if row.faults]

    add(spark, audited, table, keys=True)
    fire(20)
    killed("make", after=False)
    killed("make", after=True)
    is_whole()
    fire(20)
    killed("commit", after=True)
    is_whole()
    shutil.rmtree(table / "timers")
    assert not list(job.accept_gaps(spark, audited.settings, job.Params(str(table))))
    assert job.is_kept_up(spark, audited.settings, str(table), int(time.time() * 1000), print)
    killed("named", after=False)
    killed("fence", after=False)
    is_whole()
    shutil.rmtree(table / "timers")
    assert job.erase(spark, audited.settings, job.Params(str(table)), "of no timer", None) == 0
    is_whole()


def test_an_old_job_that_wakes_changes_nothing(
    spark: SparkSession, audited: AuditedSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was about to change a row when a new job began, which has changed it."""
    planted, table = world(audited, ProductWriter(audited)), tmp_path / "history"
    twice = planted.ask()
    planted.writer.fire(twice)
    add(spark, audited, table)
    planted.writer.fire(twice)
    whole, versions = History._change, list[int]()

    def sleeps(self: History, *arguments: Any) -> int:
        monkeypatch.setattr(History, "_change", whole)
        add(spark, audited, table)
        versions.append(newest(spark, self.timers))
        return whole(self, *arguments)

    monkeypatch.setattr(History, "_change", sleeps)
    with pytest.raises(SparkError, match="another `timers spark history` writes to"):
        add(spark, audited, table)
    assert versions == [newest(spark, History(spark, str(table)).timers)]
    (row,) = rows(spark, table).collect()
    assert (row.firings, row.faults) == (2, "duplicate")


def newest(spark: SparkSession, path: str) -> int:
    (commit,) = DeltaTable.forPath(spark, path).history(1).select("version").collect()
    return int(commit.version)


def test_tables_are_maintained_each_day_however_often_the_job_starts(
    spark: SparkSession, audited: AuditedSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are sorted when they have grown by half."""
    planted, table = world(audited, ProductWriter(audited)), tmp_path / "history"
    tables, known, promised = History(spark, str(table)), 0, list[float]()
    monkeypatch.setattr(history, "_UNSORTED_BYTES", 0)
    keep_up = History.keep_up

    def noting(self: History, *arguments: Any) -> None:
        promised.append(self.known().again_s - time.time())
        keep_up(self, *arguments)

    monkeypatch.setattr(History, "keep_up", noting)

    def start(sorted_bytes: int | None) -> list[str]:
        """What a job that starts does to the table of events; if this was long ago and it had so many bytes then."""
        nonlocal known
        planted.writer.fire(planted.ask())
        if sorted_bytes is not None:
            for path in (tables.events, tables.timers):
                alter(spark, path, history._UPKEPT, f"0/{sorted_bytes}")
        add(spark, audited, table)
        found = DeltaTable.forPath(spark, tables.events).history().where(F.col("version") > known)
        commits = found.where("operation in ('OPTIMIZE', 'VACUUM END')").orderBy("version").collect()
        known = newest(spark, tables.events)
        return [
            "SORT" if "due_s" in each.operationParameters.get("zOrderBy", "") else each.operation for each in commits
        ]

    assert start(None) == [], "they are new"
    assert start(10**9) == ["OPTIMIZE", "VACUUM END"]
    assert start(None) == []
    assert start(1000) == ["SORT", "VACUUM END"]
    assert rows(spark, table).count() == 4
    assert len(promised) == 2 and min(promised) > MAX_WORK_S - 600, "an audit would end the job"
    assert tables.known().again_s == 0, "an audit would wait for a job that has ended"
    alter(spark, tables.timers, LAYOUT_PROPERTY, KNOWN_LAYOUT + 1)
    with pytest.raises(SettingsError, match=r"/timers' has the layout 2, and this version of kafka-timers knows 1: "):
        add(spark, audited, table)


def alter(spark: SparkSession, path: str, name: str, value: object) -> None:
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('{name}' = '{value}')")


def test_rows_change_and_are_erased_and_what_is_not_there_is_said(
    spark: SparkSession, audited: AuditedSystem, tmp_path: Path
) -> None:
    """A second callback; an erasure; another process and another app; deleted callbacks; a lost table."""
    planted, table, settings = world(audited, ProductWriter(audited)), tmp_path / "history", audited.settings
    twice = planted.ask()
    planted.writer.fire(twice)
    secret = planted.writer.ask_by_id(planted.target, "secret", planted.due_s, planted.asked_ms)
    planted.writer.fire(secret)
    add(spark, audited, table, keys=True)
    assert rows(spark, table).where("timer_id = 'secret' and key = 'key'").count() == 1
    planted.writer.fire(twice)
    add(spark, audited, table)
    (row,) = rows(spark, table).where(F.col("request") == twice.source).collect()
    assert (row.outcome, row.firings, row.faults) == ("fired", 2, "duplicate")

    assert job.erase(spark, settings, job.Params(str(table)), "secret", b"key") == 2
    for each in (History(spark, str(table)).read(history.REQUEST, history.CALLBACK), rows(spark, table)):
        assert not [row for row in each.collect() if "secret" in row or b"key" in row]
    assert rows(spark, table).count() == 2

    tables = History(spark, str(table))
    batch = tables.known().batch
    with pytest.raises(SparkError, match="another `timers spark history` writes to"):
        tables.commit(batch, "of another process", None, [{"event": "made", "offset": 0}])
    with pytest.raises(SettingsError, match=f"is of {settings.app_id}@.* and not of other@cluster: name another"):
        tables.open("other@cluster", keys=False)
    said: list[str] = []
    planted.writer.fire(planted.ask())
    audited.delete_all(planted.target, 0)
    audited.delete_all(planted.target, 1)
    job.run(spark, settings, job.Params(str(table)), said.append)
    assert any("are not in the history, because they were deleted before they were read" in line for line in said)
    (gap,) = History(spark, str(table)).gaps()
    assert (gap.topic, gap.end - gap.start, gap.code) == (planted.target, 1, "records-deleted")
    assert not gap.is_accepted
    accepted = list(job.accept_gaps(spark, settings, job.Params(str(table))))
    assert accepted == [job.described_gap(gap)]
    assert History(spark, str(table)).gaps() == [gap._replace(is_accepted=True)]
    assert list(job.accept_gaps(spark, settings, job.Params(str(table)))) == []
    shutil.rmtree(table / "events")
    with pytest.raises(SettingsError, match=r"is lost, and .* is not"):
        add(spark, audited, table)
