"""What the log of a worker says about machines that recover."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from time import monotonic

from timers.process.counted import per_second
from timers.worker.machines.runner import Runner

logger = logging.getLogger(__name__)

REPORT_S = 2.0
"""Seconds between two lines about machines that recover."""


class Recoveries:
    """Logs when each machine of a pool that was opened for an assignment fires, and when all of them do.

    Args:
        runners: returns those of the machines that are open.
        opening: returns the number of partitions that are being opened.
    """

    def __init__(self, runners: Callable[[], Collection[Runner]], opening: Callable[[], int]) -> None:
        self._runners, self._opening = runners, opening
        self._began_at = monotonic()
        self._ready_logged = True
        self._reporting: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Note that machines will be opened now, and log their progress until all of them fire. On the event loop."""
        self.close()
        self._began_at = monotonic()
        self._ready_logged = False
        self._reporting = asyncio.create_task(self._report())

    def log_recovered(self, runner: Runner, seconds: float) -> None:
        """Log what was recovered and, when all machines fire, that the worker is ready."""
        machine, runner.is_recovered = runner.machine, True
        logger.info(
            "recovered %s: %d pending, %d records read again in %.2f s%s",
            runner.name,
            machine.pending,
            machine.replayed,
            seconds,
            f", {per_second(machine.replayed / seconds)}" if machine.replayed and seconds else "",
        )
        self.check_ready()

    def check_ready(self) -> None:
        """Log once that the worker is ready: no partition is being opened, and all open machines fire."""
        runners = self._runners()
        is_open = not self._ready_logged and runners and all(each.is_recovered for each in runners)
        if is_open and not self._opening():
            self._ready_logged = True
            logger.info(
                "ready: %d partitions, %d timers pending, %.2f s after assignment",
                len(runners),
                sum(each.machine.pending for each in runners),
                monotonic() - self._began_at,
            )

    async def _report(self) -> None:
        """Log a line regularly until no machine recovers and no partition is being opened any more."""
        last_replayed = 0
        while True:
            await asyncio.sleep(REPORT_S)
            machines, opening = [runner.machine for runner in self._runners()], self._opening()
            recovering = [machine for machine in machines if machine.recovering]
            if not recovering and not opening:
                return
            replayed = sum(machine.replayed for machine in machines)
            logger.info(
                "recovering %d of %d partitions: %s records read again, %s/s, %s offsets to go",
                len(recovering) + opening,
                len(machines) + opening,
                f"{replayed:,}",
                f"{max(0, replayed - last_replayed) / REPORT_S:,.0f}",
                f"{sum(machine.left_to_replay for machine in recovering):,}",
            )
            last_replayed = replayed

    def close(self) -> None:
        """End the reports."""
        if self._reporting is not None:
            self._reporting.cancel()
