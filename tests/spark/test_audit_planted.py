"""``timers spark audit`` of planted faults.

Each kind of fault is planted twice: with the code of the product, and byte by byte. One audit must name them all.
"""

import time
import uuid
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from tests.harness.constants import Constants
from tests.harness.planted import Asked, ByteWriter, ProductWriter, Record
from tests.harness.waiting import DEADLINE_S
from tests.spark.audit_world import HOUR_MS, MAX_LAG_S, AuditedSystem, World, found, world
from timers.spark.audit import report
from timers.spark.audit.gaps import Scope
from timers.spark.audit.outcomes import Moment
from timers.spark.cold import ColdTables
from timers.spark.jobs import day_audit
from timers.spark.jobs.audit import Audit

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]


def plant_native_faults(world: World) -> None:
    writer, due_ms = world.writer, world.due_s * 1000
    world.plant("lost", world.ask())
    first, second = (world.ask(value=b"like") for _ in range(2))
    writer.fire(first)
    world.plant("lost", second)
    unreadable = writer.write(world.system.request_topic, b"soon", b"\xff", [], world.asked_ms)
    world.expected["lost"].append(unreadable)
    twice, buried = world.plant("duplicate", world.ask()), world.plant("duplicate", world.ask())
    for asked in (twice, twice, buried):
        writer.fire(asked)
    writer.write_dead_letter(buried)
    writer.fire(world.plant("early", world.ask()), due_ms - 1)
    changes: list[dict[str, Any]] = [
        {"key": b"other"},
        {"key": None},
        {"value": b"valu\xe9"},
        {"headers": []},
        {"headers": [("a", b"1"), ("b", None)]},
    ]
    for change in changes:
        writer.fire(world.plant("altered", world.ask(headers=[("a", b"1"), ("b", b"2")])), **change)
    writer.fire(world.plant("slow", world.ask()), due_ms + 2 * HOUR_MS)
    hour_ago_s = world.due_s - 3600
    late = writer.ask(world.target, hour_ago_s, world.asked_ms)
    writer.fire(world.plant("older-than-request", late), hour_ago_s * 1000 + 20)


def plant_by_the_brokers_time(world: World) -> None:
    """A callback whose headers say that it was in time, and whose record is before the due second."""
    writer = world.writer
    soon_s = int(time.time()) + 600
    writer.fire(world.plant("early", writer.ask(world.system.target(), soon_s, world.asked_ms)), soon_s * 1000)


def plant_an_aborted_request(world: World) -> None:
    writer, system = world.writer, world.system
    producer = Producer({"bootstrap.servers": system.address, "transactional.id": f"aborts-{uuid.uuid4().hex}"})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    places: list[str] = []
    producer.produce(
        system.request_topic,
        writer.future(world.target, "key", b"value"),
        b"%d" % world.due_s,
        partition=0,
        on_delivery=lambda _, message: places.append(f"{message.topic()}/{message.partition()}/{message.offset()}"),
    )
    producer.flush(DEADLINE_S)
    producer.abort_transaction(DEADLINE_S)
    name = places[0]
    asked = Asked(name, name, world.due_s, world.target, b"key", b"value", [], (None, b"", [], 0))
    writer.fire(world.plant("unasked", asked))


def plant_callbacks_without_a_request(world: World) -> None:
    """They name records beyond the ends of logs, and records that ask for no such callback."""
    writer, settings = world.writer, world.system.settings
    cancel = writer.cancel(f"order-{uuid.uuid4().hex}", world.asked_ms)
    unreadable = writer.write(settings.countdown_topic, b"key", b"{", [], world.asked_ms)
    record: Record = b"key", b"{", [], world.asked_ms
    writer.write_dead_letter(Asked(unreadable, "", 0, "", None, b"", [], record))
    other_second = world.ask()
    writer.fire(other_second)
    number = next(world.numbers)
    topics = (settings.request_topic, settings.id_topic, settings.countdown_topic, *settings.schedule_topics)
    beyond = [f"{topic}/0/{10**9 + number}" for topic in topics]
    for source in (*beyond, f"{settings.request_topic}/99/{number}", cancel, unreadable):
        asked = Asked(source, source, world.due_s, world.target, b"key", b"value", [], (None, b"", [], 0))
        writer.fire(world.plant("unasked", asked))
    writer.fire(world.plant("unasked", replace(other_second, due_s=world.due_s + 1)))


