"""The history of one timer: how long its topics are read, and where reading ends. The topics are in memory."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, Message

from tests.harness.sim_admin import answered
from timers.console import history, kafka_cluster
from timers.console.history import History
from timers.console.kafka_cluster import KafkaCluster
from timers.console.letter_box import FoundLetters
from timers.core.operation import Verdict
from timers.errors import TimersError, UnacknowledgedError
from timers.kafka import records
from timers.offline.dead_letters.letters import LetterFilter, LetterPage
from timers.process.config.settings import Settings
from timers.wire import future, verdict
from timers.wire.formats import future_by_id

PARTITIONS = 8
IDS, VERDICTS, ORDERS, NATIVE = "ids", "verdicts", "orders", "timer-request"
DUE_S = 1_700_000_000


def record(
    key: bytes, value: bytes | None, headers: Any = (), at_ms: int = DUE_S * 1000, append_time: bool = True
) -> Message:
    kind = TIMESTAMP_LOG_APPEND_TIME if append_time else TIMESTAMP_CREATE_TIME
    return Message(key=key, value=value, headers=list(headers), timestamp=(kind, at_ms))


class SimTopics:
    """Topics of eight partitions.

    Attributes:
        now_s: monotonic time; each record takes ``record_s`` to read.
        read_from: the partitions that were read, in their order, by topic.
        open_consumers: those that were not closed.
        begins: partition of a topic -> its first offset, if it is not 0.
    """

    def __init__(self) -> None:
        self.partitions_of: dict[str, list[list[Message]]] = {}
        self.now_s = self.record_s = 0.0
        self.read_from: dict[str, list[int]] = {}
        self.open_consumers = 0
        self.unknown: dict[tuple[str, int], str] = {}
        self.begins: dict[tuple[str, int], int] = {}

    def add(self, topic: str, partition: int, *messages: Message) -> None:
        log = self.partitions_of.setdefault(topic, [[] for _ in range(PARTITIONS)])[partition]
        for message in messages:
            content: dict[str, Any] = {"key": message.key(), "value": message.value(), "headers": message.headers()}
            log.append(Message(partition=partition, offset=len(log), timestamp=message.timestamp(), **content))

    # ---- what the history uses ------------------------------------------------------------------------------------

    def existing(self, topics: list[str]) -> list[str]:
        return [topic for topic in topics if topic in self.partitions_of]

    def partitions(self, topic: str) -> list[int]:
        return [*range(PARTITIONS)]

    def starts(self, topics: list[str]) -> dict[str, dict[int, int]]:
        return {
            topic: {each: self.begins.get((topic, each), 0) for each in range(PARTITIONS)}
            for topic in self.existing(topics)
        }

    def ends(self, topics: list[str]) -> dict[str, dict[int, int]]:
        return {
            topic: {number: len(log) for number, log in enumerate(self.partitions_of[topic])}
            for topic in self.existing(topics)
        }

    def at_time(self, topics: list[str], time_ms: int) -> dict[str, dict[int, int]]:
        return self.starts(topics)

    def close(self) -> None:
        self.open_consumers -= 1

    def read(
        self, consumer: Any, topic: str, partition: int, start: int, end: int, *, timeout_s: float, **_: Any
    ) -> Iterator[Message]:
        self.read_from.setdefault(topic, []).append(partition)
        for message in self.partitions_of[topic][partition][start:end]:
            self.now_s += self.record_s
            yield message


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> SimTopics:
    kafka = SimTopics()

    def opened(*_: Any, **__: Any) -> SimTopics:
        kafka.open_consumers += 1
        return kafka

    monkeypatch.setattr(history, "TopicOffsets", lambda *_, **__: kafka)
    monkeypatch.setattr(history, "span_reader", opened)
    monkeypatch.setattr(records, "read", kafka.read)
    monkeypatch.setattr(history, "monotonic", lambda: kafka.now_s)
    return kafka


class NoLetters:
    """A topic without dead letters.

    Attributes:
        names: of the letters that were asked for.
    """

    def read_page(self, asked: LetterFilter, *_: object) -> FoundLetters:
        self.names = asked.names
        return FoundLetters(LetterPage([], {}), {}, frozenset(), {})


def history_of(id: str, timer: dict[str, Any] | None, no_letters: NoLetters | None = None) -> History:
    names = {"TIMERS_ID_TOPIC": IDS, "TIMERS_VERDICT_TOPIC": VERDICTS, "TIMERS_BROKERS": "nowhere:1"}
    letters: Any = no_letters or NoLetters()
    return history.read(Settings.load(names), letters, id, timer)


def request(id: str, target: str, at_ms: int) -> Message:
    headers = future_by_id.encode_headers(DUE_S)
    return record(id.encode(), future.encode(target, "k", b"v"), headers, at_ms)


def callback(source: str, at_ms: int = DUE_S * 1000, *, append_time: bool = True) -> Message:
    return record(b"k", b"v", [("timer-source", source.encode())], at_ms, append_time)


def said(history: History) -> list[str]:
    return [event["what"] for event in history.events]


def test_all_partitions_of_a_busy_topic_share_one_time_limit(kafka: SimTopics) -> None:
    kafka.add(IDS, 3, request("a", ORDERS, 1))
    kafka.add(VERDICTS, 0)
    for partition in range(PARTITIONS):
        kafka.add(ORDERS, partition, *(callback("others/0/0", append_time=False) for _ in range(100)))
    kafka.record_s = history.MAX_READING_S / 150
    found = history_of("a", {"id": "a", "source": f"{IDS}/3/0", "due": DUE_S})
    assert said(found) == ["set"]
    assert [each["topic"] for each in found.unread] == [ORDERS]
    assert len(kafka.read_from[ORDERS]) == 2
    assert kafka.open_consumers == 0


def test_reading_ends_at_the_callback_and_an_hour_after_the_due_second(kafka: SimTopics) -> None:
    kafka.add(IDS, 3, request("a", ORDERS, 1))
    kafka.add(VERDICTS, 0)
    late_ms = (DUE_S + 3601) * 1000
    likely = history._likely_first(list(range(PARTITIONS)), b"k")[0]
    kafka.add(ORDERS, likely, callback("others/0/0", late_ms), callback(f"{IDS}/3/0", late_ms))
    other, *_ = (each for each in range(PARTITIONS) if each != likely)
    kafka.add(ORDERS, other, callback(f"{IDS}/3/0"))
    found = history_of("a", {"id": "a", "source": f"{IDS}/3/0", "due": DUE_S})
    assert (said(found), found.unread) == (["set", "fired"], [])
    assert kafka.read_from[ORDERS] == [likely, other]


def test_after_a_cut_the_requests_and_callbacks_of_a_timer_are_found(kafka: SimTopics) -> None:
    """A worker names them with the number of the cut, which a reader of their log does not know."""
    kafka.add(IDS, 3, request("a", ORDERS, 1), request("a", ORDERS, 2))
    kafka.add(VERDICTS, 0)
    kafka.add(ORDERS, 0, callback(f"{IDS}/3/0~1"), callback(f"{IDS}/3/1~1"))
    letters = NoLetters()
    found = history_of("a", {"id": "a", "source": f"{IDS}/3/1~1", "due": DUE_S}, letters)
    assert set(letters.names) >= {f"{IDS}/3/0~1", f"{IDS}/3/1~1"}
    assert [(event["what"], event["source"]) for event in found.events] == [
        ("set", f"{IDS}/3/0"), ("set", f"{IDS}/3/1~1"), ("fired", f"{IDS}/3/0~1"), ("fired", f"{IDS}/3/1~1")
    ]  # fmt: skip


@pytest.mark.parametrize("is_likely", [True, False])
def test_the_topic_knows_an_id_that_no_worker_knows(kafka: SimTopics, is_likely: bool) -> None:
    likely, other, *_ = history._likely_first(list(range(PARTITIONS)), b"a")
    where = likely if is_likely else other
    moved = request("a", "elsewhere", 2)
    kafka.add(IDS, where, request("b", "hidden", 1), request("a", ORDERS, 1), moved, record(b"a", None, (), 3))
    value = verdict.encode(Verdict(b"a", 3, "cancelled", DUE_S, held=("pause", 7, DUE_S - 60)), str)
    outcome = record(b"a", value, [("timer-source", b"ids/0/3")], 4)
    kafka.add(VERDICTS, 5, outcome)
    kafka.add("elsewhere", 0)
    found = history_of("a", None)
    assert said(found) == ["set", "set", "cancel", "cancelled"]
    assert found.events[-1]["held"]["number"] == 7
    assert sorted(found.targets.values()) == ["elsewhere", ORDERS]
    assert kafka.read_from[IDS] == ([likely] if is_likely else [likely, other])
    assert history_of("c", None) == History([], [])


def test_a_history_says_by_what_a_timer_is_held(kafka: SimTopics) -> None:
    kafka.add(IDS, 3, request("a", ORDERS, 1))
    kafka.add(VERDICTS, 0)
    kafka.add(ORDERS, 0)
    held = {"reason": "pause", "number": 7, "since": DUE_S - 60}
    found = history_of("a", {"id": "a", "source": f"{IDS}/3/0", "due": DUE_S, "held": held})
    assert found.events[-1] == {"at_ms": 1000 * DUE_S, "what": "held", "held": held}


def test_an_unreadable_topic_is_no_proof_of_no_timer(kafka: SimTopics, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Iterator[Message]:
        raise TimersError("no leader")
        yield

    kafka.add(IDS, 0)
    monkeypatch.setattr(records, "read", fail)
    with pytest.raises(TimersError, match="no leader"):
        history_of("a", None)


def test_a_history_says_where_the_log_of_its_requests_begins(kafka: SimTopics) -> None:
    for number in range(4):
        request = record(b"one", future.encode(ORDERS, "k", b"%d" % number), future_by_id.encode_headers(DUE_S))
        kafka.add(IDS, 2, request)
    kafka.add(VERDICTS, 0)
    kafka.add(NATIVE, 0, *(record(b"%d" % DUE_S, future.encode(ORDERS, "k", b"v")) for _ in range(3)))
    kafka.begins = {(IDS, 2): 3, (IDS, 5): 9, (NATIVE, 0): 2}
    found = history_of("one", {"source": f"{IDS}/2/1", "due": DUE_S, "topic": ORDERS})
    assert [event["source"] for event in found.events if event["what"] == "set"] == [f"{IDS}/2/3"]
    reasons = [each["reason"] for each in found.unread if each["topic"] == IDS]
    assert reasons == ["partition 2 begins at offset 3: older requests are deleted"]
    native = history_of(f"{NATIVE}/0/1", {"source": f"{NATIVE}/0/1", "due": DUE_S, "topic": ORDERS})
    assert native.events == []
    assert {"topic": NATIVE, "reason": "partition 0 begins at offset 2: older requests are deleted"} in native.unread
    assert history_of(f"{NATIVE}/0/2", {"source": f"{NATIVE}/0/2", "due": DUE_S}).unread[0]["topic"] != NATIVE


# ---- the topic of the console's log is made anew ---------------------------------------------------------------------


class SimLog:
    """A producer of entries whose topic may be missing; then none is acknowledged."""

    def __init__(self) -> None:
        self.exists = self.is_open = True
        self.written: list[bytes] = []
        self.keys: set[bytes] = set()
        self.made = self.closed = 0

    def write(self, topic: str, key: bytes, value: bytes, headers: None) -> Future[str]:
        assert key not in self.keys, "a compacted topic keeps all entries"
        self.keys.add(key)
        self.written += [value] if self.exists else []
        return answered("log/0/1" if self.exists else UnacknowledgedError("no broker acknowledged"))

    def close(self) -> None:
        self.closed += 1

    def make(self) -> bool:
        was_missing, self.exists = not self.exists, True
        self.made += was_missing
        return was_missing


@pytest.fixture
def log() -> tuple[KafkaCluster, SimLog]:
    cluster, log = KafkaCluster(Settings(brokers="b:1")), SimLog()

    async def opened() -> Any:
        return log

    cluster._open_log = opened  # type: ignore[method-assign]
    cluster._make_log = log.make  # type: ignore[method-assign]
    return cluster, log


async def test_an_entry_that_finds_no_topic_makes_it_anew(log: tuple[KafkaCluster, SimLog]) -> None:
    """All entries that failed meanwhile are written, and the topic is made once."""
    cluster, sim = log
    await cluster.record(b"first")
    sim.exists = False
    await asyncio.gather(*(cluster.record(b"%d" % number) for number in range(3)))
    assert sorted(sim.written) == [b"0", b"1", b"2", b"first"] and sim.made == sim.closed == 1


async def test_a_log_whose_producer_has_ended_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the topic was deleted since: the attempt to open creates it. All changes that wait share the attempt."""
    opened: list[SimLog] = []

    def open_log(_: KafkaCluster) -> SimLog:
        opened.append(SimLog())
        return opened[-1]

    monkeypatch.setattr(KafkaCluster, "_new_log", open_log)
    cluster = KafkaCluster(Settings(brokers="b:1"))
    await cluster.record(b"first")
    opened[0].is_open = False
    await asyncio.gather(*(cluster.record(b"later") for _ in range(20)))
    assert [log.written for log in opened] == [[b"first"], [b"later"] * 20]
    assert [log.closed for log in opened] == [1, 0]


async def test_an_entry_that_brokers_do_not_take_is_an_error(
    log: tuple[KafkaCluster, SimLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, sim = log
    monkeypatch.setattr(kafka_cluster.KafkaCluster, "_make_log", lambda _: False)
    cluster._make_log = lambda: False  # type: ignore[method-assign]
    sim.exists = False
    with pytest.raises(UnacknowledgedError):
        await cluster.record(b"entry")
