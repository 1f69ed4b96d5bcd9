"""In how many round trips an opening reads its progress, and what happens while leaders do not answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka.errors import NotLeaderForPartitionError
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from confluent_kafka import KafkaException

from tests.harness.round_trips import RoundTrips
from timers.config.settings import Settings
from timers.core.progress import Progress
from timers.errors import LogMismatch
from timers.kafka import progress_log
from timers.kafka.aiokafka_internals.leader_client import RawFetch
from timers.kafka.progress_log import ProgressLog
from timers.kafka.topics import Cluster
from timers.wire import progress as progress_record

TP = ("timer-request", 0)
TOPIC_ID = b"0123456789abcdef"
SETTINGS = Settings()
FOUND = Progress(7, (900, 3))


def record(progress: Progress) -> bytes:
    """A batch of the progress topic, outside of a transaction."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 10**6)
    value = progress_record.encode(progress, TOPIC_ID, progress_record.machine_name(SETTINGS.app_id, *TP))
    builder.append(0, 1, progress_record.encode_key(*TP), value, [])
    return bytes(builder.build())


class SimLeaders:
    """Leaders whose answers to all that was asked come together, one round trip later.

    Attributes:
        fails: how many questions are answered with an error.
        round_trips: of their answers.
    """

    def __init__(self, *_: object) -> None:
        self.fails = 0
        self.round_trips = RoundTrips()

    async def connect(self, topics: object) -> None: ...

    async def close(self) -> None: ...

    def leader_of(self, topic: str, partition: int) -> int:
        return 7

    async def _answer(self) -> None:
        await self.round_trips.wait()
        if self.fails:
            self.fails -= 1
            raise NotLeaderForPartitionError

    async def ends(self, leader: int, tp: tuple[str, int]) -> tuple[int, int]:
        await self._answer()
        return (0, 1) if tp[0] == SETTINGS.progress_topic else (3, 9)

    async def fetch(self, leader: int, tp: tuple[str, int], offset: int) -> RawFetch:
        await self._answer()
        return RawFetch(0, 1, record(FOUND))


@pytest.fixture
def leaders(monkeypatch: pytest.MonkeyPatch) -> SimLeaders:
    found = SimLeaders()
    monkeypatch.setattr(progress_log, "LeaderClient", lambda *_: found)
    return found


@pytest.fixture
def log(leaders: SimLeaders, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProgressLog]:
    monkeypatch.setattr(ProgressLog, "_copy_of_group", lambda *_: (7, FOUND.witness))
    cluster = Cluster("c", {TP[0]: TOPIC_ID}, {TP[0]: 1, SETTINGS.progress_topic: 1})
    made = ProgressLog(SETTINGS, cluster, timeout_s=1.0)
    yield made
    made.close()


def test_an_opening_waits_for_two_round_trips(log: ProgressLog, leaders: SimLeaders) -> None:
    """The ends of both logs are asked for at once, and the group meanwhile."""
    records, progress, ends = log.read_one(TP)
    assert (set(records), progress, ends) == ({TP}, FOUND, (3, 9))
    assert leaders.round_trips.count == 2


def test_leaders_that_change_are_asked_again(log: ProgressLog, leaders: SimLeaders) -> None:
    leaders.fails = 3
    assert log.read_one(TP)[1] == FOUND


def test_without_an_answer_in_time_it_says_what_was_asked(log: ProgressLog, leaders: SimLeaders) -> None:
    leaders.fails = 10_000
    with pytest.raises(KafkaException, match=r"reading the end of timer-request/0: NotLeaderForPartitionError"):
        log.ends(*TP)


def test_a_group_that_has_a_newer_copy_is_believed(
    log: ProgressLog, leaders: SimLeaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer: Any = Progress(8, (900, 3)).witness
    monkeypatch.setattr(ProgressLog, "_copy_of_group", lambda *_: (8, newer))
    with pytest.raises(LogMismatch, match="lost records, or an older record was written there"):
        log.read_one(TP)
