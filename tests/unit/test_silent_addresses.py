"""A client of aiokafka is there soon, also if an address of the brokers is silent."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka.errors import KafkaConnectionError

from tests.harness.constants import Constants
from timers.kafka.aiokafka_internals import sessions


class SimClient:
    """Its only address says what it does: ``silent``, ``refuses`` or answers."""

    made: list[SimClient]

    def __init__(self, bootstrap_servers: str) -> None:
        self.address = bootstrap_servers
        self.is_closed = False
        self.made.append(self)

    async def bootstrap(self) -> None:
        if self.address == "silent":
            await asyncio.Event().wait()
        if self.address == "refuses":
            raise KafkaConnectionError("refused")

    async def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> list[SimClient]:
    SimClient.made = []
    monkeypatch.setattr(sessions, "AIOKafkaClient", SimClient)
    constants(sessions, NEXT_S=0.01)
    return SimClient.made


@pytest.mark.parametrize(
    ("addresses", "asked"),
    [
        (["a"], ["a"]),
        (["a", "b"], ["a"]),
        (["silent", "a", "b"], ["silent", "a"]),
        (["refuses", "a"], ["refuses", "a"]),
        (["silent", "refuses", "silent", "a"], ["silent", "refuses", "silent", "a"]),
    ],
)
async def test_the_first_that_answers_counts(addresses: list[str], asked: list[str], made: list[SimClient]) -> None:
    async with asyncio.timeout(30):
        client = await sessions.bootstrapped({"bootstrap_servers": addresses})
    assert [each.address for each in made] == asked
    assert [each for each in made if not each.is_closed] == [client], "the others are closed"


async def test_it_fails_when_all_have_failed_and_closes_all_when_it_is_given_up(made: list[SimClient]) -> None:
    with pytest.raises(KafkaConnectionError):
        await sessions.bootstrapped({"bootstrap_servers": ["refuses", "refuses"]})
    asking = asyncio.create_task(sessions.bootstrapped({"bootstrap_servers": ["silent", "refuses", "silent"]}))
    async with asyncio.timeout(30):
        while len(made) < 5:
            await asyncio.sleep(0.001)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert all(each.is_closed for each in made)
