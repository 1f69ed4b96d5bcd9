"""The worker's own consumer: a member of the app's group, and the reader of the request logs.

Both run on the event loop of one thread, and share its connections. The Faust app knows neither: it gets batches
through a channel, and the pool is told what the group deals.

What a fetch returns of a partition is one batch. If each record were a message, Faust would pass 18,000 records a
second to an agent that does nothing: fifty times the time of our work on them. Here a message is a
:class:`~timers.core.timer.Fetched`: the list of records and the range of offsets that it covers. The machine checks
that the ranges join: only a gap shows that a batch was dropped on the way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from functools import partial
from math import inf
from time import monotonic
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, errors
from aiokafka import TopicPartition as KafkaTopicPartition
from mode import Service

from timers.core import levels
from timers.core.deals import RAISED, SUPPORTS, URL, deal, says_of_partitions
from timers.core.lineage import PassedBatch
from timers.core.listing import NoAnswer
from timers.core.ports import Lost
from timers.core.timer import Fetched, TopicPartition
from timers.kafka import aiokafka_clients
from timers.kafka.aiokafka_internals import fetch
from timers.kafka.aiokafka_internals.batch_pieces import UnreadableBatch
from timers.kafka.aiokafka_internals.group import STABLE, DescribedGroup, Member, owners, strangers_in
from timers.kafka.aiokafka_internals.group_member import Deal, GroupMember
from timers.kafka.aiokafka_internals.leader_client import limit_updates
from timers.kafka.aiokafka_internals.metadata import start_patiently
from timers.process.config.settings import Settings
from timers.process.partition_metrics import Heartbeat, keep_heartbeat
from timers.process.periodic import every
from timers.process.threads import LoopThread
from timers.wire.topics import partition_name
from timers.worker.machines.pool import Pool

REQUEST_TIMEOUT_S = 90.0
"""Longer than a rebalance: the answer to a request to join comes when all members have joined."""

REACH_S = 2.0

MAX_FETCH_BYTES = 512 * 1024
"""Maximum bytes of one partition in a fetch, plus at most one batch. A larger value did not recover faster."""

REPEAT_RANGE_S = 1.0
"""Seconds after which a partition without new records gets an empty range: if its last fetch was dropped, its machine
sees the gap."""

METADATA_MAX_AGE_S = 5
"""The leader of the group notices added partitions of a request topic within this time, and the reader new leaders: a
frozen broker answers no fetch, so nothing else says that another one leads its partitions."""

MAY_BE_DELETED = {errors.UnknownTopicOrPartitionError.errno, errors.NotLeaderForPartitionError.errno}
"""Error codes of fetches from a topic that was deleted."""

UNREADABLE = (errors.CorruptRecordException, errors.UnsupportedCodecError)
"""Errors of the records of one partition."""

POLL_S = 0.2
"""Seconds for which a fetch waits for records."""

HELD_S = 5.0
"""Producers commit within less. Kafka ends a transaction after the producer's ``transaction.timeout.ms``, 60 s."""

ANSWERED_S = 4.0
"""Below :data:`HELD_S`: while a broker does not answer, nothing is known of a transaction that was open before."""

UNREADABLE_RETRY_S = 2.0
"""Seconds after which a batch that could not be read is fetched again: an operator may have decided, or its broker may
have been repaired."""

