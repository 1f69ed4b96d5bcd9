"""A member keeps what it has until the next deal, joins again when it must, and ends if another one has its name."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from queue import SimpleQueue
from random import Random
from typing import Any

import pytest
from aiokafka.client import ConnectionGroup
from aiokafka.errors import GroupAuthorizationFailedError
from aiokafka.protocol.group import HeartbeatRequest, LeaveGroupRequest

from tests.harness.constants import Constants
from tests.harness.sim_group import NOT_COORDINATOR, SimGroup
from timers.core.deals import Joined
from timers.core.timer import TopicPartition
from timers.errors import NameTakenError, SettingsError
from timers.kafka.aiokafka_internals import group_member
from timers.kafka.aiokafka_internals.group_member import Deal, GroupMember
from timers.kafka.aiokafka_internals.requests import NamedHeartbeat, NamedLeave

INCONSISTENT_GROUP_PROTOCOL, INVALID_SESSION_TIMEOUT, GROUP_AUTHORIZATION_FAILED = 23, 26, 30


@pytest.fixture(autouse=True)
def quick(constants: Constants) -> None:
    constants(group_member, HEARTBEAT_S=0.002, NAME_S=0.005, REBALANCE_S=1.0)


def in_turn(members: Mapping[str, Joined], partitions: Mapping[str, int]) -> dict[str, Sequence[TopicPartition]]:
    """Deal to the readers of each topic in turn."""
    found: dict[str, list[TopicPartition]] = {id: [] for id in members}
    for topic, count in partitions.items():
        readers = sorted(id for id, each in members.items() if topic in each.topics)
        for partition in range(count if readers else 0):
            found[readers[partition % len(readers)]].append((topic, partition))
    return dict(found)


class Worker:
    """A worker that only takes part in the group.

    Attributes:
        deals: that it got.
        ended: errors that ended it.
        is_alive: whether it still works.
        says: what it says of itself.
    """

    def __init__(self, group: SimGroup, name: str, topics: Collection[str] = ("t",), session_s: float = 60.0) -> None:
        self.name = name
        self.is_alive = True
        self.deals: list[Deal] = []
        self.ended: list[BaseException] = []
        self.says: dict[str, Any] = {"url": f"http://{name}"}
        self.dealt_to: list[Mapping[str, Joined]] = []
        self.member = GroupMember(
            group.client(),
            "group",
            name,
            topics,
            session_s,
            lambda: self.says,
            self._deal,
            self.deals.append,
            self.ended.append,
            lambda: self.is_alive,
        )

    def _deal(self, members: Mapping[str, Joined], counts: Mapping[str, int]) -> dict[str, Sequence[TopicPartition]]:
        self.dealt_to.append(members)
        return in_turn(members, counts)

    @property
    def has(self) -> frozenset[TopicPartition]:
        """Its partitions."""
        return self.deals[-1].partitions if self.deals else frozenset()


@asynccontextmanager
async def running(*workers: Worker) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each.member.run()) for each in workers]
    try:
        async with asyncio.timeout(20):
            yield
            for task in tasks:
                if task.done():
                    task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(is_true: Callable[[], object]) -> None:
    while not is_true():
        await asyncio.sleep(0.001)


def of(*partitions: int, topic: str = "t") -> frozenset[TopicPartition]:
    return frozenset((topic, each) for each in partitions)


def generation_of(*workers: Worker) -> int:
    """The generation that all workers have been dealt; 0 if they differ."""
    found = {each.deals[-1].generation if each.deals and each.member.in_group else 0 for each in workers}
    return found.pop() if len(found) == 1 else 0


async def test_a_member_that_joins_gets_its_share_and_the_others_learn_it_by_their_next_heartbeat() -> None:
    group = SimGroup(t=4)
    one, two = Worker(group, "one"), Worker(group, "two")
    async with running(one):
        await until(lambda: one.has == of(0, 1, 2, 3))
        async with running(two):
            await until(lambda: generation_of(one, two) == 2)
            assert (one.has | two.has, len(one.has)) == (of(0, 1, 2, 3), 2)
            assert {each.sent["url"] for each in one.dealt_to[-1].values()} == {"http://one", "http://two"}
    assert one.ended == two.ended == []


async def test_between_two_deals_a_member_is_not_in_the_group_and_keeps_what_it_has() -> None:
    """Another member does not join again: the rebalance waits for it."""
    group = SimGroup(t=2)
    one, two, paused = Worker(group, "one"), Worker(group, "two"), Worker(group, "paused")
    async with running(one):
        async with running(paused):
            await until(lambda: generation_of(one, paused) == 2)
        deals = len(one.deals)
        async with running(two):
            await until(lambda: not one.member.in_group)
            assert await one.member.confirms() is False
            assert len(one.deals) == deals and not two.deals
            group.remove("paused")
            await until(lambda: generation_of(one, two) == 3)
            assert await one.member.confirms() is True


async def test_a_session_that_has_ended_is_found_by_a_heartbeat_and_the_member_joins_anew() -> None:
    group = SimGroup(t=2)
    one = Worker(group, "one")
    async with running(one):
        await until(lambda: one.deals)
        id = group.members["one"].id
        group.remove("one")
        assert await one.member.confirms() is False, "another member may own its partitions now"
        await until(lambda: one.member.in_group)
        assert group.members["one"].id != id and one.has == of(0, 1)
        one.member.request_rebalance()
        await until(lambda: len(one.deals) > 2)
        assert [each.anew for each in one.deals] == [True, True, False]
    assert one.ended == []


async def test_a_member_whose_name_another_one_has_taken_ends_and_leaves_the_name_to_it() -> None:
    group = SimGroup(t=2)
    one, twin = Worker(group, "one"), Worker(group, "one")
    async with running(one):
        await until(lambda: one.deals)
        async with running(twin):
            await until(lambda: one.ended)
            await until(lambda: twin.has == of(0, 1))
    (error,) = one.ended
    assert isinstance(error, NameTakenError) and error.exit_code == 6
    assert "another worker was started with TIMERS_WORKER_ID=one, and has the partitions of this one" in str(error)
    assert twin.ended == []


async def test_a_member_that_is_replaced_while_it_waits_for_others_ends() -> None:
    group = SimGroup(t=2)
    paused, one, twin = Worker(group, "paused"), Worker(group, "one"), Worker(group, "one")
    async with running(paused):
        await until(lambda: paused.deals)
    async with running(one):
        await until(lambda: "one" in group.members)
        async with running(twin):
            await until(lambda: one.ended)
            assert twin.ended == []


async def test_a_coordinator_that_moves_or_is_silent_ends_no_membership() -> None:
    group = SimGroup(t=2)
    one = Worker(group, "one")
    async with running(one):
        await until(lambda: one.deals)
        group.is_silent = True
        assert await one.member.confirms() is None
        await until(lambda: group.lookups > 1)
        group.is_silent, group.error = False, NOT_COORDINATOR
        lookups = group.lookups
        await until(lambda: group.lookups > lookups + 1)
        group.error = 0
        assert one.member.in_group and len(one.deals) == 1
        assert (await asyncio.wait_for(one.member.describe(), 5)).state == "Stable"
    assert one.ended == []


async def test_a_worker_that_starts_again_is_not_taken_for_its_own_successor_if_the_coordinator_moves() -> None:
    """The next coordinator knows the id that its former process had, and not the one that it was given in a join."""
    group = SimGroup(t=2)
    leader, before, after = Worker(group, "leader"), Worker(group, "one"), Worker(group, "one")
    async with running(leader):
        await until(lambda: leader.deals)
        async with running(before):
            await until(lambda: generation_of(before, leader))
        former = group.members["one"].id
        joined: list[str] = []

        def moves(members: Mapping[str, Joined], counts: Mapping[str, int]) -> dict[str, Sequence[TopicPartition]]:
            if not joined and any(
                id.startswith("one-") for id in members
            ):  # all have their ids, and none has its share
                joined.extend(members)
                group.move()
            return in_turn(members, counts)

        leader.member._deal = moves
        group.remove("one")
        async with running(after):
            await until(lambda: joined)
            assert former not in joined and group.members["one"].id == former
            await until(lambda: generation_of(after, leader))
    assert after.ended == leader.ended == []


async def test_a_question_about_the_group_does_not_wait_behind_a_request_to_join() -> None:
    """A broker answers the requests of a connection one after another, and a request to join when all have joined."""
    group = SimGroup(t=2)
    paused, one = Worker(group, "paused"), Worker(group, "one")
    async with running(paused):
        await until(lambda: paused.deals)
    sent: list[tuple[str, int]] = []
    send = one.member._client.send

    async def noted(node: int, request: Any, group: int) -> Any:
        sent.append((type(request).__name__, group))
        return await send(node, request, group)

    one.member._client.send = noted
    async with running(one):
        await until(lambda: "one" in group.members)
        await asyncio.wait_for(one.member.describe(), 5)
    kinds = dict(sent)
    assert kinds["DescribeGroupsRequest"] == ConnectionGroup.DEFAULT != kinds["JoinGroupRequest"]


async def test_a_member_that_leaves_looks_for_the_coordinator_if_it_has_none() -> None:
    group = SimGroup(t=2)
    one = Worker(group, "one")
    async with running(one):
        await until(lambda: one.deals)
    one.member._coordinator = None
    await one.member.leave(30)
    assert not group.members
    assert (await one.member.describe()).members == []


async def test_a_session_timeout_that_the_brokers_do_not_allow_ends_the_member_with_a_sentence() -> None:
    group = SimGroup(t=1)
    group.error = INVALID_SESSION_TIMEOUT
    one = Worker(group, "one", session_s=1.0)
    async with running(one):
        await until(lambda: one.ended)
    assert isinstance(one.ended[0], SettingsError) and "TIMERS_SESSION_TIMEOUT_S=1: " in str(one.ended[0])


async def test_a_refusal_ends_the_member_with_the_reason() -> None:
    group = SimGroup(t=2)
    group.error = GROUP_AUTHORIZATION_FAILED
    one = Worker(group, "one")
    async with running(one):
        await until(lambda: one.ended)
    assert isinstance(one.ended[0], GroupAuthorizationFailedError)


async def test_a_member_that_asks_gets_a_rebalance_and_one_that_says_nothing_new_does_not() -> None:
    group = SimGroup(t=2)
    one, two = Worker(group, "one"), Worker(group, "two")
    async with running(one, two):
        await until(lambda: generation_of(one, two) and len(group.members) == 2)
        leader, other = (one, two) if one.dealt_to else (two, one)
        generation = group.generation
        other.member.rejoin()
        await until(lambda: len(other.deals) > 1 and other.member.in_group)
        assert group.generation == generation
        other.member.request_rebalance()
        await until(lambda: generation_of(one, two) == generation + 1)
        assert leader.dealt_to


# ---- random histories ------------------------------------------------------------------------------------------------


class History:
    """Workers that come, go and are killed, and a coordinator that moves and is silent."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.group = SimGroup(t=3)
        self.all: list[Worker] = []
        self.running: dict[str, tuple[Worker, asyncio.Task[None]]] = {}

    def start(self) -> None:
        stopped = {"one", "two", "three", "four"} - self.running.keys()
        if stopped:
            worker = Worker(self.group, self.random.choice(sorted(stopped)))
            self.all.append(worker)
            self.running[worker.name] = worker, asyncio.create_task(worker.member.run())

    async def stop(self, *, leaves: bool) -> None:
        if self.running:
            worker, task = self.running.pop(self.random.choice(sorted(self.running)))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if leaves:
                await worker.member.leave(30)

    def end_session(self) -> None:
        """End the session of a member: of one that was killed, or of one that was only too slow."""
        if self.group.members:
            self.group.remove(self.random.choice(sorted(self.group.members)))

    async def step(self) -> None:
        choice = self.random.random()
        if choice < 0.3:
            self.start()
        elif choice < 0.5:
            await self.stop(leaves=choice < 0.4)
        elif choice < 0.65:
            self.end_session()
        elif choice < 0.75 and self.running:
            worker, _ = self.random.choice(list(self.running.values()))
            self.random.choice([worker.member.rejoin, worker.member.request_rebalance])()
        elif choice < 0.8:
            self.group.partitions["t"] = min(8, self.group.partitions["t"] + 1)
        elif choice < 0.9:
            self.group.error = self.random.choice([0, NOT_COORDINATOR])
        else:
            self.group.is_silent = self.random.random() < 0.4
        await asyncio.sleep(self.random.choice([0, 0, 0.001, 0.005]))

    async def settle(self) -> None:
        """Let all faults end: dead members lose their sessions, and each running one gets a deal."""
        self.group.error, self.group.is_silent = 0, False
        if not self.running:
            self.start()
        for name in self.group.members.keys() - self.running.keys():
            self.group.remove(name)

        def is_settled() -> bool:
            workers = [worker for worker, _ in self.running.values()]
            return self.group.members.keys() == self.running.keys() and generation_of(*workers) == self.group.generation

        await until(is_settled)


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_happens_each_partition_has_one_owner_in_a_deal(seed: int, constants: Constants) -> None:
    constants(group_member, RETRY_S=0.001)
    history = History(seed)
    try:
        async with asyncio.timeout(60):
            for _ in range(60):
                await history.step()
            await history.settle()
            dealt = [tp for worker, _ in history.running.values() for tp in worker.has]
            while (
                len(dealt) < history.group.partitions["t"]
            ):  # added partitions are found by the leader's next heartbeat
                await asyncio.sleep(0.002)
                await history.settle()
                dealt = [tp for worker, _ in history.running.values() for tp in worker.has]
    finally:
        for _, task in history.running.values():
            task.cancel()
    assert sorted(dealt) == sorted(of(*range(history.group.partitions["t"])))
    for generation in range(1, history.group.generation + 1):
        of_one = {worker: deal for worker in history.all for deal in worker.deals if deal.generation == generation}
        names = {worker.name: deal for worker, deal in of_one.items()}  # one that came back has the share of before
        given = [tp for deal in names.values() for tp in deal.partitions]
        assert len(given) == len(set(given)), f"two owners in deal {generation}"
    assert [each.ended for each in history.all if each.ended] == []


