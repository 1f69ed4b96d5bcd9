"""Reads topics and ranges of offsets with librdkafka, without a consumer group, and writes a few records, also in
transactions: all records of a transaction become visible, or none."""

from __future__ import annotations

import codecs
import contextlib
import gc
import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import call
from time import monotonic
from typing import Any, NamedTuple, Self, TypeAlias

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from timers.errors import TimersError
from timers.kafka import connection
from timers.kafka.clients import LIBRDKAFKA_LOG, TRANSACTION_TIMEOUT_MS, flush, reader
from timers.kafka.connection import CALL_TIMEOUT_S
from timers.kafka.error_codes import MOVING, NO_TOPIC, code_of
from timers.kafka.lost_brokers import LOST_BROKERS, LostBrokers
from timers.process.config.settings import Settings
from timers.wire import topics
from timers.wire.formats import RequestRecord
from timers.wire.headers import Header, OneContext

_POLL_S = 0.2
_ALL_POLL_S = 0.05
_UNASSIGNED_AT_ONCE = 25
"""Partitions that have ended, since each call takes some milliseconds."""
_BATCH = 1000


def headers_of(message: Any) -> list[Header]:
    """Headers of a message. A name that is not UTF-8 has U+FFFD in the place of its wrong bytes, as Java reads it.

    Empty also if the message has more than 100,000 headers, which librdkafka does not show.
    """
    # confluent-kafka decodes the names once, by Python's handler of wrong bytes. If it refuses them, they are lost, and
    # reading the list that stays in the message crashes the process: `c_headers_to_py` in its C puts what
    # PyUnicode_FromString returns into a tuple, also NULL. The error cannot be caught first. All threads have the
    # same handler, so it is another one only for the time of one C call. `list` and `map` run the steps with no Python
    # code between them, so no other thread, signal handler or finalizer runs meanwhile (with Python's global lock:
    # `check_threads`); up to Python 3.11 a collection of garbage could run them. Each way out sets the handler back.
    steps: tuple[Callable[[], Any], ...] = (_replace_wrong_bytes, message.headers, _refuse_wrong_bytes)
    if gc.isenabled():
        steps = (gc.disable, *steps, gc.enable)
    try:
        answers = list(map(call, steps))
    except BaseException:
        for step in steps[len(steps) // 2 + 1 :]:
            step()
        raise
    return answers[len(steps) // 2] or []


def request_of(message: Message) -> RequestRecord:
    """A record of a request topic, as the worker's consumer gives it."""
    (kind, timestamp_ms), offset = message.timestamp(), message.offset() or 0
    # librdkafka's types are 0 (not known), 1 (the producer's time) and 2 (the broker's).
    return RequestRecord(offset, message.key(), message.value(), headers_of(message), timestamp_ms, max(0, kind - 1))


_replace_wrong_bytes = partial(codecs.register_error, "strict", codecs.replace_errors)
_refuse_wrong_bytes = partial(codecs.register_error, "strict", codecs.strict_errors)


def read(
    consumer: Consumer,
    topic: str,
    partition: int,
    start: int,
    end: int,
    *,
    timeout_s: float,
    while_waiting: Callable[[], None] = lambda: None,
) -> Iterator[Message]:
    """Records with offsets from ``start``, inclusive, to ``end``, exclusive, in order.

    Compaction and aborted transactions leave gaps, and transaction markers use offsets. So reading ends with the record
    before ``end``, with a later record, or when the consumer reports a position at ``end`` or after it. A
    ``read_committed`` consumer waits there for the end of open transactions.

    Args:
        consumer: with ``enable.partition.eof``; it gets this partition assigned.
        start: first offset; records before the log's start are skipped according to ``auto.offset.reset``.
        timeout_s: longest time without a record.
        while_waiting: called while there is no record; may raise to stop.

    Raises:
        KafkaException: the partition cannot be read; ``_TIMED_OUT`` after ``timeout_s`` without a record.
    """
    if start >= end:
        return
    consumer.assign([TopicPartition(topic, partition, start)])
    try:
        deadline = monotonic() + timeout_s
        while True:
            first = consumer.poll(_POLL_S)
            if first is None:
                called_at = monotonic()
                while_waiting()
                deadline += monotonic() - called_at  # it may take long, too
                if monotonic() > deadline:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
                continue
            for message in (first, *consumer.consume(_BATCH, timeout=0)):
                error, offset = message.error(), message.offset() or 0
                if error is None and offset < end:
                    yield message
                    if offset + 1 == end:
                        return
                    deadline = monotonic() + timeout_s  # set here, because the caller may need long for a record
                elif error is None or error.code() == KafkaError._PARTITION_EOF:
                    if offset >= end:
                        return
                elif error.code() in NO_TOPIC or not error.retriable():
                    raise KafkaException(error)
    finally:
        consumer.unassign()


def read_all(
    consumer: Consumer, left: dict[tuple[str, int], range], *, timeout_s: float, while_waiting: Callable[[], None]
) -> Generator[Message, None, None]:
    """Records of many partitions, which are read at once, those of a partition in order. It ends as :func:`read` does.

    Args:
        consumer: with ``enable.partition.eof``; it gets these partitions assigned.
        left: (topic, partition) -> its offsets. What is read to its end is removed.
        timeout_s: longest time without a record; what is still left then is not read.
        while_waiting: called before each batch; may raise to stop.

    Yields:
        Records, and for a partition that cannot be read a message with the error, after which it is left alone.
    """
    consumer.assign([TopicPartition(*place, span.start) for place, span in left.items()])
    failed: set[tuple[str, int]] = set()
    ended: list[TopicPartition] = []
    try:
        deadline = monotonic() + timeout_s
        while left.keys() - failed:
            called_at = monotonic()
            while_waiting()
            deadline += monotonic() - called_at  # it may take long, too
            first = consumer.poll(_ALL_POLL_S)  # consume() would wait until so many records have come
            messages = [] if first is None else [first, *consumer.consume(_BATCH, timeout=0)]
            is_read = False
            for message in messages:
                place, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
                error, span = message.error(), left.get(place)
                if span is None or place in failed:
                    continue
                is_read = is_read or error is None or error.code() == KafkaError._PARTITION_EOF
                if error is None and offset < span.stop:
                    yield message
                elif error is not None and error.code() != KafkaError._PARTITION_EOF:
                    if error.code() in NO_TOPIC or not error.retriable():
                        failed.add(place)
                        ended.append(TopicPartition(*place))
                        yield message
                    continue
                if offset >= span.stop - (error is None):
                    del left[place]
                    ended.append(TopicPartition(*place))
            if len(ended) >= _UNASSIGNED_AT_ONCE:
                consumer.incremental_unassign(ended)  # else their later records would come, too
                ended = []
            if is_read:  # records of partitions that have ended do not count
                deadline = monotonic() + timeout_s
            elif monotonic() > deadline:
                return
    finally:
        consumer.unassign()


def write(
    properties: Mapping[str, Any], topic: str, partition: int, records: Iterable[tuple[bytes, bytes]], timeout_s: float
) -> None:
    """Write records, each a key and a value, and return when the brokers have them.

    Raises:
        KafkaException: they do not take them, or do not answer.
    """
    failures: list[KafkaError] = []

    def note(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer({**properties, "enable.idempotence": True}, logger=LIBRDKAFKA_LOG)
    for key, value in records:
        producer.produce(topic, value, key, partition, on_delivery=note)
    left = flush(producer, timeout_s)
    if failures or left:
        raise KafkaException(failures[0] if failures else KafkaError(KafkaError._TIMED_OUT))


logger = logging.getLogger(__name__)

_READ_POLL_S = 0.1
_TOPIC_CHECK_S = 10.0
"""Time between two searches for new partitions."""


class TopicReader:
    """A ``read_committed`` reader of one topic that commits nothing and joins no group.

    Args:
        settings: where the brokers are, and how to log in.
        topic: the topic to read; it need not exist yet.
        from_beginning: start with the oldest record, instead of the first one after :meth:`assign_partitions`.
        since_ms: start with the first record of this time, in epoch milliseconds, or of a later one.
        is_polled: whether it is read all the time, so that it notices that it has lost all brokers.
    """

    def __init__(
        self,
        settings: Settings,
        topic: str,
        *,
        from_beginning: bool = False,
        since_ms: int | None = None,
        is_polled: bool = True,
    ) -> None:
        self._reports = connection.ErrorReports(settings)
        self._topic = topic
        self._from_beginning = from_beginning
        self._since_ms = since_ms
        self._partitions = 0
        self._lost = LostBrokers()
        reporting = {**self._reports.callbacks, **(self._lost.properties if is_polled else {})}
        self._consumer = reader({**connection.librdkafka(settings), **reporting})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def assign_partitions(self) -> bool:
        """Assign the topic's partitions, also those added since the last call. False while the topic does not exist.

        After the return no later record is missed: reading starts at the present end of the log, and partitions that
        are added later are read from their beginning.

        Raises:
            TimersError: no broker answers or accepts the login, or the topic may not be read.
        """
        try:
            count = connection.partitions_of(self._consumer, self._reports, self._topic)
            numbers = range(self._partitions, count)
            if self._partitions == 0 and not self._from_beginning:
                added = [TopicPartition(self._topic, *start) for start in self._starts(numbers).items()]
            else:
                added = [TopicPartition(self._topic, partition, OFFSET_BEGINNING) for partition in numbers]
        except KafkaException as error:
            if code_of(error) in NO_TOPIC | MOVING:
                return False
            raise self._user_error(error) from error
        if added:
            self._consumer.incremental_assign(added)
            self._partitions += len(added)
        return self._partitions > 0

    def _starts(self, partitions: Iterable[int]) -> dict[int, int]:
        """Partition -> the offset to begin with. All are asked at once for a time, and the others one by one."""
        starts: dict[int, int] = {}
        if self._since_ms is not None:
            wanted = [TopicPartition(self._topic, partition, self._since_ms) for partition in partitions]
            for found in self._consumer.offsets_for_times(wanted, timeout=CALL_TIMEOUT_S):
                if found.error is not None:
                    raise KafkaException(found.error)
                if found.offset >= 0:
                    starts[found.partition] = int(found.offset)
        for partition in partitions:
            if partition not in starts:
                place = TopicPartition(self._topic, partition)
                _, end = self._consumer.get_watermark_offsets(place, timeout=CALL_TIMEOUT_S, cached=False)
                starts[partition] = int(end)
        return starts

    def __iter__(self) -> Iterator[Message | None]:
        """Records as they arrive, without end; None after each 0.1 s without a record, so that the caller can act.

        Raises:
            TimersError: the topic does not exist any more, or may not be read, or only by a new reader.
        """
        check_at = time.monotonic() + _TOPIC_CHECK_S
        while True:
            message = self._consumer.poll(_READ_POLL_S)
            if self._lost.are_all:
                raise TimersError(f"the consumer of topic {self._topic!r} {LOST_BROKERS}: read it again")
            if message is None:
                yield None
            elif (error := message.error()) is None:
                yield message
            elif error.code() in NO_TOPIC or not error.retriable():
                raise self._user_error(KafkaException(error))
            if time.monotonic() > check_at:
                check_at = time.monotonic() + _TOPIC_CHECK_S
                try:
                    self.assign_partitions()
                except TimersError:  # librdkafka reconnects by itself
                    logger.info("cannot look for new partitions of %s", self._topic, exc_info=True)

    def _user_error(self, error: KafkaException) -> TimersError:
        return self._reports.user_error(error, f"topic {self._topic!r} cannot be read")


_INIT_TIMEOUT_S = 30.0
_COMMIT_TRIES = 3


class Record(NamedTuple):
    """One record to write."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, str | bytes | None]]


Send: TypeAlias = Callable[[Sequence[Record]], list[str]]
"""Sends records, waits until the brokers have them, and returns their sources."""


class TransactionalWriter:
    """A transactional producer. Opening it fences the former one with the same id and aborts its open transaction.

    Args:
        record_ms: returns the time of a record in epoch milliseconds; 0: that of this machine. It counts only on topics
            whose times the brokers do not set.

    Raises:
        KafkaException: the brokers do not answer, or refuse. The methods raise it too.
    """

    def __init__(
        self,
        properties: Mapping[str, Any],
        transactional_id: str,
        max_message_bytes: int,
        record_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self._record_ms = record_ms
        config = {
            "error_cb": lambda error: None,  # without one a fatal error would be raised in any delivery callback
            **properties,
            "allow.auto.create.topics": False,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "message.max.bytes": max_message_bytes,
            "linger.ms": 5,
        }
        self._producer = Producer(config, logger=LIBRDKAFKA_LOG)
        self._producer.init_transactions(_INIT_TIMEOUT_S)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Send]:
        """One transaction: committed at the end of the block, aborted by an exception."""
        # Before the transaction begins: this may ask the brokers, and readers wait for an open transaction.
        self._record_ms()
        self._producer.begin_transaction()
        try:
            yield self._send
            self._commit()
        except BaseException:
            with contextlib.suppress(KafkaException):  # then the brokers abort it after its timeout
                self._producer.abort_transaction(CALL_TIMEOUT_S)
            raise

    def _send(self, records: Sequence[Record]) -> list[str]:
        sources: dict[int, str] = {}
        failures: list[KafkaError] = []

        def on_delivery(index: int, error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append(error)
            else:
                sources[index] = topics.source(message.topic(), message.partition(), message.offset())  # type: ignore[arg-type]

        for index, (topic, partition, key, value, headers) in enumerate(records):
            report = partial(on_delivery, index)
            own, at_ms = OneContext(headers), self._record_ms()
            self._producer.produce(topic, value, key, partition, headers=own, on_delivery=report, timestamp=at_ms)
            self._producer.poll(0)
        left = flush(self._producer, TRANSACTION_TIMEOUT_MS / 1000)
        if failures or left:
            raise KafkaException(failures[0] if failures else KafkaError(KafkaError._TIMED_OUT))
        return [sources[index] for index in range(len(records))]

    def _commit(self) -> None:
        """Commit. A call that timed out is repeated: it continues the same commit."""
        for tries_left in reversed(range(_COMMIT_TRIES)):
            try:
                self._producer.commit_transaction(CALL_TIMEOUT_S)
                return
            except KafkaException as error:
                if not tries_left or not error.args[0].retriable():
                    raise
