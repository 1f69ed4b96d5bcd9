"""One member of a consumer group, in Kafka's classic protocol.

aiokafka's own member gives up all partitions before it joins again, reads what it has, and sends heartbeats without its
name. This one only joins, and says what the group has dealt to it: until the next deal it keeps what it has. It uses
the client, the requests and the encoding of aiokafka.

A rebalance has two requests. All members join; the leader, one of them, gets what all of them say of themselves, and
deals the partitions. Then each gets its share with the answer to its second request (sync). A member learns that a
rebalance has begun from the answer to its next heartbeat.

The member has a name (static membership). One that comes back under its name, into a group that needs no rebalance,
gets its former share: also with another subscription, and although partitions were added (KAFKA-12759). So it looks
whether its share is up to date, and joins again with changed metadata if not: then the group rebalances. The broker
still takes it for the leader if it was one, but tells it so only from version 9 of the join request on. It notices this
by its name in the leader's id: the leader watches for added partitions.

A deal that no worker has made is not followed. The brokers deal if a member of another program uses the protocol of
KIP-848: the answer to a join request then names no leader. Or a member of another program leads. Until it has gone,
each worker keeps what it had, and names it. The seal in each share keeps such members out of a group in which workers
were first.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    KafkaError,
    MemberIdRequired,
    NodeNotReadyError,
    NotCoordinatorForGroupError,
    RebalanceInProgressError,
    RequestTimedOutError,
    UnknownMemberIdError,
    for_code,
)
from aiokafka.protocol.group import JoinGroupRequest, SyncGroupRequest

from timers.core.deals import URL, Joined
from timers.core.timer import TopicPartition
from timers.errors import NameTakenError, SettingsError
from timers.kafka.aiokafka_internals import group as groups
from timers.kafka.aiokafka_internals import sessions
from timers.kafka.aiokafka_internals.group import (
    RUNBOOK,
    SHARE_USER_DATA,
    STABLE,
    DescribedGroup,
    is_sealed,
    partitions_in,
    strangers_in,
    subscription_of,
    unowned_partitions,
)
from timers.kafka.aiokafka_internals.metadata import start_patiently
from timers.kafka.aiokafka_internals.other_groups import CONSUMER
from timers.kafka.aiokafka_internals.requests import NamedHeartbeat, NamedLeave, by_topic
from timers.process.threads import LoopThread

logger = logging.getLogger(__name__)

PROTOCOL = "roundrobin"
"""Name under which all versions of the worker deal. A group has one, which all of its members must know."""

FENCED_INSTANCE_ID = 82
"""Kafka's error code: another member has this one's name. aiokafka has no name for it."""

ANSWER_S = 5.0
"""A coordinator that does not answer for so long is looked up again: another broker may have its place."""

JOIN_MARGIN_S = 10.0
"""How much longer than a rebalance may take the answer to a join request is waited for."""

RETRY_S = 0.2
"""Pause before the coordinator is looked up again."""

REFUSED_S = 1.0
"""Pause before a member asks again to join a group that another program has."""

NAME_S = 2.0
"""Seconds between two questions who has the group."""

HEARTBEAT_S = 1.0
"""A member learns of a rebalance from the answer to its next heartbeat, and all others wait for it. So this is shorter
than Kafka's default of 3 s, and does not grow with the session timeout."""

REBALANCE_S = 60.0
"""How long the group waits for its members to join. They join within about :data:`HEARTBEAT_S`; one that is
silent is removed when its session ends."""

LEAVE_TIMEOUT_S = 3.0
"""How long a member that ends waits for the group's coordinator."""

_NONCE = "nonce"
"""JSON key in what a member says: random text that it changes to get a rebalance."""


class Deal(NamedTuple):
    """What the group has dealt to a member."""

    generation: int
    """Number of the deal."""
    partitions: frozenset[TopicPartition]
    anew: bool
    """Whether the member was not in the group before: others may have had its partitions meanwhile."""


