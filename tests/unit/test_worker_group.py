"""What members of the group send, also without an address or with other data, and which partitions have no owner."""

import json
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.admin import DescribeGroupsRequest

from timers.console.kafka_cluster import find_group
from timers.core import levels
from timers.core.deals import RAISED, SUPPORTS, URL, Joined, able_members, deal
from timers.kafka import group_access
from timers.kafka.aiokafka_internals.group import (
    DescribedGroup,
    Member,
    describe,
    member_of,
    owners,
    partitions_in,
    strangers_in,
    subscription_of,
    unowned_partitions,
)
from timers.kafka.aiokafka_internals.other_groups import (
    CONSUMER,
    GROUP_ID_NOT_FOUND,
    SHARE,
    STREAMS,
    DescribeConsumerGroup,
    DescribeConsumerGroupOfKafka3,
    DescribeShareGroup,
    DescribeStreamsGroup,
)
from timers.kafka.aiokafka_internals.requests import OneVersion
from timers.process.config.settings import Settings
from timers.worker.consumer.group_watch import PAUSES, REBALANCE_S, RED_S, UnownedPartitions


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
    assert member_of("foreign", sent, sent) == Member("foreign", is_ours=False)


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
    old, new = {SUPPORTS: 3, RAISED: 3}, {SUPPORTS: levels.SUPPORTED, RAISED: levels.FIRST_LEVEL}
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


# ---- members of other programs --------------------------------------------------------------------------------------

OURS, STRANGER = member_of("w1", b"", b""), Member("stranger", is_ours=False, host="/10.0.0.1")


def test_a_member_without_partitions_of_a_group_that_a_worker_deals_is_no_stranger() -> None:
    """The console consumer of Kafka and librdkafka's classic consumer get nothing, and disturb nobody."""
    assert DescribedGroup("Stable", [OURS, STRANGER]).strangers == []
    having = STRANGER._replace(partitions=(("t", 0),))
    assert DescribedGroup("Stable", [OURS, having]).strangers == [having]
    assert DescribedGroup("Stable", [OURS, STRANGER], CONSUMER).strangers == [STRANGER]


def test_members_of_a_group_without_a_worker_are_strangers_also_without_partitions() -> None:
    """Their strategy may keep workers out of the group."""
    assert DescribedGroup("Stable", [STRANGER]).is_taken
    assert not DescribedGroup("PreparingRebalance", [OURS]).is_taken and not DescribedGroup("Empty", []).is_taken


@pytest.mark.parametrize(
    "sent",
    [
        b"\0\0\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\0\0\0\0\0\1\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\0",
        b"\0\1\0\0\0\1\0\1t",
    ],
    ids=["null array", "null topic", "one byte", "cut"],
)
def test_a_share_and_a_subscription_of_any_bytes_are_read(sent: bytes) -> None:
    """Who may join the group chooses these bytes."""
    assert partitions_in(sent) == ()
    assert subscription_of(sent) == (frozenset(), None)


def test_strangers_are_named_with_the_way_on() -> None:
    many = [STRANGER._replace(worker_id=f"c\n{number}") for number in range(5)]
    assert strangers_in("timers", DescribedGroup("Stable", many, CONSUMER)) == (
        r"another program is in the group 'timers': client 'c\n0' at 10.0.0.1, client 'c\n1' at 10.0.0.1, "
        r"client 'c\n2' at 10.0.0.1, 2 more (protocol consumer). Stop it, or give it another group id "
        "(docs/operations.md#timersgrouptaken)"
    )


def test_a_share_group_keeps_its_id_when_its_members_have_gone() -> None:
    group = DescribedGroup("Empty", [], SHARE)
    assert group.is_taken and not group.strangers
    assert "delete it with `kafka-share-groups.sh --delete --group timers`" in strangers_in("timers", group)