# ---- members that come back with other topics or to other partitions ------------------------------------------------


async def test_a_member_that_comes_back_gets_its_former_share_without_a_rebalance() -> None:
    group = SimGroup(t=2)
    async with running(before := Worker(group, "one")):
        await until(lambda: before.deals)
    async with running(again := Worker(group, "one")):
        await until(lambda: again.deals)
        assert (group.generation, again.has) == (1, of(0, 1))
        group.partitions["t"] = 3
        await until(lambda: again.has == of(0, 1, 2))
        assert group.generation == 2, "the broker still takes it for the leader: it watches partitions"


@pytest.mark.parametrize(
    ("before", "now", "has"),
    [
        (["t"], ["t", "u"], of(0, 1) | of(0, topic="u")),
        (["t"], ["u"], of(0, topic="u")),
    ],
    ids=["topic added", "other topic"],
)
async def test_a_member_with_other_topics_than_before_gets_a_new_deal(
    before: list[str], now: list[str], has: frozenset[TopicPartition]
) -> None:
    group = SimGroup(t=2, u=1)
    async with running(old := Worker(group, "one", before)):
        await until(lambda: old.deals)
    async with running(new := Worker(group, "one", now)):
        await until(lambda: new.deals)
        assert [each.partitions for each in new.deals] == [has], "no machine opens for the outdated deal"


