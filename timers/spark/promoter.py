"""Writes promoted copies in Kafka transactions, at a bounded rate, on one of Spark's executors.

Spark's own Kafka sink knows no transactions, and its rows would lose the order of headers' bytes to a second encoding.
One task writes, under one transactional id: a second promoter, or a task that Spark starts anew, fences the first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType

from timers.kafka.transactions import Record, TransactionalWriter
from timers.spark.arrow import headers_of
from timers.wire.cold import Cold, encode_promoted

SENT = StructType([StructField("copies", LongType()), StructField("transactions", LongType())])
"""What one task has written."""

MAX_COPIES = 1000
MAX_BYTES = 8 * 1024 * 1024
"""Of one transaction: readers of the request topics wait for its end, and it must end within its time-out."""

_MAX_MESSAGE_BYTES = 100_000_000
"""The topic's own limit applies: what was read from a topic fits in it."""

Copy: TypeAlias = Record
"""A promoted request."""


class Port(Protocol):
    """Where copies go: some at once, or none of them."""

    def write(self, copies: Sequence[Copy]) -> None: ...

    def pause(self, seconds: float) -> None: ...


class KafkaPort:
    """Writes to Kafka.

    Args:
        config: of librdkafka; holds secrets.
        transactional_id: of the promoter.
    """

    def __init__(self, config: Mapping[str, Any], transactional_id: str) -> None:
        self._writer = TransactionalWriter(config, transactional_id, _MAX_MESSAGE_BYTES)

    def write(self, copies: Sequence[Copy]) -> None:
        """One transaction.

        Raises:
            KafkaException: nothing of it became visible, or it is not known whether.
        """
        with self._writer.transaction() as send:
            send(copies)

    def pause(self, seconds: float) -> None:
        """Wait; between transactions, never inside of one."""
        time.sleep(seconds)


def writer(
    open_port: Callable[[], Port], rate_per_s: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``mapInArrow`` over rows of :data:`timers.spark.cold.HELD`; gives one row of :data:`SENT`."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        written, transactions = 0, 0
        port: Port | None = None
        for batch in batches:
            for copies in transactions_of(copies_of(batch)):
                port = port or open_port()
                port.write(copies)
                port.pause(len(copies) / rate_per_s)
                written += len(copies)
                transactions += 1
        yield pa.RecordBatch.from_pydict({"copies": [written], "transactions": [transactions]})

    return write


def copies_of(batch: pa.RecordBatch) -> Iterator[Copy]:
    """The records that bring the rows of an Arrow batch back."""
    names = ("source", "topic", "partition", "due_s", "append_ms", "seal", "key", "value")
    columns = [batch.column(name).to_pylist() for name in names]
    for source, topic, partition, due_s, append_ms, seal, key, value, headers in zip(
        *columns, headers_of(batch.column("headers")), strict=True
    ):
        told = Cold(source, due_s, append_ms, seal, list(headers))
        yield Copy(topic, partition, key, value, encode_promoted(told))


def transactions_of(copies: Iterable[Copy]) -> Iterator[list[Copy]]:
    """Copies in groups of bounded number and size."""
    group: list[Copy] = []
    size = 0
    for copy in copies:
        bytes_ = len(copy.key or b"") + len(copy.value or b"")
        if group and (len(group) == MAX_COPIES or size + bytes_ > MAX_BYTES):
            yield group
            group, size = [], 0
        group.append(copy)
        size += bytes_
    if group:
        yield group