UNSETTLED_S = 0.2
"""Pause between two questions to a group that rebalances."""

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class RequestLogReader:
    """Reads the request logs of the open machines. Methods run on one event loop, that of :meth:`start`.

    The reader belongs to no group. It reads each partition from the offset that its machine asks for, whatever happens
    in the group. A partition is suspended while its topic may have been deleted: then its fetches are dropped, until
    the topic's id was checked. The first fetch after a partition was opened suspends it, too.

    Args:
        request_timeout_s: for an answer of a broker.
        value_limit: returns the size in bytes above which no value of a partition is accepted; None if not known.
        on_suspended: called with each suspended partition, and whether its position is out of range.
        on_unreadable: called with a partition whose fetches fail, and why.
        passes_over: returns whether a batch that cannot be read is passed over; if not, the partition is read on only
            after that has changed, or a leader has another copy.
        on_read_on: called with a partition that is read on after such a batch.
    """

    def __init__(
        self,
        settings: Settings,
        request_timeout_s: float,
        value_limit: Callable[[TopicPartition], int | None],
        on_suspended: Callable[[TopicPartition, bool], None],
        on_unreadable: Callable[[TopicPartition, Exception], None],
        passes_over: Callable[[TopicPartition, UnreadableBatch], bool],
        on_read_on: Callable[[TopicPartition], None],
    ) -> None:
        self.consumer: Any = None
        self._settings = settings
        self._request_timeout_s = request_timeout_s
        self._value_limit = value_limit
        self._on_suspended = on_suspended
        self._on_unreadable = on_unreadable
        self._passes_over = passes_over
        self._on_read_on = on_read_on
        self._unreadable: dict[TopicPartition, tuple[int, float]] = {}
        """Partition -> offset of the record that cannot be read, and when to try it again."""
        self._delivered_to: dict[TopicPartition, int] = {}
        """The partitions that are read -> end of their last range."""
        self._delivered_at: dict[TopicPartition, float] = {}
        self._suspended: set[TopicPartition] = set()
        # The topic may be deleted and created again before its first fetch, which then gives no error.
        self._never_fetched: set[TopicPartition] = set()
        self._passed: dict[TopicPartition, list[PassedBatch]] = {}
        """Record batches that were read and not delivered yet."""
        self._connections: dict[TopicPartition, tuple[object, int]] = {}

    async def start(self, topics: Iterable[str], is_stopping: Callable[[], bool]) -> None:
        """Connect; wait for the brokers until ``is_stopping``."""
        fetch.install()
        consumer = AIOKafkaConsumer(
            **aiokafka_clients.arguments(self._settings),
            client_id=self._settings.worker_id,
            key_deserializer=fetch.InPieces(self._value_limit, self._note_passed, self._note_unreadable),
            enable_auto_commit=False,
            # A position out of range means that timers were lost: an error, not a reset.
            auto_offset_reset="none",
            isolation_level="read_committed",
            # All records that have arrived, in one call; MAX_FETCH_BYTES bounds them.
            max_poll_records=None,
            max_partition_fetch_bytes=MAX_FETCH_BYTES,
            fetch_max_wait_ms=500,
            request_timeout_ms=int(self._request_timeout_s * 1000),
            metadata_max_age_ms=METADATA_MAX_AGE_S * 1000,
        )
        self.consumer = consumer
        limit_updates(fetch.client_of(consumer))
        fetch.call_with_each_response(consumer, self._inspect)
        await start_patiently(consumer.start, "the reader of the request topics", is_stopping)
        consumer.assign([])
        fetch.client_of(consumer).set_topics(topics)

    async def stop(self) -> None:
        """Close the connections."""
        if self.consumer is not None:
            await fetch.stop(self.consumer)

    def _note_passed(self, tp: Any, batch: PassedBatch) -> None:
        self._passed.setdefault(tp, []).append(batch)

    def _note_unreadable(self, tp: Any, batch: UnreadableBatch) -> bool:
        is_passed_over = self._passes_over((tp.topic, tp.partition), batch)
        if not is_passed_over:
            self._unreadable[tp.topic, tp.partition] = batch.from_offset, monotonic() + UNREADABLE_RETRY_S
        return is_passed_over

    def _take_passed(self, tp: TopicPartition, position: int) -> tuple[PassedBatch, ...]:
        """The batches of the range that ends at ``position``. One that ends after it belongs to the next range, too."""
        passed = self._passed.get(tp, [])
        self._passed[tp] = [each for each in passed[-1:] if each[1].last_offset >= position]
        return tuple(passed)

    def _inspect(self, response: Any) -> None:
        """Suspend the partitions whose topic may have been deleted, by a response of any kind."""
        for topic, partition, error_code in fetch.error_codes(response):
            # After such an error aiokafka would only fetch again.
            if error_code in MAY_BE_DELETED or (topic, partition) in self._never_fetched:
                self._suspend((topic, partition), out_of_range=False)

    def _suspend(self, tp: TopicPartition, out_of_range: bool) -> None:
        self._never_fetched.discard(tp)  # each suspension checks the topic's id
        if tp not in self._delivered_to or (tp in self._suspended and not out_of_range):
            return  # every later fetch returns the same error
        self._suspended.add(tp)
        self._on_suspended(tp, out_of_range)

    def end_suspension(self, partitions: Iterable[TopicPartition]) -> None:
        """Deliver fetches of these partitions again. The group then also sees deleted and created topics."""
        self._suspended.difference_update(partitions)
        fetch.client_of(self.consumer).force_metadata_update()

    # ---- positions -----------------------------------------------------------------------------------------------

    def read_from(self, tp: TopicPartition, offset: int) -> None:
        if tp not in self._delivered_to:
            self._never_fetched.add(tp)
        self._seek(tp, offset)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Read these partitions no more."""
        fetch.stop_reading(self.consumer, [KafkaTopicPartition(*tp) for tp in partitions])
        for tp in partitions:
            self._delivered_to.pop(tp, None)
            self._passed.pop(tp, None)
            self._unreadable.pop(tp, None)
        self._suspended.difference_update(partitions)
        self._never_fetched.difference_update(partitions)

    def _seek(self, tp: TopicPartition, offset: int) -> None:
        if tp in self._unreadable:  # it is tried at once, and stays noted until it is read on
            self._unreadable[tp] = self._unreadable[tp][0], 0.0
        fetch.read_from(self.consumer, KafkaTopicPartition(*tp), offset)
        self._delivered_to[tp] = offset
        self._passed.pop(tp, None)

    def _seek_back(self, tp: TopicPartition) -> None:
        """Read again what was read and not delivered."""
        if tp in self._delivered_to:
            self._seek(tp, self._delivered_to[tp])

    def watermarks(self, within_s: float = inf) -> dict[TopicPartition, tuple[int, int]]:
        """High watermark and last stable offset of each partition that is read, as of its last fetch, without those
        whose fetch was answered longer ago. Any thread."""
        watermarks = {} if self.consumer is None else fetch.watermarks(self.consumer, within_s)
        return {(tp.topic, tp.partition): offsets for tp, offsets in watermarks.items()}

    # ---- fetches -------------------------------------------------------------------------------------------------

    async def fetch(self, partitions: Collection[TopicPartition], timeout_s: float) -> dict[TopicPartition, Fetched]:
        """Returns the records of each of these partitions with their range; a range may have no records.

        A topic that may not be read any more stops its partitions only: aiokafka says it for one topic at a time.
        """
        now = monotonic()
        waiting = self._suspended | {tp for tp, (_, retry_at) in self._unreadable.items() if retry_at > now}
        wanted = {KafkaTopicPartition(*tp) for tp in partitions if tp in self._delivered_to and tp not in waiting}
        if not wanted:
            await asyncio.sleep(timeout_s)
            return {}
        if fetch.has_records(self.consumer, wanted):
            timeout_s = 0.0  # a large value is passed over in steps, which return no records
        try:
            records = await self._fetch_records(wanted, timeout_s)
        except errors.OffsetOutOfRangeError as error:
            for tp in error.args[0]:
                self._suspend((tp.topic, tp.partition), out_of_range=True)
            return {}
        except errors.TopicAuthorizationFailedError as error:
            for tp in wanted:
                self._seek_back((tp.topic, tp.partition))  # records that were taken before the error are fetched again
                if tp.topic in error.args:
                    denied = Lost(f"the brokers do not let this worker read {tp.topic}: it needs the ACL Read")
                    self._on_unreadable((tp.topic, tp.partition), denied)
            return {}
        except Exception as error:
            if isinstance(error, errors.KafkaError) and not isinstance(error, UNREADABLE):
                raise
            records = await self._fetch_one_by_one(wanted)
        return self._with_ranges(partitions, records)

    async def _fetch_records(self, wanted: Iterable[Any], timeout_s: float) -> dict[Any, list[Any]]:
        found: dict[Any, list[Any]] = await self.consumer.getmany(*wanted, timeout_ms=int(timeout_s * 1000))
        return found

    async def _fetch_one_by_one(self, wanted: Collection[Any]) -> dict[Any, list[Any]]:
        """Fetch from each partition by itself, and report those whose records cannot be read."""
        records: dict[Any, list[Any]] = {}
        for tp in wanted:
            self._seek_back((tp.topic, tp.partition))  # records that were taken before the error are fetched again
        for tp in wanted:
            try:
                records.update(await self._fetch_records([tp], POLL_S))
            except Exception as error:
                self._seek_back((tp.topic, tp.partition))
                self._on_unreadable((tp.topic, tp.partition), error)
        return records

    def _with_ranges(
        self, partitions: Collection[TopicPartition], records: Mapping[Any, list[Any]]
    ) -> dict[TopicPartition, Fetched]:
        """Returns records with their ranges. A range ends at the consumer's position: after markers and aborted ones.

        Nothing is awaited here, so the positions are still those of the fetch.
        """
        fetched: dict[TopicPartition, Fetched] = {}
        positions = fetch.positions(self.consumer)
        now = monotonic()
        for tp, delivered_to in self._delivered_to.items():
            key = KafkaTopicPartition(*tp)
            position = positions.get(key)
            if position is None:
                continue
            if tp in self._suspended:
                if position != delivered_to:
                    # Records were fetched while suspended, and dropped. Read them again: otherwise the next range would
                    # contain their offsets without the records.
                    self._seek_back(tp)
                continue
            repeat = tp in partitions and delivered_to > 0 and now > self._delivered_at.get(tp, 0.0) + REPEAT_RANGE_S
            if tp in self._unreadable and position > self._unreadable[tp][0]:
                del self._unreadable[tp]
                self._on_read_on(tp)
            if position != delivered_to or repeat:
                found = records.get(key, ())
                passed = self._take_passed(tp, position)
                size, connected = fetch.size_of(found), self._connection_to(tp)
                fetched[tp] = Fetched(delivered_to, position, found, size, passed, connected)
                self._delivered_to[tp] = position
                self._delivered_at[tp] = now
        return fetched

    def _connection_to(self, tp: TopicPartition) -> int:
        """Number of the present connection to the leader of a partition."""
        connected, number = self._connections.get(tp, (None, 0))
        present = fetch.connection_to_leader(self.consumer, KafkaTopicPartition(*tp))
        if present is not None and present is not connected:
            self._connections[tp] = present, number + 1
            return number + 1
        return number


class PartitionConsumer(Service):
    """Takes part in the app's group, and reads the request logs of the open machines.

    Args:
        pool: opens the machines of what the group deals.
        batches: channel to the agent of requests; gets (partition, fetch).
        end: called with an error that ends the worker.
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
        self._member: GroupMember | None = None
        self._left = False
        self._deal = Deal(0, frozenset(), anew=True)
        self._taken: Deal | None = None
        """The deal that the pool has."""
        self._raised = levels.FIRST_LEVEL
        self._woken = asyncio.Event()
        self._loop_thread = LoopThread("timers-consumer")
        self._reader = RequestLogReader(
            settings,
            max(REQUEST_TIMEOUT_S, settings.session_timeout_s + 30.0),
            pool.value_limit,
            partial(self._on_main_loop, on_suspended),
            partial(self._on_main_loop, pool.fail),
            self._passes_over,
            partial(self._on_main_loop, pool.unreadable.forget),
        )

    def _passes_over(self, tp: TopicPartition, batch: UnreadableBatch) -> bool:
        runner = self._pool.runners.get(tp)
        if runner is None:
            return False  # its fetches are dropped
        if runner.machine.progress.settings.passes_over(batch.from_offset, batch.end_offset):
            return True
        self._on_main_loop(self._pool.unreadable.note, tp, batch)
        return False

    # ---- status: any thread --------------------------------------------------------------------------------------

    @property
    def in_group(self) -> bool:
        """Whether the last deal stands, and the pool has it; false before the first one and during a rebalance."""
        return self._member is not None and self._member.in_group and self._taken is self._deal

    @property
    def taken(self) -> str:
        """Who has the group if other programs have it, a sentence: then workers deal nothing. Else empty."""
        return "" if self._member is None else self._member.taken

    @property
    def was_dealt(self) -> bool:
        """Whether the group has dealt partitions to this worker since the start, which may be none."""
        return self._taken is not None

    @property
    def dealt(self) -> frozenset[TopicPartition]:
        """What the last deal gave to this worker."""
        return self._deal.partitions

    def watermarks(self, within_s: float = inf) -> dict[TopicPartition, tuple[int, int]]:
        """High watermark and last stable offset of each partition that is read, as of its last fetch, without those
        whose fetch was answered longer ago."""
        return self._reader.watermarks(within_s)

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
        held_back = HeldBack(self._settings.brokers)
        async for _ in every(1.0, self):
            fetched = set(self._pool.with_room())  # watermarks of others are those of a fetch before they were paused
            watermarks = {tp: marks for tp, marks in self.watermarks(ANSWERED_S).items() if tp in fetched}
            self._pool.held = held_back.note(watermarks, monotonic())

    @Service.task
    async def _beat(self) -> None:
        await keep_heartbeat(self._main_heartbeat)

    async def _start(self) -> None:
        self._beating = asyncio.create_task(keep_heartbeat(self.heartbeat))
        await self._reader.start(self._pool.formats, lambda: self.should_stop)
        if not self.should_stop and not self._left:
            settings = self._settings
            self._member = GroupMember(
                fetch.client_of(self._reader.consumer),
                settings.app_id,
                settings.worker_id,
                self._pool.formats,
                settings.session_timeout_s,
                self._sent,
                deal,
                self._on_dealt,
                partial(self._on_main_loop, self._report_end),
                # Without its main loop, a worker gets no ticks.
                lambda: self._main_heartbeat.silent_s < settings.session_timeout_s,
            )
            self._joining = asyncio.create_task(self._member.run())

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

    # ---- timers.worker.machines.runner.RequestConsumer ------------------------------------------------------------

    def wake(self) -> None:
        self._woken.set()

    def read_from(self, partition: TopicPartition, offset: int) -> None:
        self._loop_thread.call_soon(self._reader.read_from, partition, offset)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        self._loop_thread.call_soon(self._reader.forget, partitions)

    async def owns(self, partition: TopicPartition) -> bool | None:
        async def ask() -> bool | None:
            confirmed = await self._known_member.confirms()
            return partition in self._deal.partitions if confirmed else confirmed

        return await self._on_thread(ask())

    # ---- calls of the app, of queries and of the watches ----------------------------------------------------------

    @property
    def _known_member(self) -> GroupMember:
        if self._member is None:
            raise NoAnswer("the worker joins its group")
        return self._member

    async def end_suspension(self, partitions: Iterable[TopicPartition]) -> None:
        """Deliver partitions again whose topic ids were checked."""
        self._loop_thread.call_soon(self._reader.end_suspension, list(partitions))

    async def group(self) -> DescribedGroup:
        """The group, as its coordinator describes it now.

        Raises:
            NoAnswer: the coordinator does not answer.
        """
        try:
            return await self._on_thread(self._known_member.describe())
        except (errors.KafkaError, ValueError) as error:  # an answer of another form must not end the worker
            raise NoAnswer(f"the group's coordinator did not answer: {error!r}") from None

    async def described(self) -> list[Member]:
        """All workers in the group, from its coordinator; waits while the group rebalances.

        Raises:
            NoAnswer: the coordinator does not answer, or other programs have the group.
        """
        while True:
            found = await self.group()
            if found.is_taken:
                raise NoAnswer(strangers_in(self._settings.app_id, found))
            if found.state == STABLE:
                return [each for each in found.members if each.is_ours]
            await asyncio.sleep(UNSETTLED_S)

    async def members(self) -> dict[TopicPartition, Member]:
        """The owner of each partition; see :meth:`described`."""
        return owners(await self.described())

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

    async def reaches_a_broker(self) -> bool:
        """Whether any broker takes a connection within :data:`REACH_S`. It need not answer."""
        return self._reader.consumer is None or await fetch.reaches_a_broker(self._reader.consumer, REACH_S)

    async def has_others(self) -> bool | None:
        """Whether other workers are in the group, which this one has left; None if its coordinator does not say so."""
        if self._member is None:
            return False
        try:
            return any(each.is_ours for each in (await self.group()).members)
        except NoAnswer:
            return None

    def request_rebalance(self) -> None:
        """Let the group deal again soon."""
        self._loop_thread.call_soon(self._known_member.request_rebalance)


