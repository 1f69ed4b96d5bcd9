"""A transaction of a producer that stays open on a request topic is said after five seconds."""

import logging
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from timers.core.timer import TopicPartition
from timers.kafka.request_formats import NATIVE
from timers.machines.queries.answers import Queries
from timers.worker.consumer.requests import HeldBack

TP = ("timer-request", 3)


def test_a_transaction_that_stays_open_is_said_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    held = HeldBack("kafka:9092")
    for now_s in range(30):
        reasons = held.note({TP: (120, 100), ("timer-request", 4): (7, 7)}, float(now_s))
    assert reasons.keys() == {TP}
    assert reasons[TP].startswith(
        "a producer's transaction has been open for 29 s, and holds back its requests from offset 100"
    )
    command = "--bootstrap-server kafka:9092 describe-producers --topic timer-request --partition 3"
    assert f"kafka-transactions.sh {command}" in reasons[TP]
    assert held.note({TP: (121, 121)}, 30.0) == {}
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split(" for ")[0] for line in lines] == [
        "timer-request/3: a producer's transaction has been open",
        "timer-request/3: the open transaction has ended",
    ]


def test_it_is_said_after_five_seconds() -> None:
    held = HeldBack("kafka:9092")
    said = [bool(held.note({TP: (120, 100)}, float(now_s))) for now_s in range(8)]
    assert said == [False] * 6 + [True] * 2


def test_transactions_that_follow_each_other_hold_nothing_back(caplog: pytest.LogCaptureFixture) -> None:
    held = HeldBack("kafka:9092")
    for now_s in range(60):
        assert held.note({TP: (100 + now_s, 90 + now_s)}, float(now_s)) == {}
    assert held.note({}, 61.0) == {}, "the partition moved to another worker"
    assert caplog.records == []


class SimSource:
    partitions = (TP,)

    def __init__(self, *found: dict[str, Any]) -> None:
        self.missing: dict[Any, str] = {}
        self._found = list(found)

    async def find(self, lookup: Any) -> list[dict[str, Any]]:
        return self._found


class SimQueries(Queries):
    """Answers from the source above."""

    def __init__(self, held: Mapping[TopicPartition, str], source: SimSource) -> None:
        self._pool: Any = SimpleNamespace(formats={TP[0]: NATIVE}, held=held)
        self._source = source

    def _partitions(self) -> set[Any]:
        return {TP}

    async def _sources(self, wanted: set[Any], forwarded: bool) -> Any:
        return [self._source], {}


async def test_a_timer_that_is_not_found_may_be_behind_an_open_transaction() -> None:
    held_back = HeldBack("kafka:9092")
    held_back.note({TP: (120, 100)}, 0.0)
    held = held_back.note({TP: (120, 100)}, 20.0)
    answer = await SimQueries(held, SimSource()).find("timer-request/3/110", False, forwarded=False)
    assert "holds back its requests from offset 100 on" in answer.missing[TP]
    timer = {"due": 1, "topic": "t", "key": None, "source": "timer-request/3/90"}
    answer = await SimQueries(held, SimSource(timer)).find("timer-request/3/90", False, forwarded=False)
    assert (answer.missing, list(answer.timers)) == ({}, [timer])
