"""What clients, and queues, have in common: arguments, errors, and a request that waits for room in a full queue."""

import inspect
import math
import re
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

import timers.client
from tests.harness.constants import Constants
from timers.client import AsyncTimersClient, TimersClient, by_id, publish
from timers.errors import PublishError, SettingsError
from timers.kafka.lost_brokers import LostBrokers
from timers.queue import AsyncQueue, Queue
from timers.testing import AsyncSimTimers, SimQueue, SimTimers

CLIENTS = (TimersClient, AsyncTimersClient, SimTimers, AsyncSimTimers)
QUEUES = (Queue, AsyncQueue, SimQueue)
CALLS = {
    CLIENTS: ("schedule", "send_later", "update", "cancel", "schedule_many", "retry_later", "close"),
    QUEUES: ("send", "send_many", "receive", "settle"),
}


class FullQueue:
    """A producer's queue that is full for some calls."""

    def __init__(self, full: int) -> None:
        self.full = full

    def submit(self) -> str:
        if self.full:
            self.full -= 1
            raise BufferError
        return "submitted"


async def test_a_request_is_submitted_again_until_the_queue_has_room() -> None:
    deadline = monotonic() + 60
    client = TimersClient("nowhere:1")
    assert client._run(client._retry_while_full(FullQueue(full=2).submit, deadline)) == "submitted"
    assert await AsyncTimersClient("nowhere:1")._retry_while_full(FullQueue(full=2).submit, deadline) == "submitted"


async def test_a_queue_that_stays_full_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, over = FullQueue(full=10**9), "the producer's queue stayed full for 5 s"
    client, until_s = TimersClient("nowhere:1"), monotonic() + 0.05
    monkeypatch.setattr(publish, "monotonic", lambda: until_s - 5)  # what is left when a call begins
    with pytest.raises(PublishError, match=over):
        client._run(client._retry_while_full(queue.submit, until_s))
    with pytest.raises(PublishError, match=over):
        await AsyncTimersClient("nowhere:1")._retry_while_full(queue.submit, until_s)


@pytest.mark.parametrize("wrong", [math.inf, math.nan, -1.0, "5", True])
async def test_how_long_a_call_may_wait_is_a_number_of_seconds(wrong: Any) -> None:
    """And nothing is sent before it is checked."""
    client, in_loop, sim = TimersClient("nowhere:1"), AsyncTimersClient("nowhere:1"), SimTimers()
    version: Any = {"topic": "t", "key": "k", "value": b"", "delay": 9, "timeout_s": wrong}
    for call in (
        partial(client.schedule, **version),
        partial(client.schedule, **version, id="i", if_absent=True),
        partial(client.update, "i", **version),
        partial(client.cancel, "i", timeout_s=wrong),
        partial(client.close, wrong),
        partial(Queue("q", brokers="nowhere:1").receive, wait_s=wrong),
        partial(sim.schedule, **version),
        partial(sim.schedule, **version, id="i", if_absent=True),
        partial(sim.update, "i", **version),
        partial(sim.cancel, "i", timeout_s=wrong),
        partial(sim.close, wrong),
        partial(SimQueue().receive, wait_s=wrong),
    ):
        with pytest.raises(SettingsError, match=r"(timeout|wait)_s=.* is not a number of seconds from 0 to"):
            call()
    for task in (
        in_loop.update("i", **version),
        in_loop.cancel("i", timeout_s=wrong),
        in_loop.close(wrong),
        AsyncSimTimers().close(wrong),
        AsyncQueue("q", brokers="nowhere:1").receive(wait_s=wrong),
    ):
        with pytest.raises(SettingsError, match=r"(timeout|wait)_s=.* is not a number of seconds from 0 to"):
            await task


def test_a_look_that_fails_is_not_used_again(constants: Constants) -> None:
    """Its answer would be the same each time, and prove what is asked for later."""
    constants(by_id, PRODUCER_POLL_S=0.001)
    looks: list[Any] = []

    class Used:
        closed = False

        def take(self, consumer: Any, admin: Any, look: Any, message: Any) -> Any:
            looks.append(look)
            self.closed = len(looks) == 3
            if len(looks) == 2:
                raise RuntimeError("the consumer is closed")
            return by_id._Look(0.0, Future())

    consumer: Any = SimpleNamespace(poll=lambda _: None, close=lambda: None)
    used: Any = Used()
    by_id._read_while_used(lambda: used, consumer, consumer, LostBrokers())  # type: ignore[arg-type]
    assert [look.asked is None for look in looks] == [True, False, True]
    assert looks[2].at > monotonic()


def test_both_clients_show_their_arguments() -> None:
    assert inspect.signature(AsyncTimersClient) == inspect.signature(TimersClient)
    assert "keep_order" in inspect.signature(AsyncTimersClient).parameters


@pytest.mark.parametrize(("kinds", "call"), [(kinds, call) for kinds, calls in CALLS.items() for call in calls])
def test_those_for_threads_event_loops_and_tests_take_the_same_arguments(kinds: tuple[type, ...], call: str) -> None:
    first, *others = ([*inspect.signature(getattr(kind, call)).parameters.values()] for kind in kinds)
    for other in others:
        assert [(each.name, each.kind, each.default) for each in other] == [
            (each.name, each.kind, each.default) for each in first
        ]


def test_each_error_that_the_page_names_is_in_the_package() -> None:
    page = (Path(__file__).parents[2] / "docs/python-client.md").read_text()
    named = set(re.findall(r"`(\w+Error)`", page))
    assert "UnacknowledgedError" in named
    assert named <= {*timers.client.__all__}
