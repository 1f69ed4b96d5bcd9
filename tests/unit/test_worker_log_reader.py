"""Dropped fetches are read again, so that no offset range is delivered without its records; records that cannot be read
stop their own partition, and those of the others are delivered, all of them."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from aiokafka import TopicPartition as KafkaTopicPartition
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.errors import (
    CorruptRecordException,
    KafkaConnectionError,
    NodeNotReadyError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
)
from aiokafka.protocol.fetch import FetchRequest

from tests.harness.constants import Constants
from tests.harness.machines import NativeRig
from tests.harness.sim_admin import answered
from timers.core.backoff import Pauses
from timers.core.levels import FIRST_LEVEL
from timers.core.ports import Lost
from timers.core.progress import MAX_PASSED_OVER, PASSED_OVER, History, Progress, SettingChange
from timers.core.timer import Fetched, TopicPartition
from timers.errors import SettingsError
from timers.kafka.accepted_loss import is_accepted
from timers.kafka.aiokafka_internals import fetch, metadata
from timers.kafka.aiokafka_internals.batch_pieces import UnreadableBatch
from timers.machines.life import ReadAhead
from timers.process.config.settings import Settings
from timers.worker import ticks
from timers.worker.consumer import requests
from timers.worker.consumer.requests import RequestLogReader
from timers.worker.machines.unreadable import UnreadablePartitions
from timers.worker.ticks import TopicFollower

GOOD, BAD = ("timer-request", 0), ("timer-request", 1)


class SimConsumer:
    """The parts of aiokafka's consumer that the reader uses, over logs in memory. It has aiokafka's own positions.

    Args:
        logs: partition -> records.

    Attributes:
        errors: partition -> error of its next fetches, after the records of partitions before it were taken.
        meanwhile: called while a fetch waits for the brokers.
    """

    def __init__(self, logs: Mapping[TopicPartition, list[str]]) -> None:
        self.logs = {KafkaTopicPartition(*tp): log for tp, log in logs.items()}
        self.errors: dict[TopicPartition, Exception] = {}
        self.meanwhile: Callable[[], None] = lambda: None
        self._subscription = SubscriptionState()
        self._subscription.assign_from_user([])
        self._fetcher = SimpleNamespace(_records={}, _notify=lambda future: None, _wait_consume_future=None)
        cluster = SimpleNamespace(leader_for_partition=lambda tp: 0)
        self._client = SimpleNamespace(cluster=cluster, _conns={}, force_metadata_update=lambda: None)

    def state(self, tp: TopicPartition) -> Any:
        return self._subscription.subscription.assignment.state_value(KafkaTopicPartition(*tp))

    async def getmany(self, *partitions: Any, timeout_ms: int) -> dict[Any, list[str]]:
        self.meanwhile()
        records: dict[Any, list[str]] = {}
        for tp in sorted(partitions):
            assert self._subscription.is_assigned(tp)
            state = self.state(tuple(tp))
            position = state.position
            state.seek(len(self.logs[tp]))
            if tuple(tp) in self.errors:
                raise self.errors[tuple(tp)]
            if records_of := self.logs[tp][position:]:
                records[tp] = records_of
        return records


class Reader:
    """A reader of some partitions, from their beginning.

    Attributes:
        suspended: reported suspensions.
        unreadable: reported errors of partitions.
        passes_over: whether batches that cannot be read are passed over.
        read_on: reported partitions that are read on.
    """

    def __init__(self, **logs: list[str]) -> None:
        self.suspended: list[tuple[TopicPartition, bool]] = []
        self.unreadable: list[tuple[TopicPartition, Exception]] = []
        self.passes_over = False
        self.read_on: list[TopicPartition] = []
        self.reader = RequestLogReader(
            Settings(),
            90.0,
            lambda tp: None,
            lambda *seen: self.suspended.append(seen),
            lambda *seen: self.unreadable.append(seen),
            lambda tp, batch: self.passes_over,
            self.read_on.append,
        )
        found = {GOOD: logs.get("good", []), BAD: logs.get("bad", [])}
        self.consumer: Any = SimConsumer({tp: log for tp, log in found.items() if log or tp == GOOD})
        self.reader.consumer = self.consumer
        for tp in self.consumer.logs:
            self.reader.read_from(tuple(tp), 0)

    async def fetch(self) -> dict[TopicPartition, Fetched]:
        return await self.reader.fetch([tuple(tp) for tp in self.consumer.logs], 0)


async def test_records_fetched_while_their_partition_was_suspended_are_read_again() -> None:
    worker = Reader(good=["a", "b"])
    # As after an error of another partition's leader.
    worker.consumer.meanwhile = lambda: worker.reader._suspend(GOOD, out_of_range=False)
    assert await worker.fetch() == {}
    worker.consumer.meanwhile = lambda: None
    worker.reader.end_suspension([GOOD])  # its topic was looked up and is the same
    assert await worker.fetch() == {GOOD: Fetched(0, 2, ["a", "b"])}


async def test_the_first_fetch_of_an_opened_partition_suspends_it_once() -> None:
    """Its topic may have been deleted and created again before: then the fetch gives no error."""
    worker = Reader()
    fetched = SimpleNamespace(API_KEY=FetchRequest.API_KEY, topics=[(GOOD[0], [(GOOD[1], 0)])])
    another = SimpleNamespace(API_KEY=FetchRequest.API_KEY + 1, topics=fetched.topics)
    for opened in (1, 2):
        worker.reader.forget([GOOD])
        worker.reader.read_from(GOOD, 0)
        worker.reader._inspect(another)
        assert len(worker.suspended) == opened - 1, "only a fetch counts"
        worker.reader._inspect(fetched)
        assert worker.suspended == opened * [(GOOD, False)]
        worker.reader.end_suspension([GOOD])
        worker.reader.read_from(GOOD, 0)  # the machine reads its log again
        worker.reader._inspect(fetched)
        assert len(worker.suspended) == opened, "the topic was checked after the opening"


async def test_a_partition_is_read_from_where_its_machine_asks_and_the_others_do_not_notice() -> None:
    worker = Reader(good=["a", "b"], bad=["x"])
    assert await worker.fetch() == {GOOD: Fetched(0, 2, ["a", "b"]), BAD: Fetched(0, 1, ["x"])}
    worker.reader.forget([BAD])
    worker.consumer.logs[KafkaTopicPartition(*GOOD)].append("c")
    worker.consumer._fetcher._records = {KafkaTopicPartition(*BAD): "arrived late"}
    assert await worker.fetch() == {GOOD: Fetched(2, 3, ["c"])}
    assert not worker.consumer.state(BAD).has_valid_position, "the answer to a fetch under way is dropped"
    worker.reader.forget([BAD])
    assert worker.consumer._fetcher._records == {}
    worker.reader.read_from(BAD, 0)
    assert await worker.fetch() == {BAD: Fetched(0, 1, ["x"])}


async def test_a_position_that_the_log_does_not_hold_suspends_its_partition() -> None:
    worker = Reader(good=["a"], bad=["x"])
    worker.consumer.errors[BAD] = OffsetOutOfRangeError({KafkaTopicPartition(*BAD): 0})
    assert await worker.fetch() == {}
    assert worker.suspended == [(BAD, True)]


@pytest.mark.parametrize("error", [CorruptRecordException("bad CRC"), ValueError("no header")], ids=["crc", "parser"])
async def test_an_unreadable_partition_is_reported_and_no_other_loses_a_record(error: Exception) -> None:
    worker = Reader(good=["a", "b"], bad=["x"])
    worker.consumer.errors[BAD] = error
    assert await worker.fetch() == {GOOD: Fetched(0, 2, ["a", "b"])}
    assert worker.unreadable == [(BAD, error)]
    assert worker.consumer.state(BAD).position == 0, "it is read again when its machine is open again"


async def test_an_unreadable_batch_is_tried_again_and_nothing_else_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(requests, "monotonic", lambda: now)
    worker = Reader(good=["a", "b"], bad=["x", "y"])
    assert await worker.fetch() == {GOOD: Fetched(0, 2, ["a", "b"]), BAD: Fetched(0, 2, ["x", "y"])}
    batch = UnreadableBatch()
    batch.from_offset, batch.end_offset = 2, 5
    assert worker.reader._note_unreadable(KafkaTopicPartition(*BAD), batch) is False
    for tp in (GOOD, BAD):
        worker.consumer.logs[KafkaTopicPartition(*tp)] += ["c", "d", "e"]
    worker.consumer.errors[BAD] = AssertionError("it is not fetched")
    assert await worker.fetch() == {GOOD: Fetched(2, 5, ["c", "d", "e"])}
    assert worker.read_on == []
    now += requests.UNREADABLE_RETRY_S
    worker.consumer.errors.clear()
    worker.passes_over = True
    assert worker.reader._note_unreadable(KafkaTopicPartition(*BAD), batch) is True
    assert (await worker.fetch())[BAD] == Fetched(2, 5, ["c", "d", "e"])
    assert worker.read_on == [BAD]


async def test_a_partition_is_read_on_also_if_it_was_read_again_from_before_the_batch() -> None:
    """Its sentence stands until then, so it must be told: also if the batch is passed over in the next fetch."""
    worker = Reader(bad=["x", "y"])
    await worker.fetch()
    batch = UnreadableBatch()
    batch.from_offset, batch.end_offset = 2, 5
    assert worker.reader._note_unreadable(KafkaTopicPartition(*BAD), batch) is False
    worker.reader.read_from(BAD, 1)
    assert (await worker.fetch())[BAD] == Fetched(1, 2, ["y"]), "at once"
    assert worker.read_on == []
    worker.consumer.logs[KafkaTopicPartition(*BAD)] += ["c"]
    await worker.fetch()
    assert worker.read_on == [BAD]


@pytest.mark.parametrize("topic", ["timer-request", "orders"])
async def test_a_right_that_is_gone_stops_the_partitions_of_its_topic(topic: str) -> None:
    worker = Reader(good=["a"], bad=["x"])
    worker.consumer.errors[BAD] = TopicAuthorizationFailedError(topic)
    assert await worker.fetch() == {}
    assert {tp: type(error) for tp, error in worker.unreadable} == (
        {tuple(GOOD): Lost, tuple(BAD): Lost} if topic == "timer-request" else {}
    )
    del worker.consumer.errors[BAD]
    assert set(await worker.fetch()) == {tuple(GOOD), tuple(BAD)}, "what was taken before is read again"


class SimClient:
    """A client whose first connections fail."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.is_started = False

    async def start(self) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.is_started = True


