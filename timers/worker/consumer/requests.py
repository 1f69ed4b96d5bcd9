"""The worker's own consumer: a member of the app's group, and the reader of the request logs.

Both run on the event loop of one thread, and share its connections. The Faust app knows neither: it gets batches
through a channel, and the pool is told what the group deals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from functools import partial
from time import monotonic
from typing import Any, TypeVar

from aiokafka.errors import KafkaError
from mode import Service

from timers.config.settings import Settings
from timers.core import levels
from timers.core.deals import RAISED, SUPPORTS, URL, deal, says_of_partitions
from timers.core.timer import TopicPartition
from timers.kafka.aiokafka_internals import fetch
from timers.kafka.aiokafka_internals.group import DescribedMember
from timers.kafka.aiokafka_internals.group_member import Deal, GroupMember, Timing
from timers.partition_metrics import Heartbeat, keep_heartbeat
from timers.threads import LoopThread
from timers.worker.consumer import group
from timers.worker.consumer.group import Membership
from timers.worker.consumer.log_reader import POLL_S, LogReader
from timers.worker.machines.pool import Pool
from timers.worker.periodic import every

REQUEST_TIMEOUT_S = 90.0
"""Longer than a rebalance: the answer to a request to join comes when all members have joined."""

_T = TypeVar("_T")


class PartitionConsumer(Service):
    """Takes part in the app's group, and reads the request logs of the open machines.

    Args:
        settings: of the worker.
        pool: opens the machines of what the group deals.
        batches: channel to the agent of requests; gets (partition, fetch).
        end: called with an error that ends the worker.

    Attributes:
        heartbeat: of its event loop.
    """

    def __init__(
        self,
        settings: Settings,
        pool: Pool,
        batches: Any,
        end: Callable[[BaseException], None],
        on_suspended: Callable[[TopicPartition, bool], None],
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.heartbeat = Heartbeat()
        self._main_heartbeat = Heartbeat()
        self._settings = settings
        self._pool = pool
        self._batches = batches
        self._report_end = end
        self._member: Membership | None = None
        self._left = False
        self._deal = Deal(0, frozenset(), anew=True)
        self._taken: Deal | None = None
        """The deal that the pool has."""
        self._raised = levels.FIRST
        self._woken = asyncio.Event()
        self._loop_thread = LoopThread("timers-consumer")
        self._reader = LogReader(
            settings,
            max(REQUEST_TIMEOUT_S, settings.session_timeout_s + 30.0),
            pool.value_limit,
            partial(self._on_main_loop, on_suspended),
            partial(self._on_main_loop, pool.fail),
        )

    # ---- status: any thread --------------------------------------------------------------------------------------

    @property
    def in_group(self) -> bool:
        """Whether the last deal stands, and the pool has it; false before the first one and during a rebalance."""
        return self._member is not None and self._member.in_group and self._taken is self._deal

    @property
    def was_dealt(self) -> bool:
        """Whether the group has dealt partitions to this worker since the start, which may be none."""
        return self._taken is not None

    @property
    def dealt(self) -> frozenset[TopicPartition]:
        """What the last deal gave to this worker."""
        return self._deal.partitions

    def watermarks(self) -> dict[TopicPartition, tuple[int, int]]:
        """High watermark and last stable offset of each partition that is read, as of its last fetch."""
        return self._reader.watermarks()

    # ---- its tasks -----------------------------------------------------------------------------------------------

    @Service.task
    async def _consume(self) -> None:
        try:
            await self._on_thread(self._start())
            while not self.should_stop:
                self._woken.clear()
                partitions = self._pool.with_room()
                if not partitions:
                    await self.wait(self._woken, timeout=POLL_S)
                    continue
                for batch in (await self._on_thread(self._reader.fetch(partitions, POLL_S))).items():
                    await self._batches.put(batch)
        except Exception as error:
            if not self.should_stop:
                self._report_end(error)

    @Service.task
    async def _watch_transactions(self) -> None:
        async for _ in every(1.0, self):
            fetched = set(self._pool.with_room())  # watermarks of others are those of a fetch before they were paused
            watermarks = {tp: marks for tp, marks in self.watermarks().items() if tp in fetched}
            self._pool.held_back.note(watermarks, monotonic())

    @Service.task
    async def _beat(self) -> None:
        await keep_heartbeat(self._main_heartbeat)

    async def _start(self) -> None:
        self._beating = asyncio.create_task(keep_heartbeat(self.heartbeat))
        await self._reader.start(self._pool.formats, lambda: self.should_stop)
        if not self.should_stop and not self._left:
            settings = self._settings
            self._member = member = GroupMember(
                fetch.client_of(self._reader.consumer),
                settings.app_id,
                settings.worker_id,
                self._pool.formats,
                Timing.of(settings.session_timeout_s),
                self._sent,
                deal,
                self._on_dealt,
                partial(self._on_main_loop, self._report_end),
                # Without its main loop, a worker gets no ticks.
                lambda: self._main_heartbeat.silent_s < settings.session_timeout_s,
            )
            self._joining = asyncio.create_task(member.run())

    def _sent(self) -> dict[str, Any]:
        """What this worker says of itself when it joins."""
        generation, owned, _ = self._deal
        said = says_of_partitions(generation, owned, self._pool.stores)
        return {URL: self._settings.canonical_url, SUPPORTS: levels.SUPPORTED, RAISED: self._raised, **said}

    def _on_dealt(self, dealt: Deal) -> None:
        self._deal = dealt
        self._on_main_loop(lambda: self.add_future(self._take(dealt)))

    async def _take(self, dealt: Deal) -> None:
        self._taken = dealt
        await self._pool.take(dealt.partitions, anew=dealt.anew)

    async def on_stop(self) -> None:
        """Stop reading. Unless the worker has left the group, the group notices it when the session has ended."""
        await self._on_thread(self._stop())
        self._loop_thread.close()

    async def _stop(self) -> None:
        if self._member is not None:
            self._joining.cancel()
        await self._reader.stop()

    async def _on_thread(self, call: Coroutine[Any, Any, _T]) -> _T:
        return await asyncio.wrap_future(self._loop_thread.submit(call))

    def _on_main_loop(self, call: Callable[..., object], *args: Any) -> None:
        self.loop.call_soon_threadsafe(call, *args)

    # ---- calls of the pool: timers.worker.machines.pool.RequestConsumer ------------------------------------------

    def wake(self) -> None:
        """Fetch again at once, from partitions that :meth:`Pool.with_room` names again."""
        self._woken.set()

    def read_from(self, partition: TopicPartition, offset: int) -> None:
        """Read a partition from ``offset`` on, soon."""
        self._loop_thread.call_soon(self._reader.read_from, partition, offset)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Read these partitions no more."""
        self._loop_thread.call_soon(self._reader.forget, partitions)

    async def owns(self, partition: TopicPartition) -> bool | None:
        """Ask the group's coordinator whether this worker owns a partition; None without an answer."""

        async def ask() -> bool | None:
            confirmed = await self._known_member.confirms()
            return partition in self._deal.partitions if confirmed else confirmed

        return await self._on_thread(ask())

    # ---- calls of the app, of queries and of the watches ----------------------------------------------------------

    @property
    def _known_member(self) -> Membership:
        if self._member is None:
            raise group.Unsettled("the worker joins its group")
        return self._member

    async def end_suspension(self, partitions: Iterable[TopicPartition]) -> None:
        """Deliver partitions again whose topic ids were checked."""
        self._loop_thread.call_soon(self._reader.end_suspension, list(partitions))

    async def described(self) -> list[DescribedMember]:
        """All members of the group; see :func:`timers.worker.consumer.group.described`."""
        return await self._on_thread(group.described(self._known_member))

    async def members(self) -> dict[TopicPartition, group.Member]:
        """The owner of each partition; see :meth:`described`."""
        return group.owners(await self.described())

    def note_raised(self, level: int) -> None:
        """Note the feature level of a machine: the group learns it when this worker joins the next time."""
        self._raised = max(level, self._raised)

    def rejoin(self) -> None:
        """Join the group again soon."""
        self._loop_thread.call_soon(self._known_member.rejoin)

    async def leave(self) -> None:
        """Tell the group that this worker ends, so that other workers get its partitions at once. It joins no more."""

        async def leave() -> None:
            self._left = True
            if self._member is not None:
                self._joining.cancel()
                await self._member.leave()

        await self._on_thread(leave())

    async def has_others(self) -> bool | None:
        """Whether the group, which this worker has left, has members; None if its coordinator does not say so."""
        if self._member is None:
            return False
        try:
            return bool((await self._on_thread(self._member.describe())).members)
        except KafkaError:
            return None

    def request_rebalance(self) -> None:
        """Let the group deal again soon."""
        self._loop_thread.call_soon(self._known_member.request_rebalance)
