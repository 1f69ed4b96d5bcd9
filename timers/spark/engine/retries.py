"""The machines of the retry topic. The driver runs them, beside the query.

A timer whose target fails goes to the retry topic, in the transaction of the others. Another attempt may wait for a
silent broker for seconds. So it must not be a part of a micro-batch, which would delay all timers. The machines are the
worker's, with stores on the driver's disk, which are caches of the retry topic.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from time import monotonic
from typing import NamedTuple, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition

from timers.config.settings import Settings
from timers.core.loop import IDLE_COMMIT_S, Loop
from timers.core.ports import Lost, TooMuch
from timers.core.progress import WITNESS_S
from timers.core.reopening import AFTER_LOST, AFTER_UNFORESEEN, ReopenBackoff, Reopening
from timers.core.timer import Fetched, Tick
from timers.errors import SparkError, StoreError, StoreInUse, TimersError
from timers.firing.transaction import Transaction
from timers.kafka.clients import librdkafka, reader
from timers.kafka.log_lineage import LogLineages
from timers.kafka.records import headers_of
from timers.kafka.topics import Cluster
from timers.spark.engine.openings import Opener
from timers.spark.engine.questions import Questions
from timers.spark.engine.read_logs import ReadLogs
from timers.store.rocks import RocksStore
from timers.wire.formats import RequestRecord

logger = logging.getLogger(__name__)

THREADS = 8
"""A thread serves some partitions, one after the other: one failing target delays the retries of these partitions."""

READ_RECORDS = 500
READ_S = 0.1
"""Most records that are read at a time, and how long a thread waits for them if it has nothing else to do."""

CLOSE_S = 10.0


class _Open(NamedTuple):
    """An open partition."""

    loop: Loop
    store: RocksStore
    transaction: Transaction


class Retries:
    """Runs the machines of the retry topic from its start to its end.

    Args:
        settings: of the app.
        cluster: its topics.
        tick: returns the present time; None: not known yet.
        wake: lets a micro-batch begin soon.

    Attributes:
        opener: opens the machines, and knows about callback topics.
        read_logs: which logs the query reads.
        questions: of queries, for the machines on the executors.
        failure: why a machine must not run, if there is a reason.
    """

    def __init__(
        self, settings: Settings, cluster: Cluster, tick: Callable[[], Tick | None], wake: Callable[[], None]
    ) -> None:
        self.settings = settings
        self.cluster = cluster
        self.tick = tick
        self.stop = threading.Event()
        self._lineages = LogLineages(settings)
        self.opener = Opener(settings, cluster, self.stop)
        self.read_logs = ReadLogs(self._lineages, self.opener.loop.submit, settings.schedule_topics)
        self.questions = Questions(wake)
        self.failure: TimersError | None = None
        count = cluster.partitions[settings.retry_topic]
        self._threads = [
            threading.Thread(
                target=_Server(self, range(first, count, THREADS)).run, name=f"retries-{first}", daemon=True
            )
            for first in range(min(THREADS, count))
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join(CLOSE_S)
        self.opener.loop.submit(self._lineages.close()).result()
        self.opener.close()


class _Server:
    """Serves some partitions of the retry topic, in one thread."""

    def __init__(self, retries: Retries, partitions: Iterable[int]) -> None:
        self._retries = retries
        self._topic = retries.settings.retry_topic
        self._opens_at = dict.fromkeys(partitions, 0.0)
        """Partition that is closed -> when it is opened, in seconds of the monotonic clock."""
        self._open: dict[int, _Open] = {}
        self._position: dict[int, int] = {}
        self._reopening: dict[int, Reopening] = {}
        self._committed_at: dict[int, float] = {}
        self._seen: Tick | None = None

    def run(self) -> None:
        """Serve until told to stop."""
        settings = self._retries.settings
        try:
            with contextlib.closing(
                reader(librdkafka(settings), group_id=settings.app_id, enable_partition_eof=True)
            ) as consumer:
                try:
                    self._serve(consumer)
                finally:
                    for partition in list(self._open):
                        self._close(consumer, partition)
        except TimersError as error:
            self._retries.failure = error
        except Exception as error:
            logger.exception("the retries of %s failed with an exception that no code expects", self._topic)
            self._retries.failure = SparkError(f"the retries of {self._topic!r} failed: {error!r}")

    def _serve(self, consumer: Consumer) -> None:
        while not self._retries.stop.is_set():
            self._open_closed(consumer)
            idle = all(each.loop.idle for each in self._open.values())
            for partition, error in self._take(consumer.consume(READ_RECORDS, READ_S if idle else 0.0)).items():
                self._fail(consumer, partition, error, AFTER_LOST)
            self._work(consumer)

    # ---- reading ----------------------------------------------------------------------------------------------------

    def _take(self, messages: list[Message]) -> dict[int, KafkaException]:
        """Give the machines what was read. The end of a partition counts too: the last offsets may have no record.

        Returns:
            Partitions that cannot be read, with the reason.
        """
        records: dict[int, list[RequestRecord]] = {}
        ends: dict[int, int] = {}
        failed: dict[int, KafkaException] = {}
        for message in messages:
            partition, offset, error = message.partition() or 0, message.offset() or 0, message.error()
            if error is None:
                record = RequestRecord(
                    offset, message.key(), message.value(), headers_of(message), message.timestamp()[1]
                )
                records.setdefault(partition, []).append(record)
                ends[partition] = offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                ends[partition] = offset
            elif not error.retriable():
                failed[partition] = KafkaException(error)
        for partition, end in ends.items():
            start = self._position.get(partition)
            if start is not None and end > start:
                self._open[partition].loop.add_fetch(Fetched(start, end, records.get(partition, [])))
                self._position[partition] = end
        return {partition: error for partition, error in failed.items() if partition in self._open}

    # ---- working ----------------------------------------------------------------------------------------------------

    def _work(self, consumer: Consumer) -> None:
        tick = self._retries.tick()
        if tick is not None and tick != self._seen:
            self._seen, self._retries.opener.now_s = tick, tick.append_ms / 1000
            for each in self._open.values():
                each.loop.add_tick(tick)
        for partition, each in list(self._open.items()):
            try:
                self._step(consumer, partition, each)
            except (Lost, KafkaException) as error:
                self._fail(consumer, partition, error, AFTER_LOST)
            except TimersError:
                raise
            except Exception as error:
                logger.exception("%s/%d failed with an exception that no code expects", self._topic, partition)
                self._fail(consumer, partition, error, AFTER_UNFORESEEN)

    def _step(self, consumer: Consumer, partition: int, opened: _Open) -> None:
        loop, transaction = opened.loop, opened.transaction
        while not loop.idle and not self._retries.stop.is_set():
            outcome = loop.step()
            if outcome.committed:
                self._committed_at[partition] = monotonic()
            if outcome.read_again_from is not None:
                loop.fetches.clear()
                self._read_from(consumer, partition, outcome.read_again_from)
        if transaction.has_old_witness:
            transaction.tell_group()
        if not (loop.firing or loop.machine.recovering):
            if monotonic() > self._committed_at[partition] + IDLE_COMMIT_S:
                loop.machine.commit_progress(even_if_idle=True)
                self._committed_at[partition] = monotonic()
            self._retries.opener.snapshots.answer((self._topic, partition), loop.machine, opened.store, None)

    def _read_from(self, consumer: Consumer, partition: int, position: int) -> None:
        self._position[partition] = position
        place = KafkaTopicPartition(self._topic, partition, position)
        with contextlib.suppress(KafkaException):  # it was not assigned
            consumer.incremental_unassign([place])
        consumer.incremental_assign([place])

    # ---- opening and closing ----------------------------------------------------------------------------------------

    def _open_closed(self, consumer: Consumer) -> None:
        for partition, at in list(self._opens_at.items()):
            if monotonic() >= at:
                try:
                    self._open[partition] = self._new(partition)
                except (Lost, KafkaException, StoreInUse) as error:
                    self._fail(consumer, partition, error, AFTER_LOST)
                    continue
                del self._opens_at[partition]
                self._committed_at[partition] = monotonic() - IDLE_COMMIT_S + WITNESS_S
                loop = self._open[partition].loop
                self._read_from(consumer, partition, loop.machine.position)
                if self._seen is not None:
                    loop.add_tick(self._seen)

    def _new(self, partition: int) -> _Open:
        """Open a partition: fence its former owner, then read its progress [I14]."""
        opener, tp = self._retries.opener, (self._topic, partition)
        outbox = opener.outbox(tp, opener.producer(tp))
        try:
            outbox.transaction.open()
            return _Open(*opener.open(tp, outbox), outbox.transaction)
        except BaseException:
            outbox.transaction.close()
            raise

    def _fail(self, consumer: Consumer, partition: int, error: Exception, backoff: ReopenBackoff) -> None:
        """Close a partition, and open it again: after a pause, if it fails again and again."""
        self._close(consumer, partition)
        reopening = self._reopening.setdefault(partition, Reopening())
        pause_s = 0.0 if isinstance(error, TooMuch) else reopening.pause_s(str(backoff), backoff, monotonic())
        self._opens_at[partition] = monotonic() + pause_s
        logger.warning("%s/%d: %s; opening it again", self._topic, partition, error)

    def _close(self, consumer: Consumer, partition: int) -> None:
        closed = self._open.pop(partition, None)
        if closed is None:
            return
        self._position.pop(partition, None)
        self._retries.opener.snapshots.forget((self._topic, partition))
        with contextlib.suppress(KafkaException):
            consumer.incremental_unassign([KafkaTopicPartition(self._topic, partition)])
        closed.transaction.close()
        try:
            closed.store.close()
        except StoreError as error:  # what was not flushed is read again
            logger.warning("%s", error)