async def test_a_client_whose_first_connections_are_cut_starts_when_the_brokers_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(metadata, "asyncio", SimpleNamespace(sleep=sleep))
    failures = [KafkaConnectionError("Unable to bootstrap"), ConnectionResetError(), KafkaConnectionError()]
    client = SimClient(*failures, NodeNotReadyError(), NodeNotReadyError())
    await metadata.start_patiently(client.start, "the producer", lambda: False)
    assert client.is_started
    assert pauses == [0.2, 0.4, 0.8, 1.0, 1.0]
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == ["the producer waits for the brokers"]


class Follower(TopicFollower):
    """Ends with the first records."""

    async def handle(self, records: dict[KafkaTopicPartition, list[Any]]) -> None:
        self._stopped.set()


async def test_a_reader_of_ticks_says_once_that_it_waits_or_may_not_read(
    monkeypatch: pytest.MonkeyPatch, constants: Constants, caplog: pytest.LogCaptureFixture
) -> None:
    client = SimClient(*[KafkaConnectionError("Unable to bootstrap")] * 3)

    refusals = [TopicAuthorizationFailedError("oscillator")] * 3

    async def nothing(*args: object, **more: object) -> dict[KafkaTopicPartition, list[Any]]:
        return {}

    async def getmany(**_: object) -> dict[KafkaTopicPartition, list[Any]]:
        if refusals:
            raise refusals.pop()
        return {}

    async def stop() -> None:
        raise asyncio.CancelledError  # as of aiokafka if a broker refuses connections: it is not this task's

    closing = SimpleNamespace(close=nothing)
    consumer = Mock(start=client.start, seek_to_end=nothing, getmany=getmany, stop=stop, _client=closing)
    monkeypatch.setattr(ticks, "AIOKafkaConsumer", lambda **_: consumer)
    monkeypatch.setattr(ticks, "limit_updates", lambda _: None)
    monkeypatch.setattr(fetch, "leader_of", lambda *_: 1)
    constants(ticks, RETRY_S=0.001)
    constants(metadata, PAUSES=Pauses(0.001, 1.0))
    async with Follower(Settings(), "oscillator", lambda: 1, "ticks", "read_uncommitted") as follower:
        async with asyncio.timeout(30):
            while not follower.should_stop:
                await asyncio.sleep(0)
    said = [record.getMessage().split(" (")[0] for record in caplog.records]
    assert said == ["the reader of oscillator waits for the brokers", "reading oscillator failed"]


