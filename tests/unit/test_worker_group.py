"""What members of the group send, also without an address or with other data, and which partitions have no owner."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from timers.core import levels
from timers.core.deals import RAISED, SUPPORTS, URL, Joined, able_members, deal
from timers.kafka.aiokafka_internals.group import Member, member_of, owners, unowned_partitions


def described(worker_id: str, user_data: bytes, *topics: str, **partitions: list[int]) -> Member:
    metadata = ConsumerProtocolMemberMetadata(0, topics or ["t"], user_data).encode()
    return member_of(worker_id, metadata, ConsumerProtocolMemberAssignment(0, list(partitions.items()), b"").encode())


def test_each_partition_has_the_address_of_its_owner() -> None:
    sent = json.dumps({URL: "http://one:6066"}).encode()
    found = owners([described("one", sent, t=[0, 2], u=[1]), described("two", b"", t=[1])])
    assert {tp: each[:2] for tp, each in found.items()} == {
        ("t", 0): ("one", "http://one:6066"),
        ("t", 2): ("one", "http://one:6066"),
        ("u", 1): ("one", "http://one:6066"),
        ("t", 1): ("two", ""),
    }
    assert len(set(found.values())) == 2, "queries ask each owner once"


@pytest.mark.parametrize("user_data", [b"", b"\xff", b"{}", b"[]", b'{"url": 7}', b"[" * 10**5])
def test_a_member_that_sends_something_else_has_no_address(user_data: bytes) -> None:
    assert owners([described("strange", user_data, t=[0])])["t", 0][:2] == ("strange", "")


@pytest.mark.parametrize("sent", [b"\0", b"\0\0", b"\xff" * 7, b"\0\0\0\0\0\1\0"])
def test_a_member_of_another_program_has_nothing(sent: bytes) -> None:
    assert member_of("foreign", sent, sent) == Member("foreign")


def test_a_member_without_partitions_owns_none() -> None:
    assert owners([member_of("idle", b"", b"")]) == {}


def test_a_member_says_which_level_it_supports() -> None:
    sent = json.dumps({SUPPORTS: 3, RAISED: 2}).encode()
    assert described("one", sent)[:4] == ("one", "", 3, 2)


@pytest.mark.parametrize("user_data", [b"", b"\xff", b"[]", b'{"supports": "2"}', b'{"url": "http://old:6066"}'])
def test_a_member_that_sends_no_level_supports_none(user_data: bytes) -> None:
    found = described("old", user_data)
    assert (found.supports, found.raised) == (0, 0)


def dealt(members: dict[str, Any]) -> dict[str, int]:
    """Member -> number of its share of four partitions."""
    return {
        id: len(share)
        for id, share in deal({id: Joined(["t"], sent) for id, sent in members.items()}, {"t": 4}).items()
    }


def test_partitions_go_to_members_that_support_the_level_of_the_app() -> None:
    old, new, raised = {SUPPORTS: 1, RAISED: 1}, {SUPPORTS: 2, RAISED: 1}, {SUPPORTS: 2, RAISED: 2}
    assert dealt({"old": old, "new": new}) == {"old": 2, "new": 2}, "before the raise"
    assert dealt({"old": old, "new": new, "raised": raised}) == {"old": 0, "new": 2, "raised": 2}
    assert dealt({"old": old, "none": None, "raised": raised}) == {"old": 0, "none": 0, "raised": 4}


def test_a_worker_of_a_version_before_the_first_level_gets_no_partitions() -> None:
    old, new = {SUPPORTS: 3, RAISED: 3}, {SUPPORTS: levels.SUPPORTED, RAISED: levels.FIRST}
    assert dealt({"old": old, "silent": {"url": ""}, "new": new}) == {"old": 0, "silent": 0, "new": 4}


def test_partitions_have_owners_although_no_member_supports_the_level_of_the_app() -> None:
    assert able_members({"a": {SUPPORTS: 1, RAISED: 2}, "b": None}) == ["a", "b"]


def test_partitions_without_an_owner_name_the_readers_of_their_topic() -> None:
    members = [
        described("two", b"", "t", "u", t=[0]),
        described("one", b"", "t", "u", t=[2], u=[0]),
        member_of("new", b"", b""),
    ]
    partitions = {"t": range(4), "u": range(1), "read-by-no-member": range(1)}
    assert unowned_partitions(members, partitions) == {("t", 1): ["one", "two"], ("t", 3): ["one", "two"]}


def test_a_member_does_not_own_partitions_of_a_topic_that_it_does_not_read() -> None:
    members = [described("closed", b"", "t", t=[0], u=[0, 1]), described("open", b"", "t", "u", t=[1])]
    assert unowned_partitions(members, {"t": range(2), "u": range(2)}) == {("u", 0): ["open"], ("u", 1): ["open"]}
