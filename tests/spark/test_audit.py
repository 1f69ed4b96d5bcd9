"""``timers spark audit`` against a real broker: clean after a real worker, and each planted fault found."""

import dataclasses
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from tests.harness.records import Publisher, Request
from tests.harness.spark_job import FAST_OPTIONS
from tests.harness.system import System, timers
from tests.harness.waiting import due_in, wait_until
from tests.spark.audit_world import Engine, found_in
from timers.spark.audit import report
from timers.spark.audit.gaps import Scope, Unplaced
from timers.wire.formats import future_by_id

pytestmark = pytest.mark.spark

SPARK_S = 500


class Planted(NamedTuple):
    """Faulty timers, by their faults."""

    never: Request
    twice: Request
    by_tick: Request
    """Early by its tick."""
    by_broker: Request
    """Early by the broker's time only."""
    altered: Request
    """Fired with another value."""
    foreseen: Request
    """Its callback was written before it."""


def plant(system: System, target: str) -> Planted:
    """Write 40 good timers, and one with each fault, with what an engine would write for them."""
    past, soon = int(time.time()) - 300, int(time.time()) + 30
    good = timers(target, 40, past, 4, b"payload")
    never, twice, by_tick, altered = timers(target, 4, past, 1)
    by_broker = Request(target, soon, "by-broker")
    system.send(*good, never, twice, by_tick, altered, by_broker)
    engine = Engine(system)
    place = f"{system.request_topic}/0/{system.cluster.ends(system.request_topic)[0]}"
    foreseen = Request(target, past, "foreseen", partition=0, source=place)
    engine.fire(foreseen)
    engine.flush()
    time.sleep(0.01)  # the times of two records of one millisecond do not tell which was first
    system.send(foreseen)
    assert foreseen.source == place
    planted = Planted(never, twice, by_tick, by_broker, altered, foreseen)
    for request in good:
        engine.fire(request)
    engine.fire(planted.twice)
    engine.fire(planted.twice, past * 1000 + 400)
    engine.fire(planted.by_tick, past * 1000 - 1)
    engine.fire(planted.by_broker, soon * 1000)
    engine.fire(dataclasses.replace(planted.altered, value=b"another"))
    engine.flush()
    return planted


@pytest.fixture
def system(broker_address: str, tmp_path: Path) -> Iterator[System]:
    system = System(broker_address, tmp_path)
    system.create_own_topics()
    yield system
    system.close()


