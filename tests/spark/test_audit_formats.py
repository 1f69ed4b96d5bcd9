"""``timers spark audit`` of the request formats whose timers have ids, after a real worker, and with faults planted in
each.

Schedules of kafka-message-scheduler in a topic that brokers compact, countdowns, and timers with an id, at once: all of
them go out to the same target, and some ids are the same.
"""

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyspark.sql import SparkSession

from tests.harness.race import race
from tests.harness.records import Headers, Publisher, Request
from tests.harness.schedules import PARTITIONS, Schedules
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from tests.spark.audit_world import Engine, found_in
from timers.spark.audit import report
from timers.spark.audit.findings import Findings
from timers.wire.formats import future_by_id

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

RACES = 200
"""Schedules that are replaced or deleted in the very second that they are due."""


class Formats(Schedules):
    """Schedules, countdowns and timers with an id."""

    def __init__(self, address: str, directory: Path) -> None:
        run = uuid.uuid4().hex[:8]
        self.waits, self.ids = f"waits-{run}", f"by-id-{run}"
        names = {
            "TIMERS_COUNTDOWN_TOPIC": self.waits,
            "TIMERS_ID_TOPIC": self.ids,
            "TIMERS_VERDICT_TOPIC": f"verdicts-{run}",
            "TIMERS_SCHEDULE_OVERDUE": "reject",
        }
        super().__init__(address, directory, **names)
        self.may_compact_after(3_600_000)
        self.by_id = Publisher(address, self.ids)

    def ask(self, countdown: float, id: str = "", **more: object) -> None:
        """A countdown; with an id, that is its key."""
        named = {"id": id} if id else {}
        body = {"topic": self.target, "message": "m", "countdown": countdown, **named, **more}
        self.send(id.encode() or None, json.dumps(body).encode(), [], self.waits)

    def put(self, id: str, due_s: int) -> None:
        """A timer with an id."""
        value = Request(self.target, due_s).wire_value
        self.by_id.queue_raw(id.encode(), value, future_by_id.encode_headers(due_s), 0)

    def cancel(self, id: str) -> None:
        self.by_id.queue_raw(id.encode(), None, [], 0)

    def may_compact_after(self, lag_ms: int) -> None:
        """How old a record must be before the brokers take it, if a newer one has its key."""
        lag = ConfigEntry("min.compaction.lag.ms", str(lag_ms), incremental_operation=AlterConfigOpType.SET)
        topic = ConfigResource(ResourceType.TOPIC, self.topic, incremental_configs=[lag])
        self.system.admin.incremental_alter_configs([topic])[topic].result(DEADLINE_S)

    def flush(self) -> None:
        super().flush()
        self.by_id.flush()


@pytest.fixture
def formats(broker_address: str, tmp_path: Path) -> Iterator[Formats]:
    formats = Formats(broker_address, tmp_path)
    yield formats
    formats.system.close()


def counts(findings: Findings) -> dict[str, int]:
    return {status: count for status, count in findings.statuses.items() if count}


def compact(formats: Formats) -> None:
    """Wait until the brokers have taken what they may of the topic of schedules, but for its newest segment."""
    before = sum(record.value is not None for record in formats.log())
    formats.may_compact_after(0)

    def compacted() -> bool:
        for partition in range(PARTITIONS):  # a segment is closed by what comes after it
            formats.producer.produce(formats.topic, None, b"filler", partition)
        formats.flush()
        time.sleep(0.5)
        return sum(record.value is not None for record in formats.log()) < before // 2

    wait_until(compacted, "brokers have compacted the topic", 3 * DEADLINE_S)


