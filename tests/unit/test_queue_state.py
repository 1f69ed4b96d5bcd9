"""What receivers get from the ledgers of a process, and what is counted. No brokers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from timers.client import Backoff
from timers.errors import LeaseLostError
from timers.queue import Message
from timers.queue.ledger import Ledger
from timers.queue.metadata import Saved
from timers.queue.settling import Commit
from timers.queue.state import State, Terms

JOBS, OTHER = ("jobs", 0), ("jobs", 1)


class Record:
    """A record of confluent-kafka."""

    def __init__(self, topic: str, partition: int, offset: int) -> None:
        self._at = topic, partition, offset

    def topic(self) -> str:
        return self._at[0]

    def partition(self) -> int:
        return self._at[1]

    def offset(self) -> int:
        return self._at[2]

    def timestamp(self) -> tuple[int, int]:
        return 2, 1_700_000_000_000

    def key(self) -> bytes:
        return b"key"

    def value(self) -> bytes:
        return b"%d" % self._at[2]

    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        return ()


def opened(messages: int = 10, *, attempts: int = 3, ordered: bool = False) -> State:
    """A process with messages in one partition."""
    terms = Terms("jobs", "jobs", "queue.jobs-returns", Backoff(attempts=attempts), 30.0, ordered, False, 1_000_000)
    state = State(terms)
    add(state, JOBS, messages)
    return state


def add(state: State, partition: tuple[str, int], messages: int, *, attempt: int = 1) -> Ledger:
    ledger = Ledger(Saved(0))
    state.settler.assign(partition, ledger, "log", Commit(0, "1234"))
    for offset in range(messages):
        ledger.read(offset, Record(*partition, offset), attempt=attempt)
    return ledger


def receive(state: State, count: int) -> list[Message]:
    messages = state.receive(count, 0)
    assert len(messages) == count
    return messages


def test_each_call_is_counted_once() -> None:
    state = opened()
    done, retried, rejected, extended, *_ = receive(state, 5)
    done.ack()
    retried.retry(after=5)
    rejected.reject("bad")
    extended.extend(60)
    with pytest.raises(LeaseLostError):
        done.ack()
    with pytest.raises(LeaseLostError):
        retried.reject("bad")
    counters = state.counters()
    assert (counters.received, counters.acked, counters.retried, counters.dead) == (5, 1, 1, {"rejected": 1})
    assert (counters.in_flight, counters.ready, counters.partitions, counters.ledger_bytes) == (2, 5, 1, 4)
    assert counters.handling_s > 0
    counters.dead["rejected"] = 7
    assert state.counters().dead == {"rejected": 1}, "a copy"


def test_deliveries_that_a_rebalance_ends_are_counted() -> None:
    state = opened()
    receive(state, 3)
    state.totals.leases_lost += state.settler.revoke([JOBS])
    assert state.counters().leases_lost == 3


def test_a_message_after_its_last_attempt_is_a_dead_letter_and_is_not_delivered() -> None:
    state = opened(messages=0, attempts=1)
    add(state, OTHER, 2, attempt=3)
    assert state.receive(5, 0) == []
    assert state.counters().dead == {"attempts-exhausted": 2}


def test_calls_that_wait_for_a_commit_end_with_the_queue() -> None:
    state = opened()
    first = state.wait_for_commit()
    state.committed(state.waiting())
    assert first.result(0) is None
    second = state.wait_for_commit()
    state.end()
    assert second.exception(0) is not None
    assert state.wait_for_commit().result(0) is None, "nothing is left to commit"