async def test_a_topic_that_a_member_reads_no_more_goes_to_another_one() -> None:
    group = SimGroup(t=1, u=1)
    both = Worker(group, "b", ["t", "u"])
    async with running(both):
        async with running(before := Worker(group, "a", ["t", "u"])):
            await until(lambda: generation_of(before, both) == 2)
        async with running(now := Worker(group, "a", ["t"])):
            await until(
                lambda: now.deals and generation_of(now, both) and both.has | now.has >= of(0) | of(0, topic="u")
            )
            assert ("u", 0) in both.has and ("u", 0) not in now.has


async def test_a_member_that_leaves_makes_way_at_once() -> None:
    group = SimGroup(t=2)
    one = Worker(group, "one")
    async with running(one):
        async with running(two := Worker(group, "two")):
            await until(lambda: generation_of(one, two) == 2)
        await two.member.leave(30)
        await until(lambda: one.has == of(0, 1))
        assert not two.member.in_group


async def test_a_member_whose_name_another_one_has_does_not_take_it_with_it() -> None:
    group = SimGroup(t=2)
    async with running(one := Worker(group, "one")):
        await until(lambda: one.deals)
    async with running(twin := Worker(group, "one")):
        await until(lambda: twin.deals)
        await one.member.leave(30)
        assert await twin.member.confirms()
    await Worker(group, "three").member.leave(30)  # it never joined


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_member_that_leaves_while_it_joins_is_no_member_afterwards(is_known: bool) -> None:
    """Its request to join waits for a member that is paused, and so do all other requests of that connection."""
    group = SimGroup(t=4)
    paused, leaves = Worker(group, "paused"), Worker(group, "leaves")
    async with running(paused, *([leaves] if is_known else [])):
        await until(lambda: generation_of(paused, *([leaves] if is_known else [])))
    leaving = asyncio.create_task(leaves.member.run())
    leaves.member.request_rebalance()
    await until(lambda: group.members.get("leaves") and group.members["leaves"].joining)
    await asyncio.sleep(0.01)
    leaving.cancel()
    async with asyncio.timeout(20):
        await leaves.member.leave(30)
    assert group.members.keys() == {"paused"}


