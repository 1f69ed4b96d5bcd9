"""The record batches of one transaction, built by the machine's own thread.

librdkafka takes 3.6 µs of CPU for a message with our three headers, 2.5 µs of them with the interpreter lock: it
allocates a list of headers and a message object for each. aiokafka's Cython builder writes the same record into a batch
in 0.7 µs (``docs/adr/0003``). So a batch is complete before the event loop gets it, and only the record is allocated
for a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from timers.core.timer import Origin, Row, id_bytes, key_bytes
from timers.kafka.aiokafka_internals.record_batch import RecordBatch, size_alone
from timers.wire.headers import TIMER_ID, Header, identity
from timers.wire.partitioner import partitions_for, partitions_of

MAX_BATCH_BYTES = 256_000
"""Below Kafka's default ``max.message.bytes`` of 1,048,588, which bounds a whole batch, not a message."""


def _keys_and_partitions(rows: Sequence[Row], count: int) -> tuple[Sequence[bytes | None], list[int]]:
    """The record keys of rows, and their partitions in a topic of ``count`` partitions."""
    try:
        texts = [row[2].encode() for row in rows]  # type: ignore[union-attr]  # nearly all keys are text
    except AttributeError:
        keys = [key if isinstance(key, bytes) else key_bytes(key) for _, _, key, _, _, _ in rows]
        return keys, partitions_for(keys, [row[0] for row in rows], count)
    return texts, partitions_of(texts, count)


def _identity(origin: Origin, source: bytes) -> list[Header]:
    """The headers that identify a timer with an origin; ``source`` is used if the origin names none."""
    return identity(id_bytes(origin[0]), source if origin[3] is None else origin[3].encode())


class Batches:
    """Batches by topic and partition.

    Args:
        max_bytes: topic -> largest batch that it takes, for topics with a small limit.
    """

    def __init__(self, max_bytes: dict[str, int]) -> None:
        self._max_bytes = max_bytes
        self._open: dict[str, dict[int, RecordBatch]] = {}
        self._sealed: list[tuple[str, int, RecordBatch]] = []

    size = staticmethod(size_alone)

    def fire(
        self, topic: str, partitions: int, rows: Sequence[Row], id_prefix: bytes, last: list[Header], now_ms: int
    ) -> None:
        """Add firings to one topic: the hot path of firing, about 1 µs a timer.

        Args:
            topic: callback topic of all rows.
            partitions: its number of partitions.
            rows: timers; the source of a timer is ``id_prefix`` and its offset, unless its origin names another one.
            id_prefix: ``<request topic>/<partition>/``.
            last: headers that come after the id.
            now_ms: timestamp of the records.
        """
        batches = self._open.setdefault(topic, {})
        keys, numbers = _keys_and_partitions(rows, partitions)
        for (offset, _, _, value, headers, origin), key, partition in zip(rows, keys, numbers, strict=True):
            source = b"%b%d" % (id_prefix, offset)
            if origin is None:
                all_headers = [(TIMER_ID, source), *last] if headers is None else [*headers, (TIMER_ID, source), *last]
            else:
                all_headers = [*(headers or ()), *_identity(origin, source), *last]
            batch = batches.get(partition) or self._begin(topic, partition)
            if batch.add(batch.count, now_ms, key, value, all_headers) is None:
                batch = self._next(topic, partition)
                batch.add(0, now_ms, key, value, all_headers)
            batch.count += 1

    def add_tombstones(
        self, topic: str, partition: int, tombstones: Iterable[tuple[bytes | None, list[Header]]], now_ms: int
    ) -> None:
        """Add tombstones, given by key and headers."""
        for key, headers in tombstones:
            self.add(topic, partition, key, None, headers, now_ms)

    def add(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Sequence[Header], now_ms: int
    ) -> None:
        """Add one record."""
        batch = self._open.setdefault(topic, {}).get(partition) or self._begin(topic, partition)
        listed = list(headers)  # the builder accepts only lists
        if batch.add(batch.count, now_ms, key, value, listed) is None:
            batch = self._next(topic, partition)
            batch.add(0, now_ms, key, value, listed)
        batch.count += 1

    def _begin(self, topic: str, partition: int) -> RecordBatch:
        batch = RecordBatch(min(MAX_BATCH_BYTES, self._max_bytes.get(topic, MAX_BATCH_BYTES)))
        self._open[topic][partition] = batch
        return batch

    def _next(self, topic: str, partition: int) -> RecordBatch:
        full = self._open[topic][partition]
        full.seal()
        self._sealed.append((topic, partition, full))
        return self._begin(topic, partition)

    def take(self) -> Iterator[tuple[str, int, RecordBatch]]:
        """Seal all batches, yield them in the order in which they were filled, and forget them."""
        yield from self._sealed
        for topic, batches in self._open.items():
            for partition, batch in batches.items():
                batch.seal()
                yield topic, partition, batch
        self._sealed, self._open = [], {}
