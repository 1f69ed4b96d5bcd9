"""``timers queue receive`` looks at messages without using up their attempts. No brokers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.queue_calls import SimMessage
from timers.cli import queue as module
from timers.cli.main import main
from timers.errors import LeaseLostError
from timers.process.config.settings import Settings


class Twelfth(SimMessage):
    """A message in its twelfth attempt."""

    attempt = 12

    def extend(self, lease_s: float) -> None:
        self.calls.append("extend")
        raise LeaseLostError("lost")


class SimQueue:
    """A queue that delivers a message each time, 8 s after the one before."""

    now_s = 0.0
    opened: dict[str, Any]
    delivered: list[Twelfth]

    def __init__(self, topic: str, **arguments: Any) -> None:
        SimQueue.opened = arguments
        SimQueue.delivered = []

    def __enter__(self) -> SimQueue:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.delivered[0].calls[-1] == "settled"

    def receive(self, limit: int) -> list[Twelfth]:
        SimQueue.now_s += 8
        self.delivered.append(Twelfth(str(len(self.delivered))))
        return self.delivered[-1:]

    def settle(self) -> None:
        for message in self.delivered:
            message.calls.append("settled")


@pytest.fixture(autouse=True)
def sim_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timers.queue.Queue", SimQueue)
    monkeypatch.setattr("time.monotonic", lambda: SimQueue.now_s)
    monkeypatch.setattr(module, "load_settings", lambda: Settings(brokers="nowhere:9092"))


def test_messages_that_are_only_shown_are_put_back_and_keep_their_lease() -> None:
    assert main(["queue", "receive", "jobs", "-n", "3"]) == 0
    first, second, third = (message.calls for message in SimQueue.delivered)
    assert (first, second, third) == (
        ["extend", "put back", "settled"],
        ["extend", "put back", "settled"],
        ["put back", "settled"],
    )


def test_the_command_gives_up_no_message_and_keeps_the_order_if_asked() -> None:
    assert main(["queue", "receive", "jobs", "--ack", "--ordered"]) == 0
    assert SimQueue.delivered[0].calls == ["ack", "settled"]
    assert SimQueue.opened["ordered"]
    assert SimQueue.opened["backoff"].retries > 10**5
    assert main(["queue", "receive", "jobs", "--ack"]) == 0
    assert not SimQueue.opened["ordered"]
