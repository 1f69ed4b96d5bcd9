"""The engine on Spark fires exactly once: after failures at each step, without its checkpoint, with other buckets,
after and before workers, and beside records that brokers refuse. ``test_engine_failures`` has storms."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness import acls
from tests.harness.letters import await_letters
from tests.harness.records import Record, Request
from tests.harness.spark_query import COMMITTED, FENCED, STORED, Crash, SparkQuery
from tests.harness.system import System, assert_once, timers
from tests.harness.waiting import due_in
from timers.cli.broker import EmbeddedBroker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1500)]

PATIENCE_S = 200.0


@pytest.fixture
def system(broker_address: str, tmp_path: Path) -> Iterator[System]:
    system = System(broker_address, tmp_path)
    system.create_own_topics()
    yield system
    system.close()


class Timers:
    """The timers of one target, and what has fired."""

    def __init__(self, system: System, **config: str) -> None:
        self._system = system
        self.target = system.target(partitions=2, **config)
        self._reader = system.reader(self.target)
        self._sent: dict[str, Request] = {}
        self._fired: list[Record] = []

    def send(self, count: int, lead_s: int, seconds: int, *others: Request) -> None:
        """Publish ``count`` timers that are due from ``lead_s`` seconds from now on; ``others`` among them."""
        mine = timers(self.target, count, due_in(lead_s), seconds)
        self._system.send(*mine[: count // 2], *others, *mine[count // 2 :])
        self._sent |= {request.source: request for request in mine}

    def some_have_fired(self, count: int) -> None:
        """Wait for ``count`` more callbacks."""
        self._fired += self._reader.take(count, PATIENCE_S)

    def all_have_fired_once(self) -> None:
        """Wait until all have fired, and check that each has once."""
        self.some_have_fired(len(self._sent) - len(self._fired))
        self._fired += self._reader.rest()
        assert_once(self._fired, self._sent)


def test_failures_and_takeovers_fire_nothing_twice(spark: SparkSession, system: System, tmp_path: Path) -> None:
    """The engine fails after each step of a micro-batch, loses its checkpoint, and workers and the engine take over."""
    fired = Timers(system)
    for step in (FENCED, COMMITTED, STORED):
        fired.send(300, 1, 2)
        with SparkQuery(spark, system, tmp_path / "engine", crash=Crash(step, tmp_path / step)) as engine:
            engine.wait_for_failure()
    shutil.rmtree(tmp_path / "engine")
    fired.send(900, 1, 16)
    with SparkQuery(spark, system, tmp_path / "engine", buckets=4):
        fired.some_have_fired(950)
    worker = system.worker().start().ready()
    fired.some_have_fired(50)
    worker.kill()
    with SparkQuery(spark, system, tmp_path / "engine", buckets=4):
        fired.all_have_fired_once()


@pytest.mark.long
def test_a_target_that_takes_nothing_delays_only_its_own_timers(spark: SparkSession, tmp_path: Path) -> None:
    """The engine may not write to it. Its timers fire when the engine may."""
    with EmbeddedBroker(tmp_path / "broker", port=0, properties=acls.OPEN_AUTHORIZER) as broker:
        system = System(broker.start(), tmp_path)
        system.create_own_topics()
        fired, stuck = Timers(system), Timers(system)
        wall = acls.acl(acls.TOPIC, stuck.target, acls.WRITE, deny=True)
        acls.add(system.admin, [*wall, *acls.acl(acls.TOPIC, stuck.target, acls.READ, acls.DESCRIBE)])
        stuck.send(100, 3, 4)
        fired.send(600, 3, 20)
        with SparkQuery(spark, system, tmp_path / "engine"):
            fired.all_have_fired_once()
            assert system.end(stuck.target, committed=True) == 0
            acls.remove(system.admin, wall)
            acls.add(system.admin, acls.acl(acls.TOPIC, stuck.target, acls.WRITE))
            stuck.all_have_fired_once()
        system.close()


def test_a_refused_callback_is_a_dead_letter(spark: SparkSession, system: System, tmp_path: Path) -> None:
    """A compacted topic takes no callback without a key. The others of its transaction fire, through a restart."""
    fired = Timers(system, cleanup_policy="compact")
    bad = Request(fired.target, due_in(3), "", b"bad", [("timer-key", None)])
    fired.send(2000, 3, 2, bad)
    with SparkQuery(spark, system, tmp_path / "engine") as engine:
        engine.ready()
    with SparkQuery(spark, system, tmp_path / "engine"):
        fired.all_have_fired_once()
        letter = await_letters(system, {bad.source}, PATIENCE_S)[bad.source]
    assert letter.text("timer-error") == "message-refused"
    assert "Compacted topic cannot accept message without key" in letter.text("timer-error-message")
    assert (letter.key, letter.value) == (bad.wire_key, bad.wire_value)
