"""The worker of this project as a subject."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from bench.session import RunNames, Session
from bench.subject import Subject
from bench.workload import Workload
from tests.harness.process import ROOT, Process, clean_environment
from tests.harness.worker import READY, worker_command
from timers.broker.config import free_port

START_S = 60.0


class Engine(Subject):
    """``faust -A timers.app worker`` with its defaults, except for ``settings``.

    Args:
        settings: ``TIMERS_*`` variables.
        root: checkout whose worker runs.
        name: name in results.
    """

    accepts_per_s: ClassVar[int] = 100_000

    def __init__(self, settings: Mapping[str, str] | None = None, root: Path = ROOT, name: str = "timers") -> None:
        self.name = name
        self._settings = settings or {}
        self._root = root
        self.port = 0

    def launch(self, session: Session, names: RunNames, workload: Workload) -> tuple[list[Process], float]:
        self.port = free_port()
        env = clean_environment(
            TIMERS_BROKERS=session.cluster.brokers,
            TIMERS_APP_ID=names.app_id,
            TIMERS_WORKER_ID=names.run,
            TIMERS_DATA_DIR=str(names.data_dir),
            TIMERS_WEB_PORT=str(self.port),
            TIMERS_PARTITIONS=str(workload.partitions),
            TIMERS_REQUEST_TOPIC=names.request,
            TIMERS_OSCILLATOR_TOPIC=names.oscillator,
            TIMERS_DEAD_LETTER_TOPIC=f"timer-dead-letter-{names.run}",
            **{"TIMERS_ID_TOPIC": "", **self._settings},  # off, as in all results before it was on by default
            PYTHONPATH=str(self._root),
        )
        process = Process(
            "timers worker", worker_command(self.port), env, self._root, names.directory / "worker.log"
        ).start()
        process.wait_for(READY, START_S)
        return [process], time.time()

    def recovered_s(self, processes: list[Process], timers: int) -> float:
        ready = processes[0].wait_for(READY, 0)
        if int(ready[2]) != timers:
            raise RuntimeError(f"{timers:,} timers were pending, but it wrote: {ready[0]}")
        return float(ready[3])