def test_each_planted_fault_is_found(spark: SparkSession, system: System) -> None:
    """One timer of each fault; and a timer that cannot be judged, since its callback topic does not exist.

    Also callbacks that no request asked for, and those of other topics.
    """
    never, twice, by_tick, by_broker, altered, foreseen = plant(system, system.target(partitions=2))
    system.send(Request("no-such-topic", int(time.time()) - 300))
    end = system.cluster.ends(system.request_topic)[0]
    unasked = [f"{system.request_topic}/0/{end}", f"{system.request_topic}/0/{end + 10**6}"]
    unasked += [f"{system.request_topic}/99/0", f"{system.request_topic}/0/{10**17}"]
    engine = Engine(system)
    for source in [*unasked, *(f"requests-of-others/0/{offset}" for offset in range(5))]:
        engine.fire(Request(never.target, never.due_s, source=source))
    engine.flush()
    accepted_s = math.ceil(time.time())
    wait_until(lambda: time.time() > accepted_s, "a timer is overdue from the second after its acceptance on")
    findings = found_in(spark, system)
    listed = {fault: sorted(map(report._name, rows)) for fault, rows in findings.listed.items()}
    assert listed == {
        "lost": [never.source],
        "duplicate": [twice.source],
        "early": sorted([by_tick.source, by_broker.source]),
        "altered": [altered.source],
        "older-than-request": [foreseen.source],
        "unasked": sorted(unasked),
    }
    others = Unplaced("callbacks", "other-topic", 5, "requests-of-others/0/0")
    assert findings.verdict == "faulty" and findings.unplaced == [others]
    assert (findings.statuses["fired"], findings.statuses["lost"], findings.statuses["undecided"]) == (45, 1, 1)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_command_reports_each_planted_fault(spark: SparkSession, system: System, tmp_path: Path) -> None:
    """Its JSON, its page and its tables. It starts a Spark of its own, which takes a minute of two cores."""
    target = system.target(partitions=2)
    never, twice, by_tick, by_broker, altered, foreseen = planted = plant(system, target)
    (hidden,) = system.send(Request("no-such-topic", int(time.time()) - 300))

    command = [sys.executable, "-m", "timers.cli.main", "spark", "audit", "-o", "json", "--master", "local[2]"]
    command += [*FAST_OPTIONS, "--grace", "0s"]  # the timers were sent a moment ago
    done = subprocess.run(
        [*command, "--output", str(tmp_path / "out"), "--log-file", str(tmp_path / "spark.log")],
        env={**os.environ, **system.environment, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=SPARK_S,
    )
    assert done.returncode == 3, done.stderr
    said = json.loads(done.stdout)
    assert said["offenders"] == {
        "lost": [never.source],
        "duplicate": [twice.source],
        "early": [by_tick.source, by_broker.source],
        "altered": [altered.source],
        "older-than-request": [foreseen.source],
    }, said
    assert said["verdict"] == "faulty" and said["undecided"]["timers"] == {"no-such-topic": [hidden.source]}
    assert said["statuses"]["fired"] == 45 and said["statuses"]["lost"] == 1 and said["requests"] == 47
    (stored,) = said["storage"]
    assert stored["topic"] == system.request_topic and stored["records"] == 47
    # On a busy machine each record is a batch of its own, whose 61 bytes the formula does not count.
    assert 0 < stored["disk"] < 3 * stored["formula"], "as brokers say"
    assert not re.search("WARN|INFO|Ivy|:: ", done.stderr), "Spark's words belong into its log"
    html = (tmp_path / "out" / "report.html").read_text()
    assert all(request.source in html for request in planted)
    assert "<svg" in html and not re.search(r"""(src|href)=["']?(https?:)?//""", html), "the page must need no other"
    tables = tmp_path / "out" / "tables"
    faults = spark.read.format("delta").load(str(tables / "offenders")).where("verdict = 'faulty'")
    twice_at = faults.where("fault = 'duplicate'").collect()[0].positions
    assert len(twice_at) == 2 and all(each.startswith(f"{target}/") for each in twice_at)
    assert faults.count() == 6 and spark.read.format("delta").load(str(tables / "lags")).count() > 0


@pytest.mark.long
def test_a_range_without_the_faulty_timers_is_clean(spark: SparkSession, system: System) -> None:
    planted = plant(system, system.target(partitions=2))
    partition, offset = (int(part) for part in planted.never.source.split("/")[1:])
    scope = Scope(ranges={system.request_topic: {partition: range(offset)}})
    assert found_in(spark, system, scope).clean
    ends = system.cluster.ends(system.request_topic)
    other = (partition + 1) % len(ends)
    unasked = f"{system.request_topic}/{other}/{ends[other]}"
    engine = Engine(system)
    engine.fire(Request(planted.never.target, planted.never.due_s, source=unasked))
    engine.flush()
    # The end of the log counts, also of a partition that is not in scope, and not the end of the range.
    findings = found_in(spark, system, scope)
    assert {fault: [row["request"] for row in rows] for fault, rows in findings.listed.items()} == {
        "unasked": [unasked]
    }
    assert {each.reason for each in findings.unplaced} == {"not-in-scope"}


@pytest.mark.long
def test_after_a_worker_there_is_nothing_to_find(spark: SparkSession, broker_address: str, tmp_path: Path) -> None:
    """Fired, late, dead-lettered, put off, replaced, cancelled in time and too late, pending: all add up."""
    ids, verdicts = f"by-id-{tmp_path.name}", f"verdicts-{tmp_path.name}"
    system = System(broker_address, tmp_path, TIMERS_ID_TOPIC=ids, TIMERS_VERDICT_TOPIC=verdicts)
    system.worker().start().ready()
    target = system.target(partitions=2)
    due_s = due_in(6)
    requests = timers(target, 300, due_s, 3, b"payload") + timers(target, 20, due_s - 1000, 1)
    far = timers(target, 5, due_s + 86_400, 2)
    system.send(*requests, *far, Request("no-such-topic", due_s))
    raw = Publisher(system.address, system.request_topic)
    raw.send_raw(b"not-a-second", b"", [], 0)
    by_id = Publisher(system.address, ids)

    def put(id: str, due: int, partition: int = 0) -> None:
        by_id.queue_raw(id.encode(), Request(target, due).wire_value, future_by_id.encode_headers(due), partition)

    for number in range(40):
        put(f"order-{number}", due_s)
    for number in range(10):
        put(f"order-{number}", due_s + 1)  # moved
        by_id.queue_raw(f"order-{number + 10}".encode(), None, [], 0)  # cancelled
    by_id.flush()
    reader = system.reader(target)
    reader.take(300 + 20 + 30)
    by_id.send_raw(b"order-39", None, [], 0)  # too late
    put("order-38", due_s)  # again, for a second that is past
    by_id.flush()
    reader.take(1)
    letters = system.dead_letters()
    letters.take(2)
    findings = found_in(spark, system)
    assert findings.clean, list(report.lines(findings))
    assert {status: count for status, count in findings.statuses.items() if count} == {
        "fired": 300 + 20 + 30 + 1,
        "dead-lettered": 2,
        "replaced": 10,
        "cancelled": 10,
        "pending": 5,
    }
    assert sum(due.timers for due in findings.busiest) == 5
    # Of the same topics, the engine's side taken away: what fired is missing, and it is said of each timer.
    system.create_anew(target)
    lost = found_in(spark, system)
    assert lost.faults["lost"] == 300 + 20 + 30 + 1 and not lost.clean
    system.close()