async def test_a_worker_that_is_stopped_does_not_wait_for_the_brokers(constants: Constants) -> None:
    constants(metadata, PAUSES=Pauses(0.001, 1.0))
    client = SimClient(*(KafkaConnectionError() for _ in range(9)))
    await metadata.start_patiently(client.start, "the producer", lambda: len(client.failures) < 5)
    assert not client.is_started and len(client.failures) == 4


async def test_an_error_that_is_no_connection_ends_the_start() -> None:
    client = SimClient(TopicAuthorizationFailedError("orders"))
    with pytest.raises(TopicAuthorizationFailedError):
        await metadata.start_patiently(client.start, "the producer", lambda: False)


# ---- batches that cannot be read -------------------------------------------------------------------------------------


TP = ("timer-request", 0)


class Pool:
    """What :class:`UnreadablePartitions` asks of a pool, with one machine."""

    def __init__(self, progress: Progress, accept_loss: str = "", *, has_ids: bool = False) -> None:
        self.rig = NativeRig(progress=progress)
        self.rig.observe(0)
        self.accept_loss = accept_loss
        self.formats = {TP[0]: SimpleNamespace(has_ids=has_ids)}
        self.runners = {TP: SimpleNamespace(machine=self.rig.machine, ask=self.ask, reads_ahead=False)}
        self.failed: list[tuple[TopicPartition, Exception]] = []

    def fail(self, tp: TopicPartition, error: Exception) -> None:
        self.failed.append((tp, error))

    def ask(self, question: Any) -> Future[Any]:
        return answered(question(self.rig.machine))


