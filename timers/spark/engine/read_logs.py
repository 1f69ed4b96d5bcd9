"""Which logs the query reads: the driver learns it before each micro-batch, and compares it [I28].

Tasks read through Spark, which shows no record batches. So the driver asks the leaders where a micro-batch ends, and
the tasks commit the answer with the progress.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

from timers.core.lineage import Lineage, Parted
from timers.core.ports import Lost
from timers.core.progress import Cuts, Progress
from timers.errors import CheckpointMismatch
from timers.kafka.log_lineage import WAIT_S, LogLineages

CHECK_S = 10.0
"""Seconds after which a micro-batch waits also for the leaders of partitions from which it reads nothing new."""

ANSWER_S = 20.0
"""How long a micro-batch waits for the answers of all leaders."""

POLL_S = 0.2


class ReadLogs:
    """The logs of the request topic, up to what the run of the engine has read of them.

    Args:
        topic: the request topic.
        lineages: asks the leaders.
        submit: runs a coroutine on the event loop of ``lineages``.
    """

    def __init__(
        self, topic: str, lineages: LogLineages, submit: Callable[[Coroutine[Any, Any, Any]], Future[Any]]
    ) -> None:
        self._topic = topic
        self._lineages = lineages
        self._submit = submit
        self._read: dict[int, Lineage] = {}
        self._cuts: dict[int, Cuts] = {}
        self._compare_at_s = 0.0

    def begin(self, progress: Mapping[int, Progress]) -> None:
        """Begin a query. The logs were compared with this progress. What was read, and not accepted, stays known,
        unless a loss was accepted."""
        for partition, each in progress.items():
            if self._cuts.get(partition) != each.cuts or self._known(partition).end < each.lineage.end:
                self._cuts[partition], self._read[partition] = each.cuts, each.lineage

    def through(self, ends: Mapping[int, int]) -> dict[int, Lineage]:
        """Returns the lineages of the offsets at which a micro-batch ends. Blocks.

        Raises:
            CheckpointMismatch: a log is not the one that was read.
            Lost: a leader does not answer.
        """
        # A log may have grown to its former end again: then it shows nothing new, and is another one.
        asked = awaited = set(ends)
        if monotonic() < self._compare_at_s:
            awaited = {partition for partition, end in ends.items() if end != self._known(partition).end}
        else:
            self._compare_at_s = monotonic() + CHECK_S
        give_up_s = monotonic() + ANSWER_S
        while asked:
            coroutine = self._ask({(self._topic, partition): ends[partition] for partition in asked})
            with suppress(TimeoutError):
                asked = self._submit(coroutine).result(2 * WAIT_S)
            asked = asked & awaited
            if asked and monotonic() > give_up_s:
                raise Lost(f"the leader of {self._topic}/{min(asked)} does not tell its leader epochs")
            if asked:
                sleep(POLL_S)
        return {partition: self._known(partition) for partition in ends}

    def _known(self, partition: int) -> Lineage:
        return self._read.get(partition, Lineage())

    async def _ask(self, ends: Mapping[tuple[str, int], int]) -> set[int]:
        """Learn and compare. Returns the partitions whose leaders did not answer."""
        known = {tp: self._known(tp[1]) for tp in ends}
        read = await self._lineages.extended({tp: (known[tp], end) for tp, end in ends.items()})
        # After that: if another log came meanwhile, this comparison or the next one finds it.
        answers = await self._lineages.parted({tp: [each] for tp, each in known.items() if each.end}, again=True)
        unanswered = set()
        for tp, lineage in known.items():
            name = "/".join(map(str, tp))
            if isinstance(answers.get(tp, [None])[0], Parted):
                del self._read[tp[1]]
                raise CheckpointMismatch(f"the log of {name} is not the one that was read")
            if tp in read and (tp in answers or not lineage.end):
                self._read[tp[1]] = read[tp]
            else:
                unanswered.add(tp[1])
        return unanswered
