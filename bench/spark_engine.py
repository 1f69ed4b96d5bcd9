"""Our engine on Spark as a subject: one query on this machine's cores. What it has accepted, its own lines say."""

from __future__ import annotations

import re
import sys
from typing import ClassVar

from bench.harness.process import Process
from bench.harness.subject import ROOT, Bench, Names, Subject, environment
from bench.workload import Workload

BATCH = re.compile(r"micro-batch \d+: ([0-9,]+) requests in .* took ([0-9.]+) s")
READY = r"micro-batch [1-9]\d*: .* lag"
START_S = 180.0


class SparkEngine(Subject):
    """``timers spark engine`` with its defaults.

    Args:
        master: of Spark.
        options: of the command line.
    """

    name: ClassVar[str] = "timers_on_spark"
    accepts_per_s: ClassVar[int] = 40_000
    head_start_s: ClassVar[float] = 8.0

    def __init__(self, master: str = "local[2]", *options: str) -> None:
        self._master = master
        self._options = options
        self._process: Process | None = None

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
        ready_at, _ = self._process.wait_for(READY, START_S)
        return [self._process], ready_at

    def accepted(self, bench: Bench, names: Names) -> int:
        return sum(requests for requests, _ in self.micro_batches())

    def micro_batches(self) -> list[tuple[int, float]]:
        """(requests read, seconds that it took) of each so far."""
        assert self._process is not None
        found = (BATCH.search(line) for _, line in self._process.lines)
        return [(int(match[1].replace(",", "")), float(match[2])) for match in found if match]
