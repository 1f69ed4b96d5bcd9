"""Conversions between Arrow batches and rows in Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa


def record_batch(rows: Iterable[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Rows as one Arrow batch. Headers may be (name, value) pairs; a batch without rows is allowed."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def headers_of(column: Any) -> list[Sequence[tuple[str, bytes | None]]]:
    """The headers of each record in an Arrow column, as (name, value) pairs; empty where the column has null."""
    if column.null_count == len(column):
        return [()] * len(column)
    # to_pylist() makes a dict of each header, which costs more than decoding the request.
    bounds = column.offsets.to_pylist()
    fields = column.values
    pairs = list(zip(fields.field("key").to_pylist(), fields.field("value").to_pylist(), strict=True))
    return [pairs[first:end] for first, end in pairwise(bounds)]