class GroupMember:
    """Takes part in a group. Methods run on the event loop of its client, if they do not say otherwise.

    Args:
        client: of aiokafka; another consumer may use it too.
        name: unique in the group; the same after a restart.
        session_s: it is removed after so many seconds without a heartbeat.
        sent: returns what it says of itself, JSON values by name. Called whenever it joins.
        deal: gets what all members say and how many partitions each topic has; returns the partitions of each member.
        on_dealt: called after each rebalance, also if nothing has changed.
        on_ended: called once with an error that ends the member.
        is_alive: whether the worker still works. If not, the member is silent, and the group removes it.

    Attributes:
        in_group: whether the last deal stands; false before the first one and during a rebalance. Any thread.
        taken: a sentence about the programs that have the group: they keep this member out, or it does not follow
            their deal. Empty: there are none. Any thread.
    """

    def __init__(
        self,
        client: AIOKafkaClient,
        group: str,
        name: str,
        topics: Collection[str],
        session_s: float,
        sent: Callable[[], Mapping[str, Any]],
        deal: Callable[[Mapping[str, Joined], Mapping[str, int]], Mapping[str, Sequence[TopicPartition]]],
        on_dealt: Callable[[Deal], None],
        on_ended: Callable[[BaseException], None],
        is_alive: Callable[[], bool],
    ) -> None:
        self.in_group = False
        self.taken = ""
        self._client = client
        self._group = group
        self._name = name
        self._topics = frozenset(topics)
        self._session_s = session_s
        self._sent = sent
        self._deal = deal
        self._on_dealt = on_dealt
        self._on_ended = on_ended
        self._is_alive = is_alive
        self._coordinator: int | None = None
        self._id = ""
        self._dealt_id = ""
        """Its id in the last deal. The coordinator has stored it, so a broker that takes its place knows it, too."""
        self._generation = -1
        self._is_new = True
        self._leads = False
        self._counts: Mapping[str, int] = {}
        """Topic -> number of its partitions in the last deal, if this member leads the group."""
        self._nonce = ""
        self._joins_again = False
        self._asked = self._ended = False
        self._woken = asyncio.Event()

    # ---- calls of the worker -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take part in the group until cancelled, or until an error ends the member."""
        naming = asyncio.create_task(self._name_strangers())
        try:
            await self._take_part()
        finally:
            naming.cancel()

    async def _take_part(self) -> None:
        logged = set[str]()
        while not self._ended:
            try:
                await self._look_up()
                if self._joins_again or not self.in_group:
                    self._joins_again = False
                    await self._join()
                    logged.clear()
                elif not await self._wakes_within(min(HEARTBEAT_S, self._session_s / 3)) and self._is_alive():
                    await self._beat()
            except Exception as error:
                if not isinstance(error, KafkaError) or not error.retriable:
                    self._end(error)
                    return
                self._coordinator = None
                if self._id != self._dealt_id:
                    # The next coordinator may know only an older id of this name, and would refuse this one.
                    self._id = ""
                line = f"the coordinator of the group {self._group} does not answer, or has moved: {error!r}"
                if line not in logged:  # two may alternate
                    logger.info("%s", line)
                    logged.add(line)
                await asyncio.sleep(RETRY_S)

    def rejoin(self) -> None:
        """Join again soon. The group rebalances if the member says something else than the last time, or leads."""
        self._joins_again = True
        self._woken.set()

    def request_rebalance(self) -> None:
        """Join again soon with changed metadata, so that the group rebalances."""
        self._nonce = secrets.token_hex(8)
        self.rejoin()

    async def leave(self, timeout_s: float = LEAVE_TIMEOUT_S) -> None:
        """Tell the group that the member ends, unless another one has its name by now. Not while :meth:`run` runs.

        The group may answer with an error, or not in time: then it waits for the end of the session. A member whose
        first request to join was not answered yet leaves by its name: that request has taken the name from any other.
        """
        self.in_group = False
        if self._asked:
            try:
                await self._look_up()
                # Over another connection: a request to join may still wait for its answer, and others wait behind it.
                request = NamedLeave(self._group, [(self._id, self._name)])
                answer = await self._send(request, timeout_s, ConnectionGroup.DEFAULT)
                for code in (answer.error_code, *(code for _, _, code in answer.members)):
                    if code:
                        raise for_code(code)
            except KafkaError as error:
                logger.warning(
                    "the group was not told that this member leaves (%r): it waits for the session timeout", error
                )

    async def confirms(self) -> bool | None:
        """Whether the coordinator, asked now, says that the last deal stands; None if it does not answer."""
        generation = self._generation
        if not self.in_group:
            return False
        if self.taken and self._is_new:
            return None  # other members may have got its partitions meanwhile
        try:
            await self._beat()
        except KafkaError:
            return None
        return self.in_group and generation == self._generation

    async def describe(self) -> DescribedGroup:
        """State and members of the group.

        Raises:
            KafkaError: the coordinator is not known, does not answer, or refuses.
        """
        await self._look_up()
        # Over another connection: a request to join may wait for its answer for a minute, and others wait behind it.
        send = partial(self._send, timeout_s=ANSWER_S, connections=ConnectionGroup.DEFAULT)
        try:
            return await groups.describe(send, self._group)
        except NotCoordinatorForGroupError:
            self._coordinator = None
            raise

    # ---- members of other programs -------------------------------------------------------------------------------

    def _note_taken(self) -> None:
        self.taken = self.taken or f"another program has the group {self._group!r} ({RUNBOOK})"

    async def _name_strangers(self) -> None:
        """While other programs have the group, ask who they are, and log it. Until cancelled."""
        while True:
            await asyncio.sleep(NAME_S)
            if not self.taken:
                continue
            try:
                group = await self.describe()
            except Exception as error:  # after any error the message stays as it is, without the names of the members
                logger.debug("who has the group %s is not known: %r", self._group, error)
                continue
            if not group.is_taken:
                self.rejoin()  # only workers are left, and the brokers may not ask for it
            elif self.taken and self.taken != (sentence := strangers_in(self._group, group)):
                self.taken = sentence
                logger.error("%s", sentence)

    # ---- heartbeats ----------------------------------------------------------------------------------------------

    async def _wakes_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        woken = self._woken.is_set()
        self._woken.clear()
        return woken

    async def _beat(self) -> None:
        """Send a heartbeat. Afterwards :attr:`in_group` says whether the deal stands.

        Raises:
            KafkaError: the coordinator does not answer, or has moved.
        """
        request = NamedHeartbeat(self._group, self._generation, self._id, self._name)
        generation = self._generation
        answer = await self._send(request, min(ANSWER_S, self._session_s / 2))
        if generation != self._generation:
            return  # it has joined meanwhile
        if not self._is_refused(answer.error_code) and self._leads and self._partition_counts() != self._counts:
            logger.info("the request topics have other partitions than before: asking the group for a rebalance")
            self.request_rebalance()

    def _is_refused(self, error_code: int) -> bool:
        """Whether an answer says that the member must join again.

        Raises:
            KafkaError: the coordinator has moved, or refuses the member.
        """
        if not error_code:
            return False
        if error_code == FENCED_INSTANCE_ID:
            self._end(
                NameTakenError(
                    f"another worker was started with TIMERS_WORKER_ID={self._name}, and has the partitions of this "
                    "one: this worker ends. Give each worker its own id"
                )
            )
        elif error_code == InvalidSessionTimeoutError.errno:
            self._end(
                SettingsError(
                    f"TIMERS_SESSION_TIMEOUT_S={self._session_s:g}: the brokers do not allow it; set a number "
                    "from their group.min.session.timeout.ms (6 s by default) to their group.max.session.timeout.ms"
                )
            )
        elif error_code == UnknownMemberIdError.errno:
            self._id, self._nonce, self._is_new = "", "", True
        elif error_code not in (IllegalGenerationError.errno, RebalanceInProgressError.errno):
            raise for_code(error_code)(self._group)
        self.in_group = False
        self._woken.set()
        return True

    def _end(self, error: BaseException) -> None:
        if not self._ended:
            self._ended = True
            self._on_ended(error)

    # ---- joining -------------------------------------------------------------------------------------------------

    async def _join(self) -> None:
        """Take part in a rebalance. If it does not succeed, :attr:`in_group` stays false.

        Raises:
            KafkaError: the coordinator does not answer, has moved, or refuses the member.
        """
        self.in_group = False
        session_ms, rebalance_ms = int(self._session_s * 1000), int(REBALANCE_S * 1000)
        protocols = [(PROTOCOL, self._metadata())]
        request = JoinGroupRequest(self._group, session_ms, rebalance_ms, self._id, self._name, "consumer", protocols)
        had_asked, self._asked = self._asked, True
        try:
            joined = await self._send(request, REBALANCE_S + JOIN_MARGIN_S)
        except NodeNotReadyError:  # the request was not sent, so another member may still have the name
            self._asked = had_asked
            raise
        if joined.error_code == MemberIdRequired.errno:
            self._id = joined.member_id
            return
        if joined.error_code == InconsistentGroupProtocolError.errno:
            self._note_taken()
            self._id = ""
            await asyncio.sleep(REFUSED_S)
            return
        if self._is_refused(joined.error_code):
            return
        self._id, self._generation = joined.member_id, joined.generation_id
        deals = joined.leader_id == self._id
        shares = await self._shares(joined.members) if deals else []
        sync = SyncGroupRequest(self._group, self._generation, self._id, self._name, shares)
        synced = await self._send(sync, REBALANCE_S + JOIN_MARGIN_S)
        if self._is_refused(synced.error_code):
            return
        given = frozenset(partitions_in(synced.member_assignment))
        partitions = frozenset(tp for tp in given if tp[0] in self._topics)
        is_of_worker = deals or is_sealed(synced.member_assignment)
        if not is_of_worker and (joined.leader_id or not await self._brokers_deal_to_workers()):
            if not self.taken:
                logger.error(
                    "deal %d of the group %s was not made by a worker: not followed", self._generation, self._group
                )
            self._note_taken()
            self.in_group = True
            self._dealt_id = self._id
            return
        if self.taken:
            logger.info("no other program has the group %r any more", self._group)
            self.taken = ""
        if self._is_new and not deals and not self._nonce and (partitions != given or await self._lacks_owners()):
            logger.info("the group's deal was made for other topics or partitions than there are: rebalancing")
            self._nonce = secrets.token_hex(8)
            return
        self._leads = deals or self._is_own(joined.leader_id)
        if self._leads and not deals:
            self._counts = self._partition_counts()
        self.in_group = True
        self._dealt_id = self._id
        logger.info("deal %d of the group %s: %d partitions", self._generation, self._group, len(partitions))
        self._on_dealt(Deal(self._generation, partitions, self._is_new))
        self._is_new = False

    async def _brokers_deal_to_workers(self) -> bool:
        """Whether the brokers deal and the group has only workers, as far as this user may see.

        A stranger has left such a group, and the brokers do not change it back (``group.consumer.migration.policy``).

        Raises:
            KafkaError: the coordinator does not answer.
        """
        try:
            group = await self.describe()
        except KafkaError as error:
            if error.retriable:
                raise
            return False  # this user may not see what other members read
        return group.kind == CONSUMER and all(each.is_ours for each in group.members)

    def _is_own(self, member_id: str) -> bool:
        """Whether an id is or was one of this member: the brokers make them from its name."""
        return member_id.rsplit("-", 5)[0] == self._name

    def _metadata(self) -> bytes:
        sent = {**self._sent(), _NONCE: self._nonce} if self._nonce else self._sent()
        encoded = ConsumerProtocolMemberMetadata(0, sorted(self._topics), json.dumps(sent).encode()).encode()
        return bytes(encoded)

    async def _shares(self, members: Collection[tuple[str, str, bytes]]) -> list[tuple[str, bytes]]:
        """The leader's part: the encoded share of each member."""
        joined = {id: Joined(*subscription_of(metadata)) for id, _, metadata in members}
        topics = self._topics.union(*(each.topics for each in joined.values()))
        self._client.set_topics(topics)
        with contextlib.suppress(TimeoutError):  # refresh the metadata: the number of partitions may be old
            async with asyncio.timeout(ANSWER_S):
                await self._client.force_metadata_update()
        self._counts = {topic: self._count(topic) for topic in topics}
        shares = self._deal(joined, self._counts)
        return [(id, _encoded(shares[id])) for id in joined]

    def _partition_counts(self) -> dict[str, int]:
        return {topic: self._count(topic) for topic in self._counts or self._topics}

    def _count(self, topic: str) -> int:
        return len(self._client.cluster.partitions_for_topic(topic) or ())

    async def _lacks_owners(self) -> bool:
        """Whether partitions of its topics have no owner: then the deal was made for others than there are."""
        try:
            group = await self.describe()
        except KafkaError:
            return False
        if group.state != STABLE:
            return False  # another rebalance has begun, and its deal will be new
        await self._client.force_metadata_update()
        partitions = {topic: range(count) for topic in self._topics if (count := self._count(topic))}
        return bool(unowned_partitions(group.members, partitions))

    # ---- requests ------------------------------------------------------------------------------------------------

    async def _look_up(self) -> None:
        if self._coordinator is None:
            try:
                async with asyncio.timeout(ANSWER_S):
                    self._coordinator = await self._client.coordinator_lookup(CoordinationType.GROUP, self._group)
            except TimeoutError:
                raise GroupCoordinatorNotAvailableError(self._group) from None

    async def _send(self, request: Any, timeout_s: float, connections: int = ConnectionGroup.COORDINATION) -> Any:
        """The coordinator's answer.

        Raises:
            KafkaError: it does not answer in time.
        """
        coordinator = self._coordinator
        if coordinator is None:
            raise GroupCoordinatorNotAvailableError(self._group)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._client.send(coordinator, request, group=connections)
        except TimeoutError:
            connection = self._client._conns.get((coordinator, ConnectionGroup.COORDINATION))
            if connection is not None and connections == ConnectionGroup.COORDINATION:
                connection.close()  # requests wait for the answers to those before them
            raise RequestTimedOutError(f"no answer within {timeout_s:g} s") from None


