"""Says how a recovery goes, if it takes long enough for somebody to wonder."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from timers.worker.machines.runner import Runner

logger = logging.getLogger(__name__)

REPORT_S = 2.0


async def report(runners: Callable[[], Collection[Runner]], pause_s: float = REPORT_S) -> None:
    """Write a line now and then until no machine recovers any more.

    Args:
        runners: the open machines at present.
        pause_s: between two lines, and before the first.
    """
    before = 0
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
            f"{max(0, replayed - before) / pause_s:,.0f}",
            f"{sum(machine.remaining for machine in recovering):,}",
        )
        before = replayed
