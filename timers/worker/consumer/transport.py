"""Faust's aiokafka transport, delivering each fetched batch of a partition as ONE message.

Faust's way of one message a record costs fifty times what the work on it costs (18,000 a second for an agent that does
nothing). Here a message's value is a :class:`~timers.core.timer.Fetched`: the list of records and the range of offsets
it answers for. The machine checks that ranges join: Faust drops fetched messages without a word when a generation
changes or flow is suspended, and only a gap in the ranges tells.

Faust must not commit request offsets (ours travel in the machines' transactions) nor filter by its own idea of what was
read (a rewind would look like old news), so both are off.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from time import monotonic
from typing import Any, ClassVar

import aiokafka
from aiokafka.errors import (
    IllegalStateError,
    NoOffsetForPartitionError,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from aiokafka.protocol.fetch import FetchRequest
from faust.transport.drivers import aiokafka as driver
from faust.types import TP, ConsumerMessage
from mode import Service

from timers.core.timer import Fetched, TopicPartition
from timers.errors import TimersError
from timers.worker.consumer import group, records
from timers.worker.consumer.duplicate_member import DuplicateMemberWatch
from timers.worker.machines.pool import Pool
from timers.worker.partition_metrics import Heartbeat, keep_heartbeat

logger = logging.getLogger(__name__)

MAX_FETCH_BYTES = 512 * 1024
"""Most bytes that one fetch brings of one partition, give or take one batch. Larger did not recover faster."""

SAY_AGAIN_S = 1.0
"""Where a quiet partition stands is said this often: had its last fetch been dropped, its machine would notice."""

ASSIGN_TIMEOUT_S = 80.0

MAY_BE_DELETED = {UnknownTopicOrPartitionError.errno, NotLeaderForPartitionError.errno}
"""What a fetch is answered from the moment its topic is deleted."""

POLL_S = 0.2
"""How long to wait for any partition; one that was paused is looked at again after this."""

CLOSED_POLL_S = 0.2


class _NoReadOffsets(dict[Any, Any]):
    """Faust's read offsets, always unknown: machines know exactly what they have, and may ask for it again."""

    def __missing__(self, key: Any) -> None:
        return None

    def __setitem__(self, key: Any, value: Any) -> None:
        return None


