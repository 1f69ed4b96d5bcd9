"""The compiled and the Python form of ``record_starts`` decide alike, and trust only what clients write."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.harness.compiled import forms
from tests.harness.raw_batches import Fields, encoded
from timers.kafka.aiokafka_internals import record_starts

FORMS = forms(record_starts)
RECORDS: list[Fields] = [(None, bytes(70), []), (b"k", None, [("h", b"x")]), (b"", b"v", [])]
DATA = b"".join(encoded(RECORDS, 1_800_000_000_000))


@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
def test_records_of_clients_are_plain(form: Any) -> None:
    assert form.are_plain(b"head" + DATA, 4, 3, -1, 2)
    assert not form.are_plain(DATA, 0, 4, -1, 9), "there are only three"
    assert not form.are_plain(DATA, 0, 3, 0, 2), "the first offset was read before"
    assert not form.are_plain(DATA, 0, 3, -1, 1), "the last offset is not in the batch"
    second = len(encoded(RECORDS, 0)[0])
    for at, byte in ((2, 0x80), (4, 2), (second + 3, 0), (second + 3, 1), (second, 1), (0, 0xFF)):
        changed = bytearray(DATA)
        changed[at] = byte
        assert not form.are_plain(bytes(changed), 0, 3, -1, 2), (at, byte)


def test_both_forms_decide_alike() -> None:
    draw = random.Random(1)
    seen = set()
    for _ in range(3000):
        data = bytearray(DATA)
        for _ in range(draw.randint(0, 2)):
            data[draw.randrange(len(data))] = draw.choice([0, 1, 2, 0x7F, 0x80, 0xFF, draw.randrange(256)])
        decided = {form.are_plain(bytes(data), 0, 3, -1, 2) for form in FORMS.values()}
        assert len(decided) == 1, bytes(data).hex()
        seen |= decided
    assert seen == {True, False}