async def test_a_member_that_has_sent_no_request_to_join_takes_the_name_from_no_other() -> None:
    group = SimGroup(t=4)
    one, same_name = Worker(group, "one"), Worker(group, "one")
    async with running(one):
        await until(lambda: one.has == of(0, 1, 2, 3))
        group.is_unreachable = True
        async with running(same_name):
            await asyncio.sleep(0.02)
        group.is_unreachable = False
        await same_name.member.leave(30)
        assert group.members.keys() == {"one"}
        await asyncio.sleep(0.02)
        assert len(one.deals) == 1 and not one.ended


async def test_a_worker_that_works_no_more_is_silent_and_comes_back_as_a_new_member() -> None:
    group = SimGroup(t=4)
    one = Worker(group, "one")
    async with running(one):
        await until(lambda: one.has == of(0, 1, 2, 3))
        one.is_alive = False
        await asyncio.sleep(0.02)
        group.error = GROUP_AUTHORIZATION_FAILED  # any request would end it
        await asyncio.sleep(0.02)
        assert not one.ended, "it sent nothing"
        group.error = 0
        group.remove("one")
        one.is_alive = True
        await until(lambda: len(one.deals) == 2)
        assert one.deals[-1].anew and one.has == of(0, 1, 2, 3)


def test_a_leave_with_a_name_is_encoded_as_kafka_expects_it() -> None:
    request = NamedLeave("group", [("id", "twin")]).prepare({LeaveGroupRequest.API_KEY: (0, 5)})
    assert request.API_VERSION == 3
    assert request.encode() == b"\0\5group\0\0\0\1\0\2id\0\4twin"


