"""The index journal is bounded by bytes, whatever the lengths of ids are."""

from __future__ import annotations

import random

import pytest

from timers.core.operation import Entry
from timers.store.index_journal import ENTRY_BYTES, IndexJournal

MAX_BYTES = 100_000


def held_bytes(journal: IndexJournal) -> int:
    ids = [*journal._newer, *journal._older]
    return sum(map(len, ids)) + ENTRY_BYTES * len(ids)


@pytest.mark.parametrize("seed", range(8))
def test_memory_is_bounded_and_every_entry_reaches_the_index(seed: int) -> None:
    draw = random.Random(seed)
    journal = IndexJournal(lambda: MAX_BYTES)
    index: dict[bytes, Entry | None] = {}
    expected: dict[bytes, Entry | None] = {}
    most = 0
    for number in range(400):
        length = draw.choice([8, 8, 32, 500, 3000])  # of all ids of the batch
        batch: dict[bytes, Entry | None] = {
            b"%0*d" % (length, draw.randrange(3000)): (number, number, number) for _ in range(draw.randint(1, 12))
        }
        expected |= batch
        index |= journal.next_to_index(batch)
        journal.note_written(batch)
        most = max(most, held_bytes(journal))
    assert 2 * MAX_BYTES * 0.9 < most < 2 * MAX_BYTES * 1.5
    found, missing = journal.find(expected.keys())
    assert found | {id: index[id] for id in missing} == expected
