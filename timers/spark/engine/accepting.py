"""Requests to parcels: what a task does with the records of one partition that a micro-batch reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from timers.spark.engine import parcels
from timers.spark.engine.parcels import Request
from timers.wire import dead_letter, future, topics
from timers.wire.headers import Header

RUN_BITS = 7
"""Runs of 2^7 offsets go to one bucket, the next to the next: a hot second is spread, and what shares a second and a
batch mostly stays together."""

COLUMNS = ("topic", "partition", "offset", "key", "value", "headers")
"""What is read of a request."""

SCHEMA = "bucket int, parcel binary"
"""What becomes of them."""

_SCHEMA = pa.schema([("bucket", pa.int32()), ("parcel", pa.binary())])


@dataclass(frozen=True)
class Accepting:
    """The function for ``mapInArrow``.

    A decision is made from the record alone and the same at every attempt: when an executor is lost, Spark does some of
    a micro-batch again, and what is done again must go the same way.

    Args:
        buckets: keys of the buckets.
        max_request_bytes: largest request value accepted.
        max_message_bytes: largest record that the dead letter topic takes.
    """

    buckets: Sequence[int]
    max_request_bytes: int
    max_message_bytes: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Parcels of each batch, one for each bucket that gets something."""
        for batch in batches:
            packed = [
                (bucket, parcels.pack(items))
                for place, requests in _by_place(batch)
                for bucket, items in self._items(place, requests)
            ]
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([bucket for bucket, _ in packed], pa.int32()),
                    pa.array([parcel for _, parcel in packed], pa.binary()),
                ],
                schema=_SCHEMA,
            )

    def _items(self, place: str, requests: list[Request]) -> Iterator[tuple[int, list[parcels.Item]]]:
        count = len(self.buckets)
        by_bucket: list[list[Request]] = [[] for _ in self.buckets]
        for request in requests:
            by_bucket[(request[0] >> RUN_BITS) % count].append(request)
        for bucket, mine in zip(self.buckets, by_bucket, strict=True):
            if mine:
                yield bucket, self._read(place, mine)

    def _read(self, place: str, requests: list[Request]) -> list[parcels.Item]:
        decoded = future.decode(requests, self.max_request_bytes)
        by_offset = {request[0]: request for request in requests}
        items = [
            parcels.timers(due_s, place, [by_offset[row[0]] for row in rows]) for due_s, rows in decoded.rows.items()
        ]
        if decoded.rejected:
            items.append(
                parcels.letters(
                    [
                        dead_letter.encode(rejected, f"{place}/{rejected.offset}", self.max_message_bytes)
                        for rejected in decoded.rejected
                    ]
                )
            )
        return items


def _by_place(batch: pa.RecordBatch) -> Iterator[tuple[str, list[Request]]]:
    """Requests by ``<topic>/<partition>``, in ascending offset."""
    names, partitions = batch["topic"].to_pylist(), batch["partition"].to_pylist()
    columns = (batch["offset"].to_pylist(), batch["key"].to_pylist(), batch["value"].to_pylist(), _headers(batch))
    requests = list(map(Request, *columns))
    if not requests:
        return
    if (names[0], partitions[0]) == (names[-1], partitions[-1]) and len(set(partitions)) == 1:
        yield _place(names[0], partitions[0]), requests
        return
    by_place: dict[tuple[str, int], list[Request]] = {}
    for place, request in zip(zip(names, partitions, strict=True), requests, strict=True):
        by_place.setdefault(place, []).append(request)
    for (topic, partition), some in by_place.items():
        yield _place(topic, partition), some


def _place(topic: str, partition: int) -> str:
    return topics.source(topic, partition, 0)[:-2]


def _headers(batch: pa.RecordBatch) -> list[Sequence[Header] | None]:
    column = batch["headers"]
    if column.null_count == len(column):
        return [None] * len(column)
    return [
        None if headers is None else [(header["key"], header["value"]) for header in headers]
        for headers in column.to_pylist()
    ]
