"""A tick whose broker does not answer goes to another one."""

import asyncio

import pytest

from tests.harness.constants import Constants
from timers.worker import ticks
from timers.worker.ticks import TickSender

LEADERS = {0: 1, 1: 2, 2: 3}


class SimBrokers:
    """Brokers that take ticks, except those that are silent or refuse."""

    def __init__(self, silent: set[int] = frozenset(), refusing: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        self.silent, self.refusing = silent, refusing
        self.sent: list[int | None] = []

    async def send(self, partition: int | None) -> bool:
        self.sent.append(partition)
        broker = LEADERS.get(-1 if partition is None else partition)
        if broker in self.silent:
            await asyncio.get_running_loop().create_future()
        return broker not in self.refusing


async def nothing_is_learned() -> None: ...


def sender_to(brokers: SimBrokers) -> TickSender:
    return TickSender(brokers.send, lambda: LEADERS, nothing_is_learned)


@pytest.fixture(autouse=True)
def shorter(constants: Constants) -> None:
    constants(ticks, NEXT_AFTER_S=0.05)


async def test_ticks_take_turns_while_all_brokers_answer() -> None:
    brokers = SimBrokers()
    sender = sender_to(brokers)
    assert [await sender.send(second) for second in range(3)] == [True] * 3
    assert brokers.sent == [0, 1, 2]


async def test_after_half_a_second_another_broker_gets_the_tick_and_the_silent_one_is_avoided() -> None:
    brokers = SimBrokers(silent={1})
    sender = sender_to(brokers)
    assert await sender.send(0)
    assert brokers.sent == [0, 1]
    assert await sender.send(3)
    assert brokers.sent == [0, 1, 1]


async def test_a_refused_tick_goes_to_another_broker_at_once() -> None:
    brokers = SimBrokers(refusing={1})
    assert await sender_to(brokers).send(0)
    assert brokers.sent == [0, 1]


async def test_a_tick_that_no_broker_takes_does_not_count() -> None:
    brokers = SimBrokers(refusing={1, 2, 3})
    assert not await sender_to(brokers).send(0)
    assert brokers.sent == [0, 1, 2]


async def test_without_metadata_the_client_chooses() -> None:
    brokers = SimBrokers()
    assert await TickSender(brokers.send, dict, nothing_is_learned).send(0)
    assert brokers.sent == [None]


async def test_leaders_are_learned_before_the_first_tick() -> None:
    brokers, known = SimBrokers(), {}

    async def learn() -> None:
        known.update(LEADERS)

    assert await TickSender(brokers.send, lambda: known, learn).send(1)
    assert brokers.sent == [1]
