"""Which logs the query reads: the driver learns it before each micro-batch, and compares it [I28].

Tasks read through Spark, which shows no record batches. So the driver asks the leaders where a micro-batch ends, and
the tasks commit the answer with the progress.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

from timers.core.lineage import Lineage, Parted
from timers.core.ports import Lost
from timers.core.progress import Cuts, Progress
from timers.core.timer import TopicPartition
from timers.errors import CheckpointMismatch
from timers.kafka.log_lineage import WAIT_S, LogLineages
from timers.wire.topics import partition_name

CHECK_S = 10.0
"""Seconds after which a micro-batch waits also for the leaders of partitions from which it reads nothing new."""

ANSWER_S = 20.0
"""How long a micro-batch waits for the answers of all leaders."""

POLL_S = 0.2


class ReadLogs:
    """The logs of the request topics, up to what the run of the engine has read of them.

    Args:
        lineages: asks the leaders.
        submit: runs a coroutine on the event loop of ``lineages``.
    """

    def __init__(
        self,
        lineages: LogLineages,
        submit: Callable[[Coroutine[Any, Any, Any]], Future[Any]],
        compacted: Collection[str] = (),
    ) -> None:
        self._compacted = compacted
        self._lineages = lineages
        self._submit = submit
        self._read: dict[TopicPartition, Lineage] = {}
        self._cuts: dict[TopicPartition, Cuts] = {}
        self._compare_at_s = 0.0
        self._ends: dict[TopicPartition, int] = {}
        """Where the last micro-batch ended."""

    def begin(self, progress: Mapping[TopicPartition, Progress]) -> None:
        """Begin a query. The logs were compared with this progress. What was read, and not accepted, stays known,
        unless a loss was accepted."""
        self._ends = {}
        for tp, each in progress.items():
            if self._cuts.get(tp) != each.cuts or self._known(tp).end < each.lineage.end:
                self._cuts[tp], self._read[tp] = each.cuts, each.lineage

    def through(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, Lineage]:
        """Returns the lineages of the offsets at which a micro-batch ends. Blocks.

        Raises:
            CheckpointMismatch: a log is not the one that was read.
            Lost: a leader does not answer.
        """
        # A log may have grown to its former end again: then it shows nothing new, and is another one.
        asked = awaited = set(ends)
        if monotonic() < self._compare_at_s:
            awaited = {tp for tp, end in ends.items() if end != self._known(tp).end}
        else:
            self._compare_at_s = monotonic() + CHECK_S
        give_up_s = monotonic() + ANSWER_S
        while asked:
            coroutine = self._ask({tp: ends[tp] for tp in asked})
            with suppress(TimeoutError):
                asked = self._submit(coroutine).result(2 * WAIT_S)
            asked = asked & awaited
            if asked and monotonic() > give_up_s:
                raise Lost(f"the leader of {partition_name(*min(asked))} does not tell its leader epochs")
            if asked:
                sleep(POLL_S)
        return {tp: self._known(tp) for tp in ends}

    def log_ends(
        self, ends: Mapping[TopicPartition, int], with_ids: Collection[str], most: int
    ) -> dict[TopicPartition, int]:
        """Returns the ends of the logs with ids, asked after the newest tick of a micro-batch was written [I17].

        Spark has asked for them after that, so they are where the micro-batch ends. But if it has as many requests as
        it may have, the logs go on. Without those whose leaders do not answer. Blocks.

        Args:
            ends: where the micro-batch ends.
            with_ids: topics.
            most: largest number of requests of a micro-batch.
        """
        before, self._ends = self._ends, dict(ends)
        mine = {tp: end for tp, end in ends.items() if tp[0] in with_ids}
        planned = sum(end - before.get(tp, 0) for tp, end in ends.items())
        if not mine or (before.keys() == ends.keys() and planned <= most // 2):
            return mine
        return self.ends_of(mine)

    def ends_of(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns where logs end for committed readers, without those whose leaders do not answer. Blocks."""
        found: dict[TopicPartition, int] = {}
        with suppress(TimeoutError):
            found = self._submit(self._lineages.stable_ends(tps)).result(2 * WAIT_S)
        return found

    def _known(self, tp: TopicPartition) -> Lineage:
        return self._read.get(tp, Lineage())

    async def _ask(self, ends: Mapping[TopicPartition, int]) -> set[TopicPartition]:
        """Learn and compare. Returns the partitions whose leaders did not answer."""
        known = {tp: self._known(tp) for tp in ends}
        read = await self._lineages.extended({tp: (known[tp], end) for tp, end in ends.items()})
        # After that: if another log came meanwhile, this comparison or the next one finds it.
        compared = {tp: [each] for tp, each in known.items() if each.end}
        answers = await self._lineages.parted(compared, self._compacted, again=True)
        unanswered = set()
        for tp, lineage in known.items():
            if isinstance(answers.get(tp, [None])[0], Parted):
                del self._read[tp]
                raise CheckpointMismatch(f"the log of {partition_name(*tp)} is not the one that was read")
            if tp in read and (tp in answers or not lineage.end):
                self._read[tp] = read[tp]
            else:
                unanswered.add(tp)
        return unanswered
