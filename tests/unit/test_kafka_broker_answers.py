"""Brokers that are dead or frozen are found before a transaction begins. The broker tests use real brokers."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.client import ConnectionGroup, CoordinationType
from aiokafka.errors import CoordinatorNotAvailableError, KafkaConnectionError, LeaderNotAvailableError

from tests.harness.constants import Constants
from tests.harness.waiting import DEADLINE_S
from timers.core.ports import DeliveryFailed, Lost, Unanswered
from timers.kafka.aiokafka_internals import broker_answers, produce
from timers.kafka.aiokafka_internals.broker_answers import Absent, BrokerAnswers

GROUP = "timers"


class SimProducer:
    """The parts of aiokafka's producer that ask brokers.

    Attributes:
        dead: brokers that take no connection.
        frozen: brokers that answer nothing.
        broken: brokers whose connection breaks at a request.
        asked: brokers that got a request.
        leaders: partition -> its leader in the metadata.
        next_leaders: the same after the next update; None: no broker answers.
        coordinator: of the group; None: there is none.
    """

    def __init__(self) -> None:
        self.dead: set[int] = set()
        self.frozen: set[int] = set()
        self.broken: set[int] = set()
        self.asked: list[int] = []
        self.leaders: dict[tuple[str, int], int] = {}
        self.next_leaders: dict[tuple[str, int], int] | None = {}
        self.coordinator: int | None = 1
        self.lookups = 0
        self.client = self._sender = self
        self._conns: dict[tuple[int, ConnectionGroup], Any] = {}
        self.cluster = SimpleNamespace(leader_for_partition=lambda place: self.leaders.get(tuple(place)))
        self._txn_manager = SimpleNamespace(transactional_id="timers-timer-request-0")
        self._coordinators: dict[CoordinationType, int] = {}

    async def ready(self, broker: int) -> bool:
        if broker not in self.dead:
            self._conns[broker, ConnectionGroup.DEFAULT] = self
        return broker not in self.dead

    def connected(self) -> bool:
        return not self.dead

    async def send(self, broker: int, request: Any) -> None:
        self.asked.append(broker)
        await asyncio.sleep(0)
        if broker in self.broken:
            raise KafkaConnectionError
        if broker in self.frozen:
            await asyncio.Event().wait()

    async def force_metadata_update(self) -> bool:
        self.leaders |= self.next_leaders or {}
        return self.next_leaders is not None

    async def coordinator_lookup(self, kind: CoordinationType, group: str) -> int:
        assert (kind, group) == (CoordinationType.GROUP, GROUP)
        self.lookups += 1
        if self.coordinator is None:
            raise CoordinatorNotAvailableError
        return self.coordinator

    def _coordinator_dead(self, kind: CoordinationType) -> None:
        self._coordinators.pop(kind, None)


@pytest.fixture(autouse=True)
def impatient(constants: Constants) -> None:
    constants(produce, ANSWER_S=0.05, CHECK_S=0.01)
    constants(broker_answers, AWAKE_S=0.01, GROUP_ANSWER_S=0.05)


async def check(sim: SimProducer, *places: tuple[str, int]) -> None:
    producer: Any = sim
    assert await produce.check_leaders(producer, BrokerAnswers(), places) <= set(sim.leaders.values())


async def test_each_broker_is_asked_once_for_all_producers() -> None:
    answers, first, second = BrokerAnswers(), SimProducer(), SimProducer()
    producers: list[Any] = [first, second]
    for _ in range(2):
        absent = await asyncio.gather(*(answers.absent(producer, [1, 2], DEADLINE_S) for producer in producers))
        assert absent == 2 * [Absent(set(), set())]
    assert sorted(first.asked + second.asked) == [1, 2]
    second.dead = {1}
    other: Any = second
    assert await answers.absent(other, [1, 2], 0.05) == Absent({1}, set()), "although it has just answered"


async def test_a_broker_that_has_just_taken_records_is_not_asked() -> None:
    answers, sim = BrokerAnswers(), SimProducer()
    producer: Any = sim
    await sim.ready(1)
    answers.note([1])
    assert await answers.absent(producer, [1, 2], DEADLINE_S) == Absent(set(), set())
    assert sim.asked == [2]


async def test_brokers_of_the_last_transactions_are_asked_before_the_next_tick(constants: Constants) -> None:
    constants(broker_answers, FRESH_S=0.0)
    answers, sim, closed = BrokerAnswers(), SimProducer(), SimProducer()
    producer: Any = sim
    other: Any = closed
    await answers.absent(producer, [1], DEADLINE_S)
    await answers.absent(other, [2], DEADLINE_S)
    closed._conns.clear()
    sim.frozen = {1}
    answers.ask_ahead()
    answers.ask_ahead()
    await asyncio.sleep(0)
    assert sim.asked == [1, 1], "once more, until it answers"
    assert closed.asked == [2], "a producer that is closed asks nothing"
    absent = asyncio.create_task(answers.absent(producer, [1], 10 * DEADLINE_S))
    await asyncio.sleep(0.01)
    assert not absent.done() and sim.asked == [1, 1], "the transaction waits for the same answer"
    absent.cancel()
    constants(broker_answers, RECENT_S=0.0)
    answers._pings.clear()
    answers.ask_ahead()
    await asyncio.sleep(0)
    assert sim.asked == [1, 1], "no transaction has used it lately"


async def test_a_request_that_fails_with_its_connection_is_repeated_on_another() -> None:
    answers, first, second = BrokerAnswers(), SimProducer(), SimProducer()
    first.broken = {1}
    producers: list[Any] = [first, second]
    absent = await asyncio.gather(*(answers.absent(producer, [1], DEADLINE_S) for producer in producers))
    assert absent == [Absent({1}, set()), Absent(set(), set())]
    nothing: Any = first
    assert await answers.absent(nothing, [], DEADLINE_S) == Absent(set(), set())


async def test_no_transaction_begins_while_a_leader_is_dead_or_frozen() -> None:
    sim = SimProducer()
    sim.leaders = {("a", 0): 1, ("b", 0): 2, ("b", 1): 3, ("c", 0): -1}
    await check(sim, ("a", 0), ("b", 0), ("b", 1))
    with pytest.raises(DeliveryFailed) as failed:
        await check(sim, ("a", 0), ("c", 0))
    assert {topic: type(error) for topic, error in failed.value.culprits.items()} == {"c": LeaderNotAvailableError}
    sim.dead = {2, 3}
    with pytest.raises(DeliveryFailed) as failed:
        await check(sim, ("a", 0), ("b", 0), ("b", 1))
    assert {topic: error.args for topic, error in failed.value.culprits.items()} == {"b": ("b", 0, 1)}
    sim.dead, sim.frozen = set(), {1}
    with pytest.raises(Unanswered) as silence:
        await check(sim, ("a", 0), ("b", 0))
    assert silence.value.places == {("a", 0)} and silence.value.rolled_back


async def test_a_leader_that_moved_to_a_living_broker_is_found() -> None:
    sim = SimProducer()
    sim.leaders, sim.dead = {("a", 0): 1}, {1}
    sim.next_leaders = {("a", 0): 2}
    await check(sim, ("a", 0))
    assert sim.asked == [2]


async def test_a_silent_leader_is_waited_for_until_another_is_elected(constants: Constants) -> None:
    constants(produce, ANSWER_S=DEADLINE_S)
    sim = SimProducer()
    sim.leaders, sim.frozen = {("a", 0): 1, ("b", 0): 2}, {1}
    elected = asyncio.get_running_loop().call_later(0.05, setattr, sim, "next_leaders", {("a", 0): 2})
    async with asyncio.timeout(DEADLINE_S / 2):
        await check(sim, ("a", 0), ("b", 0))
    assert elected.when() <= asyncio.get_running_loop().time()
    assert sim.asked.count(1) == 1, "one question to a frozen broker is enough"


async def test_the_leader_of_a_topic_that_is_used_first_is_looked_up() -> None:
    sim = SimProducer()
    sim.leaders, sim.dead = {("a", 0): 1}, {2}
    sim.next_leaders = {("new", 0): 2}
    with pytest.raises(DeliveryFailed) as failed:
        await check(sim, ("a", 0), ("new", 0))
    assert set(failed.value.culprits) == {"new"}
    sim.leaders, sim.next_leaders = {("a", 0): 1}, {}
    await check(sim, ("a", 0), ("new", 0))  # it does not exist: the delivery shows it


async def test_without_any_broker_no_topic_is_at_fault() -> None:
    sim = SimProducer()
    sim.leaders, sim.dead, sim.next_leaders = {("a", 0): 1}, {1}, None
    with pytest.raises(Lost) as lost:
        await check(sim, ("a", 0))
    assert not isinstance(lost.value, (DeliveryFailed, Unanswered))


@pytest.mark.parametrize("how", ["dead", "frozen", "without a leader"])
async def test_one_machine_at_a_time_looks_for_a_coordinator(how: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    answers, sim = BrokerAnswers(), SimProducer()
    producer: Any = sim
    assert await answers.has_coordinator(producer, GROUP)
    sim._coordinators[CoordinationType.GROUP] = 1  # as after the first offsets
    assert await answers.has_coordinator(producer, GROUP)
    assert sim.lookups == 1
    answers._answered_at.clear()
    if how == "without a leader":
        sim.coordinator = None
        sim._coordinators.clear()
    else:
        getattr(sim, how).add(1)
    assert not await answers.has_coordinator(producer, GROUP)
    lookups = sim.lookups
    assert not await answers.has_coordinator(producer, GROUP)
    assert sim.lookups == lookups, "not asked again at once"
    answers._group_from = 1e-9
    assert not await answers.has_coordinator(producer, GROUP)
    assert sim.lookups == lookups + 1
    sim.dead, sim.frozen, sim.coordinator = set(), set(), 2
    answers._group_from = 1e-9
    assert await answers.has_coordinator(producer, GROUP)
    assert [record.message.rsplit(" ", 1)[-1] for record in caplog.records] == ["updated", "again"]


async def test_a_coordinator_that_answers_and_takes_no_offsets_is_tried_with_longer_and_longer_pauses(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It loads its partition of the offsets topic, or that has too few replicas in sync."""
    caplog.set_level(logging.WARNING)
    now_s, answers, producer = 100.0, BrokerAnswers(), SimProducer()
    monkeypatch.setattr(broker_answers, "monotonic", lambda: now_s)
    sim: Any = producer
    pauses_s = []
    for _ in range(5):
        assert await answers.has_coordinator(sim, GROUP)
        began_s, now_s = now_s, now_s + 8.0
        for _ in range(3):  # other machines made their attempts at the same time
            answers.note_offsets(GROUP, began_s, Unanswered(()))
        assert answers.doubts_group
        failed_s = now_s
        while not await answers.has_coordinator(sim, GROUP):
            now_s += 1.0
        pauses_s.append(now_s - failed_s)
        assert not await answers.has_coordinator(sim, GROUP), "one machine tries"
        now_s += broker_answers.GROUP_RETRY_S
    assert pauses_s == [10.0, 20.0, 40.0, 60.0, 60.0]
    answers.note_offsets(GROUP, now_s)
    assert not answers.doubts_group and await answers.has_coordinator(sim, GROUP)
    first, last = (record.message for record in caplog.records)
    assert GROUP in first and "takes no offsets" in first and "takes offsets again" in last
