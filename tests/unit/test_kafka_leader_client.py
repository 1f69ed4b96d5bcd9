"""What a client that asks leaders does if one of them does not answer."""

from typing import Any

import pytest
from aiokafka.errors import RequestTimedOutError

from timers.kafka.aiokafka_internals.leader_client import LeaderClient


class SimSilent:
    """aiokafka's client of a cluster whose brokers answer nothing."""

    def __init__(self) -> None:
        self.updates = 0

    async def send(self, leader: int, request: Any) -> Any:
        raise RequestTimedOutError

    def force_metadata_update(self) -> None:
        self.updates += 1


async def test_after_a_silent_leader_the_metadata_are_asked_for() -> None:
    """The present ones name it as the leader for up to 30 s, although another one was elected."""
    client, silent = LeaderClient({}, 1.0), SimSilent()
    client._client = silent
    with pytest.raises(RequestTimedOutError):
        await client.ends(1, ("timer-request", 0))
    assert silent.updates
