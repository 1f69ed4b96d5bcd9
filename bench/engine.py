"""Our own engine as a subject: one Faust worker. The only file that knows how it is started and what it logs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from bench.harness.process import Process
from bench.harness.subject import ROOT, Bench, Names, Subject, environment, free_port, python
from bench.workload import Workload

READY = r"ready: \d+ partitions, (\d+) timers pending, ([0-9.]+) s after assignment"
"""The line after which every assigned partition accepts and fires."""
START_S = 60.0


class Engine(Subject):
    """``faust -A timers.app worker`` with its defaults, except for ``settings``.

    Args:
        settings: ``TIMERS_*`` variables.
        root: the checkout whose worker runs.
        name: how results call it.
    """

    accepts_per_s: ClassVar[int] = 100_000

    def __init__(self, settings: Mapping[str, str] | None = None, root: Path = ROOT, name: str = "timers") -> None:
        self.name = name
        self._settings = settings or {}
        self._root = root
        self.port = ""

    def launch(self, bench: Bench, names: Names, workload: Workload) -> tuple[list[Process], float]:
        self.port = port = str(free_port())
        env = environment(
            TIMERS_BROKERS=bench.cluster.brokers,
            TIMERS_APP_ID=names.app_id,
            TIMERS_WORKER_ID=names.run,
            TIMERS_DATA_DIR=str(names.data_dir),
            TIMERS_WEB_PORT=port,
            TIMERS_PARTITIONS=str(workload.partitions),
            TIMERS_REQUEST_TOPIC=names.request,
            TIMERS_OSCILLATOR_TOPIC=names.oscillator,
            TIMERS_DEAD_LETTER_TOPIC=f"timer-dead-letter-{names.run}",
            **self._settings,
            PYTHONPATH=str(self._root),
        )
        argv = python("faust", "-A", "timers.app", "worker", "-l", "info", "--web-port", port)
        process = Process("timers worker", argv, env, self._root, names.directory / "worker.log")
        ready_at, _ = process.wait_for(READY, START_S)
        return [process], ready_at

    def recovered_s(self, processes: list[Process], timers: int) -> float:
        _, said = processes[0].wait_for(READY, 0)
        if int(said[1]) != timers:
            raise RuntimeError(f"{timers:,} timers were pending, but it said: {said[0]}")
        return float(said[2])