class BatchConsumerThread(driver.AIOKafkaConsumerThread):
    """The thread that aiokafka runs in."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._read_to: dict[Any, int] = {}
        self._said_at: dict[Any, float] = {}
        self.heartbeat = Heartbeat()
        self._suspended: set[TP] = set()

    @Service.task
    async def _beat(self) -> None:
        await keep_heartbeat(self.heartbeat)

    def watermarks(self) -> dict[TopicPartition, tuple[int, int]]:
        """High watermark and last stable offset of each assigned partition, as of its last fetch. From any thread."""
        consumer = self._consumer
        subscription = None if consumer is None else consumer._subscription.subscription
        if subscription is None or subscription.assignment is None:
            return {}
        states = {tp: subscription.assignment.state_value(tp) for tp in subscription.assignment.tps}
        return {
            (tp.topic, tp.partition): (state.highwater, state.lso)
            for tp, state in states.items()
            if state is not None and state.highwater is not None and state.lso is not None
        }

    def _create_worker_consumer(self, transport: Any) -> aiokafka.AIOKafkaConsumer:
        records.install()
        conf = self.app.conf
        consumer = aiokafka.AIOKafkaConsumer(
            client_id=conf.broker_client_id,
            group_id=conf.id,
            group_instance_id=conf.consumer_group_instance_id,
            bootstrap_servers=driver.server_list(transport.url, transport.default_port),
            partition_assignment_strategy=[group.assignor(str(conf.canonical_url))],
            enable_auto_commit=False,
            # A position out of range means that timers are gone: to be said, not skipped.
            auto_offset_reset="none",
            isolation_level="read_committed",
            # Whatever has arrived of all partitions, in one crossing between threads; MAX_FETCH_BYTES is the bound.
            max_poll_records=None,
            max_partition_fetch_bytes=MAX_FETCH_BYTES,
            fetch_max_wait_ms=500,
            session_timeout_ms=int(conf.broker_session_timeout * 1000),
            heartbeat_interval_ms=int(conf.broker_heartbeat_interval * 1000),
            rebalance_timeout_ms=int(conf.broker_rebalance_timeout * 1000),
            request_timeout_ms=int(conf.broker_request_timeout * 1000),
            max_poll_interval_ms=int(conf.broker_max_poll_interval * 1000),
            metadata_max_age_ms=conf.consumer_metadata_max_age_ms,
            connections_max_idle_ms=conf.consumer_connections_max_idle_ms,
            **driver.credentials_to_aiokafka_auth(conf.broker_credentials, conf.ssl_context),
        )
        self._listen(consumer._client)
        return consumer

    def _listen(self, client: Any) -> None:
        """Look at answers that aiokafka keeps to itself: it asks again, or joins again, whatever they mean."""
        send = client.send
        conf = self.app.conf
        duplicate_members = DuplicateMemberWatch(conf.consumer_group_instance_id, conf.broker_session_timeout)

        async def send_and_look(node_id: int, request: Any, **kwargs: Any) -> Any:
            sent_at = monotonic()
            response = await send(node_id, request, **kwargs)
            duplicate_members.look(request, sent_at, response)
            if getattr(response, "API_KEY", None) == FetchRequest.API_KEY:
                for topic, partitions in response.topics:
                    for partition, error_code, *_ in partitions:
                        if error_code in MAY_BE_DELETED:
                            self._suspend(TP(topic, partition), out_of_range=False)
            return response

        client.send = send_and_look

    def _suspend(self, tp: TP, out_of_range: bool) -> None:
        """Hand over nothing of a partition until somebody has looked whether its topic is still the same."""
        if tp in self._suspended and not out_of_range:
            return  # every fetch says so again
        self._suspended.add(tp)
        self.app.loop.call_soon_threadsafe(self.app.suspend, (tp.topic, tp.partition), out_of_range)

    async def resume(self, partitions: Iterable[TP]) -> None:
        """Go on with partitions that were looked up, and have the group hear of topics that came or went."""
        self._suspended.difference_update(partitions)
        self._ensure_consumer()._client.force_metadata_update()

    async def _fetch_records(self, consumer: Any, active_partitions: Any, **kwargs: Any) -> dict[Any, Fetched]:
        """Fetched records by partition, each with its range; also ranges that hold no record for us.

        The end of a range is the consumer's position, past markers and aborted records. Nothing is awaited between the
        fetch and reading the position.
        """
        flowing = active_partitions - self._suspended
        if not flowing:
            await asyncio.sleep(POLL_S)
            return {}
        try:
            fetched_records = await super()._fetch_records(consumer, flowing, **kwargs)
        except NoOffsetForPartitionError:
            # A partition that was just assigned, and that its machine has not yet said where to read.
            return {}
        except OffsetOutOfRangeError as error:
            for tp in error.args[0]:
                self._suspend(TP(*tp), out_of_range=True)
            return {}
        fetched: dict[Any, Fetched] = {}
        subscription = consumer._subscription.subscription
        if subscription is None or subscription.assignment is None:
            return fetched
        now = monotonic()
        for tp, read_to in self._read_to.items():
            if tp not in subscription.assignment.tps:
                continue
            state = subscription.assignment.state_value(tp)
            if not state.has_valid_position:
                continue
            if tp in self._suspended:
                if state.position != read_to:
                    # It came while it was suspended, and is dropped. What comes next would claim that range without its
                    # records, and they would be lost: read them again.
                    consumer.seek(tp, read_to)
                continue
            quiet = tp in active_partitions and read_to > 0 and now > self._said_at.get(tp, 0.0) + SAY_AGAIN_S
            if state.position != read_to or quiet:
                fetched[tp] = Fetched(read_to, state.position, fetched_records.get(tp, ()))
                self._read_to[tp] = state.position
                self._said_at[tp] = now
        return fetched

    async def _seek_wait(self, consumer: Any, partitions: Mapping[TP, int]) -> None:
        for tp, offset in partitions.items():
            consumer.seek(tp, offset)
            self._read_to[tp] = offset

    async def owns(self, tp: TP) -> bool | None:
        """Whether the group's coordinator says, asked now, that ``tp`` is this consumer's; None if nobody answers."""
        consumer = self._ensure_consumer()
        coordinator = consumer._coordinator
        generation = coordinator.generation
        alive = await coordinator._do_heartbeat()
        if coordinator.generation != generation or coordinator.need_rejoin(consumer._subscription.subscription):
            return False  # the group forgot us, or is about to deal anew
        return tp in consumer.assignment() if alive else None

    async def members(self) -> dict[TopicPartition, group.Member]:
        """Who has which partition, as the coordinator says it now; see :func:`timers.worker.consumer.group.members`."""
        return await group.members(self._ensure_consumer())

    def _stopped_set(self) -> None:
        """Mode's own; but in a crash the thread may have ended first, and there is no loop left to tell."""
        with contextlib.suppress(RuntimeError):
            super()._stopped_set()

    async def forget(self, partitions: Iterable[TP]) -> None:
        """Stop tracking revoked partitions."""
        for tp in partitions:
            self._read_to.pop(tp, None)
            self._suspended.discard(tp)