def batch(from_offset: int = 0, end_offset: int = 10) -> UnreadableBatch:
    error = UnreadableBatch(
        f"timer-request/0: the record batch with the offsets {from_offset} to ... cannot be read: x"
    )
    error.from_offset, error.end_offset, error.raw = from_offset, end_offset, b"raw"
    return error


def noted(pool: Any, error: UnreadableBatch) -> str:
    """The sentence of the partition; empty: it is not red."""
    unreadable = UnreadablePartitions(pool.accept_loss, pool.formats, pool.runners.get, pool.fail)
    unreadable.note(TP, error)
    return unreadable.sentences.get(TP, "")


@pytest.mark.parametrize("has_ids", [False, True])
def test_the_sentence_says_what_waits_and_what_to_do(has_ids: bool) -> None:
    pool = Pool(Progress.first(FIRST_LEVEL), "other/3", has_ids=has_ids)
    waits = "its timers wait, because a cancel" if has_ids else "timers that were accepted before it fire on"
    sentence = noted(pool, batch())
    assert sentence.startswith("timer-request/0: the record batch with the offsets 0 to ")
    assert waits in sentence
    assert "start once with TIMERS_ACCEPT_LOSS=other/3,timer-request/0:0-9 (docs/operations.md#a-batch-" in sentence
    assert pool.rig.outbox.rejected == []


def test_what_is_accepted_is_passed_over() -> None:
    pool = Pool(Progress.first(FIRST_LEVEL), "timer-request/0:0-99")
    assert noted(pool, batch()) == ""
    assert pool.rig.outbox.rejected == [(0, "batch-unreadable")]
    assert pool.rig.machine.progress.settings.passed_over == ((0, 10),)


