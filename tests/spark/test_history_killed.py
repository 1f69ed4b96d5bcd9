"""``timers spark history`` whose processes and broker are killed at random moments: each timer is there once."""

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread

import psutil
import pytest
from pyspark.sql import SparkSession

from tests.harness.past_timers import PARTITIONS, PENDING, SPREAD_S, PastTimers, write
from tests.harness.process import Process, clean_environment, python
from tests.harness.spark_job import SPARK_S
from tests.harness.system import System
from tests.harness.waiting import wait_until
from timers.cli.broker import EmbeddedBroker
from timers.spark.audit import history
from timers.spark.audit.history import History

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(3600)]

COUNT = 100_000
START_S, ROUND_S = 20.0, 5.0
"""Within these times a process is killed: the first one after its start, the others after they have read something."""


class Job:
    """``timers spark history`` under a service manager."""

    def __init__(self, system: System, directory: Path, broker: EmbeddedBroker) -> None:
        self.table, self._broker = directory / "history", broker
        options = ["--master", "local[2]", "--log-file", str(directory / "spark.log")]
        options += ["--conf", "spark.driver.memory=2g", "--table", str(self.table)]
        every, once = (
            Process(
                "the history",
                python("timers.cli.main", "spark", "history", *options, *more),
                clean_environment(**system.environment),
                directory,
                directory / "history.out",
            )
            for more in (["--every", "1"], ["--once"])
        )
        self.every, self.once = every, once

    def has_read_or_ended(self) -> bool:
        return not self.every.running or " read, " in self.every.log

    def kill_driver(self) -> None:
        self.every.kill()

    def kill_java(self) -> None:
        self._kill_child("java")

    def kill_python_of_executor(self) -> None:
        self._kill_child("python")

    def kill_broker(self) -> None:
        self._broker.kill()
        self._broker.start()

    def _kill_child(self, name: str) -> None:
        for child in psutil.Process(self.every.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess, ProcessLookupError):  # a worker that has just ended
                if name in child.name():
                    os.kill(child.pid, signal.SIGKILL)


def test_a_history_that_is_killed_at_random_has_each_timer_once(spark: SparkSession, tmp_path: Path) -> None:
    """While 100,000 timers are asked for and fire: its driver, its Java, its Python workers, and the broker."""
    chosen = random.Random(COUNT)
    with EmbeddedBroker(tmp_path / "broker", port=0) as broker:
        system = System(broker.start(), tmp_path)
        topic = system.create_topic(system.request_topic, PARTITIONS)
        past, target = PastTimers(int(time.time()) - 2 * SPREAD_S, request_topic=topic), system.target(PARTITIONS)
        job = Job(system, tmp_path, broker)
        kills: list[Callable[[], None]] = [job.kill_driver, job.kill_java, job.kill_python_of_executor, job.kill_broker]
        chosen.shuffle(kills)

        def fire(numbers: range) -> None:
            write(system.address, topic, past.requests(numbers, target))
            write(system.address, target, past.firings(numbers))

        for number, kill in enumerate(kills):
            step = COUNT // len(kills)
            firing = Thread(target=fire, args=(range(number * step, (number + 1) * step),))
            firing.start()
            if not job.every.running:
                job.every.start()
            if number:
                wait_until(job.has_read_or_ended, "it has read something", SPARK_S)
            time.sleep(chosen.uniform(0, ROUND_S if number else START_S))
            if job.every.running:
                kill()
            firing.join()
        job.every.end()
        assert job.once.start().exit_code(SPARK_S) == 0, job.once.tail()
        expected, seen = {past.source(number) for number in range(COUNT) if number % PENDING}, list[str]()
        reader = system.reader(target)
        while len(seen) < len(expected):
            seen += [record.timer_id for record in reader.take(min(50_000, len(expected) - len(seen)))]
        assert not reader.rest() and {*seen} == expected, "the test has written something else"
        system.close()
    tables = History(spark, str(job.table))
    found = spark.read.format("delta").load(tables.timers)
    names = found.where("outcome = 'fired' and firings = 1 and faults is null").select("request").toArrow()
    assert {*names.column("request").to_pylist()} == expected
    assert found.count() == len(expected), "a timer is there twice, or another one"
    records = tables.read(history.REQUEST, history.CALLBACK).groupBy("event", "topic", "partition", "offset").count()
    assert records.where("count > 1").isEmpty(), "a record is there twice"
    assert records.count() == COUNT + len(expected)
    assert not tables.gaps()
    runs = tables.read(history.MADE).select("run").distinct().count()
    assert runs > 1, "no process that was killed had committed something"