class BatchConsumer(driver.Consumer):
    """Consumer whose messages are batches. ``app.pool`` says where each partition must be read from."""

    _thread: BatchConsumerThread

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._read_offset = _NoReadOffsets()
        self._paused: set[TP] = set()
        self._resumed = asyncio.Event()

    @property
    def _pool(self) -> Pool:
        pool: Pool = self.app.pool
        return pool

    def _new_consumer_thread(self) -> BatchConsumerThread:
        return BatchConsumerThread(self, loop=self.loop, beacon=self.beacon)

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, ConsumerMessage]]:
        """One message for each partition that has something."""
        if not self.flow_active:
            await self.wait(self.can_resume_flow)
        generation = self.app.consumer_generation_id
        partitions = self._get_active_partitions() - self._paused
        if not partitions:
            self._resumed.clear()
            await self.wait(self._resumed, timeout=POLL_S)
            return
        fetched = await self._thread.getmany(partitions, POLL_S)
        for tp, batch in fetched.items():
            if self.should_stop or not self.flow_active or self.app.consumer_generation_id != generation:
                return
            yield tp, self._to_message(tp, batch)

    def _to_message(self, tp: TP, batch: Fetched) -> ConsumerMessage:
        return ConsumerMessage(
            tp.topic,
            tp.partition,
            batch.to_offset - 1,
            0.0,
            0,
            None,
            None,
            batch,
            None,
            tp=tp,
            # Without its generation the stream would drop it without a word.
            generation_id=self.app.consumer_generation_id,
        )

    async def perform_seek(self) -> None:
        """Open the machines of the present assignment and read on from where each stands."""
        partitions = {(tp.topic, tp.partition): tp for tp in self.assignment() if self._pool.owns(tp.topic)}
        try:
            async with asyncio.timeout(ASSIGN_TIMEOUT_S):
                positions = await self._pool.assign(partitions)
        except TimeoutError:
            # Faust would wait a little longer, and then never again, without a word.
            raise TimersError(f"partitions could not be opened within {ASSIGN_TIMEOUT_S:.0f} s") from None
        for partition in partitions.keys() - positions.keys():
            self.set_paused(partition, True)  # nobody is there to take what would be read
        await self._thread.seek_wait({partitions[partition]: offset for partition, offset in positions.items()})

    @property
    def heartbeat(self) -> Heartbeat:
        """Of the thread's event loop."""
        return self._thread.heartbeat

    def watermarks(self) -> dict[TopicPartition, tuple[int, int]]:
        """High watermark and last stable offset of each partition of a machine, as of its last fetch."""
        return {
            partition: offsets
            for partition, offsets in self._thread.watermarks().items()
            if self._pool.owns(partition[0])
        }

    async def rewind(self, partition: TopicPartition, position: int) -> None:
        """Read a partition again from ``position``."""
        tp = TP(*partition)
        with contextlib.suppress(IllegalStateError):  # a rebalance took it meanwhile: its next owner seeks
            if tp in self.assignment():
                await self._thread.seek_wait({tp: position})

    async def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Go on with partitions whose topics were looked up."""
        await self._thread.call_thread(self._thread.resume, [TP(*partition) for partition in partitions])

    async def owns(self, partition: TopicPartition) -> bool | None:
        """Whether the group says, asked now, that a partition is ours; None if nobody answers."""
        owned: bool | None = await self._thread.call_thread(self._thread.owns, TP(*partition))
        return owned

    async def members(self) -> dict[TopicPartition, group.Member]:
        """Who has which partition, as the group's coordinator says it now."""
        found: dict[TopicPartition, group.Member] = await self._thread.call_thread(self._thread.members)
        return found

    def set_paused(self, partition: TopicPartition, high: bool) -> None:
        """Pause a partition whose machine has enough to do, or go on."""
        tp = TP(*partition)
        if high:
            self._paused.add(tp)
        else:
            self._paused.discard(tp)
            self._resumed.set()

    async def threadsafe_partitions_revoked(self, receiver_loop: asyncio.AbstractEventLoop, revoked: set[TP]) -> None:
        await self._unless_closed(super().threadsafe_partitions_revoked(receiver_loop, revoked))

    async def threadsafe_partitions_assigned(
        self, receiver_loop: asyncio.AbstractEventLoop, assigned: set[TP], generation_id: int = 0
    ) -> None:
        await self._unless_closed(super().threadsafe_partitions_assigned(receiver_loop, assigned, generation_id))

    async def _unless_closed(self, calling: Coroutine[Any, Any, None]) -> None:
        """Wait for the main thread to deal with a rebalance, but not when it ends: then it stops to answer.

        The end would wait for this thread, and this thread for the end. All machines are closed by then.
        """
        call = asyncio.ensure_future(calling)
        while not call.done() and not self._pool.closed:
            await asyncio.wait([call], timeout=CLOSED_POLL_S)
        if call.done():
            call.result()
        else:
            call.cancel()

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Close the machines before the group is told that we let go."""
        await self._thread.call_thread(self._thread.forget, revoked)
        self._paused -= revoked
        await super().on_partitions_revoked(revoked)

    async def commit(self, topics: Any = None, start_new_transaction: bool = True) -> bool:
        """Refused: offsets are committed in the machines' transactions, by them alone."""
        return False

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Faust's livelock warning looks at its own commits, of which there are none."""


class BatchTransport(driver.Transport):
    """Faust transport with :class:`BatchConsumer`."""

    Consumer: ClassVar[type[BatchConsumer]] = BatchConsumer
