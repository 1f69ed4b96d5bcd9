"""Reads what all queues have. It blocks: threads call it."""

from __future__ import annotations

from time import monotonic
from typing import NamedTuple

from timers.console.threads import check
from timers.errors import QueueError
from timers.process.config.settings import Settings
from timers.queue.inspection import Inspection, QueueStats

MAX_QUEUES_S = 8.0
"""A list of queues ends after this time, and names those that it did not read."""


class FoundQueues(NamedTuple):
    """All queues."""

    stats: list[QueueStats]
    missing: dict[str, str]
    """Name of a queue that was not read -> why."""


def read_queues(settings: Settings) -> FoundQueues:
    end_s = monotonic() + MAX_QUEUES_S
    inspection = Inspection(settings)
    found, missing = [], {}
    for name in inspection.names():
        check()
        if monotonic() > end_s:
            missing[name] = "it was not read in time"
            continue
        try:
            found.append(inspection.stats(name, with_delayed=False))
        except QueueError as error:
            missing[name] = str(error)
    return FoundQueues(found, missing)
