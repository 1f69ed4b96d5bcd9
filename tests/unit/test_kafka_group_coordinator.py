"""When a consumer that joins its group asks for a new assignment at once. The broker tests have a real coordinator."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.protocol.group import JoinGroupRequest, LeaveGroupRequest

from timers.core.deals import deal
from timers.kafka.aiokafka_internals import group_coordinator as module
from timers.kafka.aiokafka_internals.group import DescribedGroup, NamedLeave, NamedLeaveResponse, dealing_assignor
from timers.kafka.aiokafka_internals.group_coordinator import Coordinator

PARTITIONS = {"t": {0, 1}, "u": {0}}


def assignment(**partitions: list[int]) -> bytes:
    return bytes(ConsumerProtocolMemberAssignment(0, list(partitions.items()), b"").encode())


def member(topics: list[str], **partitions: list[int]) -> Any:
    metadata = ConsumerProtocolMemberMetadata(0, topics, b"").encode()
    return "worker-7-uuid", "worker-7", "/127.0.0.1", metadata, assignment(**partitions)


class Group:
    """The coordinator of a group with one static member, whose answers are given."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, state: str, *members: Any, leader: str = "worker-7-0-0-0-0-0"
    ) -> None:
        self.described = DescribedGroup(0, state, list(members))
        self.joined: list[bytes | None] = []
        self.applied: list[bytes] = []
        self.rejoined = 0
        group = self

        class Rebalance:
            def __init__(self, coordinator: Any, *_: Any) -> None:
                self.coordinator = coordinator

            async def perform_group_join(self) -> tuple[str, bytes] | None:
                self.coordinator.member_id = "worker-7-new"
                self.coordinator._leader_id = leader
                given = group.joined.pop(0)
                return None if given is None else ("roundrobin", given)

        async def describe(_: Any) -> DescribedGroup:
            return group.described

        async def rejoin(*_: Any) -> bool:
            group.rejoined += 1
            return True

        async def apply(_self: Any, _generation: int, _member: str, _protocol: str, given: bytes) -> None:
            group.applied.append(given)

        monkeypatch.setattr(module, "CoordinatorGroupRebalance", Rebalance)
        monkeypatch.setattr(module, "describe", describe)
        monkeypatch.setattr(GroupCoordinator, "_do_rejoin_group", rejoin)
        monkeypatch.setattr(GroupCoordinator, "_on_join_complete", apply)

    async def join(self, *topics: str, **given: list[int]) -> Coordinator:
        """A consumer of ``topics`` joins and is given partitions."""
        coordinator = consumer(*topics)
        self.joined.append(assignment(**given))
        assert await coordinator._do_rejoin_group(coordinator._subscription.subscription)
        return coordinator


def consumer(*topics: str) -> Coordinator:
    """The part of a consumer that joins, before its first join."""
    made = object.__new__(Coordinator)
    subscription = SimpleNamespace(topics=frozenset(topics), active=True)

    async def no_wait() -> None: ...

    attributes = {
        "member_id": JoinGroupRequest.UNKNOWN_MEMBER_ID,
        "group_id": "g",
        "generation": 1,
        "coordinator_id": 0,
        "_group_instance_id": "worker-7",
        "_group_subscription": None,
        "_assignors": [dealing_assignor(dict, deal)],
        "_session_timeout_ms": 1,
        "_retry_backoff_ms": 1,
        "_client": SimpleNamespace(_client_id="worker-7", _maybe_wait_metadata=no_wait),
        "_cluster": SimpleNamespace(partitions_for_topic=PARTITIONS.get),
        "_subscription": SimpleNamespace(subscription=subscription),
    }
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def sent(coordinator: Coordinator) -> bytes:
    return bytes(coordinator._assignors[0].metadata(["t"]).user_data)


async def test_an_unchanged_member_keeps_its_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(monkeypatch, "Stable", member(["t"], t=[0, 1]))
    coordinator = await group.join("t", t=[0, 1])
    assert (group.rejoined, group.applied) == (0, [assignment(t=[0, 1])])
    assert coordinator._group_subscription == {"t"}, "the broker still takes it for the leader: it watches partitions"
    assert sent(coordinator) == b"{}"


@pytest.mark.parametrize("leader", ["worker-77-0-0-0-0-0", "worker-7-7-0-0-0-0-0", "worker-0-0-0-0-0", ""])
async def test_a_member_that_never_led_watches_nothing(monkeypatch: pytest.MonkeyPatch, leader: str) -> None:
    group = Group(monkeypatch, "Stable", member(["t"], t=[0, 1]), leader=leader)
    assert (await group.join("t", t=[0, 1]))._group_subscription is None