def plant_faults_of_ids(world: World) -> None:
    writer, target, due_s = world.writer, world.target, world.due_s
    cancelled, replaced, like = (f"order-{uuid.uuid4().hex}" for _ in range(3))
    first, again = (writer.ask_by_id(target, like, due_s, at) for at in (world.asked_ms, due_s * 1000 + 5000))
    writer.fire(first)
    writer.write_verdict(again.source, again, "already-fired")
    world.plant("lost", again)
    revoked = world.plant("revoked", writer.ask_by_id(target, cancelled, due_s, world.asked_ms))
    writer.write_verdict(writer.cancel(cancelled, world.asked_ms + 1), revoked, "cancelled")
    writer.fire(revoked)
    old = world.plant("revoked", writer.ask_by_id(target, replaced, due_s, world.asked_ms))
    new = writer.ask_by_id(target, replaced, due_s + 1, world.asked_ms + 1)
    writer.write_verdict(new.source, old, "replaced")
    writer.fire(old)
    writer.fire(new)
    returns = world.system.create_topic(
        f"queue.jobs-{uuid.uuid4().hex}-returns", 1, message_timestamp_type="CreateTime"
    )
    for fault, change in (("altered", {"value": b"of another message"}), ("lost", None)):
        id = f"queue-guard/jobs/0/17/{uuid.uuid4().hex}"
        guard = world.plant(fault, writer.ask_by_id(returns, id, due_s, world.asked_ms))
        if change is not None:
            writer.fire(guard, None, **change)


def plant_faults_of_other_formats(world: World) -> None:
    writer, target, due_s = world.writer, world.target, world.due_s
    writer.fire(world.plant("altered", writer.wait(target, due_s, 600)), value=b'"message"')
    world.plant("lost", writer.wait(target, due_s, 600))
    scheduled = [writer.schedule(target, f"video-{uuid.uuid4().hex}", due_s, world.asked_ms) for _ in range(3)]
    world.plant("lost", scheduled[0])
    writer.fire(world.plant("altered", scheduled[1]), headers=scheduled[1].headers[:-1])
    for _ in range(2):
        writer.fire(scheduled[2])
    world.plant("duplicate", scheduled[2])
    writer.put_cold(world.plant("lost", world.ask()))


def test_one_audit_names_each_planted_fault(
    spark: SparkSession, audited: AuditedSystem, tmp_path: Path, constants: Constants
) -> None:
    """Also beside what cannot be decided: a request behind an open transaction."""
    constants("timers.spark.audit.reading", SETTLING_S=1.0)
    tables = ColdTables((tmp_path / "cold").as_uri())
    tables.create(spark)
    expected: dict[str, list[str]] = defaultdict(list)
    for kind in (ProductWriter, ByteWriter):
        planted = world(audited, kind(audited))
        planted.good()
        for plant in (
            plant_native_faults,
            plant_by_the_brokers_time,
            plant_an_aborted_request,
            plant_callbacks_without_a_request,
            plant_faults_of_ids,
            plant_faults_of_other_formats,
        ):
            plant(planted)
        for fault, names in planted.expected.items():
            expected[fault] += names
    assert sum(map(len, expected.values())) >= 40
    output = tmp_path / "out"
    audited.hold_open(audited.settings.request_topic, 0)
    findings = found(spark, planted, cold=tables, tables=output.as_uri())
    listed = {fault: sorted(map(report._name, rows)) for fault, rows in findings.listed.items()}
    assert listed == {fault: sorted(names) for fault, names in expected.items()}
    assert findings.verdict == "faulty" and [each.code for each in findings.gaps] == ["open-transaction"]
    assert {fault: len(names) for fault, names in expected.items()} == dict(findings.faults)
    by_day: dict[str, list[str]] = defaultdict(list)
    moment = Moment(int(time.time() * 1000), 5, MAX_LAG_S)
    seconds = planted.due_s - 3600, planted.due_s, int(time.time()) + 600
    for day in sorted({datetime.fromtimestamp(each, UTC).date() for each in seconds}):
        audit = Audit(audited.settings, Scope(), moment)
        of_day = day_audit.run(spark, audit, str(tmp_path / "history"), day, print)
        assert [each.code for each in of_day.gaps] == ["open-transaction"]
        for fault, rows in of_day.listed.items():
            by_day[fault] += map(report._name, rows)
    assert {fault: sorted(names) for fault, names in by_day.items()} == listed
    html = report.page(findings, audited.settings)
    assert all(name in html for names in expected.values() for name in names)
