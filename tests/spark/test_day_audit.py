"""``timers spark audit --history`` beside a job of the history, and of topics that were made anew."""

import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.harness.planted import ProductWriter
from tests.spark.audit_world import MAX_LAG_S, AuditedSystem, world
from timers.errors import SparkError
from timers.spark.audit import gaps, history
from timers.spark.audit.gaps import Scope
from timers.spark.audit.history import Gap, History, Known, Position
from timers.spark.audit.outcomes import Moment
from timers.spark.jobs import day_audit
from timers.spark.jobs import history as job
from timers.spark.jobs.audit import Audit

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def test_what_has_no_request_is_judged_by_the_log_that_it_names(spark: SparkSession) -> None:
    """What no round has read of a former log was perhaps there. Beyond the end of the present one is nothing."""
    log = gaps.Log(
        {"requests": {0: range(day_audit._NO_END)}, "requests@1": {0: range(5)}},
        {"requests": {0: range(7)}, "requests@1": {0: range(2, 5)}},
    )
    expected = {
        "requests/0/6": "missing",
        "requests/0/7": gaps.NOT_IN_SCOPE,
        "requests@1/0/1": gaps.NOT_IN_SCOPE,
        "requests@1/0/2": "missing",
        "requests@1/0/999~3": "missing",
        "requests@2/0/1": gaps.NO_SOURCE,
        "other/0/1": gaps.OTHER_TOPIC,
        "an id": gaps.NO_SOURCE,
    }
    named = spark.createDataFrame([(name,) for name in expected], "request string")
    found = named.select("request", gaps._reason(log, "missing").alias("reason")).collect()
    assert {row.request: row.reason for row in found} == expected


def test_callbacks_are_judged_by_the_log_that_their_requests_were_in(
    spark: SparkSession, audited: AuditedSystem, tmp_path: Path
) -> None:
    """A request of the log before that no round has read was perhaps there. None is beyond the end of the new one."""
    planted, table, topic = world(audited, ProductWriter(audited)), tmp_path / "history", audited.settings.request_topic
    for _ in range(3):
        planted.writer.fire(planted.ask())
    job.run(spark, audited.settings, job.Params(str(table)), print)
    unread = planted.ask()
    audited.delete_topic(topic)
    audited.create_own_topics()
    planted.writer.fire(unread)
    new, now_ms = planted.ask(), int(time.time() * 1000)
    planted.writer.fire(new, now_ms + 5)
    partition = new.source.split("/")[1]
    stray = f"{topic}/{partition}/999"
    planted.writer.fire(replace(new, source=stray, timer_id=stray), now_ms + 5)
    job.run(spark, audited.settings, job.Params(str(table)), print)  # an audit would not: the last round was just now
    audit = Audit(audited.settings, Scope(), Moment(now_ms, 5, MAX_LAG_S))
    day = datetime.fromtimestamp(planted.due_s, UTC).date()
    found = day_audit.run(spark, audit, str(table), day, print)
    assert {fault: [row["request"] for row in rows] for fault, rows in found.listed.items()} == {
        "unasked": [f"{topic}@1/{partition}/999"]
    }
    assert [(each.reason, each.records, each.example) for each in found.unplaced] == [
        (gaps.NOT_IN_SCOPE, 1, unread.source)
    ]
    assert {each.code for each in found.gaps} == {"records-deleted"}
    assert any(f"the requests of {topic}/{partition} at offsets from 3 on are not" in each.text for each in found.gaps)


def test_each_log_of_a_topic_has_its_own_end() -> None:
    """That of a former log is not known. Gaps are of the log that was there when they were found."""
    end = range(day_audit._NO_END)
    lacks = [
        Gap("requests", 0, 0, 3, 0, history.RECORDS_DELETED, history.REQUEST, 1),
        Gap("requests", 0, 7, 9, 0, history.TOPIC_MADE_ANEW, history.REQUEST, 2),
        Gap("requests", 1, 4, 4, 0, history.TOPIC_MADE_ANEW, history.REQUEST, 2),
        Gap("requests", 0, 0, 2, 0, history.RECORDS_DELETED, history.REQUEST, 2),
        Gap("requests", 0, 0, 50, 0, history.RECORDS_DELETED, history.OUTPUT, 3),
        Gap("requests", 0, 6, 6, 0, history.TOPIC_MADE_ANEW, history.REQUEST, 4),
        Gap("other", 0, 1, 2, 0, history.TOPIC_MADE_ANEW, None, 4),
    ]
    positions = {
        (role, topic, partition): Position(offset, offset, 0, "id", 0)
        for role, topic, partition, offset in [
            (history.REQUEST, "requests", 0, 5),
            (history.REQUEST, "other", 0, 8),
            (history.OUTPUT, "requests", 0, 60),
        ]
    }
    log = day_audit._log(Known(4, positions, 4, 0), lacks, history.made_anew(lacks, {"requests", "other"}))
    assert log.ends == {
        "requests": {0: end, 1: end},
        "requests@1": {0: end},
        "requests@2": {0: range(5)},
        "other": {0: range(8)},
    }
    assert log.read == {
        "requests": {0: range(3, 7), 1: range(4)},
        "requests@1": {0: range(2, 6)},
        "requests@2": {0: range(5)},
        "other": {0: range(2, 8)},
    }


def test_an_audit_does_not_end_a_job_that_is_at_work(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it commits nothing. It is known by what its last commit promises."""
    settings: Any = None
    monkeypatch.setattr(job, "_owner", lambda _: "app@cluster")
    tables, said, now_s = History(spark, str(tmp_path)), list[str](), int(time.time())
    long_ago_s = now_s - job.IDLE_S - job.FRESH_S - 1

    def is_kept_up() -> bool:
        return job.is_kept_up(spark, settings, str(tmp_path), now_s * 1000, said.append)

    assert not is_kept_up(), "there are no tables"
    tables.open("app@cluster", keys=False)
    tables.commit(1, "run", None, [{"event": history.MADE, "offset": 0, "due_s": now_s + 5}])
    with pytest.raises(SparkError, match=r"is at work on .* and has not read all that is there yet: wait for it, or"):
        is_kept_up()
    made = {"event": history.MADE, "offset": 0, "timestamp_ms": long_ago_s * 1000}
    tables.commit(2, "run", None, [{**made, "due_s": now_s + 5}])
    assert is_kept_up()
    assert len(said) == 1 and "the audit is as of " in said[0]
    for batch, promised in (3, now_s - 1), (4, None):
        tables.commit(batch, "run", None, [{**made, "due_s": promised}])
        assert not is_kept_up()
    tables.commit(5, "run", None, [{**made, "timestamp_ms": (long_ago_s + 1) * 1000}])
    assert is_kept_up(), "it ended a short time ago"
