"""Requests to timer batches: what a task does with the records of one partition that a micro-batch reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from timers.core.progress import Progress
from timers.core.timer import Decoded
from timers.spark.engine import timer_batches
from timers.spark.engine.timer_batches import Request
from timers.spark.requests import headers_of
from timers.wire import dead_letter, future, topics

RUN_BITS = 7
"""Runs of 2^7 offsets go to one bucket, the next to the next: a hot second is spread, and what shares a second and a
batch mostly stays together."""

COLUMNS = ("topic", "partition", "offset", "key", "value", "headers")
"""What is read of a request."""

SCHEMA = "bucket int, timer_batch binary"
"""What becomes of them."""

_SCHEMA = pa.schema([("bucket", pa.int32()), ("timer_batch", pa.binary())])


@dataclass(frozen=True)
class Accepting:
    """The function for ``mapInArrow``.

    A decision is made from the record alone and the same at every attempt: when an executor is lost, Spark does some of
    a micro-batch again, and what is done again must go the same way.

    Args:
        buckets: keys of the buckets.
        max_request_bytes: largest request value accepted.
        max_message_bytes: largest record that the dead letter topic takes.
        workers: how far workers of this app came before, by ``<topic>/<partition>``: what they have fired or
            dead-lettered is done.
    """

    buckets: Sequence[int]
    max_request_bytes: int
    max_message_bytes: int
    workers: Mapping[str, Progress] = field(default_factory=dict)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Timer batches of each batch, one for each bucket that gets something."""
        for batch in batches:
            packed = [
                (bucket, timer_batches.pack(items))
                for place, requests in _by_place(batch)
                for bucket, items in self._items(place, requests)
            ]
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([bucket for bucket, _ in packed], pa.int32()),
                    pa.array([timer_batch for _, timer_batch in packed], pa.binary()),
                ],
                schema=_SCHEMA,
            )

    def _items(self, place: str, requests: list[Request]) -> Iterator[tuple[int, list[timer_batches.Item]]]:
        count = len(self.buckets)
        by_bucket: list[list[Request]] = [[] for _ in self.buckets]
        for request in requests:
            by_bucket[(request[0] >> RUN_BITS) % count].append(request)
        for bucket, mine in zip(self.buckets, by_bucket, strict=True):
            if mine:
                yield bucket, self._read(place, mine)

    def _read(self, place: str, requests: list[Request]) -> list[timer_batches.Item]:
        decoded = future.decode(requests, self.max_request_bytes)
        before = self.workers.get(place)
        if before is not None and requests[0].offset < before.next_offset:
            decoded = _not_done(decoded, before)
        by_offset = {request[0]: request for request in requests}
        items = [
            timer_batches.timers(due_s, place, [by_offset[row[0]] for row in rows])
            for due_s, rows in decoded.rows.items()
        ]
        if decoded.rejected:
            items.append(
                timer_batches.letters(
                    [
                        dead_letter.encode(rejected, f"{place}/{rejected.offset}", self.max_message_bytes)
                        for rejected in decoded.rejected
                    ]
                )
            )
        return items


def _not_done(decoded: Decoded, progress: Progress) -> Decoded:
    """What a worker that came so far has left to do: the one sentence of :mod:`timers.core.machine`."""
    end = progress.next_offset
    left = {
        due_s: [row for row in rows if row[0] >= end or (due_s, row[0]) > progress.fired_through]
        for due_s, rows in decoded.rows.items()
    }
    return Decoded(
        {due_s: rows for due_s, rows in left.items() if rows}, [each for each in decoded.rejected if each.offset >= end]
    )


def _by_place(batch: pa.RecordBatch) -> Iterator[tuple[str, list[Request]]]:
    """Requests by ``<topic>/<partition>``, in ascending offset."""
    columns = (batch[name].to_pylist() for name in ("offset", "key", "value"))
    requests = list(map(Request._make, zip(*columns, headers_of(batch["headers"]), strict=True)))
    topics_read, partitions_read = pc.unique(batch["topic"]).to_pylist(), pc.unique(batch["partition"]).to_pylist()
    if len(topics_read) == len(partitions_read) == 1:
        yield _place(topics_read[0], partitions_read[0]), requests
        return
    by_place: dict[tuple[str, int], list[Request]] = {}
    places = zip(batch["topic"].to_pylist(), batch["partition"].to_pylist(), strict=True)
    for place, request in zip(places, requests, strict=True):
        by_place.setdefault(place, []).append(request)
    for (topic, partition), some in by_place.items():
        yield _place(topic, partition), some


def _place(topic: str, partition: int) -> str:
    return topics.source(topic, partition, 0)[:-2]
