"""Faust's aiokafka transport, which delivers each fetched batch of a partition as one message.

If each record is a message, Faust passes 18,000 records a second to an agent that does nothing: fifty times the time
of our work on them. Here the value of a message is a :class:`~timers.core.timer.Fetched`: the list of records and the
range of offsets that it covers. The machine checks that the ranges join: Faust drops messages without a log line when a
generation changes or the flow is suspended, and only a gap in the ranges shows it.

Faust must not commit request offsets, which are committed in the machines' transactions, and must not skip offsets that
it has seen, because after a seek back it would drop the records. Both are switched off.

A partition is paused while too many fetches wait for its machine: then nothing is fetched from it. A partition is
suspended while its topic may have been deleted: then its fetches are dropped, until the topic's id was checked. The
first fetch after an assignment suspends it, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from functools import partial
from time import monotonic
from typing import Any, ClassVar

from aiokafka import AIOKafkaConsumer, errors
from faust.types import TP, ConsumerMessage
from mode import Service

from timers.core import levels
from timers.core.deals import RAISED, SUPPORTS, URL, says_of_partitions
from timers.core.lineage import PassedBatch
from timers.core.timer import Fetched, TopicPartition
from timers.errors import TimersError
from timers.kafka.aiokafka_internals import fetch, group_coordinator
from timers.kafka.aiokafka_internals.group import (
    ask_for_name,
    call_with_each_response,
    generation,
    is_owner,
    refresh_metadata,
    rejoin,
)
from timers.kafka.aiokafka_internals.leader_client import limit_updates_of
from timers.partition_metrics import Heartbeat, keep_heartbeat
from timers.worker import faust_internals
from timers.worker.consumer import group
from timers.worker.consumer.duplicate_member import DuplicateMemberWatch
from timers.worker.machines.pool import Pool

logger = logging.getLogger(__name__)

MAX_FETCH_BYTES = 512 * 1024
"""Maximum bytes of one partition in a fetch, plus at most one batch. A larger value did not recover faster."""

REPEAT_RANGE_S = 1.0
"""Seconds after which a partition without new records gets an empty range: if its last fetch was dropped, its machine
sees the gap."""

ASSIGN_TIMEOUT_S = 80.0
"""For closing the machines of the former assignment; new ones are opened meanwhile."""

MAY_BE_DELETED = {errors.UnknownTopicOrPartitionError.errno, errors.NotLeaderForPartitionError.errno}
"""Error codes of fetches from a topic that was deleted."""

UNREADABLE = (errors.CorruptRecordException, errors.UnsupportedCodecError)
"""Errors of the records of one partition."""

POLL_S = 0.2
"""Seconds for which a fetch waits for records."""

CLOSED_POLL_S = 0.2

LEAVE_TIMEOUT_S = 3.0
"""How long the end of the worker waits for the group's coordinator."""


