"""What the worker's consumer says of the group, and tells the pool of a deal."""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from aiokafka.errors import TopicAuthorizationFailedError

from timers.core import levels
from timers.core.deals import OWNS, RAISED, SUPPORTS, URL
from timers.core.listing import NoAnswer
from timers.core.timer import TopicPartition
from timers.kafka.aiokafka_internals import fetch
from timers.kafka.aiokafka_internals.group_member import Deal
from timers.machines.life import BROKERS
from timers.process.config.settings import Settings
from timers.worker.consumer.requests import PartitionConsumer
from timers.worker.machines.failures import Failures

MINE, OTHER = ("timer-request", 0), ("timer-request", 1)


class SimMember:
    """A member of a group that answers as it is told."""

    in_group = True

    def __init__(self) -> None:
        self.answer: bool | None = True

    async def confirms(self) -> bool | None:
        return self.answer


class SimPool:
    """A pool that only notes the deals."""

    stores: ClassVar[dict[TopicPartition, int]] = {}
    unreadable = SimpleNamespace(forget=lambda tp: None)

    def __init__(self) -> None:
        self.taken: list[tuple[frozenset[TopicPartition], bool]] = []
        self.failed: dict[TopicPartition, Exception] = {}
        self.unreadable = SimpleNamespace(forget=print)

    async def take(self, dealt: frozenset[TopicPartition], *, anew: bool) -> None:
        await asyncio.sleep(0)
        self.taken.append((dealt, anew))

    def value_limit(self, tp: TopicPartition) -> int | None:
        return None

    def fail(self, tp: TopicPartition, error: Exception) -> None:
        self.failed[tp] = error


def consumer(pool: SimPool) -> PartitionConsumer:
    made: Any = PartitionConsumer
    loop = asyncio.get_running_loop()
    found: PartitionConsumer = made(Settings(), pool, SimpleNamespace(), print, print, loop=loop)
    return found


async def test_a_partition_belongs_to_the_worker_if_the_group_confirms_the_deal_that_has_it() -> None:
    worker, member = consumer(SimPool()), SimMember()
    worker._member = member  # type: ignore[assignment]
    worker._deal = Deal(3, frozenset([MINE]), anew=False)
    assert [await worker.owns(tp) for tp in (MINE, OTHER)] == [True, False]
    for answer in (False, None):
        member.answer = answer
        assert await worker.owns(MINE) is answer
    worker._loop_thread.close()


async def test_the_pool_gets_deals_in_their_order_and_the_group_what_the_last_one_gave() -> None:
    pool = SimPool()
    worker = consumer(pool)
    worker.note_raised(11)
    worker.note_raised(10)
    for generation, partitions in ((1, [MINE, OTHER]), (2, [MINE])):
        worker._on_dealt(Deal(generation, frozenset(partitions), anew=generation == 1))
    while len(pool.taken) < 2:
        await asyncio.sleep(0)
    assert pool.taken == [(frozenset([MINE, OTHER]), True), (frozenset([MINE]), False)]
    said = worker._sent()
    assert (said[SUPPORTS], said[RAISED], said[OWNS]) == (levels.SUPPORTED, 11, {"timer-request": [0]})
    assert said[URL] == Settings().canonical_url
    worker._loop_thread.close()


async def test_a_worker_is_in_its_group_when_the_pool_has_what_the_group_dealt() -> None:
    """Before, it has no partition that is not open, and would be ready without any."""
    worker = consumer(SimPool())
    worker._member = SimMember()  # type: ignore[assignment]
    for generation in (1, 2):
        worker._on_dealt(Deal(generation, frozenset([MINE]), anew=False))
        assert (worker.was_dealt, worker.in_group) == (generation == 2, False)
        async with asyncio.timeout(30):
            while not worker.in_group:
                await asyncio.sleep(0)
        assert worker.was_dealt
    worker._loop_thread.close()


async def test_a_topic_that_may_no_longer_be_read_stops_its_partitions_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, foreign = SimPool(), ("orders", 0)
    worker = consumer(pool)

    class SimConsumer:
        async def getmany(self, *_: object, timeout_ms: int) -> dict[Any, Any]:
            raise TopicAuthorizationFailedError("timer-request")

    reader = worker._reader
    reader.consumer = SimConsumer()
    reader._delivered_to = dict.fromkeys((MINE, OTHER, foreign), 0)
    monkeypatch.setattr(fetch, "has_records", lambda *_: False)
    monkeypatch.setattr(reader, "_seek_back", lambda tp: None)
    assert await reader.fetch([MINE, OTHER, foreign], 0.0) == {}
    async with asyncio.timeout(30):
        while len(pool.failed) < 2:
            await asyncio.sleep(0)
    assert set(pool.failed) == {MINE, OTHER}, "the other topic is read on"
    _, waiting = Failures("timer-request/0").judge(pool.failed[MINE])
    assert (waiting.reason, waiting.sentence) == (
        BROKERS,
        "the brokers do not let this worker read timer-request: it needs the ACL Read",
    )
    worker._loop_thread.close()


async def test_before_it_has_joined_the_owners_are_not_known() -> None:
    worker = consumer(SimPool())
    assert not worker.in_group and not worker.was_dealt and worker.watermarks() == {}
    with pytest.raises(NoAnswer):
        await worker.members()
    worker._loop_thread.close()


@pytest.mark.parametrize(
    ("brokers", "reached"),
    [((True,), True), ((False, True), True), ((False,), False), ((False, False), False), ((), True)],
)
async def test_a_broker_is_reached_if_one_takes_a_connection(brokers: Sequence[bool], reached: bool) -> None:
    """It need not answer. Before any broker is known, nothing says that none can be reached."""
    with ExitStack() as stack:
        ports = []
        for listens in brokers:
            each = stack.enter_context(socket.socket())
            each.bind(("127.0.0.1", 0))
            if listens:
                each.listen()
            ports.append(each.getsockname()[1])
        cluster = SimpleNamespace(brokers=lambda: [SimpleNamespace(host="127.0.0.1", port=port) for port in ports])
        consumer: Any = SimpleNamespace(_client=SimpleNamespace(cluster=cluster))
        assert await fetch.reaches_a_broker(consumer, 5.0) is reached
