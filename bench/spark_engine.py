"""Our engine on Spark as a subject: one query on this machine's cores. What it has accepted, its own lines say."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from dataclasses import replace
from typing import ClassVar, NamedTuple

import psutil  # type: ignore[import-untyped]

from bench import storm
from bench.harness.process import Process
from bench.harness.publisher import Publication
from bench.harness.subject import ROOT, Bench, Names, Subject, environment
from bench.workload import Workload

BATCH = re.compile(r"micro-batch \d+: ([0-9,]+) requests in .* took ([0-9.]+) s")
READY = r"micro-batch [1-9]\d*: .* lag"
START_S = 180.0

WARM_UP = Workload("warm-up", 150_000, 8)
"""What the engine has done before it is measured: it is started once and runs for months, and Java is slow in the first
minute of them."""
WARM_UP_LEAD_S = 6
WARM_UP_END_S = 120.0


class CpuSeconds(NamedTuple):
    """Of an engine since its start."""

    java: float
    python: float
    """Driver and workers."""


class SparkEngine(Subject):
    """``timers spark engine`` with its defaults.

    Args:
        master: of Spark.
        options: of the command line.
    """

    name = "timers_on_spark"
    accepts_per_s: ClassVar[int] = 50_000
    head_start_s: ClassVar[float] = 6.0

    def __init__(self, master: str = "local[2]", *options: str) -> None:
        self._master = master
        self._options = options
        self._process: Process | None = None
        self._warmed_up = 0
        """Micro-batches until the end of the warm-up."""

    def launch(self, bench: Bench, names: Names, workload: Workload) -> tuple[list[Process], float]:
        env = environment(
            TIMERS_BROKERS=bench.cluster.brokers,
            TIMERS_APP_ID=names.app_id,
            TIMERS_PARTITIONS=str(workload.partitions),
            TIMERS_REQUEST_TOPIC=names.request,
            TIMERS_OSCILLATOR_TOPIC=names.oscillator,
            TIMERS_DEAD_LETTER_TOPIC=f"timer-dead-letter-{names.run}",
        )
        place = ("--checkpoint", str(names.data_dir / "checkpoint"), "--log-file", str(names.directory / "spark.log"))
        argv = [sys.executable, "-m", "timers.cli.main", "spark", "engine", "--master", self._master, *place]
        self._process = Process("timers on spark", [*argv, *self._options], env, ROOT, names.directory / "engine.log")
        self._warmed_up = 0
        self._process.wait_for(READY, START_S)
        self._warm_up(bench, names, workload.partitions)
        return [self._process], time.time()

    def _warm_up(self, bench: Bench, names: Names, partitions: int) -> None:
        target = f"warm-up-{names.run}"
        bench.cluster.create(target, partitions)
        publication = Publication(
            brokers=bench.cluster.brokers,
            topic=names.request,
            target=target,
            timers=WARM_UP.timers,
            first_due_s=int(time.time()) + WARM_UP_LEAD_S,
            spread_s=WARM_UP.spread_s,
            payload_bytes=WARM_UP.payload_bytes,
            partitions=partitions,
            partitioner=self.partitioner,
        )
        storm.publish_only(replace(names, target=target), publication)
        give_up = time.monotonic() + WARM_UP_END_S
        while bench.cluster.end(target) < WARM_UP.timers or sum(n for n, _ in self.micro_batches()) < WARM_UP.timers:
            if time.monotonic() > give_up:
                raise RuntimeError(f"warming up took more than {WARM_UP_END_S:.0f} s")
            time.sleep(storm.POLL_S)
        self._warmed_up = len(self.micro_batches())

    def accepted(self, bench: Bench, names: Names) -> int:
        return sum(requests for requests, _ in self.micro_batches())

    def micro_batches(self) -> list[tuple[int, float]]:
        """(requests read, seconds that it took) of each since the warm-up."""
        assert self._process is not None
        found = (BATCH.search(line) for _, line in self._process.lines)
        all_of_them = [(int(match[1].replace(",", "")), float(match[2])) for match in found if match]
        return all_of_them[self._warmed_up :]

    def cpu_s(self) -> CpuSeconds:
        """What it has used so far, by language."""
        assert self._process is not None
        driver = psutil.Process(self._process.pid)
        java = python = 0.0
        for process in (driver, *driver.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                if process.name() == "java":
                    java += times.user + times.system
                elif process == driver:
                    python += times.user + times.system
                else:
                    python += times.user + times.system + times.children_user + times.children_system
        return CpuSeconds(java, python)
