"""The machines of the retry topic. The driver runs them, beside the query.

A timer whose target fails goes to the retry topic, in the transaction of the others. Another attempt may wait for a
silent broker for seconds. So it must not be a part of a micro-batch, which would delay all timers. The machines run as
those of a bucket do (:mod:`timers.spark.engine.machines`), at each tick at which one has something to do. Their stores
are on the driver's disk, and are caches of the retry topic.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from concurrent.futures import Future, wait
from time import monotonic
from typing import Self

from confluent_kafka import KafkaException

from timers.core.backoff import AFTER_LOST, AFTER_UNFORESEEN, ReopenBackoff, Reopening
from timers.core.ports import Lost
from timers.core.timer import Tick, TopicPartition
from timers.errors import CheckpointMismatch, SparkError, StoreInUse, TimersError
from timers.kafka.topics import Cluster
from timers.process.config.settings import Settings
from timers.process.threads import BoundedThreads
from timers.spark.engine.machines import Known, MachineRun, Read
from timers.spark.engine.oscillator import Oscillator
from timers.spark.engine.query import Driver
from timers.wire.topics import partition_name

logger = logging.getLogger(__name__)

THREADS = 64
"""Machines that run at the same time: one whose target is silent delays no other one."""

POLL_S = 0.1
"""Pause between two looks for a tick, and for questions about machines."""

CLOSE_S = 10.0


class Retries:
    """Runs the machines of the retry topic from its start to its end, at which those of the driver are closed. The time
    is that of the oscillator.

    Attributes:
        waiting: partition -> number of timers that wait, and the due second of the next one, as of the last run of its
            machine that did not fail.
    """

    def __init__(self, settings: Settings, cluster: Cluster, driver: Driver, oscillator: Oscillator) -> None:
        self._driver = driver
        self._oscillator = oscillator
        self._openings = driver.openings
        self._stop = self._openings.stop
        self._read_logs = driver.read_logs
        topic = settings.retry_topic
        self._tps = [(topic, partition) for partition in range(cluster.partitions[topic])]
        self._known: dict[TopicPartition, Known | None] = {}
        self.waiting: dict[TopicPartition, tuple[int, int | None]] = {}
        self._opens_at: dict[TopicPartition, float] = {}
        """Partition that has failed -> when its machine runs again, in seconds of the monotonic clock."""
        self._reopening = {tp: Reopening() for tp in self._tps}
        self._running: dict[TopicPartition, Future[None]] = {}
        self._threads = BoundedThreads("timers-retry", THREADS)
        self._thread = threading.Thread(target=self._serve, name="timers-retries", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(CLOSE_S)
        wait(self._running.values(), CLOSE_S)
        self._openings.close()

    def _serve(self) -> None:
        """Let machines run until told to stop."""
        seen: Tick | None = None
        ends: Mapping[TopicPartition, int] = {}
        try:
            while not self._stop.wait(POLL_S):
                if (tick := self._oscillator.tick) is None:
                    continue
                if tick != seen:
                    seen, self._openings.snapshots.now_s = tick, tick.append_ms / 1000
                    ends = self._read_logs.ends_of(self._tps)
                for tp, end in ends.items():
                    if self._has_work(tp, end, tick):
                        self._running[tp] = self._threads.call(self._run, tp, end, tick)
        except Exception as error:
            logger.exception("the retries failed with an exception that no code expects")
            self._driver.failure = SparkError(f"the retries of {self._tps[0][0]!r} failed: {error!r}")

    def _has_work(self, tp: TopicPartition, end: int, tick: Tick) -> bool:
        if (tp in self._running and not self._running[tp].done()) or monotonic() < self._opens_at.get(tp, 0.0):
            return False
        known, openings = self._known.get(tp), self._openings
        return known is None or known.has_work(end, tick.second, openings.commands) or openings.snapshots.asks(tp)

    def _run(self, tp: TopicPartition, end: int, tick: Tick) -> None:
        """Accept what the topic has up to ``end``, and fire what is due."""
        run = MachineRun(tp, self._known.get(tp), Read(end, start=end), tick, self._openings)
        try:
            run.go()
            self._known[tp] = known = run.known
            if known is not None:
                self.waiting[tp] = known.pending, known.oldest_due_s
        except (Lost, KafkaException, StoreInUse, CheckpointMismatch) as error:
            self._fail(tp, error, AFTER_LOST)
        except TimersError as error:
            self._driver.failure = error
        except Exception as error:
            logger.exception("%s failed with an exception that no code expects", partition_name(*tp))
            self._fail(tp, error, AFTER_UNFORESEEN)

    def _fail(self, tp: TopicPartition, error: Exception, backoff: ReopenBackoff) -> None:
        """Let a machine read its progress again: after a pause, if it fails again and again."""
        self._known[tp] = None
        self._opens_at[tp] = monotonic() + self._reopening[tp].pause_s(str(backoff), backoff, monotonic())
        if not self._stop.is_set():
            logger.warning("%s: %s; opening it again", partition_name(*tp), error)
