"""The addresses that members of the group send, also without an address or with other data."""

from __future__ import annotations

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from timers.worker.consumer.group import Member, assignor, owners


def described(worker_id: str, user_data: bytes, **partitions: list[int]) -> tuple[str, str, str, bytes, bytes]:
    metadata = ConsumerProtocolMemberMetadata(0, ["t"], user_data).encode()
    assignment = ConsumerProtocolMemberAssignment(0, list(partitions.items()), b"").encode()
    return f"member of {worker_id}", worker_id, "/127.0.0.1", metadata, assignment


def test_each_partition_has_the_address_of_its_owner() -> None:
    sent = assignor("http://one:6066").metadata(["t"])
    assert (sent.version, list(sent.subscription)) == (0, ["t"]), "older workers of the group read this"
    assert owners([described("one", sent.user_data, t=[0, 2], u=[1]), described("two", b"", t=[1])]) == {
        ("t", 0): Member("one", "http://one:6066"),
        ("t", 2): Member("one", "http://one:6066"),
        ("u", 1): Member("one", "http://one:6066"),
        ("t", 1): Member("two", ""),
    }


@pytest.mark.parametrize("user_data", [b"", b"\xff", b"{}", b"[]", b'{"url": 7}'])
def test_a_member_that_sends_something_else_has_no_address(user_data: bytes) -> None:
    assert owners([described("strange", user_data, t=[0])]) == {("t", 0): Member("strange", "")}


def test_a_member_without_partitions_owns_none() -> None:
    assert owners([("m", "idle", "/127.0.0.1", b"", b"")]) == {}
