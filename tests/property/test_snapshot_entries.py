"""The stream of a snapshot is cut into the same keys and values by the Python form and by the compiled form."""

from struct import pack

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.harness.compiled import forms
from timers.wire import snapshot_entries

CUT = {form: module.cut for form, module in forms(snapshot_entries).items()}

ENTRIES = st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=300)), max_size=9)


def _stream(entries: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(pack(">II", len(key), len(value)) + key + value for key, value in entries)


@pytest.mark.parametrize("form", CUT)
@given(entries=ENTRIES, where=st.floats(0, 1))
def test_a_stream_cut_anywhere_gives_all_entries(form: str, entries: list[tuple[bytes, bytes]], where: float) -> None:
    stream = _stream(entries)
    at = int(where * len(stream))
    first, left = CUT[form](stream[:at])
    second, end = CUT[form](left + stream[at:])
    assert [*first, *second] == entries
    assert end == b""


@given(st.binary(max_size=200))
@example(b"\xff" * 8 + b"x")
@example(b"\x7f\xff\xff\xff\x80\x00\x00\x00")
def test_both_forms_cut_any_bytes_alike(stream: bytes) -> None:
    first, *others = (cut(stream) for cut in CUT.values())
    assert _stream(first[0]) + first[1] == stream
    assert all(each == first for each in others)
