"""The first step of the engine: it turns requests into timer batches, one for each bucket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from timers.core.progress import Progress
from timers.core.timer import Decoded
from timers.spark.arrow import headers_of, record_batch
from timers.spark.columns import schema
from timers.spark.engine import timer_batches
from timers.spark.engine.timer_batches import Request
from timers.wire import dead_letter, future, topics

RUN_BITS = 7
"""Each run of 2^7 offsets goes to one bucket, and the next run to the next bucket. This spreads a busy second over all
buckets, while most timers that share a second and a batch stay together."""

COLUMNS = ("topic", "partition", "offset", "key", "value", "headers")
"""Columns of a request that the engine reads."""

SCHEMA = schema("bucket int, timer_batch binary")
"""Columns of the result."""

_ARROW = to_arrow_schema(SCHEMA)


@dataclass(frozen=True)
class Accepting:
    """The function for ``mapInArrow``.

    Its decisions depend on the record alone, so each attempt decides the same: Spark repeats parts of a micro-batch
    when it loses an executor.

    Args:
        max_request_bytes: largest request value that is accepted.
        max_message_bytes: largest record that the dead letter topic takes.
        workers: progress of the workers that ran this app before, by ``<topic>/<partition>``. The engine leaves out the
            requests that they have fired or dead-lettered.
    """

    buckets: Sequence[int]
    max_request_bytes: int
    max_message_bytes: int
    workers: Mapping[str, Progress] = field(default_factory=dict)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the timer batches of each Arrow batch, one for each bucket that receives timers."""
        for batch in batches:
            packed = [
                (bucket, timer_batches.pack(items))
                for place, requests in _by_place(batch)
                for bucket, items in self._items(place, requests)
            ]
            yield record_batch(packed, _ARROW)

    def _items(self, place: str, requests: list[Request]) -> Iterator[tuple[int, list[timer_batches.Item]]]:
        count = len(self.buckets)
        by_bucket: list[list[Request]] = [[] for _ in self.buckets]
        for request in requests:
            by_bucket[(request[0] >> RUN_BITS) % count].append(request)
        for bucket, part in zip(self.buckets, by_bucket, strict=True):
            if part:
                yield bucket, self._decode(place, part)

    def _decode(self, place: str, requests: list[Request]) -> list[timer_batches.Item]:
        decoded = future.decode(requests, self.max_request_bytes)
        progress = self.workers.get(place)
        if progress is not None and requests[0].offset < progress.next_offset:
            decoded = _not_done(decoded, progress)
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
    """The timers and rejections that a worker with this progress has not fired or dead-lettered."""
    end = progress.next_offset
    left = {
        due_s: [row for row in rows if row[0] >= end or not progress.has_fired((due_s, row[0]))]
        for due_s, rows in decoded.rows.items()
    }
    return Decoded(
        {due_s: rows for due_s, rows in left.items() if rows}, [each for each in decoded.rejected if each.offset >= end]
    )


def _by_place(batch: pa.RecordBatch) -> Iterator[tuple[str, list[Request]]]:
    """Yield the requests of each ``<topic>/<partition>``, in ascending offset."""
    columns = (batch[name].to_pylist() for name in ("offset", "key", "value"))
    requests = list(map(Request._make, zip(*columns, headers_of(batch["headers"]), strict=True)))
    topics_read, partitions_read = pc.unique(batch["topic"]).to_pylist(), pc.unique(batch["partition"]).to_pylist()
    if len(topics_read) == len(partitions_read) == 1:
        yield topics.partition_name(topics_read[0], partitions_read[0]), requests
        return
    by_place: dict[tuple[str, int], list[Request]] = {}
    places = zip(batch["topic"].to_pylist(), batch["partition"].to_pylist(), strict=True)
    for place, request in zip(places, requests, strict=True):
        by_place.setdefault(place, []).append(request)
    for (topic, partition), part in by_place.items():
        yield topics.partition_name(topic, partition), part
