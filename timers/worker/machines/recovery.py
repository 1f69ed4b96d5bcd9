"""Logs what machines have recovered, and their progress if a recovery takes long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from timers.worker.machines.runner import Runner

logger = logging.getLogger(__name__)

REPORT_S = 2.0


class Recoveries:
    """Logs when each machine that was opened for an assignment fires, and when all of them do."""

    def __init__(self) -> None:
        self._began_at = monotonic()
        self._ready_logged = True
        self._recovered: set[Runner] = set()
        self._reporting: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Note that machines will be opened now."""
        self._began_at = monotonic()
        self._ready_logged = False

    def report(self, runners: Callable[[], Collection[Runner]]) -> None:
        """Log the progress of recoveries regularly until all machines fire. On the event loop."""
        self.close()
        self._reporting = asyncio.create_task(report(runners))

    def forget(self, closing: Iterable[Runner]) -> None:
        """Stop counting machines that are closed."""
        self._recovered.difference_update(closing)

    def log_recovered(self, runner: Runner, seconds: float, runners: Collection[Runner]) -> None:
        """Log what was recovered and, when all of ``runners`` fire, that the worker is ready."""
        machine = runner.machine
        self._recovered.add(runner)
        logger.info(
            "recovered %s: %d pending, %d records read again in %.2f s%s",
            runner.name,
            machine.pending,
            machine.replayed,
            seconds,
            f", {machine.replayed / seconds:,.0f}/s" if machine.replayed and seconds else "",
        )
        if not self._ready_logged and self._recovered.issuperset(runners):
            self._ready_logged = True
            logger.info(
                "ready: %d partitions, %d timers pending, %.2f s after assignment",
                len(runners),
                sum(each.machine.pending for each in runners),
                monotonic() - self._began_at,
            )

    def close(self) -> None:
        """End the reports."""
        if self._reporting is not None:
            self._reporting.cancel()


async def report(runners: Callable[[], Collection[Runner]], pause_s: float = REPORT_S) -> None:
    """Log a line regularly until no machine recovers any more.

    Args:
        runners: returns the open machines.
        pause_s: seconds between two lines, and before the first.
    """
    last_replayed = 0
    while True:
        await asyncio.sleep(pause_s)
        machines = [runner.machine for runner in runners()]
        recovering = [machine for machine in machines if machine.recovering]
        if not recovering:
            return
        replayed = sum(machine.replayed for machine in machines)
        logger.info(
            "recovering %d of %d partitions: %s records read again, %s/s, %s offsets to go",
            len(recovering),
            len(machines),
            f"{replayed:,}",
            f"{max(0, replayed - last_replayed) / pause_s:,.0f}",
            f"{sum(machine.remaining for machine in recovering):,}",
        )
        last_replayed = replayed
