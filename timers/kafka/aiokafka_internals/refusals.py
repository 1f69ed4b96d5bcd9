"""Reads which records of a batch a broker refuses, and why.

From version 8 of the produce request on (KIP-467, Kafka 2.4) a broker that refuses a batch lists each bad record of it.
A broker before 2.4 is asked in version 7, and then lists no record.

Seen with Kafka 4.2: all bad records of a batch are listed, each with its first fault only. If the time of any record is
bad, the code of the batch is INVALID_TIMESTAMP, also for records without a key. Nothing of a refused batch is appended.
The next batch to the same partition fails with ``OutOfOrderSequenceNumber``, unless it has bad records of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.protocol.produce import ProduceResponse_v8

INVALID_RECORD = 87
"""Code of a record that the topic never takes, for example one without a key in a compacted topic."""

INVALID_TIMESTAMP = 32
"""Code of a record whose time is too far from the broker's (``message.timestamp.before.max.ms``, ``.after.max.ms``)."""

_NAMES: Mapping[int, str] = {INVALID_RECORD: "INVALID_RECORD", INVALID_TIMESTAMP: "INVALID_TIMESTAMP"}


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

    @property
    def is_of_timestamps(self) -> bool:
        """Whether the times of records are the reason."""
        return self.code == INVALID_TIMESTAMP


def refusals(response: Any) -> dict[TopicPartition, RecordsRefused]:
    """The refused batches in an answer to a produce request of any version."""
    found: dict[TopicPartition, RecordsRefused] = {}
    for topic, partitions, *_ in response.topics:
        for partition, code, *rest in partitions:
            if code not in _NAMES:
                continue
            listed: Iterable[tuple[int, str | None]] = ()
            why: str | None = None
            if response.API_VERSION >= ProduceResponse_v8.API_VERSION:
                listed, why = rest[3:5]
            records = tuple(RefusedRecord(place, said or "") for place, said, *_ in listed or ())
            found[TopicPartition(topic, partition)] = RecordsRefused(topic, partition, code, why or "", records)
    return found
