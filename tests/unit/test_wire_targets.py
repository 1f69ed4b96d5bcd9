"""Records about targets: what is not readable is never used, and never silently left out."""

import pytest

from timers.core.fired import Command
from timers.v1 import targets_pb2
from timers.wire.progress import with_checksum
from timers.wire.targets import MAX_MARKS, Target, TargetUnreadable, decode, decode_all, encode

MAILS = Target(Command(7, "mails", True, 1_900_000_000, 600), "ops", "provider down", 1_899_999_999, ("k/1",))


def test_what_is_encoded_is_decoded() -> None:
    assert decode(*encode(MAILS)) == MAILS
    marks = tuple(map(str, range(MAX_MARKS + 1)))
    assert decode(*encode(MAILS._replace(marks=marks))).marks == marks[1:]


def test_each_damaged_byte_is_noticed() -> None:
    key, value = encode(MAILS)
    for at in range(len(value)):
        for damaged in (value[:at], value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]):
            with pytest.raises(TargetUnreadable):
                decode(key, damaged)


@pytest.mark.parametrize(
    ("key", "version", "says"),
    [(b"mails", 2, "version 2"), (b"orders", 1, "it copied"), (b"a b", 1, "no name"), (b"\xff", 1, "no name")],
)
def test_a_record_of_another_version_or_place_is_not_used(key: bytes, version: int, says: str) -> None:
    message = targets_pb2.Target(version=version, number=1, topic="mails", paused=True)
    with pytest.raises(TargetUnreadable, match=says):
        decode(key, with_checksum(message))


def test_one_damaged_record_hides_no_other_one() -> None:
    orders = Target(Command(3, "orders", False))
    values = dict([encode(MAILS), encode(orders)]) | {b"broken": b"x", b"a b": b"x", b"gone": b""}
    found = decode_all(values)
    assert found.commands == (orders.command, MAILS.command)
    assert (found.number, sorted(found.unreadable)) == (7, ["a b", "broken"])
    assert found.keys == {b"a b"}