def test_a_heartbeat_with_a_name_is_encoded_as_kafka_expects_it() -> None:
    request = NamedHeartbeat("group", 7, "id", "twin").prepare({HeartbeatRequest.API_KEY: (0, 4)})
    assert request.API_VERSION == 3
    assert request.encode() == b"\0\5group\0\0\0\7\0\2id\0\4twin"


def test_a_process_learns_why_it_is_not_in_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: Any) -> Any:
        raise RuntimeError("the certificate cannot be read")

    monkeypatch.setattr(group_member, "AIOKafkaClient", broken)
    told: SimpleQueue[BaseException] = SimpleQueue()
    with group_member.taking_part({}, "g", "", 10.0, {}, told.put):
        assert "certificate" in str(told.get(timeout=30))


# ---- members of other programs --------------------------------------------------------------------------------------


async def test_a_deal_of_the_brokers_is_not_followed_while_a_stranger_is_in_the_group() -> None:
    group = SimGroup(t=4)
    one, two = Worker(group, "one"), Worker(group, "two")
    async with running(one, two):
        await until(lambda: generation_of(one, two) and len(one.has) == 2)
        had, deals = one.has | two.has, len(one.deals)
        group.let_brokers_deal("stranger")
        await until(lambda: one.member.taken and two.member.taken)
        assert one.has | two.has == had == of(0, 1, 2, 3) and len(one.deals) == deals
        assert await one.member.confirms() is True, "it keeps what the last deal of a worker gave to it"
        await until(lambda: all("client 'stranger' at 10.0.0.1" in each.member.taken for each in (one, two)))
        group.let_brokers_deal("")
        await until(lambda: not (one.member.taken or two.member.taken) and generation_of(one, two))
        assert one.has | two.has == had
    assert one.ended == two.ended == []