def test_every_request_format_adds_up_and_each_planted_fault_is_found(spark: SparkSession, formats: Formats) -> None:
    system = formats.system
    worker = system.worker().start().ready()
    due_s, far_s = due_in(6), due_in(86_400)
    for number in range(40):
        formats.set(b"video-%d\xff" % number, due_s, b"v")  # no UTF-8
        formats.set(b"elsewhere-%d" % number, due_s, b"v", topic=formats.topics[1])
        formats.ask(2, f"wait-{number}")
        formats.ask(2.5)
        formats.put(f"elsewhere-{number}", due_s)  # an id of a schedule's, and a timer of its own
    for number in range(10):
        formats.set(b"video-%d\xff" % number, far_s, b"moved")
        formats.set(b"never-%d" % number, far_s, b"v")
        formats.delete(b"never-%d" % number)
        formats.ask(3600, f"wait-{number}")
        formats.ask(3600, f"wait-never-{number}")
        formats.ask(0, f"wait-never-{number}", cancel=True)
        formats.cancel(f"elsewhere-{number}")
    formats.set(b"overdue", due_s, b"v", timestamp_s=due_s + 1)
    formats.set(b"late", due_s - 3600, b"v", timestamp_s=due_s - 4000)
    formats.set(b"nowhere", due_s, b"v", target="no-such-topic")
    formats.set(b"broken", far_s, b"never: what follows takes its place")
    formats.send(b"broken", b"v", [("scheduler-epoch", b"soon")])
    formats.send(None, b"v", [], formats.topics[1])
    formats.ask(-1)
    formats.flush()
    # Of video-0 to -9, wait-0 to -9 the version that counts is far ahead, and elsewhere-0 to -9 by id are cancelled.
    fired = (40 - 10) + 40 + (40 - 10) + 40 + (40 - 10) + 1
    formats.fired.take(fired)
    race_s = due_in(3)
    names = [b"race-%d" % number for number in range(RACES)]
    for name in names:
        formats.set(name, race_s, b"first")
    formats.flush()

    def change(number: int, name: bytes) -> None:
        formats.delete(name) if number % 2 else formats.set(name, race_s + 3, b"second")

    seen = race(names, race_s, change, formats.flush, formats.fired)
    formats.wait_past(race_s + 4)
    raced = len(seen) + len(formats.fired.rest())
    assert raced >= RACES // 2, "all of the second versions have fired"

    clean = found_in(spark, system)
    assert clean.clean, list(report.lines(clean))
    told = counts(clean)
    rejected = 4  # of them the two that cannot be read on the topic of schedules, and a countdown; and an overdue one
    assert told.pop("dead-lettered") == rejected + 1
    assert told.pop("fired") == fired + raced + PARTITIONS  # and what waited until the race was over
    assert told.pop("pending") == 10 + 10
    ended = 10 + 10 + 10 + 10 + 10 + 1  # all that is far ahead but these, what is broken, and the ids
    assert told["cancelled"] + told["replaced"] == ended + RACES // 2 + RACES - raced
    assert told.keys() == {"cancelled", "replaced"}

    worker.stop()
    compact(formats)
    past, near = int(time.time()) - 1, due_in(300)
    ids = {name: f"{name}-{uuid.uuid4().hex[:8]}" for name in ("lost", "doubled", "early", "revoked", "unended")}
    engine = Engine(system)

    mark, set_s = b"\xfe", past - 10

    def fire(id: bytes, due_s: int, tick_ms: int | None = None) -> None:
        asked = Request(formats.target, due_s)
        if id.startswith(mark):
            stamps: Headers = [("scheduler-timestamp", b"%d" % set_s), ("scheduler-key", id)]
            headers = [*stamps, ("scheduler-topic", formats.topic.encode())]
            asked = Request(formats.target, due_s, "key", b"v", headers)
        engine.fire(asked, tick_ms, id)

    for fault, due_s in (("lost", past), ("doubled", past), ("early", near), ("revoked", near)):
        formats.set(mark + ids[fault].encode(), due_s, b"v", timestamp_s=set_s)
    formats.delete(mark + ids["revoked"].encode())
    formats.put(ids["lost"], past)
    formats.put(ids["doubled"], past)
    formats.put(ids["early"], near)
    formats.put(ids["revoked"], near)
    formats.cancel(ids["revoked"])
    formats.ask(0, ids["unended"])  # a countdown that never comes back
    formats.flush()
    for of in (mark, b""):
        for _ in range(2):
            fire(of + ids["doubled"].encode(), past)
        fire(of + ids["early"].encode(), near, past * 1000)
        fire(of + ids["revoked"].encode(), near, near * 1000)  # and early, by the broker's time
    engine.flush()
    wait_until(lambda: time.time() > past + 3, "what is overdue is so by more than a second")
    faulty = found_in(spark, system)
    assert faulty.requests < clean.requests and counts(faulty)["pending"] == 20, "the rest went, but for what waits"

    def shown(*of: str) -> list[str]:
        return sorted(each for name in of for each in ("\\x" + (mark + ids[name].encode()).hex(), ids[name]))

    offenders = {fault: sorted(row["timer_id"] for row in rows) for fault, rows in faulty.listed.items()}
    assert offenders == {
        "lost": sorted([*shown("lost"), ids["unended"]]),
        "duplicate": shown("doubled"),
        "early": shown("early", "revoked"),
        "revoked": shown("revoked"),
    }
    assert all(name in report.page(faulty, system.settings) for name in shown(*list(ids)[:4]))
