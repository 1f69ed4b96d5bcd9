"""Reads the state of queues. Its functions block: the console calls them in threads."""

from __future__ import annotations

from time import monotonic
from typing import NamedTuple

from timers.config.settings import Settings
from timers.console.threads import check
from timers.dead_letters.letters import QueueTopics
from timers.errors import QueueError
from timers.queue.inspection import Inspection, QueueStats
from timers.wire import topics

MAX_READING_S = 8.0
"""A list ends after this time, and names the queues that it did not read."""


class FoundQueues(NamedTuple):
    """All queues."""

    stats: list[QueueStats]
    missing: dict[str, str]
    """Name of a queue that was not read -> why."""


def read_all(settings: Settings) -> FoundQueues:
    """The state of all queues.

    Raises:
        TimersError: no broker answers.
    """
    end_s = monotonic() + MAX_READING_S
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


def read_one(settings: Settings, name: str, topic: str | None) -> QueueStats:
    """The state of a queue.

    Raises:
        QueueError: there is no such queue.
        TimersError: no broker answers.
    """
    return Inspection(settings).stats(name, topic)


def topics_of(settings: Settings, name: str) -> QueueTopics:
    """How dead letters name a queue. Raises as :func:`read_one`."""
    return QueueTopics(Inspection(settings).topic_of(name), topics.queue_returns(topics.queue_group(name)))
