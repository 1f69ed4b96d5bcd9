"""The coordinator of one consumer group, in memory: Kafka's classic protocol for members with a name, and the brokers'
own dealing to such members, while a stranger uses the protocol of KIP-848."""

import asyncio
from types import SimpleNamespace
from typing import Any

from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import KafkaConnectionError, NodeNotReadyError
from aiokafka.protocol.admin import DescribeGroupsRequest
from aiokafka.protocol.group import JoinGroupRequest, SyncGroupRequest

from timers.kafka.aiokafka_internals.other_groups import DescribeConsumerGroup
from timers.kafka.aiokafka_internals.requests import NamedHeartbeat, NamedLeave

OK, NOT_COORDINATOR, ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCING, FENCED = 0, 16, 22, 25, 27, 82


class _Member:
    def __init__(self, id: str) -> None:
        self.id = id
        self.metadata = self.assignment = b""
        self.joining: asyncio.Future[Any] | None = None
        self.syncing: asyncio.Future[Any] | None = None


class SimGroup:
    """The coordinator.

    Args:
        partitions: topic -> number of its partitions.

    Attributes:
        members: name -> member.
        generation: number of the last rebalance.
        error: returned instead of an answer to the next requests, if not 0.
        is_silent: whether it takes no requests.
        is_unreachable: whether there is no connection to it, so no request is sent.
        lookups: how often it was looked for.
        stranger: client id of a member that lets the brokers deal; empty: there is none.
        is_kept: whether the brokers deal on when it has gone: their migration policy may say so.
    """

    def __init__(self, **partitions: int) -> None:
        self.partitions = partitions
        self.members: dict[str, _Member] = {}
        self.generation = 0
        self.error = 0
        self.is_silent = self.is_unreachable = False
        self.lookups = 0
        self.stranger = ""
        self.is_kept = False
        self._state = "Empty"
        self._leader = ""
        self._ids = 0
        self._broker = self._stored_generation = 0
        self._stored: dict[str, tuple[str, bytes, bytes]] = {}

    def client(self) -> Any:
        """What a member uses of a client of aiokafka. Of one connection, each request waits for the former answer."""
        last: dict[Any, asyncio.Task[Any]] = {}

        async def answer(former: asyncio.Task[Any] | None, node: int, request: Any) -> Any:
            if former is not None:
                await asyncio.wait([former])
            return await self._answer(node, request)

        async def send(node: int, request: Any, group: Any) -> Any:
            if self.is_unreachable:
                raise NodeNotReadyError
            last[group] = asked = asyncio.create_task(answer(last.get(group), node, request))
            asked.add_done_callback(lambda done: done.cancelled() or done.exception())  # else it is logged at any time
            return await asyncio.shield(asked)  # the coordinator knows nothing of a caller that waits no more

        async def done(*_: Any) -> bool:
            return True

        async def look_up(*_: Any) -> int:
            self.lookups += 1
            return self._broker

        cluster = SimpleNamespace(partitions_for_topic=lambda topic: set(range(self.partitions.get(topic, 0))))
        return SimpleNamespace(
            cluster=cluster,
            send=send,
            coordinator_lookup=look_up,
            set_topics=lambda topics: None,
            force_metadata_update=done,
            _conns={},
        )

    def remove(self, name: str) -> None:
        """End the session of a member."""
        self._answer_waiting(self.members.pop(name), UNKNOWN_MEMBER)
        self._prepare()

    def move(self) -> None:
        """Let another broker take the coordinator's place: it knows what was stored with the last deal."""
        waiting = list(self.members.values())
        self.members.clear()
        for name, (id, metadata, assignment) in self._stored.items():
            self.members[name] = member = _Member(id)
            member.metadata, member.assignment = metadata, assignment
        self._state, self.generation = "Stable", self._stored_generation
        self._broker += 1
        for each in waiting:
            self._answer_waiting(each, NOT_COORDINATOR)

    async def _answer(self, node: int, request: Any) -> Any:
        await asyncio.sleep(0)
        if self.is_silent:
            raise KafkaConnectionError("no answer")
        if isinstance(request, DescribeConsumerGroup):
            return self._described_by_brokers()
        if isinstance(request, DescribeGroupsRequest) and self._brokers_deal:
            return SimpleNamespace(groups=[(0, "group", "Dead", "", "", [])])
        if isinstance(request, DescribeGroupsRequest):
            found = [(each.id, name, "/", each.metadata, each.assignment) for name, each in self.members.items()]
            return SimpleNamespace(groups=[(0, "group", self._state, "consumer", "roundrobin", found)])
        if self.error or node != self._broker:
            return SimpleNamespace(error_code=self.error or NOT_COORDINATOR, members=[])
        if isinstance(request, JoinGroupRequest):
            return await self._join(request._member_id, request._group_instance_id, request._group_protocols[0][1])
        if isinstance(request, SyncGroupRequest):
            return await self._sync(request)
        if isinstance(request, NamedLeave):
            _, [(id, name)] = request.fields
            if not id and name in self.members:
                id = self.members[name].id  # its first request to join has no answer yet
            refused = self._judge(id, name, self.generation)
            if refused in (OK, REBALANCING):
                self.remove(name)
                refused = OK
            return SimpleNamespace(error_code=OK, members=[(id, name, refused)])
        assert isinstance(request, NamedHeartbeat)
        _, generation, id, name = request.fields
        return SimpleNamespace(error_code=self._judge(id, name, generation))

    def _judge(self, id: str, name: str, generation: int) -> int:
        if name not in self.members:
            return UNKNOWN_MEMBER
        if self.members[name].id != id:
            return FENCED
        if self._state == "PreparingRebalance":
            return REBALANCING
        return OK if generation == self.generation else ILLEGAL_GENERATION

    # ---- a stranger ----------------------------------------------------------------------------------------------

    @property
    def _brokers_deal(self) -> bool:
        return bool(self.stranger) or self.is_kept

    def let_brokers_deal(self, stranger: str, *, is_kept: bool = False) -> None:
        """Let a member that uses the protocol of KIP-848 come, or go. Each member has to join again."""
        self.stranger, self.is_kept = stranger, is_kept
        self.generation += 1
        self._state = "Stable" if self._brokers_deal else "PreparingRebalance"
        self._leader = ""
        for member in self.members.values():
            member.assignment = bytes(ConsumerProtocolMemberAssignment(0, [("t", [0])], b"").encode())
            self._answer_waiting(member, REBALANCING)

    def _described_by_brokers(self) -> Any:
        names = [(name, name, 0) for name in self.members] + [(self.stranger, None, 1)] * bool(self.stranger)
        found = [
            {
                "client_id": client,
                "instance_id": name,
                "member_id": client,
                "client_host": "/10.0.0.1",
                "subscribed_topics": ["t"],
                "assignment": {"topics": [{"topic": "t", "partitions": [0]}]},
                "member_type": type,
            }
            for client, name, type in names
        ]
        group = {"error_code": OK, "state": "Stable", "members": found}
        return SimpleNamespace(to_object=lambda: {"groups": [group]})

    # ---- joining -------------------------------------------------------------------------------------------------

    async def _join(self, id: str, name: str, metadata: bytes) -> Any:
        member = self.members.get(name)
        if id and (member is None or member.id != id):
            return SimpleNamespace(error_code=UNKNOWN_MEMBER if member is None else FENCED)
        known_leader = self._leader
        if not id:
            self._ids += 1
            replaced, member = member, _Member(f"{name}-0-0-0-0-{self._ids}")
            self.members[name] = member
            if replaced is not None:
                self._answer_waiting(replaced, FENCED)
                member.assignment = replaced.assignment
                self._leader = member.id if self._leader == replaced.id else self._leader
                if self._state == "Stable":  # KAFKA-12759: no rebalance, and the member is not told that it leads
                    member.metadata = metadata
                    return self._joined(member, known_leader, [])
        assert member is not None
        if self._brokers_deal:
            return self._joined(member, "", [])
        unchanged = member.metadata == metadata and member.id != self._leader
        member.metadata = metadata
        if id and self._state == "Stable" and unchanged:
            return self._joined(member, known_leader, [])
        member.joining = asyncio.get_running_loop().create_future()
        self._prepare()
        return await member.joining

    def _answer_waiting(self, member: _Member, error_code: int) -> None:
        for waiting in (member.joining, member.syncing):
            if waiting is not None and not waiting.done():
                waiting.set_result(SimpleNamespace(error_code=error_code))

    def _prepare(self) -> None:
        """Begin a rebalance, and end its first part when all members have joined."""
        self._state = "PreparingRebalance"
        for member in self.members.values():
            if member.syncing is not None and not member.syncing.done():
                member.syncing.set_result(SimpleNamespace(error_code=REBALANCING))
        members = list(self.members.values())
        if not members or any(each.joining is None or each.joining.done() for each in members):
            return
        self.generation += 1
        self._state, self._leader = "CompletingRebalance", members[0].id
        all_of_them = [(each.id, name, each.metadata) for name, each in self.members.items()]
        for each in members:
            assert each.joining is not None
            given = all_of_them if each.id == self._leader else []
            each.joining.set_result(self._joined(each, self._leader, given))

    def _joined(self, member: _Member, leader: str, members: list[Any]) -> Any:
        return SimpleNamespace(
            error_code=OK, member_id=member.id, generation_id=self.generation, leader_id=leader, members=members
        )

    async def _sync(self, request: Any) -> Any:
        refused = self._judge(request._member_id, request._group_instance_id, request._generation_id)
        if refused:
            return SimpleNamespace(error_code=refused)
        member = self.members[request._group_instance_id]
        if member.id == self._leader and self._state == "CompletingRebalance":
            shares = dict(request._group_assignment)
            self._state = "Stable"
            self._stored_generation = self.generation
            self._stored = {
                name: (each.id, each.metadata, shares.get(each.id, b"")) for name, each in self.members.items()
            }
            for each in self.members.values():
                each.assignment = shares.get(each.id, b"")
                if each.syncing is not None and not each.syncing.done():
                    each.syncing.set_result(self._synced(each))
        if self._state == "Stable":
            return self._synced(member)
        member.syncing = asyncio.get_running_loop().create_future()
        return await member.syncing

    def _synced(self, member: _Member) -> Any:
        return SimpleNamespace(error_code=OK, member_assignment=member.assignment)