class BatchConsumerThread(faust_internals.ConsumerThread):
    """The thread whose event loop runs aiokafka's consumer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.heartbeat = Heartbeat()
        self.raised = levels.FIRST
        self.dealt: tuple[int, frozenset[TopicPartition]] = 0, frozenset()
        self._delivered_to: dict[TP, int] = {}
        self._delivered_at: dict[TP, float] = {}
        self._suspended: set[TP] = set()
        # The topic may be deleted and created again before its first fetch, which then gives no error.
        self._never_fetched: set[TP] = set()
        self._passed: dict[TP, list[PassedBatch]] = {}
        """Record batches that were read and not delivered yet."""
        self._connections: dict[TP, tuple[object, int]] = {}

    @Service.task
    async def _beat(self) -> None:
        await keep_heartbeat(self.heartbeat)

    def make_consumer(self, transport: Any) -> AIOKafkaConsumer:
        """Returns the consumer, not yet started."""
        group_coordinator.install()
        conf = self.app.conf
        consumer = AIOKafkaConsumer(
            client_id=conf.broker_client_id,
            group_id=conf.id,
            group_instance_id=conf.consumer_group_instance_id,
            **faust_internals.connection_options(conf, transport),
            key_deserializer=fetch.InPieces(lambda tp: self.consumer.value_limit(tp), self._note_passed),
            partition_assignment_strategy=[group.assignor(self._sent)],
            enable_auto_commit=False,
            # A position out of range means that timers were lost: an error, not a reset.
            auto_offset_reset="none",
            isolation_level="read_committed",
            # All records that have arrived, in one call to the thread; MAX_FETCH_BYTES bounds them.
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
        )
        limit_updates_of(consumer)
        end = partial(self.app.loop.call_soon_threadsafe, self.app.end)
        duplicate_members = DuplicateMemberWatch(conf.consumer_group_instance_id, end)

        def inspect(request: Any, response: Any) -> None:
            duplicate_members.inspect(request, response)
            self._inspect_fetch(response)

        call_with_each_response(consumer, inspect)
        return consumer

    def _sent(self) -> dict[str, Any]:
        """What the worker says when it joins."""
        about_partitions = says_of_partitions(*self.dealt, self.consumer.stores())
        levels_and_url = {SUPPORTS: levels.SUPPORTED, RAISED: self.raised, URL: str(self.app.conf.canonical_url)}
        return {**levels_and_url, **about_partitions}

    def _note_passed(self, tp: Any, batch: PassedBatch) -> None:
        self._passed.setdefault(tp, []).append(batch)

    def _take_passed(self, tp: TP, position: int) -> tuple[PassedBatch, ...]:
        """The batches of the range that ends at ``position``. One that ends after it belongs to the next range, too."""
        passed = self._passed.get(tp, [])
        self._passed[tp] = [each for each in passed[-1:] if each[1].last_offset >= position]
        return tuple(passed)

    def _inspect_fetch(self, response: Any) -> None:
        """Suspend the partitions whose topic may have been deleted, by a response of any kind."""
        for topic, partition, error_code in fetch.error_codes(response):
            # After such an error aiokafka would only fetch again.
            if error_code in MAY_BE_DELETED or (topic, partition) in self._never_fetched:
                self._suspend(TP(topic, partition), out_of_range=False)

    def _suspend(self, tp: TP, out_of_range: bool) -> None:
        self._never_fetched.discard(tp)  # each suspension checks the topic's id
        if tp in self._suspended and not out_of_range:
            return  # every later fetch returns the same error
        self._suspended.add(tp)
        self.app.loop.call_soon_threadsafe(self.consumer.on_suspended, (tp.topic, tp.partition), out_of_range)

    async def end_suspension(self, partitions: Iterable[TP]) -> None:
        """Deliver fetches of these partitions again. The group then also sees deleted and created topics."""
        self._suspended.difference_update(partitions)
        refresh_metadata(self.kafka_consumer)

    async def getmany(self, active_partitions: set[TP], timeout: float) -> dict[TP, Fetched]:
        """Returns the records of each partition with their range; a range may have no records."""
        fetched: dict[TP, Fetched] = await self.call_thread(self.fetch, active_partitions, timeout)
        return fetched

    async def fetch(self, partitions: set[TP], timeout_s: float) -> dict[TP, Fetched]:
        """Returns the same as :meth:`getmany`; runs on the thread's event loop."""
        wanted = partitions - self._suspended
        if not wanted:
            await asyncio.sleep(POLL_S)
            return {}
        consumer = self.kafka_consumer
        if fetch.has_records(consumer, wanted):
            timeout_s = 0.0  # a large value is passed over in steps, which return no records
        try:
            records = await self.fetch_records(consumer, wanted, timeout_s)
        except errors.NoOffsetForPartitionError:  # a partition was assigned just now, and has no position yet
            return {}
        except errors.OffsetOutOfRangeError as error:
            for tp in error.args[0]:
                self._suspend(TP(*tp), out_of_range=True)
            return {}
        except Exception as error:
            if isinstance(error, errors.KafkaError) and not isinstance(error, UNREADABLE):
                raise
            records = await self._fetch_one_by_one(consumer, wanted)
        return self._with_ranges(consumer, partitions, records)

    async def _fetch_one_by_one(self, consumer: AIOKafkaConsumer, wanted: set[TP]) -> dict[TP, list[Any]]:
        """Fetch from each partition by itself, and report those whose records cannot be read."""
        records: dict[TP, list[Any]] = {}
        for tp in wanted:
            self._seek_back(consumer, tp)  # records that were taken before the error are fetched again
        for tp in wanted:
            try:
                records.update(await self.fetch_records(consumer, {tp}, POLL_S))
            except Exception as error:
                self._seek_back(consumer, tp)
                self.app.loop.call_soon_threadsafe(self.consumer.on_unreadable, (tp.topic, tp.partition), error)
        return records

    def _seek_back(self, consumer: AIOKafkaConsumer, tp: TP) -> None:
        with contextlib.suppress(errors.IllegalStateError):  # revoked meanwhile
            if tp in self._delivered_to:
                consumer.seek(tp, self._delivered_to[tp])
                self._passed.pop(tp, None)

    def _with_ranges(
        self, consumer: AIOKafkaConsumer, partitions: set[TP], records: Mapping[TP, list[Any]]
    ) -> dict[TP, Fetched]:
        """Returns records with their ranges. A range ends at the consumer's position: after markers and aborted ones.

        Nothing is awaited here, so the positions are still those of the fetch.
        """
        fetched: dict[TP, Fetched] = {}
        positions = fetch.positions(consumer)
        now = monotonic()
        for tp, delivered_to in self._delivered_to.items():
            position = positions.get(tp)
            if position is None:
                continue
            if tp in self._suspended:
                if position != delivered_to:
                    # Records were fetched while suspended, and dropped. Read them again: otherwise the next range would
                    # contain their offsets without the records.
                    consumer.seek(tp, delivered_to)
                    self._passed.pop(tp, None)
                continue
            repeat = tp in partitions and delivered_to > 0 and now > self._delivered_at.get(tp, 0.0) + REPEAT_RANGE_S
            if position != delivered_to or repeat:
                found = records.get(tp, ())
                passed = self._take_passed(tp, position)
                connection = self._connection_to(consumer, tp)
                fetched[tp] = Fetched(delivered_to, position, found, fetch.size_of(found), passed, connection)
                self._delivered_to[tp] = position
                self._delivered_at[tp] = now
        return fetched

    def _connection_to(self, consumer: AIOKafkaConsumer, tp: TP) -> int:
        """Number of the present connection to the leader of a partition."""
        connection, number = self._connections.get(tp, (None, 0))
        present = fetch.connection_to_leader(consumer, tp)
        if present is not None and present is not connection:
            self._connections[tp] = present, number + 1
            return number + 1
        return number

    async def seek_wait(self, partitions: Mapping[TP, int]) -> None:
        """Read partitions from these offsets on."""
        await self.call_thread(self._seek_now, partitions)

    async def _seek_now(self, partitions: Mapping[TP, int]) -> None:
        for tp, offset in partitions.items():
            self.kafka_consumer.seek(tp, offset)
            if tp not in self._delivered_to:
                self._never_fetched.add(tp)
            self._delivered_to[tp] = offset
            self._passed.pop(tp, None)

    def watermarks(self) -> dict[TopicPartition, tuple[int, int]]:
        """High watermark and last stable offset of each assigned partition, as of its last fetch. Any thread."""
        watermarks = fetch.watermarks(self.kafka_consumer) if self.has_consumer else {}
        return {(tp.topic, tp.partition): offsets for tp, offsets in watermarks.items()}

    async def rejoin(self) -> None:
        """Join the group again soon; runs on the thread's event loop."""
        rejoin(self.kafka_consumer)

    async def forget(self, partitions: set[TP]) -> None:
        """Stop tracking revoked partitions."""
        for tp in partitions:
            self._delivered_to.pop(tp, None)
            self._passed.pop(tp, None)
        self._suspended.difference_update(partitions)
        self._never_fetched.difference_update(partitions)


