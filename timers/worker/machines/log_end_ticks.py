"""Gives ticks to the machines of timers with an id, each with the present end of its log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from time import monotonic

from aiokafka.errors import KafkaError

from timers.core.timer import Tick, TopicPartition
from timers.kafka.aiokafka_internals.leader_client import LeaderClient
from timers.machines.life import BROKERS, Waiting
from timers.wire.topics import partition_name
from timers.worker.machines.runner import Runner

LOG_END_TIMEOUT_S = 5.0
"""Without an answer within this time, the timers of the second fire with the next second."""


logger = logging.getLogger(__name__)

AGAIN_S, LONGEST_AGAIN_S = 0.01, 0.5
"""First and longest pause before an end is asked again that the machine's own transaction held back: brokers write the
marker. For the same tick, each pause is twice the one before."""

UNKNOWN_S = 10.0
"""A new leader is elected within this time: ``broker.session.timeout.ms`` is 9 s."""


class LogEndTicks:
    """One request to each leader at a time: ticks that arrive meanwhile wait for the next one. On one event loop.

    Args:
        client: asks the leaders, on its own connections: on a shared one a request would wait for a fetch.
        runners: returns the open machines of timers with an id.
    """

    def __init__(self, client: LeaderClient, runners: Callable[[], Mapping[TopicPartition, Runner]]) -> None:
        self._client = client
        self._runners = runners
        self._tick: Tick | None = None
        self._led_by: Mapping[int | None, list[TopicPartition]] = {}
        self._unknown_since: dict[TopicPartition, float] = {}
        """Machines with a tick without the end of their log -> time of the first such tick."""
        self._pauses: dict[TopicPartition, tuple[Tick | None, float]] = {}
        """Machine -> (tick that was given again last, pause before)."""
        self._tasks: dict[int | str | None, asyncio.Task[None]] = {}

    @property
    def waiting(self) -> Mapping[TopicPartition, Waiting]:
        """Open machines that fire nothing, since the end of their log has been unknown for :data:`UNKNOWN_S` -> why."""
        now_s = monotonic()
        return {
            tp: Waiting(
                BROKERS, f"its leader has not told the end of its log for {now_s - since:.0f} s; its timers wait"
            )
            for tp, since in self._unknown_since.items()
            if now_s - since > UNKNOWN_S
        }

    def tick(self, tick: Tick) -> None:
        """Give a tick to each machine as soon as the end of its log is known."""
        self._tick = tick
        runners = self._runners()
        now_s = monotonic()
        self._unknown_since = {tp: self._unknown_since.get(tp, now_s) for tp in runners}
        if runners:
            self._repeat("leaders", self._ask_leaders)

    def _repeat(self, name: int | str | None, step: Callable[[Tick], Awaitable[None]]) -> None:
        """Run ``step`` with the newest tick until no newer one has come, unless ``name`` already does so."""

        async def steps() -> None:
            seen = None
            while seen != self._tick:
                seen = self._tick
                assert seen is not None
                await step(seen)

        task = self._tasks.get(name)
        if task is None or task.done():
            self._tasks[name] = asyncio.create_task(steps())

    async def _ask_leaders(self, _: Tick) -> None:
        groups: Mapping[int | None, list[TopicPartition]] = {None: list(self._runners())}
        with _logged("the leaders of logs are not known"):  # machines still get the time, and release no second
            groups = await self._client.by_leader(groups[None])
        self._led_by = groups
        for leader in groups:
            self._repeat(leader, partial(self._ask, leader))

    def ask_again(self, tp: TopicPartition) -> None:
        """Give the newest tick to one machine again, with the end of its log as it is soon."""

        async def again() -> None:
            last, pause_s = self._pauses.get(tp, (None, 0.0))
            pause_s = min(2 * pause_s, LONGEST_AGAIN_S) if last == self._tick else AGAIN_S
            self._pauses[tp] = self._tick, pause_s
            await asyncio.sleep(pause_s)
            leader = next((leader for leader, tps in self._led_by.items() if tp in tps), None)
            tick, runner = self._tick, self._runners().get(tp)
            ends = await self._ends(leader, [tp])
            if tick is not None and runner is not None and tp in ends and self._runners().get(tp) is runner:
                runner.tick(tick, ends[tp])

        name = partition_name(*tp)
        if (task := self._tasks.get(name)) is None or task.done():
            self._tasks[name] = asyncio.create_task(again())

    async def _ask(self, leader: int | None, tick: Tick) -> None:
        # Read anew for each request: a slow leader's requests follow each other while machines open and leaders move.
        tps = self._led_by.get(leader, [])
        runners = dict(self._runners())
        ends = await self._ends(leader, tps)
        for tp in ends:
            self._unknown_since.pop(tp, None)
        # A machine that was opened meanwhile does not know which transactions held back the end.
        runners_now = self._runners()
        for tp in tps:
            if tp in runners and runners_now.get(tp) is runners[tp]:
                runners[tp].tick(tick, ends.get(tp))

    async def _ends(self, leader: int | None, tps: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Returns the ends of logs with one leader, as far as it tells them."""
        ends: Mapping[TopicPartition, int] = {}
        if tps and leader is not None:
            with _logged(f"broker {leader} does not tell the ends of logs"):
                ends = await self._client.last_stable_offsets(leader, tps)
        return ends

    async def close(self) -> None:
        """End the requests."""
        for task in self._tasks.values():
            task.cancel()
        await self._client.close()


@contextmanager
def _logged(what: str) -> Iterator[None]:
    """Log an error of the block. That a broker does not answer is seen elsewhere."""
    try:
        yield
    except KafkaError as error:
        logger.debug("%s: %r", what, error)
    except Exception:
        logger.exception("%s", what)
