"""The engine on Spark reads what a worker reads. At a batch that no consumer can read it ends with the sentence of a
worker, and goes on when an operator passes over the batch; the audit passes over the same records."""

import re
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness import raw_batches
from tests.harness.records import Request
from tests.harness.spark_job import SPARK_S, SparkEngine
from tests.harness.system import System
from tests.harness.waiting import due_in
from timers.spark import kafka
from timers.spark.audit.gaps import Scope
from timers.spark.audit.outcomes import Moment
from timers.spark.jobs import audit

pytestmark = pytest.mark.spark


@pytest.mark.long
def test_the_engine_passes_over_a_batch_and_the_audit_too(
    broker_address: str, spark: SparkSession, tmp_path: Path
) -> None:
    system = System(broker_address, tmp_path)
    try:
        system.create_own_topics()
        target, due_s = system.target(), due_in(1)
        engine = SparkEngine(tmp_path / "engine", system.environment)
        system.workers.append(engine)
        engine.start().ready()
        wanted = []
        for name, unusual in raw_batches.READABLE.items():
            batch = unusual.batch(raw_batches.requests(name, target, due_s), due_s * 1000)
            assert raw_batches.produce(system.address, system.request_topic, 0, batch) == 0, name
            wanted += [f"{name}/{at}" for at in unusual.read]
        reader, letters = system.reader(target), system.dead_letters()
        fired = [(record.value or b"").decode() for record in reader.take(len(wanted), SPARK_S)]
        assert sorted(fired) == sorted(wanted)

        bad = raw_batches.UNREADABLE["a record that claims to be longer"]
        batch = bad.batch(raw_batches.requests("bad", target, due_s), due_s * 1000)
        base = system.end(system.request_topic)
        assert raw_batches.produce(system.address, system.request_topic, 0, batch) == 0
        system.send(Request(target, due_s, "", b"after", partition=0))
        assert engine.exit_code(SPARK_S) == 1, engine.tail()
        last = engine.log.rstrip().splitlines()[-1]
        name = f"{system.request_topic}/0:{base + 3}-{base + 9}"
        assert f"start once with TIMERS_ACCEPT_LOSS={name} (" in last, engine.tail()
        assert "cannot be read: " in last and "No record after it is read, and the engine ends. " in last

        engine.start(TIMERS_ACCEPT_LOSS=name)
        fired = [(record.value or b"").decode() for record in reader.take(4, SPARK_S)]
        assert sorted(fired) == ["after", "bad/0", "bad/1", "bad/2"]
        (letter,) = letters.take(1, SPARK_S)
        assert (letter.text("timer-error"), letter.text("timer-source")) == (
            "batch-unreadable",
            f"{system.request_topic}/0/{base + 3}",
        )
        found = audit.run(spark, audit.Audit(system.settings, Scope(), Moment(int(time.time() * 1000), 5)), print)
        assert (found.verdict, found.gaps, found.requests) == ("clean", [], len(wanted) + 4)
        assert not reader.rest() and not letters.rest()
        assert not re.search("Traceback", engine.log), engine.tail()
    finally:
        system.close()


@pytest.mark.parametrize(
    "ranges, parts",
    [
        ((), [(0, 100)]),
        (((10, 20),), [(0, 10), (20, 100)]),
        (((0, 20), (30, 40)), [(20, 30), (40, 100)]),
        (((90, 100),), [(0, 90)]),
        (((90, 200), (300, 400)), [(0, 90)]),
        (((0, 100),), [(100, 100)]),
    ],
)
def test_a_range_is_read_around_what_is_passed_over(
    ranges: tuple[tuple[int, int], ...], parts: list[tuple[int, int]]
) -> None:
    found = kafka._around({"t": {0: 0, 1: 7}}, {"t": {0: 100, 1: 7}}, {("t", 0): ranges, ("other", 0): ((0, 9),)})
    assert [(starts["t"][0], ends["t"][0]) for starts, ends in found if 0 in starts["t"]] == parts
    assert sum(1 in starts["t"] for starts, _ in found) == 1, "also a range without records is read once"


def test_only_the_last_records_before_a_bad_batch_are_read_one_by_one() -> None:
    """Each of them costs two questions to the brokers."""
    passed_over = {("t", 0): ((9_000, 9_010),), ("t", 1): ((100, 110),)}
    starts, ends = {"t": {0: 0, 1: 0, 2: 0}}, {"t": {0: 10_000, 1: 10_000, 2: 10_000}}
    last, others = kafka._split(kafka._around(starts, ends, passed_over), passed_over)
    assert last == [({"t": {0: 8_500, 1: 0}}, {"t": {0: 9_000, 1: 100}})]
    assert others == [
        ({"t": {0: 0, 1: 0, 2: 0}}, {"t": {0: 8_500, 1: 0, 2: 10_000}}),
        ({"t": {0: 9_010, 1: 110}}, {"t": {0: 10_000, 1: 10_000}}),
    ]