class BatchConsumer(faust_internals.Consumer):
    """A consumer whose messages are batches, for the machines of a pool.

    Attributes:
        thread: the :class:`BatchConsumerThread`.
        on_suspended: called with each suspended partition, and whether its position is out of range.
        was_assigned: whether the group has assigned this worker's partitions since the start, which may be none.
            Faust's flow is active before, too.
    """

    Thread = BatchConsumerThread
    _pool: Pool
    on_suspended: Callable[[TopicPartition, bool], None]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._woken = asyncio.Event()
        self.was_assigned = False

    def attach(self, pool: Pool, on_suspended: Callable[[TopicPartition, bool], None]) -> None:
        """Set the pool that gets the fetches. Call before the start."""
        self._pool = pool
        self.on_suspended = on_suspended

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, ConsumerMessage]]:
        """Yields one message for each partition that has a fetch."""
        if not self.flow_active:
            await self.wait(self.can_resume_flow)
        generation = self.app.consumer_generation_id
        self._woken.clear()
        partitions = {TP(*tp) for tp in self._pool.with_room() & self.active_partitions()}
        if not partitions:
            await self.wait(self._woken, timeout=POLL_S)
            return
        fetched = await self.thread.getmany(partitions, POLL_S)
        for tp, batch in fetched.items():
            if self.should_stop or not self.flow_active or self.app.consumer_generation_id != generation:
                return
            yield tp, _message(tp, batch, generation)

    async def perform_seek(self) -> None:
        """Open the machines of the present assignment, and read on from their positions."""
        partitions = {(tp.topic, tp.partition): tp for tp in self.assignment()}
        self.thread.dealt = generation(self.thread.kafka_consumer), frozenset(partitions)
        try:
            async with asyncio.timeout(ASSIGN_TIMEOUT_S):
                positions = await self._pool.assign(partitions)
        except TimeoutError:
            # Faust would wait a little longer, and then ignore the assignment without a log line.
            reason = f"partitions of the former assignment could not be closed within {ASSIGN_TIMEOUT_S:.0f} s"
            raise TimersError(reason) from None
        await self.thread.seek_wait({partitions[partition]: offset for partition, offset in positions.items()})

    # ---- calls of the pool: timers.worker.machines.pool.RequestConsumer ---------------------------------------------

    def wake(self) -> None:
        """Fetch again at once, from partitions that are not paused any more."""
        self._woken.set()

    def read_again(self, partition: TopicPartition, offset: int) -> None:
        """Read a partition again from ``offset``, soon."""
        self.add_future(self._read_again(TP(*partition), offset))

    async def _read_again(self, tp: TP, offset: int) -> None:
        with contextlib.suppress(errors.IllegalStateError):  # revoked meanwhile: its next owner sets the position
            if tp in self.assignment():
                await self.thread.seek_wait({tp: offset})

    def on_unreadable(self, partition: TopicPartition, error: Exception) -> None:
        """Report that the records of a partition cannot be read. The others are delivered."""
        self._pool.fail(partition, error)

    async def owns(self, partition: TopicPartition) -> bool | None:
        """Ask the group's coordinator whether this worker owns a partition; None without an answer."""
        owned: bool | None = await self.thread.call_thread(is_owner, self.thread.kafka_consumer, TP(*partition))
        return owned

    async def ask_for_name(self) -> None:
        """Ask the group's coordinator for another worker with the name of this one, which ends the worker."""
        await self.thread.call_thread(ask_for_name, self.thread.kafka_consumer)

    # ---- calls of the app and of queries ----------------------------------------------------------------------------

    async def end_suspension(self, partitions: Iterable[TopicPartition]) -> None:
        """Deliver partitions again whose topic ids were checked."""
        await self.thread.call_thread(self.thread.end_suspension, [TP(*partition) for partition in partitions])

    def stores(self) -> Mapping[TopicPartition, int]:
        """Stores of this worker -> offset up to which each was written; see the pool. Any thread."""
        return self._pool.stores

    def value_limit(self, tp: TP) -> int | None:
        """The size in bytes above which no value of an open partition is accepted; see the pool. Any thread."""
        return self._pool.value_limit((tp.topic, tp.partition))

    async def members(self) -> dict[TopicPartition, group.Member]:
        """The owner of each partition; see :func:`timers.worker.consumer.group.members`."""
        found: dict[TopicPartition, group.Member] = await self.thread.call_thread(
            group.members, self.thread.kafka_consumer
        )
        return found

    async def member_levels(self) -> list[group.MemberLevels]:
        """What all members say about feature levels; see :func:`timers.worker.consumer.group.member_levels`."""
        found: list[group.MemberLevels] = await self.thread.call_thread(group.member_levels, self.thread.kafka_consumer)
        return found

    def note_raised(self, level: int) -> None:
        """Note the feature level of a machine: the group learns it when this worker joins the next time."""
        self.thread.raised = max(level, self.thread.raised)

    async def rejoin(self) -> None:
        """Join the group again soon."""
        await self.thread.call_thread(self.thread.rejoin)

    async def leave(self) -> None:
        """Tell the group that this worker ends, so that other workers get its partitions at once."""
        if self.thread.has_consumer:
            with contextlib.suppress(TimeoutError):  # then they get them after the session timeout
                async with asyncio.timeout(LEAVE_TIMEOUT_S):
                    await self.thread.call_thread(group_coordinator.leave, self.thread.kafka_consumer)

    # ---- calls of Faust ---------------------------------------------------------------------------------------------

    async def threadsafe_partitions_revoked(self, receiver_loop: asyncio.AbstractEventLoop, revoked: set[TP]) -> None:
        await self._unless_closed(super().threadsafe_partitions_revoked(receiver_loop, revoked))

    async def threadsafe_partitions_assigned(
        self, receiver_loop: asyncio.AbstractEventLoop, assigned: set[TP], generation_id: int = 0
    ) -> None:
        await self._unless_closed(super().threadsafe_partitions_assigned(receiver_loop, assigned, generation_id))

    async def _unless_closed(self, handler: Coroutine[Any, Any, None]) -> None:
        """Wait until the main thread has handled a rebalance, or the pool is closed.

        At the end of the worker the main thread handles no rebalance and waits for this thread: without this check,
        a deadlock. All machines are closed then.
        """
        call = asyncio.ensure_future(handler)
        while not call.done() and not self._pool.closed:
            await asyncio.wait([call], timeout=CLOSED_POLL_S)
        if call.done():
            call.result()
        else:
            call.cancel()

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Close the machines before the group is told that the partitions are free."""
        await self.thread.call_thread(self.thread.forget, revoked)
        await super().on_partitions_revoked(revoked)

    async def commit(self, topics: Any = None, start_new_transaction: bool = True) -> bool:
        """Returns False: only the machines' transactions commit offsets."""
        return False

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Do nothing: Faust would warn that its own commits are late, but it makes none."""


def _message(tp: TP, batch: Fetched, generation_id: int) -> ConsumerMessage:
    place = tp.topic, tp.partition, batch.to_offset - 1
    # Without the generation's id Faust drops the message without a log line.
    return ConsumerMessage(*place, 0.0, 0, None, None, batch, None, tp=tp, generation_id=generation_id)


class BatchTransport(faust_internals.Transport):
    """Faust's transport with :class:`BatchConsumer`, and a producer that knows leaders."""

    Consumer: ClassVar[type[BatchConsumer]] = BatchConsumer
    Producer: ClassVar[type[faust_internals.Producer]] = faust_internals.Producer
