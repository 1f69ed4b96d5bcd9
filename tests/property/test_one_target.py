"""An entry is looked at as if it were unpacked, by the Python form and by the compiled form."""

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from tests.harness.compiled import forms
from timers.machines.store import layout, one_target

LOOKS = {form: module.one_target for form, module in forms(one_target).items()}

NUMBERS = st.integers(0, 300) | st.integers(0, 2**64 - 1)
TEXTS = st.sampled_from(["mail", "sms", "", "m" * 31, "m" * 32, "ü" * 200]) | st.text(max_size=9)
TARGETS = st.sampled_from(["mail", "mail", "mail", "mali", "m" * 40, "ü", ""])
VALUES = st.binary(max_size=9) | st.sampled_from([b"v" * 255, b"v" * 256, b"v" * 70000])
HEADERS = st.none() | st.lists(st.tuples(TEXTS, st.none() | VALUES), max_size=3) | st.just([("h", b"")] * 20)
ORIGINS = st.none() | st.tuples(TEXTS, NUMBERS, st.integers(-1, 70000), st.none() | TEXTS)
ROWS = st.lists(
    st.tuples(
        NUMBERS, TARGETS, st.none() | TEXTS | st.binary(max_size=300), st.binary(max_size=70000), HEADERS, ORIGINS
    ),
    min_size=1,
    max_size=20,
)


def look(value: bytes) -> tuple[str, int, int, int] | None:
    first, *others = (each(value) for each in LOOKS.values())
    assert all(each == first for each in others)
    found: tuple[str, int, int, int] | None = first
    return found


@given(ROWS, st.booleans())
def test_an_entry_has_one_target_or_several(rows: list[Any], are_for_one: bool) -> None:
    if are_for_one:
        rows = [(offset, rows[0][1], *others) for offset, _, *others in rows]
    targets = {row[1] for row in rows}
    packed = layout.packer()(rows)
    if len(targets) > 1:
        assert look(packed) is None
    else:
        assert look(packed) == (rows[0][1], rows[0][0], rows[-1][0], len(rows))


def test_a_whole_group_is_looked_at() -> None:
    rows: list[Any] = [(offset, "mail", "k", b"", None, None) for offset in range(layout.GROUP_ROWS)]
    assert look(layout.packer()(rows)) == ("mail", 0, layout.GROUP_ROWS - 1, layout.GROUP_ROWS)


@given(ROWS, st.data())
def test_a_damaged_entry_is_one_that_unpacks_or_is_not_known(rows: list[Any], data: st.DataObject) -> None:
    packed = bytearray(layout.packer()([(row[0], rows[0][1], *row[2:]) for row in rows]))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, min(len(packed), 400) - 1))] = data.draw(st.integers(0, 255))
    value = bytes(packed[: data.draw(st.integers(len(packed) - 3, len(packed)))])
    found = look(value)
    try:
        unpacked = layout.unpack(value)
        expected = unpacked[0][1], unpacked[0][0], unpacked[-1][0], len(unpacked)
    except Exception:
        return
    assert found in (None, expected)


@given(st.binary(max_size=60))
@example(b"\xdc\xff\xff")
@example(b"\x91\x96\xcf")
@example(b"\x91\x93\x01\xa1m\xdc\xff\xff")
@example(b"\x91\x93\x01\xa1m\xc6\xff\xff\xff\xff")
@example(b"\x90")
@example(b"\x91\x93\x01\xa1\xff\xc0")
def test_both_forms_look_at_any_bytes_alike(value: bytes) -> None:
    look(value)
