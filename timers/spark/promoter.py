"""Writes promoted copies in Kafka transactions, at a limited rate, on one of Spark's executors.

Spark's own Kafka sink has no transactions. One task writes, with one transactional id: a second promoter, or a task
that Spark starts again, fences the first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
from confluent_kafka import KafkaException
from pyspark.sql.pandas.types import to_arrow_schema

from timers.core.grouping import groups
from timers.errors import NameTakenError
from timers.kafka.error_codes import FENCED, RECORD_REFUSED, code_of
from timers.kafka.transactions import Record, TransactionalWriter
from timers.spark.columns import headers_of, record_batch, schema
from timers.wire import headers as h
from timers.wire.cold import Cold, encode_promoted

SENT = schema("copies bigint, transactions bigint, refused string, reason string")
"""Result of one task: a row with the numbers of copies and transactions, and a row for each copy that its topic
refuses, with its source and the reason."""

_ARROW = to_arrow_schema(SENT)

MAX_COPIES = 1000
MAX_BYTES = 8 * 1024 * 1024
"""Limits of one transaction: readers of the request topics wait for its end, and it must end before its timeout."""

_MAX_MESSAGE_BYTES = 100_000_000
"""Only the limit of the topic applies: a request that was read from a topic fits in it."""

TAKEN = "another `timers spark promote` of the same TIMERS_APP_ID has begun since: this one ends"

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
        self._open = partial(TransactionalWriter, config, transactional_id, _MAX_MESSAGE_BYTES)
        self._writer = self._open()

    def write(self, copies: Sequence[Copy]) -> None:
        try:
            with self._writer.transaction() as send:
                send(copies)
        except KafkaException as error:
            if code_of(error) in RECORD_REFUSED:
                # After a refused batch, librdkafka 2.16 fails the next transaction too: sequence numbers have a gap.
                self._writer = self._open()
            if code_of(error) in FENCED:
                raise NameTakenError(TAKEN) from error
            raise

    def pause(self, seconds: float) -> None:
        """Wait between two transactions."""
        time.sleep(seconds)


def writer(
    open_port: Callable[[], Port], rate_per_s: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``mapInArrow`` over rows of :data:`timers.spark.cold.HELD`; it yields rows of :data:`SENT`."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sent: list[int] = []
        refused: dict[str, str] = {}
        port: Port | None = None
        for batch in batches:
            for copies in groups(copies_of(batch), _size, MAX_COPIES, MAX_BYTES):
                port = port or open_port()
                for count in _write(port, copies, refused):
                    port.pause(count / rate_per_s)
                    sent.append(count)
        rows = [(sum(sent), len(sent), None, None), *((0, 0, source, why) for source, why in refused.items())]
        yield record_batch(rows, _ARROW)

    return write


def _write(port: Port, copies: Sequence[Copy], refused: dict[str, str]) -> Iterator[int]:
    """Write copies, and yield the number of each transaction. A copy that its topic refuses does not stop the others.

    Args:
        refused: gets the sources of refused copies, with the reasons.
    """
    try:
        port.write(copies)
    except KafkaException as error:
        if code_of(error) not in RECORD_REFUSED:
            raise
        if len(copies) == 1:
            source = dict(copies[0].headers)[h.TIMER_PROMOTED]
            refused[source.decode() if isinstance(source, bytes) else str(source)] = error.args[0].str()
            return
        half = len(copies) // 2
        yield from _write(port, copies[:half], refused)
        yield from _write(port, copies[half:], refused)
    else:
        yield len(copies)


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