def test_the_partition_is_red_until_the_passing_over_is_committed() -> None:
    """Also in a replay, in which the machine may wait for a tick."""
    pool: Any = Pool(Progress.first(FIRST_LEVEL), "timer-request/0:0-99")
    pool.rig.accept(5, 6)
    pool.rig.machine.commit_progress()
    pool.runners[TP].machine = pool.rig.open(wipe=True)
    unreadable = UnreadablePartitions(pool.accept_loss, pool.formats, pool.runners.get, pool.fail)
    unreadable.note(TP, batch())
    assert not unreadable.sentences and not pool.rig.outbox.rejected
    unreadable.note(TP, batch())
    assert "It is passed over, as TIMERS_ACCEPT_LOSS says, once" in unreadable.sentences[TP]
    pool.rig.observe(1)
    unreadable.note(TP, batch())
    assert pool.rig.outbox.rejected == [(0, "batch-unreadable")]
    assert pool.rig.machine.progress.settings.passed_over == ((0, 10),)
    unreadable.forget(TP)
    assert not unreadable.sentences


def test_a_machine_that_is_read_ahead_is_opened_with_a_fence() -> None:
    """It gets no ticks, so it could never commit that the batch is passed over."""
    pool = Pool(Progress.first(FIRST_LEVEL), "timer-request/0:0-99")
    pool.runners[TP].reads_ahead = True
    assert noted(pool, batch()) == ""
    [(tp, error)] = pool.failed
    assert tp == TP and isinstance(error, ReadAhead)
    assert pool.rig.outbox.rejected == []


def test_in_a_replay_the_sentence_says_that_no_timer_fires() -> None:
    pool: Any = Pool(Progress.first(FIRST_LEVEL))
    pool.rig.accept(5, 6)
    pool.rig.machine.commit_progress()
    pool.runners[TP].machine = pool.rig.open(wipe=True)
    assert "its timers wait, because this batch was accepted before" in noted(pool, batch())


def test_no_range_is_offered_if_the_end_is_not_known() -> None:
    pool = Pool(Progress.first(FIRST_LEVEL), "timer-request/0:0-99")
    sentence = noted(pool, batch(5, 5))
    assert "Where this batch ends is not known" in sentence and "TIMERS_ACCEPT_LOSS" not in sentence
    assert pool.rig.outbox.rejected == []


def test_a_history_has_a_limit() -> None:
    ranges = [SettingChange(PASSED_OVER, 10 * number, 10 * number + 1) for number in range(MAX_PASSED_OVER)]
    history = History([*Progress.first(FIRST_LEVEL).settings, *ranges])
    pool = Pool(Progress(settings=history), "timer-request/0:0-9999")
    assert f"{MAX_PASSED_OVER} batches of this partition are passed over, and no more can be" in noted(
        pool, batch(5000, 5010)
    )
    assert pool.rig.outbox.rejected == []


def test_a_partition_that_is_read_on_is_green() -> None:
    pool: Any = Pool(Progress.first(FIRST_LEVEL))
    unreadable = UnreadablePartitions(pool.accept_loss, pool.formats, pool.runners.get, pool.fail)
    unreadable.note(TP, batch())
    assert unreadable.sentences.keys() == {TP}
    unreadable.forget(TP)
    assert not unreadable.sentences
    pool.runners.clear()
    unreadable.note(TP, batch())
    assert not unreadable.sentences, "the partition is closed"


@pytest.mark.parametrize(
    "accept_loss, accepted",
    [
        ("timer-request/0:10-19", True),
        ("a/1,timer-request/0:0-100,b/2:snapshot", True),
        ("timer-request/0", False),
        ("timer-request/0:snapshot", False),
        ("timer-request/0:10-18", False),
        ("timer-request/0:11-19", False),
        ("timer-request/1:10-19", False),
        ("x-timer-request/0:10-19", False),
        ("", False),
    ],
)
def test_the_setting_names_a_range(accept_loss: str, accepted: bool) -> None:
    assert Settings.load({"TIMERS_ACCEPT_LOSS": accept_loss}).accept_loss == accept_loss
    assert is_accepted(accept_loss, TP, batch(10, 20)) is accepted


def test_other_characters_are_refused() -> None:
    with pytest.raises(SettingsError, match="TIMERS_ACCEPT_LOSS"):
        Settings.load({"TIMERS_ACCEPT_LOSS": "timer-request/0 10"})