@pytest.mark.parametrize(
    ("stored", "reads", "given"),
    [
        (["t"], ["t", "u"], {"t": [0, 1]}),
        (["t", "u"], ["t"], {"t": [0, 1], "u": [0]}),
        (["t", "u"], ["t"], {"t": [0, 1]}),
        (["t"], ["u"], {"t": [0, 1]}),
    ],
    ids=["topic added", "topic removed", "topic removed whose partitions others have", "other topic"],
)
async def test_a_changed_member_gets_a_new_assignment(
    monkeypatch: pytest.MonkeyPatch, stored: list[str], reads: list[str], given: dict[str, list[int]]
) -> None:
    group = Group(monkeypatch, "Stable", member(stored, **given))
    coordinator = await group.join(*reads, **given)
    assert (group.rejoined, group.applied) == (1, []), "no machine opens for the outdated assignment"
    assert sent(coordinator) != b"{}"
    await coordinator._do_rejoin_group(coordinator._subscription.subscription)
    assert group.rejoined == 2, "later rebalances are aiokafka's"


async def test_a_member_that_ended_between_its_two_joins_gets_a_new_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group has stored the new subscription, but made no new assignment."""
    group = Group(monkeypatch, "Stable", member(["t", "u"], t=[0, 1]))
    await group.join("t", "u", t=[0, 1])
    assert group.rejoined == 1


async def test_a_failed_join_is_repeated_with_what_the_group_had_stored_before(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(monkeypatch, "Stable", member(["t", "u"], t=[0, 1], u=[0]))
    coordinator = consumer("t")
    group.joined += [None, assignment(t=[0, 1])]
    assert not await coordinator._do_rejoin_group(coordinator._subscription.subscription)
    group.described = DescribedGroup(0, "Stable", [member(["t"], t=[0, 1])])
    assert await coordinator._do_rejoin_group(coordinator._subscription.subscription)
    assert group.rejoined == 1


async def test_a_join_that_is_part_of_a_rebalance_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(monkeypatch, "PreparingRebalance", ("m", "worker-7", "/", b"", b""))
    await group.join("t", "u", t=[0, 1], u=[0])
    assert group.rejoined == 0
    group = Group(monkeypatch, "Empty")
    await group.join("t", t=[0, 1])
    assert group.rejoined == 0


async def test_a_consumer_that_closes_does_not_wait_for_its_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers answer when all members have joined; one of them is paused."""
    joins: list[str] = []

    async def join(*_: Any) -> str:
        joins.append("begun")
        await asyncio.Event().wait()
        return "an assignment"

    monkeypatch.setattr(GroupCoordinator, "ensure_active_group", join)
    coordinator = consumer("t")
    coordinator._closing = asyncio.get_running_loop().create_future()
    joining = asyncio.ensure_future(coordinator.ensure_active_group(None, None))
    while not joins:
        await asyncio.sleep(0)
    assert not joining.done()
    coordinator._closing.set_result(None)
    assert await asyncio.wait_for(joining, 5) is None
    assert await coordinator.ensure_active_group(None, None) is None
    assert joins == ["begun"], "it begins no other join"


async def test_partitions_of_an_unsubscribed_topic_reach_no_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(monkeypatch, "Stable")
    coordinator = consumer("t")
    await coordinator._on_join_complete(1, "m", "roundrobin", assignment(t=[0], u=[0]))
    assert group.applied == [assignment(t=[0])]


def test_the_leave_of_a_static_member_is_encoded_as_kafka_expects_it() -> None:
    request = NamedLeave("group", "id", "worker-7").prepare({LeaveGroupRequest.API_KEY: (0, 5)})
    assert request.API_VERSION == 3
    assert request.encode() == b"\0\5group\0\0\0\1\0\2id\0\x08worker-7"


@pytest.mark.parametrize("code", [0, 82])
async def test_a_static_member_leaves_when_its_consumer_closes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    """A member that only joins anew, because it was removed, does not leave: it would lose its name's partitions."""
    asked: list[Any] = []

    async def send(_self: Any, request: Any) -> Any:
        asked.append(request)
        return NamedLeaveResponse(0, 0, [("id", "worker-7", code)])

    async def close(_self: Any) -> None: ...

    monkeypatch.setattr(Coordinator, "_send_req", send)
    monkeypatch.setattr(GroupCoordinator, "_maybe_leave_group", close)
    coordinator = consumer("t")
    coordinator.member_id = "worker-7-new"
    coordinator._closing = asyncio.get_running_loop().create_future()
    await coordinator._maybe_leave_group()
    assert not asked
    coordinator._closing.set_result(None)
    await coordinator._maybe_leave_group()
    assert [type(each) for each in asked] == [NamedLeave]
    assert ("was not told" in caplog.text) == bool(code)
