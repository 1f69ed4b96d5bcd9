"""Says in words what is wrong, and what to do about it. Pure."""

from __future__ import annotations

from typing import NamedTuple

from timers.console.web.board import Figures

RED, AMBER = "red", "amber"


class Finding(NamedTuple):
    """Something that is wrong.

    Attributes:
        level: red: timers do not fire, or may not; amber: look at it.
        where: what it is about, such as a worker.
        way_out: what the reader can do.
    """

    level: str
    where: str
    why: str
    way_out: str = ""


def findings(figures: Figures) -> list[Finding]:
    """What is wrong, the worst first."""
    if figures.problem is not None:
        way_out = "Check that the brokers at TIMERS_BROKERS run, and that this machine reaches them."
        return [Finding(RED, "brokers", str(figures.problem), way_out)]
    if not figures.workers:
        return [Finding(RED, "workers", "No worker runs, so no timer fires.", "Start one: timers worker.")]
    found = [finding for worker in figures.workers for finding in _of_worker(worker)]
    return sorted(found, key=lambda finding: finding.level != RED)


def _of_worker(worker: dict[str, object]) -> list[Finding]:
    name = str(worker["id"])
    if worker["ready"] is None:
        way_out = "Set TIMERS_CONSOLE_WORKERS to the network of the workers, or look at this worker's log."
        return [Finding(AMBER, name, f"The console cannot ask this worker: {worker['why']}.", way_out)]
    stopped = worker["stopped"]
    assert isinstance(stopped, dict) and isinstance(worker["reasons"], list)
    found = [Finding(RED, partition, str(why)) for partition, why in stopped.items()]
    return found + [Finding(RED, name, f"This worker is not ready: {reason}.") for reason in worker["reasons"]]