def _encoded(share: Iterable[TopicPartition]) -> bytes:
    return bytes(ConsumerProtocolMemberAssignment(0, by_topic(dict.fromkeys(share, ())), SHARE_USER_DATA).encode())


@contextlib.contextmanager
def taking_part(
    arguments: Mapping[str, Any],
    group: str,
    url: str,
    session_timeout_s: float,
    partitions: Mapping[str, int],
    on_refused: Callable[[BaseException], None],
) -> Iterator[Callable[[], str]]:
    """Be in a group during the block, so that other processes see that this one runs, and where.

    The engine on Spark is in such a group: workers that start look there, and wait until it has ended. Nothing waits
    for the group. A killed process is a member until its session has timed out. Each start has a name of its own: a
    process whose start is refused later must not take the place of the one that runs.

    Args:
        url: at which the process is reached.
        partitions: request topic -> number of its partitions. The member has all of them.
        on_refused: gets the reason if this user may not join, or the error that ended the membership.

    Yields:
        What returns :attr:`GroupMember.taken`: then other processes may not see this one.
    """
    members: list[GroupMember] = []
    # Without topics, a broker of 4.2 could not remove a member of KIP-848 from the group: because it has dealt nothing
    # to this member, it would take that member's leaving, and the end of its session, for an error.
    topics = [topic for topic, count in partitions.items() if count]
    thread = LoopThread(f"member-of-{group}")

    def deal(joined: Mapping[str, Joined], _: object) -> dict[str, list[TopicPartition]]:
        every = [(topic, number) for topic in topics for number in range(partitions[topic])]
        return dict.fromkeys(joined, every)

    async def run() -> None:
        try:
            await take_part()
        except Exception as error:  # also one that no code expects: nothing waits for this task
            on_refused(error)

    async def take_part() -> None:
        client = AIOKafkaClient(**arguments, client_id=group)
        name, sent = f"{group}-{secrets.token_hex(8)}", {URL: url}
        how = session_timeout_s, lambda: sent, deal, lambda _: None, on_refused, lambda: True
        member = GroupMember(client, group, name, topics, *how)
        members.append(member)
        try:
            await start_patiently(client.bootstrap, f"the member of {group}", lambda: False)
            await member.run()
        finally:
            await member.leave()
            await sessions.end_in_time(client.close())

    async def start() -> asyncio.Task[None]:
        return asyncio.create_task(run())

    async def end(running: asyncio.Task[None]) -> None:
        running.cancel()
        await asyncio.wait({running})

    running = thread.submit(start()).result()
    try:
        yield lambda: members[0].taken if members else ""
    finally:
        with contextlib.suppress(TimeoutError):
            thread.submit(end(running)).result(2 * LEAVE_TIMEOUT_S)
        thread.close()