@pytest.mark.parametrize("first", [DescribedGroup("Empty", [], SHARE), DescribedGroup("Empty", [])])
def test_who_has_the_group_is_asked_of_the_engine_only_if_the_workers_group_is_free(
    first: DescribedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = {"timers": first, "timers-engine": DescribedGroup("Stable", [STRANGER], CONSUMER)}
    monkeypatch.setattr(group_access, "describe", lambda _, group="timers": groups[group])
    found = find_group(Settings())
    assert found.workers == []
    assert ("share group" if first.is_taken else "in the group 'timers-engine'") in found.taken


_TOPICS: Any = ([(1, 2, "t", [0, 3], {})], {})
_SAID: dict[type[OneVersion], tuple[Any, ...]] = {
    DescribeConsumerGroup: ("id", None, None, 7, "c", "/10.0.0.1", ["t"], None, _TOPICS, _TOPICS, 1, {}),
    DescribeConsumerGroupOfKafka3: ("id", None, None, 7, "c", "/10.0.0.1", ["t"], None, _TOPICS, _TOPICS, {}),
    DescribeShareGroup: ("id", None, 7, "c", "/10.0.0.1", ["t"], _TOPICS, {}),
}


@pytest.mark.parametrize("request_", _SAID)
async def test_a_group_of_another_kind_is_asked_for_by_its_own_request(request_: type[OneVersion]) -> None:
    """Its answer is decoded from bytes as the brokers send them. Older brokers do not know some of the requests."""

    async def send(asked: Any) -> Any:
        if isinstance(asked, DescribeGroupsRequest):
            return SimpleNamespace(groups=[(0, "g", "Dead", "", "", [])])
        if type(asked) is not request_:
            raise IncompatibleBrokerVersion
        answer = asked.prepare({asked.API_KEY: (0, 1)}).RESPONSE_TYPE
        member = _SAID[request_]
        group: Any = (0, None, "g", "Stable", 7, 7, "uniform", [member], 0, {})
        return answer.decode(answer(0, [group], {}).encode())

    found = await describe(send, "g")
    assert (found.state, found.kind) == ("Stable", SHARE if request_ is DescribeShareGroup else CONSUMER)
    (member,) = found.members
    assert (member.worker_id, member.host, member.is_ours) == ("c", "/10.0.0.1", False)
    assert member.topics == {"t"} and member.partitions == (("t", 0), ("t", 3))


async def test_a_group_of_kafka_streams_is_described() -> None:
    topology = b"\1" + b"\0\0\0\1" + b"\2" + b"\2s" + b"\2\2t" + b"\1\1\1" + b"\0" + b"\0"
    endpoint, tasks = b"\1\2h\x1f\x90\0", b"\2\2s\2\0\0\0\3\0" + b"\1\1" + b"\0"
    member = b"\3id" + b"\0\0\0\7" + b"\0\0" + b"\2c" + b"\x0a/10.0.0.1" + b"\0\0\0\1" + b"\2p" + endpoint
    member += b"\1\1\1" + tasks + tasks + b"\0" + b"\0"
    group = b"\0\0" + b"\0" + b"\2g" + b"\7Stable" + b"\0\0\0\7" * 2 + topology + b"\2" + member + b"\0" * 4 + b"\0"

    async def send(asked: Any) -> Any:
        if isinstance(asked, DescribeGroupsRequest):
            return SimpleNamespace(groups=[(0, "g", "Dead", "", "", [])])
        if isinstance(asked, DescribeStreamsGroup):
            struct = asked.prepare({asked.API_KEY: (0, 0)})
            return struct.RESPONSE_TYPE.decode(b"\0" * 4 + b"\2" + group + b"\0")
        nothing = {"groups": [{"error_code": GROUP_ID_NOT_FOUND}]}
        return SimpleNamespace(to_object=lambda: nothing)

    found = await describe(send, "g")
    assert (found.state, found.kind) == ("Stable", STREAMS)
    assert found.strangers == [Member("c", is_ours=False, id="id", host="/10.0.0.1")]


async def test_a_group_that_does_not_exist_has_no_members() -> None:
    async def send(asked: Any) -> Any:
        if isinstance(asked, DescribeGroupsRequest):
            return SimpleNamespace(groups=[(0, "g", "Dead", "", "", [])])
        raise NotImplementedError

    assert await describe(send, "g") == DescribedGroup("Dead", [])


# ---- partitions without an owner -------------------------------------------------------------------------------------


TP = ("timer-by-id", 0)


class Watch:
    """Several workers that see the same partitions, on a clock of their own."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.workers = {name: UnownedPartitions(lambda: self.now) for name in "abc"}

    def pass_(self, seconds: float, readers: str | None) -> list[tuple[str, int]]:
        """(worker, seconds from now) of each request for a rebalance; ``readers`` read the partition without owner."""
        asked = []
        for step in range(int(seconds)):
            self.now += 1
            unowned = {} if readers is None else {TP: list(readers)}
            asked += [(name, step) for name, worker in self.workers.items() if worker.note(unowned, name)]
        return asked


def test_the_lowest_reader_asks_after_ten_seconds_and_the_next_one_later() -> None:
    watch = Watch()
    assert watch.pass_(REBALANCE_S, "bc") == []
    assert watch.pass_(1, "bc") == [("b", 0)]
    asked = watch.pass_(2 * REBALANCE_S, "bc")
    assert {name for name, _ in asked} == {"b", "c"}, "c asks too, as the request of b did not help"
    assert min(second for name, second in asked if name == "c") >= REBALANCE_S - 1


def test_a_partition_that_gets_an_owner_in_time_causes_no_rebalance() -> None:
    watch = Watch()
    for _ in range(5):
        assert watch.pass_(REBALANCE_S - 1, "abc") == []
        assert watch.pass_(1, None) == []


def test_rebalances_that_do_not_help_become_rare() -> None:
    watch = Watch()
    seconds = [second for name, second in watch.pass_(10_000, "a") if name == "a"]
    pauses = [later - earlier for earlier, later in pairwise(seconds)]
    assert pauses == sorted(pauses) and pauses[0] == REBALANCE_S and pauses[-1] == PAUSES.longest_s
    watch.pass_(1, None)
    assert watch.pass_(PAUSES.longest_s, None) == []
    assert ("a", REBALANCE_S) in watch.pass_(REBALANCE_S + 1, "a"), "later trouble is handled as quickly as the first"


def test_a_worker_that_does_not_read_the_topic_leaves_it_to_others() -> None:
    watch = Watch()
    assert {name for name, _ in watch.pass_(100, "c")} == {"c"}


def test_a_partition_is_red_until_it_has_an_owner() -> None:
    watch = Watch()
    watch.pass_(RED_S, "c")
    red = watch.workers["a"].red
    assert red() == {}
    watch.pass_(1, "c")
    assert red() == {TP: RED_S}
    watch.pass_(1, None)
    assert red() == {}


def test_a_look_without_an_answer_leaves_no_good_one() -> None:
    found = UnownedPartitions(lambda: 1000.0)
    assert found.count is None, "nothing was asked yet"
    found.note({}, "a")
    assert found.count == 0
    found.is_known = False
    assert found.count is None
    watch = Watch()
    watch.pass_(RED_S + 1, "c")
    red = watch.workers["a"]
    red.is_known = False
    assert red.count == 1, "a bad one stays until it is known to be better"
