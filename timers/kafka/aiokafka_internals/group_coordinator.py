"""The consumer's part in rebalances, for static members whose subscription changes over a restart.

A static member that rejoins a stable group gets its former assignment, also with another subscription: the broker
stores the new subscription and starts no rebalance (KAFKA-12759). Without this module

* partitions of a topic that was added have no owner until the next rebalance, which may never come;
* aiokafka fails at partitions of a topic that was removed (``AssertionError: ... unsubscribed topic``) and never joins.

So a consumer that joins compares its subscription with the one that the group has stored for it, and its assignment
with the partitions that exist. If they differ, it joins again with changed metadata: then the broker rebalances.

A consumer that closes does not join: the answer to its request comes when all members have joined, up to the rebalance
timeout later, and the consumer would wait for it. Then it would own partitions that it does not read.

A static member of aiokafka never tells the group that it leaves, so its partitions would wait for the session timeout
after each planned stop. Here it says so (KIP-345), unless another member has its name by then: the broker refuses that.

The leader of a group watches for added partitions. A static member that was the leader before a restart still is, but
below version 9 of the join request the broker does not tell it. It notices this by its instance id in the leader's id.

This module relies on:

=====================================================  ===============================================================
``aiokafka.consumer.consumer.GroupCoordinator``        looked up by that name when a consumer starts
``GroupCoordinator.ensure_active_group``               joins if necessary; None: it will be called again unless closing
``GroupCoordinator._closing``                          a future that is done when the consumer closes
``GroupCoordinator.close``                             ends the membership; a second call has no effect
``GroupCoordinator._maybe_leave_group``                called at the end of ``close``
``GroupCoordinator._do_rejoin_group``                  joins once; False: it will be called again
``GroupCoordinator._on_join_complete``                 applies an assignment, given as bytes
``GroupCoordinator._perform_assignment``               computes the group's assignment, in the leader
``CoordinatorGroupRebalance.perform_group_join``       sends the join and sync requests; returns protocol and assignment
``GroupCoordinator.reset_generation``                  forgets the member id; the next join begins anew
``GroupCoordinator._send_req``                         sends each request to the group's coordinator
``GroupCoordinator._group_subscription``               topics of all members, in the leader; else None
``GroupCoordinator._metadata_snapshot``                their numbers of partitions: the leader rejoins when they change
=====================================================  ===============================================================
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.consumer import consumer as consumer_module
from aiokafka.consumer.group_coordinator import CoordinatorGroupRebalance, GroupCoordinator
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.group import JoinGroupRequest

from timers.kafka.aiokafka_internals.group import (
    STABLE,
    DescribedGroup,
    NamedLeave,
    describe,
    subscription,
    unowned_partitions,
)

logger = logging.getLogger(__name__)

_DESCRIBE_TRIES = 10
_DESCRIBE_PAUSE_S = 0.2
"""Pause between tries, while the coordinator is moving to another broker."""


class Coordinator(GroupCoordinator):
    """aiokafka's group member, which checks that its first assignment is up to date."""

    _is_checked = False
    _stored: frozenset[str] | None = None
    """The subscription that the group had stored for this member before it joined; None if it is not known."""
    _leader_id = ""
    """The member id of the group's leader, in the last answer to a join request: its instance id, "-" and a UUID."""

    async def _send_req(self, request: Any) -> Any:
        response = await super()._send_req(request)
        if isinstance(request, JoinGroupRequest):
            self._leader_id = response.leader_id
        return response

    async def ensure_active_group(self, subscribed: Any, previous: Any) -> Any:
        if self._closing.done():
            return None
        joining = asyncio.ensure_future(super().ensure_active_group(subscribed, previous))
        try:
            await asyncio.wait([joining, self._closing], return_when=asyncio.FIRST_COMPLETED)
            return joining.result() if joining.done() else None
        finally:
            joining.cancel()

    async def _maybe_leave_group(self) -> None:
        name = self._group_instance_id
        if name is not None and self.member_id and self._closing.done():
            try:
                response = await self._send_req(NamedLeave(self.group_id, self.member_id, name))
                for code in (response.error_code, *(member[2] for member in response.members)):
                    if code:
                        raise for_code(code)
            except KafkaError as error:
                logger.warning(
                    "the group was not told that this worker leaves (%r): it waits for the session timeout", error
                )
        await super()._maybe_leave_group()

    def reset_generation(self) -> None:
        super().reset_generation()
        self._is_checked = False

    async def _do_rejoin_group(self, subscribed: Any) -> bool:
        if self._is_checked:
            return bool(await super()._do_rejoin_group(subscribed))
        if self.member_id == JoinGroupRequest.UNKNOWN_MEMBER_ID:
            self._stored = await self._stored_subscription()
        rebalance = CoordinatorGroupRebalance(
            self,
            self.group_id,
            self.coordinator_id,
            subscribed,
            self._assignors,
            self._session_timeout_ms,
            self._retry_backoff_ms,
        )
        joined = await rebalance.perform_group_join()
        if joined is None or not subscribed.active:
            await asyncio.sleep(self._retry_backoff_ms / 1000)
            return False
        self._is_checked = True
        protocol, assignment = joined
        if await self._is_outdated(subscribed.topics, assignment):
            logger.info("the group's assignment was made for other topics than this worker reads: rebalancing")
            self._change_metadata()
            return bool(await super()._do_rejoin_group(subscribed))
        if self._leader_id != self.member_id and self._leader_id.rsplit("-", 5)[0] == self._group_instance_id:
            self._group_subscription = set(subscribed.topics)
            self._metadata_snapshot = self._get_metadata_snapshot()
        await self._on_join_complete(self.generation, self.member_id, protocol, assignment)
        return True

    def request_rebalance(self) -> None:
        """Rejoin with changed metadata, so that the leader computes a new assignment."""
        self._change_metadata()
        self.request_rejoin()

    def _change_metadata(self) -> None:
        for assignor in self._assignors:
            assignor.change_metadata()

    async def _stored_subscription(self) -> frozenset[str] | None:
        described = await self._describe()
        if described is None or described.state != STABLE:  # else this join is part of a rebalance
            return None
        own_id = self._client._client_id
        return next((subscription(member) for member in described.members if member[1] == own_id), None)

    async def _is_outdated(self, topics: set[str], assignment: bytes) -> bool:
        """Whether the assignment was made for another subscription of this member or for fewer partitions."""
        if self._stored not in (None, topics) or without_unsubscribed(assignment, topics) != assignment:
            return True
        described = await self._describe()
        if described is None or described.state != STABLE:
            return False
        await self._client._maybe_wait_metadata()
        partitions = {topic: self._cluster.partitions_for_topic(topic) or () for topic in topics}
        return bool(unowned_partitions(described.members, partitions))

    async def _describe(self) -> DescribedGroup | None:
        """State and members of the group; None if the coordinator does not answer."""
        for _ in range(_DESCRIBE_TRIES):
            try:
                described = await describe(self)
            except KafkaError:
                return None
            if described is None or not described.error_code:
                return described
            if not for_code(described.error_code).retriable:
                return None
            await asyncio.sleep(_DESCRIBE_PAUSE_S)
        return None

    async def _perform_assignment(self, response: Any) -> Any:
        # The leader's metadata may be older than the topics and partitions that the rebalance is for.
        self._client.force_metadata_update()
        return await super()._perform_assignment(response)

    async def _on_join_complete(self, generation: int, member_id: str, protocol: str, assignment: bytes) -> None:
        known = without_unsubscribed(assignment, self._subscription.subscription.topics)
        await super()._on_join_complete(generation, member_id, protocol, known)


def without_unsubscribed(assignment: bytes, topics: set[str]) -> bytes:
    """An encoded assignment without partitions of topics that this member does not subscribe."""
    if not assignment:  # the member left the group before it got an assignment
        return bytes(ConsumerProtocolMemberAssignment(0, [], b"").encode())
    decoded = ConsumerProtocolMemberAssignment.decode(assignment)
    known = [(topic, partitions) for topic, partitions in decoded.assignment if topic in topics]
    if len(known) == len(decoded.assignment):
        return assignment
    return bytes(ConsumerProtocolMemberAssignment(decoded.version, known, decoded.user_data).encode())


async def request_rebalance(consumer: AIOKafkaConsumer) -> None:
    """Let the group compute a new assignment. On the consumer's event loop; it was started after :func:`install`."""
    consumer._coordinator.request_rebalance()


async def leave(consumer: AIOKafkaConsumer) -> None:
    """End the membership in the group, which then gives the partitions to others. On the consumer's event loop."""
    await consumer._coordinator.close()


def install() -> None:
    """Let all consumers that start later use :class:`Coordinator`. May be called again."""
    consumer_module.GroupCoordinator = Coordinator
