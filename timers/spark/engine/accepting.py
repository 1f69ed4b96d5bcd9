"""The first step of the engine: it decodes requests, and packs them for the bucket of their partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from timers.core.progress import Progress
from timers.core.reading import Reader
from timers.request_formats import NATIVE
from timers.spark.columns import headers_of, record_batch, schema
from timers.spark.engine import timer_batches
from timers.spark.engine.timer_batches import Arrivals
from timers.wire.headers import Header

COLUMNS = ("partition", "offset", "key", "value", "headers")
"""Columns of a request that the engine reads."""

SCHEMA = schema("bucket int, arrivals binary")
"""Columns of the result."""

_ARROW = to_arrow_schema(SCHEMA)


class Request(NamedTuple):
    """One record of the request topic."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]


@dataclass(frozen=True)
class Accepting:
    """The function for ``mapInArrow``. Its decisions depend on the record and on the settings history alone [I4].

    Args:
        buckets: keys of the buckets.
        max_request_bytes: largest request value that is accepted from now on.
        progress: of each partition at the start of the query; only its settings history is used. If others have
            committed since then, the bucket notices that the settings differ.
        new: progress of partitions that were added later.
    """

    buckets: Sequence[int]
    max_request_bytes: int
    progress: Mapping[int, Progress] = field(default_factory=dict)
    new: Progress = field(default_factory=Progress)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the requests of each Arrow batch, one row for each partition, or more where its settings change."""
        for batch in batches:
            yield record_batch(
                [
                    (self.buckets[partition % len(self.buckets)], arrivals.pack())
                    for partition, requests in _by_partition(batch)
                    for arrivals in self.read(partition, requests)
                ],
                _ARROW,
            )

    def read(self, partition: int, requests: Sequence[Request]) -> Iterator[Arrivals]:
        """Decode requests of one partition, in ascending offset, and yield those with the same settings together."""
        reader = Reader(NATIVE.decoder, None, self.max_request_bytes)
        progress = self.progress.get(partition, self.new)
        for part, settings in reader.parts(requests, requests[-1].offset + 1, progress):
            decoded = reader.decode(part, settings)
            groups = timer_batches.groups(partition, decoded.rows)
            yield Arrivals(partition, part[0].offset, part[-1].offset + 1, settings, groups, decoded.rejected)


def _by_partition(batch: pa.RecordBatch) -> Iterator[tuple[int, list[Request]]]:
    """Yield the requests of each partition, in ascending offset."""
    columns = (batch[name].to_pylist() for name in ("offset", "key", "value"))
    requests = list(map(Request._make, zip(*columns, headers_of(batch["headers"]), strict=True)))
    partitions = pc.unique(batch["partition"]).to_pylist()
    if len(partitions) == 1:
        yield partitions[0], requests
        return
    by_partition: dict[int, list[Request]] = {}
    for partition, request in zip(batch["partition"].to_pylist(), requests, strict=True):
        by_partition.setdefault(partition, []).append(request)
    yield from by_partition.items()
