"""Finds which records a broker refused and why, and why a transaction failed; closes a producer at once.

From version 8 of the produce request on (KIP-467, Kafka 2.4) a broker that refuses a batch lists each bad record of it.
aiokafka can read such an answer, but its list of versions ends at 7, its sender drops the list of records, and it has
no name for error 87. A broker before 2.4 is still asked in version 7, and then lists no record.

Seen with Kafka 4.2: all bad records of a batch are listed, each with its first fault only. If the time of any record is
bad, the code of the batch is INVALID_TIMESTAMP, also for records without a key. Nothing of a refused batch is appended.
The next batch to the same partition fails with ``OutOfOrderSequenceNumber``, unless it has bad records of its own.

This module relies on:

==========================================================  ==========================================================
``aiokafka.protocol.produce.ProduceRequest._CLASSES``       versions that may be used, in ascending order
``aiokafka.protocol.produce.ProduceRequest_v8``             exists, and is not in that list
``aiokafka.producer.sender.SendProduceReqHandler``          looked up by that name for each request
``SendProduceReqHandler.handle_response(response)``         called with each answer
``SendProduceReqHandler._batches``                          ``TopicPartition`` -> batch that was sent
``MessageBatch.failure(exception=...)``                     the first call counts
``BatchBuilder._buffer``                                    the batch as it was sent
``AIOKafkaProducer._txn_manager``, ``_sender``, ``_closed`` state of the transaction, the task that sends, closed or not
==========================================================  ==========================================================
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import aiokafka
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.producer import sender
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.protocol.produce import ProduceRequest, ProduceRequest_v8, ProduceResponse_v8
from aiokafka.record.default_records import DefaultRecordBatch

INVALID_RECORD = 87
"""Code of a record that the topic never takes, for example one without a key in a compacted topic."""

INVALID_TIMESTAMP = 32
"""Code of a record whose time is too far from the broker's (``message.timestamp.before.max.ms``, ``.after.max.ms``)."""

_NAMES: Mapping[int, str] = {INVALID_RECORD: "INVALID_RECORD", INVALID_TIMESTAMP: "INVALID_TIMESTAMP"}


class UnknownAiokafka(RuntimeError):
    """The private parts of the installed aiokafka are not those that this module was written for."""


class RefusedRecord(NamedTuple):
    """One record that the broker does not take."""

    place: int
    """Index of the record in its batch."""
    why: str
    """The broker's sentence; may be empty."""


class RecordsRefused(KafkaError):
    """A broker appended nothing of a batch, because of records in it. It would refuse the same batch again.

    Attributes:
        code: 87 or 32.
        why: the broker's sentence about the batch; may be empty.
        records: each bad record; empty if the broker lists none.
    """

    retriable = False

    def __init__(self, topic: str, partition: int, code: int, why: str, records: tuple[RefusedRecord, ...]) -> None:
        super().__init__(topic, partition, code, why, records)  # all values: aiokafka copies an error by its args
        self.topic = topic
        self.partition = partition
        self.code = code
        self.why = why
        self.records = records

    @property
    def name(self) -> str:
        """Kafka's name of the code."""
        return _NAMES[self.code]


class _Handler(sender.SendProduceReqHandler):
    """Lets a refused batch fail with :class:`RecordsRefused`."""

    def handle_response(self, response: Any) -> None:
        for tp, error in refusals(response).items():
            batch = self._batches.get(tp)
            if batch is not None:
                batch.failure(exception=error)  # aiokafka fails it again, which has no effect
        super().handle_response(response)


def refusals(response: Any) -> dict[TopicPartition, RecordsRefused]:
    """The refused batches in an answer to a produce request of any version."""
    found: dict[TopicPartition, RecordsRefused] = {}
    for topic, partitions in response.topics:
        for partition, code, *rest in partitions:
            if code not in _NAMES:
                continue
            listed: Iterable[tuple[int, str | None]] = ()
            why: str | None = None
            if response.API_VERSION >= ProduceResponse_v8.API_VERSION:
                *_, listed, why = rest
            records = tuple(RefusedRecord(place, said or "") for place, said in listed or ())
            found[TopicPartition(topic, partition)] = RecordsRefused(topic, partition, code, why or "", records)
    return found


def records_of(batch: BatchBuilder) -> list[Any]:
    """The records of a batch that was sent, each with ``key``, ``value`` and ``headers``. About 1 us a record.

    So the producer stores nothing for each record while it fills a batch.
    """
    return list(DefaultRecordBatch(bytes(batch._buffer)))


def transaction_error(producer: AIOKafkaProducer) -> BaseException | None:
    """Why the whole transaction failed; None if it has not."""
    outcome = producer._txn_manager.wait_for_transaction_end()
    return outcome.exception() if outcome.done() and not outcome.cancelled() else None


async def close_at_once(producer: AIOKafkaProducer, timeout_s: float) -> None:
    """Close a producer without waiting for deliveries, which ``producer.stop()`` waits for."""
    producer._closed = True
    task = producer._sender.sender_task
    if task is not None:
        task.cancel()
    await producer.client.close()
    if task is not None:
        await asyncio.wait([task], timeout=timeout_s)
        if task.done() and not task.cancelled():
            task.exception()


def install() -> None:
    """Let all producers of this process use version 8 of the produce request. May be called again.

    Raises:
        UnknownAiokafka: its private parts are not as expected.
    """
    check()
    if ProduceRequest_v8 not in ProduceRequest._CLASSES:
        ProduceRequest._CLASSES = (*ProduceRequest._CLASSES, ProduceRequest_v8)
    sender.SendProduceReqHandler = _Handler


def check() -> None:
    """Check the fields of the answer and the list of versions.

    Raises:
        UnknownAiokafka: they are not as expected.
    """
    names = ("partition", "error_code", "offset", "timestamp", "log_start_offset", "record_errors", "error_message")
    partition = ProduceResponse_v8.SCHEMA.fields[0].array_of.fields[1].array_of
    versions = [known.API_VERSION for known in ProduceRequest._CLASSES]
    if tuple(partition.names) != names or versions not in (list(range(8)), list(range(9))):
        raise UnknownAiokafka(
            f"aiokafka {aiokafka.__version__} speaks versions {versions} of produce, with {partition.names}"
        )