async def test_a_worker_that_was_out_of_the_group_does_not_know_what_it_has_while_a_stranger_is_there() -> None:
    """Others may have got it meanwhile: to open it again would fence them."""
    group = SimGroup(t=2)
    one = Worker(group, "one")
    async with running(one):
        await until(lambda: one.deals)
        group.stranger = "stranger"
        group.members.clear()
        await until(lambda: one.member.taken)
        assert await one.member.confirms() is None and len(one.deals) == 1


async def test_a_deal_of_the_brokers_to_workers_alone_is_followed() -> None:
    """The stranger has gone, and the brokers do not change the group back."""
    group = SimGroup(t=2)
    one = Worker(group, "one")
    async with running(one):
        await until(lambda: one.deals)
        group.let_brokers_deal("stranger")
        await until(lambda: one.member.taken)
        group.let_brokers_deal("", is_kept=True)
        await until(lambda: not one.member.taken)
        assert one.has == of(0)
    assert one.ended == []


async def test_a_deal_of_a_stranger_that_leads_is_not_followed(constants: Constants) -> None:
    constants(group_member, SHARE_USER_DATA=b"")
    group = SimGroup(t=2)
    leader, one = Worker(group, "leader"), Worker(group, "one")
    leader.says = {}
    async with running(leader):
        await until(partial(len, leader.deals))
        async with running(one):
            await until(partial(getattr, one.member, "in_group"))
            assert one.member.taken and not one.deals


async def test_a_member_that_is_kept_out_asks_again(constants: Constants) -> None:
    constants(group_member, REFUSED_S=0.001)
    group = SimGroup(t=2)
    group.error = INCONSISTENT_GROUP_PROTOCOL
    one = Worker(group, "one")
    async with running(one):
        await until(lambda: one.member.taken)
        assert one.member.taken.startswith("another program has the group 'group'")
        group.error = 0
        await until(lambda: one.deals)
        assert not one.member.taken
    assert one.ended == []
