"""The due timers of one machine in a micro-batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

pytest.importorskip("pyarrow", reason="needs the extra 'spark'")

from timers.core.keys import MAX_OFFSET, NEVER, OrderKey
from timers.core.timer import Row
from timers.spark.engine import timer_batches
from timers.spark.engine.due_store import DueStore
from timers.store import layout

DUE_S = 1000
GROUPS = 60
ROWS = 10


def row(offset: int) -> Row:
    return (offset, "t", "k", b"", None, None)


def test_a_busy_second_is_unpacked_a_few_times_however_many_chunks_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    store = DueStore(0, 0, ())
    groups = [
        each
        for first in range(0, GROUPS * ROWS, ROWS)
        for each in timer_batches.groups(0, {DUE_S: [row(offset) for offset in range(first, first + ROWS)]})
    ]
    store.add_due(reversed(groups))
    unpacked: Counter[bytes] = Counter()

    def unpack(data: bytes) -> Sequence[Row]:
        unpacked[data] += 1
        return layout.unpack(data)

    monkeypatch.setattr(timer_batches, "layout", type("Layout", (), {"unpack": staticmethod(unpack)}))
    fired: list[int] = []
    through: OrderKey = NEVER
    for size in [7, 25, 30] * GROUPS:
        chunk: list[Row] = []
        for _, rows in store.scan(through, DUE_S):
            chunk += rows
            if len(chunk) >= size:
                break
        if not chunk:
            break
        fired += [offset for offset, *_ in chunk]
        through = (DUE_S, chunk[-1][0])
        store.delete(through, len(chunk))
    assert fired == list(range(GROUPS * ROWS))
    assert max(unpacked.values()) <= 3
    store.delete((DUE_S, MAX_OFFSET), 0)
    assert store.pending == 0
