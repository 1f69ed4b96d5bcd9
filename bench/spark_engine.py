"""The engine on Spark of this project as a subject: one local query, measured by its output."""

import contextlib
import re
import time
from dataclasses import replace
from typing import ClassVar, NamedTuple

import psutil

from bench import storm
from bench.session import RunNames, Session
from bench.subject import Subject
from bench.workload import Workload
from tests.harness.process import ROOT, Process, clean_environment, python
from tests.harness.publication import publish_in_process

BATCH = re.compile(r"micro-batch \d+: ([0-9,]+) requests in .* took ([0-9.]+) s")
READY = r"micro-batch [1-9]\d*: .* lag"
START_S = 180.0

WARM_UP = Workload("warm-up", 150_000, 8)
"""Timers that the engine fires before the measurement, because Java is slow in its first minute and the engine runs for
months."""
WARM_UP_LEAD_S = 6
WARM_UP_END_S = 120.0


class CpuSeconds(NamedTuple):
    """CPU seconds of an engine since its start."""

    java: float
    python: float
    """Python driver and Python workers."""


class SparkEngine(Subject):
    """``timers spark engine`` with its defaults.

    Args:
        master: Spark master URL.
    """

    name = "timers_on_spark"
    accepts_per_s: ClassVar[int] = 50_000
    head_start_s: ClassVar[float] = 6.0

    def __init__(self, master: str = "local[2]") -> None:
        self._master = master
        self._process: Process | None = None
        self._warmed_up = 0
        """Number of micro-batches until the end of the warm-up."""

    def launch(self, session: Session, names: RunNames, workload: Workload) -> tuple[list[Process], float]:
        env = clean_environment(
            TIMERS_BROKERS=session.cluster.brokers,
            TIMERS_APP_ID=names.app_id,
            TIMERS_PARTITIONS=str(workload.partitions),
            TIMERS_REQUEST_TOPIC=names.request,
            TIMERS_OSCILLATOR_TOPIC=names.oscillator,
            TIMERS_DEAD_LETTER_TOPIC=f"timer-dead-letter-{names.run}",
            TIMERS_ID_TOPIC="",
        )
        place = ("--checkpoint", str(names.data_dir / "checkpoint"), "--log-file", str(names.directory / "spark.log"))
        argv = python("timers.cli.main", "spark", "engine", "--master", self._master, *place)
        log_path = names.directory / "engine.log"
        self._process = Process("timers on spark", argv, env, ROOT, log_path).start()
        self._warmed_up = 0
        self._process.wait_for(READY, START_S)
        self._warm_up(session, names, workload.partitions)
        return [self._process], time.time()

    def _warm_up(self, session: Session, names: RunNames, partitions: int) -> None:
        target = f"warm-up-{names.run}"
        session.cluster.create(target, partitions, {})
        first_due_s = int(time.time()) + WARM_UP_LEAD_S
        publication = session.publication(names, replace(WARM_UP, partitions=partitions), first_due_s, target=target)
        publish_in_process(publication, names.directory)
        give_up_at = time.monotonic() + WARM_UP_END_S
        while session.cluster.end(target) < WARM_UP.timers or sum(n for n, _ in self.micro_batches()) < WARM_UP.timers:
            if time.monotonic() > give_up_at:
                raise RuntimeError(f"warming up took more than {WARM_UP_END_S:.0f} s")
            time.sleep(storm.POLL_S)
        self._warmed_up = len(self.micro_batches())

    def accepted(self, session: Session, names: RunNames) -> int:
        return sum(requests for requests, _ in self.micro_batches())

    def micro_batches(self) -> list[tuple[int, float]]:
        """(number of requests, seconds) of each micro-batch since the warm-up."""
        assert self._process is not None
        found = BATCH.findall(self._process.log)[self._warmed_up :]
        return [(int(requests.replace(",", "")), float(seconds)) for requests, seconds in found]

    def cpu_s(self) -> CpuSeconds:
        """CPU seconds since its start, by language."""
        assert self._process is not None
        driver = psutil.Process(self._process.pid)
        java = others = 0.0
        for process in (driver, *driver.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                if process.name() == "java":
                    java += times.user + times.system
                elif process == driver:
                    others += times.user + times.system
                else:
                    others += times.user + times.system + times.children_user + times.children_system
        return CpuSeconds(java, others)
