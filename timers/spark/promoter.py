"""Writes promoted copies in Kafka transactions, at a limited rate, on one of Spark's executors.

Spark's own Kafka sink has no transactions. One task writes, with one transactional id: a second promoter, or a task
that Spark starts again, fences the first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from timers.core.grouping import groups
from timers.kafka.transactions import Record, TransactionalWriter
from timers.spark.arrow import headers_of
from timers.spark.columns import schema
from timers.wire.cold import Cold, encode_promoted

SENT = schema("copies bigint, transactions bigint")
"""Result of one task: numbers of copies and transactions."""

MAX_COPIES = 1000
MAX_BYTES = 8 * 1024 * 1024
"""Limits of one transaction: readers of the request topics wait for its end, and it must end before its timeout."""

_MAX_MESSAGE_BYTES = 100_000_000
"""Only the limit of the topic applies: a request that was read from a topic fits in it."""

Copy: TypeAlias = Record
"""A promoted request."""


class Port(Protocol):
    """Writes copies to the request topics: all copies of a call, or none."""

    def write(self, copies: Sequence[Copy]) -> None: ...

    def pause(self, seconds: float) -> None: ...


class KafkaPort:
    """Writes to Kafka.

    Args:
        config: configuration of librdkafka; it contains secrets.
    """

    def __init__(self, config: Mapping[str, Any], transactional_id: str) -> None:
        self._writer = TransactionalWriter(config, transactional_id, _MAX_MESSAGE_BYTES)

    def write(self, copies: Sequence[Copy]) -> None:
        with self._writer.transaction() as send:
            send(copies)

    def pause(self, seconds: float) -> None:
        """Wait between two transactions."""
        time.sleep(seconds)


def writer(
    open_port: Callable[[], Port], rate_per_s: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``mapInArrow`` over rows of :data:`timers.spark.cold.HELD`; it yields one row of :data:`SENT`."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        written, transactions = 0, 0
        port: Port | None = None
        for batch in batches:
            for copies in groups(copies_of(batch), _size, MAX_COPIES, MAX_BYTES):
                port = port or open_port()
                port.write(copies)
                port.pause(len(copies) / rate_per_s)
                written += len(copies)
                transactions += 1
        yield pa.RecordBatch.from_pydict({"copies": [written], "transactions": [transactions]})

    return write


def copies_of(batch: pa.RecordBatch) -> Iterator[Copy]:
    """Yield the records that promote the rows of an Arrow batch."""
    names = ("source", "topic", "partition", "due_s", "append_ms", "seal", "key", "value")
    columns = [batch.column(name).to_pylist() for name in names]
    for source, topic, partition, due_s, append_ms, seal, key, value, headers in zip(
        *columns, headers_of(batch.column("headers")), strict=True
    ):
        cold = Cold(source, due_s, append_ms, seal, list(headers))
        yield Copy(topic, partition, key, value, encode_promoted(cold))


def _size(copy: Copy) -> int:
    return len(copy.key or b"") + len(copy.value or b"")
