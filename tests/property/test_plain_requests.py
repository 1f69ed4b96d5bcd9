"""The reader of plain requests, as Python and compiled, answers any bytes as the complete reader does."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.harness.compiled import forms
from tests.property.unicode_text import TEXT
from tests.property.wire_records import GOOD_VALUES, KEYS, RECORDS, Record, numbered
from timers.core.timer import CutValue, Decoded
from timers.wire import future, plain_requests

LIMIT = 60


READERS = {form: module.read_plain for form, module in forms(plain_requests).items()}


def _decoded(records: list[Any], limit: int, reader: str | None) -> Decoded:
    """What is decoded by the complete reader alone, or with a reader of plain requests before it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(future, "IS_COMPILED", reader is not None)
        if reader is not None:
            patch.setattr(future, "read_plain", READERS[reader])
        return future.decode(records, limit)


def _agree(records: list[Any], limit: int = LIMIT) -> None:
    expected = _decoded(records, limit, None)
    for reader in READERS:
        found = _decoded(records, limit, reader)
        assert found == expected, reader
        assert list(found.rows) == list(expected.rows), "another order of seconds"


VARINTS = st.integers(0, 2**35).map(lambda number: _varint(number)) | st.binary(min_size=1, max_size=11)


def _varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*data, number])


def _field(tag: int, content: bytes, length: bytes | None) -> bytes:
    return bytes([tag]) + (_varint(len(content)) if length is None else length) + content


CONTENTS = st.sampled_from([b"t", b"orders", b"..", b"", b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"])
FIELDS = st.builds(
    _field,
    st.sampled_from([0x0A, 0x12, 0x1A, 0x1A, 0x08, 0x22, 0x0B, 0x0C, 0x0D, 0x09]),
    CONTENTS | TEXT.map(str.encode) | st.binary(max_size=20),
    st.none() | st.none() | VARINTS,
)
"""Fields of a Future, right or wrong, with lengths that are right, wrong, too long or cut."""
HOSTILE = st.lists(FIELDS, max_size=5).map(b"".join)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A sound request with a byte changed, left out or added."""
    data = draw(GOOD_VALUES)
    at = draw(st.integers(0, len(data)))
    return data[:at] + draw(st.binary(max_size=2)) + data[at + draw(st.integers(0, 2)) :]


PLAIN_KEYS = st.sampled_from([b"7", b"007", b"8"])
MOSTLY_PLAIN = st.lists(st.builds(Record, PLAIN_KEYS | KEYS, HOSTILE | damaged() | GOOD_VALUES), max_size=25)


@given(RECORDS)
def test_any_records(records: list[Record]) -> None:
    _agree(numbered(records))


@given(MOSTLY_PLAIN, st.sampled_from([0, 1, 10, LIMIT, 2**31 - 1]))
@example([Record(b"7", b"\x0a\x01t"), Record(b"7", b"\x0a\x01t\x0a\x01t")], LIMIT)  # a repeated field
@example([Record(b"7", b"\x0a\x01t"), Record(b"7", b"\x0a\x81\x00t")], LIMIT)  # a length that is longer than needed
@example([Record(b"7", b"\x0a\x01t"), Record(b"7", b"\x0a\x01t\x12\x01\xff\x12\x01k")], LIMIT)  # not UTF-8, replaced
@example([Record(b"7", b"\x0a\x01t"), Record(b"7", b"\x0a\x01")], LIMIT)  # cut
def test_hostile_bytes_after_sound_requests(records: list[Record], limit: int) -> None:
    first = Record(b"7", future.encode("orders", "k", b"v"))
    _agree(numbered([first, Record(b"8", future.encode("t", "", b"")), *records]), limit)


def test_a_value_that_was_cut_is_not_plain() -> None:
    whole = future.encode("orders", "k", b"v")
    cut = CutValue.of(whole, 10**9, bytes(32))
    _agree(numbered([Record(b"7", whole), Record(b"7", cut)]), 10**6)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("seconds", [1, 200])
def test_plain_requests_are_not_given_to_the_complete_reader(reader: str, seconds: int) -> None:
    keys = [b"%d" % (number % seconds) for number in range(200)]
    values = [future.encode("orders", f"k{number}", b"v" * number) for number in range(200)]
    records = numbered([Record(*each) for each in zip(keys, values, strict=True)])
    others: list[Any] = []
    rows: dict[Any, list[Any]] = {}
    READERS[reader](records, 10**6, rows, {b"orders": "orders"}, others.extend, lambda key: rows.setdefault(key, []))
    assert others == [] and list(rows) == keys[:seconds]
    found = sorted(row for group in rows.values() for row in group)
    assert found == [(3 * number, "orders", f"k{number}", b"v" * number, None, None) for number in range(200)]
