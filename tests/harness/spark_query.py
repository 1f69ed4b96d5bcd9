"""The engine on Spark in the session and process of a test: its query, its ticks and its retries.

A start takes two seconds instead of ten, and a test can let a process or the driver fail after a chosen step.
"""

import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.harness.system import System
from tests.harness.waiting import wait_until
from timers.core.timer import TopicPartition
from timers.kafka import topics
from timers.process.clock import Clock
from timers.spark.engine import query, start
from timers.spark.engine.bucket import Said
from timers.spark.engine.commands import Commands
from timers.spark.engine.machines import Known, Openings, RunningMachine
from timers.spark.engine.oscillator import Oscillator
from timers.spark.engine.query_port import answering
from timers.spark.engine.retries import Retries
from timers.spark.monitoring import EngineCounts, Monitor

READY_S = 400.0

MAX_REQUESTS = 100_000

FENCED, COMMITTED, STORED = "fenced", "committed", "stored"
"""Steps of a micro-batch: a bucket has fenced the former owners of its partitions; its transactions are committed;
Spark has stored the states of all buckets."""


@dataclass(frozen=True)
class Crash:
    """Lets the engine fail once, after a step of a micro-batch."""

    step: str
    happened: Path
    """A file; it exists as soon as the engine has failed."""

    def comes(self, step: str) -> bool:
        """Whether the engine must fail now."""
        if step != self.step or self.happened.exists():
            return False
        self.happened.touch()
        return True


class FailingOpenings:
    """Opens partitions in a process that ends after a step."""

    def __init__(self, crash: Crash, openings: Openings) -> None:
        self._crash = crash
        self._openings = openings
        self._has_opened = False

    @classmethod
    def of(cls, crash: Crash, *given: Any) -> Any:
        return cls(crash, Openings.of(*given))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._openings, name)

    def open(self, tp: TopicPartition, known: Known | None) -> RunningMachine:
        opened = self._openings.open(tp, known)
        self._has_opened = True
        self._fail_after(FENCED)
        return opened._replace(close=partial(self._close, opened))

    def _close(self, opened: RunningMachine) -> None:
        """A machine is closed when its transactions are committed."""
        opened.close()
        self._fail_after(COMMITTED)

    def _fail_after(self, step: str) -> None:
        if self._has_opened and self._crash.comes(step):
            os._exit(1)


class SparkQuery:
    """The engine, from its start to its end; it may be started again.

    Args:
        directory: of its checkpoints.
        buckets: number of parts of the state.
        crash: lets it fail once.

    Attributes:
        counts: what its buckets have done.
    """

    def __init__(
        self, spark: SparkSession, system: System, directory: Path, buckets: int | None = 2, crash: Crash | None = None
    ) -> None:
        self.directory = directory
        self.buckets = buckets
        self._spark = spark
        self._system = system
        self._crash = crash
        self.counts = EngineCounts()
        self._stack = ExitStack()
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        for name, value in start.session_settings(self.buckets or 2).items():
            if name.startswith("spark.sql."):
                self._set(name, value)
        settings = replace(self._system.settings, data_dir=self.directory.with_name("data"))
        cluster = topics.ensure(settings)
        oscillator = self._stack.enter_context(Oscillator(settings, Clock()))
        run = start.announce(settings, cluster)
        driver = query.Driver(settings, cluster, run, oscillator.wake)
        self._stack.enter_context(Retries(settings, cluster, driver, oscillator))
        self._stack.enter_context(Commands(settings, driver.openings))
        self._stack.enter_context(answering(settings, cluster, driver, Monitor("engine", 1), print))
        plan = start.Start(self._spark, settings, str(self.directory), self.buckets, 2, MAX_REQUESTS).plan(cluster, run)
        openings = Openings.of if self._crash is None else partial(FailingOpenings.of, self._crash)
        self._ended.clear()
        self._query = query.start(self._spark, settings, plan, driver, self._note, openings)
        return self

    def _set(self, name: str, value: str) -> None:
        """Set a setting of the session until the end of the query."""
        before = self._spark.conf.get(name, None)
        self._spark.conf.set(name, value)
        if before is None:
            self._stack.callback(self._spark.conf.unset, name)
        else:
            self._stack.callback(self._spark.conf.set, name, before)

    def __exit__(self, *_: object) -> None:
        self._query.stop()
        self._stack.close()

    def _note(self, number: int, done: Sequence[Said]) -> None:
        for each in done:
            self.counts.add(each.total)
        if any(each.tick_ms is not None for each in done):
            self._ended.set()
        fired = any(each.total.numbers.get("fired") for each in done)
        if self._crash is not None and fired and self._crash.comes(STORED):
            raise RuntimeError("the driver fails")

    def ready(self) -> Self:
        """Wait for a micro-batch with a tick."""
        wait_until(self._ended.is_set, "a micro-batch has ended", READY_S)
        return self

    @property
    def sources(self) -> list[str]:
        """Spark's descriptions of its sources, in the order in which it asks for their ends."""
        progress = self._query.lastProgress
        assert progress is not None
        return [source["description"] for source in progress["sources"]]

    def wait_for_failure(self) -> None:
        """Wait until the query has failed."""
        try:
            ended = self._query.awaitTermination(int(READY_S))
        except StreamingQueryException:
            return
        assert not ended, "the query ended without a failure"
        raise AssertionError(f"the query has not failed within {READY_S:.0f} s")
