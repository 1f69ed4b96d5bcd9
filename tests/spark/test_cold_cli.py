"""The cold tier as it is run: a worker with a horizon, `timers spark hold` and `promote`, and whatever kills them."""

import re
import shutil
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.records import Publisher, Request
from tests.harness.spark_job import SPARK_S, SparkJob
from tests.harness.system import System, assert_once
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from timers.wire import verdict
from timers.wire.formats import future_by_id

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1500)]

HORIZON_S = 60
COLD = 40
RATE = 4
"""Copies a second: between the write-back and its note lie ten seconds."""


@pytest.fixture
def system(broker_address: str, tmp_path: Path) -> Iterator[System]:
    run = uuid.uuid4().hex[:8]
    topics = {
        name: f"{name.lower()}-{run}" for name in ("TIMERS_COLD_TOPIC", "TIMERS_ID_TOPIC", "TIMERS_VERDICT_TOPIC")
    }
    system = System(broker_address, tmp_path, TIMERS_HOT_HORIZON_S=str(HORIZON_S), **topics)
    yield system
    system.close()


def test_goes_cold_comes_back_and_fires_once_though_promote_is_killed(system: System, tmp_path: Path) -> None:
    """Killed between writing back and noting it; on another horizon and an empty disk by then; repeated when it has
    fired; and of timers with an id only the version that counts."""
    settings = system.settings
    tables = str(tmp_path / "cold")

    def job(name: str, *options: str) -> SparkJob:
        made = SparkJob(
            tmp_path / f"{name}-{uuid.uuid4().hex[:4]}", system.environment, name, "--tables", tables, *options
        )
        system.workers.append(made)
        return made

    worker = system.worker().start().ready()
    target, by_id = system.target(), Publisher(system.address, settings.id_topic)
    due_s = due_in(120)

    def put(id: str, due: int) -> None:
        by_id.queue_raw(
            id.encode(), Request(target, due, value=id.encode()).wire_value, future_by_id.encode_headers(due), 0
        )

    requests = system.send(*(Request(target, due_s, f"key-{number}", b"v") for number in range(COLD)))
    hot = system.send(Request(target, due_in(5), "hot"))
    for id in ("moved", "cancelled", "kept"):
        put(id, due_s)
    put("moved", due_s + 1)
    by_id.flush()
    wait_until(lambda: system.end(settings.cold_topic, committed=True) >= COLD + 4, "all but one have gone cold")
    hold = job("hold", "--every", "1").start()
    hold.wait_for(rf"{COLD + 4} since the start", SPARK_S)
    by_id.queue_raw(b"cancelled", None, [], 0)
    by_id.flush()
    hold.send(signal.SIGINT)
    assert hold.exit_code() == 0
    assert re.search(rf"hold: {COLD + 4} held", hold.log.splitlines()[-1])

    promote = job("promote", "--every", "1", "--rate", str(RATE)).start()

    def asked() -> int:
        return sum(system.end(topic, committed=True) for topic in (settings.request_topic, settings.id_topic))

    before = asked()
    wait_until(lambda: asked() > before, "copies are written back", SPARK_S)
    promote.kill()
    worker.kill()
    shutil.rmtree(worker.data_dir)
    worker.start(TIMERS_HOT_HORIZON_S="0").ready()
    again = job("promote", "--every", "1")
    again.start().wait_for(rf"promote: {COLD + 4} had been written back when the previous run ended", SPARK_S)
    reader = system.reader(target)
    records = reader.take(COLD + 3, DEADLINE_S + max(0.0, due_s - time.time()))
    again.stop()
    assert again.log.splitlines()[-1] == "promote: 0 written back"
    assert job("promote", "--once").run().splitlines()[-1] == "promote: 0 written back"
    system.wait_past(due_s + 1)
    records += reader.rest()
    ids = {record.timer_id: record for record in records if "/" not in record.timer_id}
    assert {id: record.due_s for id, record in ids.items()} == {"moved": due_s + 1, "kept": due_s}
    native = [record for record in records if "/" in record.timer_id]
    assert_once(native, {request.source: request for request in [*requests, *hot]})
    assert len(records) == COLD + 1 + 2
    told = system.reader(settings.verdict_topic, append_time=False).take(2, DEADLINE_S)
    said = {each.id: each.verdict for each in (verdict.decode(record.value or b"") for record in told)}
    assert said == {"moved": "replaced", "cancelled": "cancelled"}
    assert system.dead_letters().rest() == []
