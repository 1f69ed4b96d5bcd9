"""How a worker reads the topic of targets: all that is committed, also after the topic was cut or made anew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiokafka.errors import OffsetOutOfRangeError
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from confluent_kafka import KafkaError, KafkaException

from tests.harness.constants import Constants
from timers.core.fired import Command
from timers.errors import TargetError, TimersError, UnacknowledgedError
from timers.kafka import targets_log
from timers.kafka.aiokafka_internals.leader_client import RawFetch
from timers.kafka.connection import ErrorReports
from timers.kafka.targets_log import TargetsReader
from timers.process.config.settings import Settings
from timers.wire import targets as wire
from timers.wire.targets import Target


class SimTopic:
    """The leader of the topic, which has one record a batch."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes | None]] = []
        self.leader: int | None = 1
        self.waited: list[float] = []
        self.removed = 0
        """So many records at the end are removed by compaction."""

    def add(self, number: int, target: str, *, paused: bool = True) -> None:
        self.records.append(wire.encode(Target(Command(number, target, paused))))

    async def connect(self, topics: object) -> None: ...

    def leader_of(self, topic: str, partition: int) -> int | None:
        return self.leader

    async def ends(self, leader: int, place: object) -> tuple[int, int]:
        return 0, len(self.records)

    async def fetch(self, leader: int, place: object, offset: int, *, wait_s: float) -> RawFetch:
        end = len(self.records) + self.removed
        if offset > end:
            raise OffsetOutOfRangeError
        self.waited.append(wait_s)
        data = b""
        for at, (key, value) in list(enumerate(self.records))[offset : offset + 2]:
            builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 10**6)
            builder.append(0, 0, key, value, [])
            data += at.to_bytes(8, "big") + bytes(builder.build())[8:]
        return RawFetch(0, end, data)


@pytest.fixture
def topic() -> SimTopic:
    return SimTopic()


@pytest.fixture
def reader(topic: SimTopic) -> TargetsReader:
    client: Any = topic
    return TargetsReader(client, "targets")


async def numbers(reader: TargetsReader) -> list[int]:
    found = await reader.look(1.0)
    assert found is not None
    return [command.number for command in found.commands]


async def test_all_is_read_and_then_what_is_added(topic: SimTopic, reader: TargetsReader) -> None:
    for number in range(1, 6):
        topic.add(number, f"t{number % 3}")
    assert await numbers(reader) == [3, 4, 5]
    assert set(topic.waited) == {0}, "the first look waits for nothing"
    topic.add(6, "t0")
    assert await numbers(reader) == [4, 5, 6]
    assert topic.waited[-1] == 1.0
    topic.records.append((b"t1", None))
    assert await numbers(reader) == [5, 6]


async def test_a_topic_that_was_cut_is_read_again_from_its_beginning(topic: SimTopic, reader: TargetsReader) -> None:
    topic.add(1, "a")
    topic.add(2, "b")
    assert await numbers(reader) == [1, 2]
    del topic.records[1:]
    with pytest.raises(OffsetOutOfRangeError):
        await reader.look(1.0)
    assert await numbers(reader) == [1]


async def test_a_topic_made_anew_is_read_again(topic: SimTopic, reader: TargetsReader, constants: Constants) -> None:
    topic.add(1, "a")
    assert await numbers(reader) == [1]
    topic.records.clear()
    topic.add(7, "b")
    assert await numbers(reader) == [1]
    constants(targets_log, WHOLE_S=0.0)
    assert await numbers(reader) == [7]


async def test_what_compaction_has_removed_is_not_waited_for(topic: SimTopic, reader: TargetsReader) -> None:
    topic.add(1, "a")
    topic.removed = 3
    assert await numbers(reader) == [1]
    topic.records += [(b"b", None)] * 3
    topic.removed = 0
    topic.add(5, "c")
    assert await numbers(reader) == [1, 5]


async def test_without_a_leader_nothing_is_known(topic: SimTopic, reader: TargetsReader) -> None:
    topic.leader = None
    assert await reader.look(1.0) is None


class SimWriter:
    """Opens writers, each of which fails as the next of some answers says."""

    def __init__(self, *answers: int | None) -> None:
        self.answers, self.opened, self.sent = list(answers), 0, list[Any]()

    def open(self, *_: object) -> SimWriter:
        self.opened += 1
        return self

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        yield self.sent.append
        if (code := self.answers.pop(0)) is not None:
            raise KafkaException(KafkaError(code))


def given(writer: SimWriter, constants: Constants, monkeypatch: pytest.MonkeyPatch, refuse: bool = False) -> None:
    """Gives a command to a topic that says nothing."""

    def make(found: wire.Targets) -> Target:
        if refuse:
            raise TargetError("no")
        return Target(Command(1, "mails", True))

    constants(targets_log, AGAIN_S=0.0)
    monkeypatch.setattr(targets_log, "_writer", writer.open)
    monkeypatch.setattr(targets_log, "read", lambda *_: wire.Targets({}, {}))
    targets_log.write_command(Settings(), ErrorReports(Settings()), lambda: make)


def test_a_command_that_is_refused_fences_no_other(constants: Constants, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SimWriter()
    with pytest.raises(TargetError):
        given(writer, constants, monkeypatch, refuse=True)
    assert not writer.opened


def test_a_command_that_is_fenced_is_given_again(constants: Constants, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SimWriter(KafkaError._FENCED, None)
    given(writer, constants, monkeypatch)
    assert (writer.opened, len(writer.sent)) == (2, 2)
    constants(targets_log, FENCED_S=-1.0)
    with pytest.raises(TimersError, match=r"other commands .* were given at the same time") as raised:
        given(SimWriter(KafkaError._FENCED), constants, monkeypatch)
    assert raised.value.exit_code == 1, "docs/incidents.md says so: a script may give the command again"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._TIMED_OUT, UnacknowledgedError),
        (KafkaError._TRANSPORT, UnacknowledgedError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaException),
    ],
)
def test_only_what_may_have_been_written_is_unacknowledged(
    constants: Constants, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        given(SimWriter(code), constants, monkeypatch)