class HeldBack:
    """Notes how long the last stable offset of a partition stands still before its high watermark.

    Args:
        brokers: the setting, for the command that finds the producer.
    """

    def __init__(self, brokers: str) -> None:
        self._brokers = brokers
        self._since: dict[TopicPartition, tuple[int, float]] = {}
        """Partition -> last stable offset, and the time at which it was seen first."""
        self._said: set[TopicPartition] = set()

    def note(self, watermarks: Mapping[TopicPartition, tuple[int, int]], now_s: float) -> Mapping[TopicPartition, str]:
        """Note high watermark and last stable offset of each partition, and log what begins and what ends.

        Args:
            now_s: time of a monotonic clock.

        Returns:
            Partition that has been held back for :data:`HELD_S` -> a sentence.
        """
        since = {}
        for tp, (high, stable) in watermarks.items():
            if high > stable:
                offset, began_s = self._since.get(tp, (stable, now_s))
                since[tp] = (stable, began_s if offset == stable else now_s)
        self._since = since
        held = {tp: (stable, now_s - began_s) for tp, (stable, began_s) in since.items() if now_s - began_s > HELD_S}
        reasons = {
            tp: f"a producer's transaction has been open for {held_s:.0f} s, and holds back its requests from offset "
            f"{stable} on, cancels and updates too; to find it: kafka-transactions.sh --bootstrap-server "
            f"{self._brokers} describe-producers --topic {tp[0]} --partition {tp[1]} "
            "(docs/operations.md#timersrequestsheldback)"
            for tp, (stable, held_s) in held.items()
        }
        for tp in held.keys() - self._said:
            logger.warning("%s: %s", partition_name(*tp), reasons[tp])
        for tp in self._said - held.keys():
            logger.info("%s: the open transaction has ended", partition_name(*tp))
        self._said = set(held)
        return reasons
