"""Compares the logs of open machines with what was read of them [I28], and watches the leaders of progress [I8]."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping

from aiokafka.errors import KafkaError

from timers.core.lineage import Leader, Parted
from timers.core.ports import Lost
from timers.core.timer import TopicPartition
from timers.kafka.log_lineage import LogLineages
from timers.worker.machines.runner import Runner

logger = logging.getLogger(__name__)

CHECK_S = 10.0
"""Seconds between two comparisons. A log that has grown again to exactly the position of its machine sends no batch, so
no fetch shows that it is another log."""

RETRY_S = 1.0
"""Seconds after which a leader that did not answer is asked again, if a fetch waits for its answer."""


class LogParted(Lost):
    """The log of a machine is not the one that was read. When the machine is opened again, it says what was lost."""


class LineageWatch:
    """Asks the leaders of partitions with an open machine whether their logs are those that were read [I28].

    A progress topic that loses its end is noticed when a machine commits, which an idle one does once a minute. So all
    machines commit soon after a leader of this topic has restarted, or is another one: a log loses no records without
    that. It runs on one event loop.

    Args:
        compacted: the topics that may be compacted.
        progress: returns the partitions of the progress topic.
        on_parted: called with a partition whose log is another one.
    """

    def __init__(
        self,
        lineages: LogLineages,
        runners: Callable[[], Mapping[TopicPartition, Runner]],
        compacted: Collection[str],
        progress: Callable[[], Collection[TopicPartition]],
        on_parted: Callable[[TopicPartition, LogParted], None],
    ) -> None:
        self._lineages = lineages
        self._runners = runners
        self._compacted = compacted
        self._progress = progress
        self._connections: dict[TopicPartition, object] = {}
        """Partition of the progress topic -> connection to its leader at the last look."""
        self._on_parted = on_parted
        self._waiting: dict[TopicPartition, tuple[Runner, Leader]] = {}
        self._asked = asyncio.Event()
        self._task = asyncio.create_task(self._watch())

    def ask(self, tp: TopicPartition, runner: Runner, leader: Leader) -> None:
        """Compare a log soon: a fetch from a new leader waits for :meth:`Runner.trust`."""
        self._waiting[tp] = runner, leader
        self._asked.set()

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S if self._waiting else CHECK_S):
                    await self._asked.wait()
            self._asked.clear()
            try:
                await self._check()
                if not self._waiting:
                    await self._check_progress_leaders()
            except Exception:
                logger.exception("comparing logs failed")

    async def _check(self) -> None:
        runners, waiting, self._waiting = self._runners(), self._waiting, {}
        checked = {tp: runner.machine.lineages for tp, runner in runners.items()}
        answers = await self._lineages.parted(checked, self._compacted, again=not waiting)
        for tp, found in answers.items():
            parted = next((each for each in found if isinstance(each, Parted)), None)
            if self._runners().get(tp) is not runners[tp]:
                continue  # closed meanwhile
            if parted is not None:
                where = "an offset that is not known" if parted.offset is None else f"offset {parted.offset}"
                name = runners[tp].name
                self._on_parted(tp, LogParted(f"{name}: from {where} on, the log is not the one that was read"))
        for tp, (runner, leader) in waiting.items():
            if self._runners().get(tp) is not runner:
                continue
            if tp in answers:
                runner.trust(leader)
            else:
                self._waiting[tp] = runner, leader

    async def _check_progress_leaders(self) -> None:
        """Let all open machines commit soon if a leader of the progress topic has changed or restarted."""
        with contextlib.suppress(KafkaError):
            by_leader = await self._lineages.client.by_leader(self._progress())
            await asyncio.gather(
                *(self._look_at(leader, tps) for leader, tps in by_leader.items() if leader is not None)
            )

    async def _look_at(self, leader: int, tps: Collection[TopicPartition]) -> None:
        with contextlib.suppress(KafkaError):
            await self._lineages.client.last_stable_offsets(leader, tps)  # connects
            now = dict.fromkeys(tps, self._lineages.client.connection_to(leader))
            former = {tp: self._connections.get(tp, connection) for tp, connection in now.items()}
            self._connections |= now
            if former != now:
                for runner in self._runners().values():
                    runner.commit_soon()

    async def close(self) -> None:
        """End the comparisons."""
        self._task.cancel()
        await self._lineages.client.close()
