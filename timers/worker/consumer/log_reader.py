"""Reads the request logs of the open machines: what a fetch returns of a partition is one batch.

If each record were a message, Faust would pass 18,000 records a second to an agent that does nothing: fifty times the
time of our work on them. Here a message is a :class:`~timers.core.timer.Fetched`: the list of records and the range of
offsets that it covers. The machine checks that the ranges join: only a gap shows that a batch was dropped on the way.

The reader belongs to no group. It reads each partition from the offset that its machine asks for, whatever happens in
the group.

A partition is suspended while its topic may have been deleted: then its fetches are dropped, until the topic's id was
checked. The first fetch after a partition was opened suspends it, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from time import monotonic
from typing import Any

from aiokafka import AIOKafkaConsumer, errors
from aiokafka import TopicPartition as KafkaTopicPartition

from timers.config.settings import Settings
from timers.core.lineage import PassedBatch
from timers.core.timer import Fetched, TopicPartition
from timers.kafka import connection
from timers.kafka.aiokafka_internals import fetch
from timers.kafka.aiokafka_internals.leader_client import limit_updates
from timers.worker import faust_internals

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


class LogReader:
    """Reads partitions. Methods run on one event loop, that of :meth:`start`.

    Args:
        settings: of the worker.
        request_timeout_s: for an answer of a broker.
        value_limit: returns the size in bytes above which no value of a partition is accepted; None if not known.
        on_suspended: called with each suspended partition, and whether its position is out of range.
        on_unreadable: called with a partition whose records cannot be read, and why.

    Attributes:
        consumer: of aiokafka; None before :meth:`start`.
    """

    def __init__(
        self,
        settings: Settings,
        request_timeout_s: float,
        value_limit: Callable[[TopicPartition], int | None],
        on_suspended: Callable[[TopicPartition, bool], None],
        on_unreadable: Callable[[TopicPartition, Exception], None],
    ) -> None:
        self.consumer: Any = None
        self._settings = settings
        self._request_timeout_s = request_timeout_s
        self._value_limit = value_limit
        self._on_suspended = on_suspended
        self._on_unreadable = on_unreadable
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
        consumer = AIOKafkaConsumer(
            **connection.aiokafka(self._settings),
            client_id=self._settings.worker_id,
            key_deserializer=fetch.InPieces(self._value_limit, self._note_passed),
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
        await faust_internals.start_patiently(consumer, "the reader of the request topics", is_stopping).start()
        consumer.assign([])
        fetch.client_of(consumer).set_topics(topics)

    async def stop(self) -> None:
        """Close the connections."""
        if self.consumer is not None:
            await self.consumer.stop()

    def _note_passed(self, tp: Any, batch: PassedBatch) -> None:
        self._passed.setdefault(tp, []).append(batch)

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
        """Read a partition from this offset on."""
        if tp not in self._delivered_to:
            self._never_fetched.add(tp)
        self._seek(tp, offset)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Read these partitions no more."""
        fetch.stop_reading(self.consumer, [KafkaTopicPartition(*tp) for tp in partitions])
        for tp in partitions:
            self._delivered_to.pop(tp, None)
            self._passed.pop(tp, None)
        self._suspended.difference_update(partitions)
        self._never_fetched.difference_update(partitions)

    def _seek(self, tp: TopicPartition, offset: int) -> None:
        fetch.read_from(self.consumer, KafkaTopicPartition(*tp), offset)
        self._delivered_to[tp] = offset
        self._passed.pop(tp, None)

    def _seek_back(self, tp: TopicPartition) -> None:
        """Read again what was read and not delivered."""
        if tp in self._delivered_to:
            self._seek(tp, self._delivered_to[tp])

    def watermarks(self) -> dict[TopicPartition, tuple[int, int]]:
        """High watermark and last stable offset of each partition that is read, as of its last fetch. Any thread."""
        watermarks = {} if self.consumer is None else fetch.watermarks(self.consumer)
        return {(tp.topic, tp.partition): offsets for tp, offsets in watermarks.items()}

    # ---- fetches -------------------------------------------------------------------------------------------------

    async def fetch(self, partitions: Collection[TopicPartition], timeout_s: float) -> dict[TopicPartition, Fetched]:
        """Returns the records of each of these partitions with their range; a range may have no records.

        Raises:
            KafkaError: reading a topic is not allowed any more.
        """
        wanted = {
            KafkaTopicPartition(*tp) for tp in partitions if tp in self._delivered_to and tp not in self._suspended
        }
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
