"""What has fired in the last time: which topics and records are read, and what is left out."""

from collections.abc import Callable, Generator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from tests.harness.constants import Constants
from timers.errors import TimersError
from timers.kafka.topic_offsets import Offsets
from timers.offline import fired
from timers.offline.fired import PastFirings, read_past_firings
from timers.process.config.settings import Settings

CALLBACK = [
    ("timer-id", b"timer-request/0/1"),
    ("timer-due", b"100"),
    ("timer-fired", b"100000"),
    ("other", b"x" * 999),
]


def record(topic: str, partition: int, offset: int, headers: Any) -> Message:
    data = b"k" * 999
    content: dict[str, Any] = {"key": data, "value": data, "headers": headers, "timestamp": (1, 100_000 + offset)}
    return Message(topic=topic, partition=partition, offset=offset, **content)


class Cluster:
    """Topics with one partition each. Records before ``first`` are older than what is asked for."""

    def __init__(self, **topics: tuple[int, int, Any]) -> None:
        self.topics = topics
        self.read: list[dict[str, int]] = []
        """Records of each topic that were read in each round."""

    def all(self) -> list[str]:
        return sorted(self.topics)

    def ends(self, topics: Sequence[str]) -> Offsets:
        if "refused" in topics:
            raise TimersError("topic 'refused' cannot be read")
        return {topic: {0: self.topics[topic][1]} for topic in topics}

    def at_time(self, topics: Sequence[str], time_ms: int) -> Offsets:
        assert time_ms == 90_000
        return {topic: {0: self.topics[topic][0]} for topic in self.ends(topics)}

    def records(
        self, consumer: Any, left: dict[tuple[str, int], range], while_waiting: Callable[[], None], **_: Any
    ) -> Generator[Message, None, None]:
        while_waiting()
        self.read.append({topic: sum(len(span) for (of, _), span in left.items() if of == topic) for topic, _ in left})
        for (topic, partition), span in list(left.items()):
            if topic == "unreadable":
                refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
                yield Message(topic=topic, partition=partition, offset=0, error=refused)
                continue
            for offset in span:
                yield record(topic, partition, offset, self.topics[topic][2])
            del left[topic, partition]


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Any:
    def look(cluster: Cluster, **options: Any) -> PastFirings:
        monkeypatch.setattr(fired, "TopicOffsets", lambda *_, **__: cluster)
        monkeypatch.setattr(fired, "read_all", cluster.records)
        monkeypatch.setattr(fired, "reader", lambda *_, **__: SimpleNamespace(close=lambda: None))
        return read_past_firings(Settings(), 90_000, **options)

    return look


def places(found: PastFirings) -> list[tuple[str, int]]:
    return [(record.topic, record.offset) for record in found.records]


def test_the_firings_of_all_topics_come_newest_first_and_cut(look: Any) -> None:
    cluster = Cluster(orders=(3, 6, CALLBACK), mails=(4, 5, CALLBACK), silent=(7, 7, CALLBACK))
    found = look(cluster)
    assert places(found) == [("orders", 5), ("orders", 4), ("mails", 4), ("orders", 3)]
    assert cluster.read == [{"orders": 3, "mails": 1}], "at once"
    first = found.records[0]
    assert (first.due_s, len(first.key or b""), len(first.value or b"")) == (100, 200, 200)
    assert [name for name, _ in first.headers] == ["timer-id", "timer-due", "timer-fired"]
    assert found.left_out == {}


def test_records_that_are_no_callbacks_and_topics_of_the_engine_are_no_firings(look: Any) -> None:
    cluster = Cluster(
        **{"timer-request": (0, 2, CALLBACK), "other-progress": (0, 2, CALLBACK), "timers-canary": (0, 2, CALLBACK)},
        requests=(0, 2, [("timer-due", b"100")]),
        plain=(0, 2, None),
        hidden=(0, 2, CALLBACK),
    )
    assert look(cluster, may_see=lambda topic: topic != "hidden").records == []
    assert cluster.read == [{"plain": 2, "requests": 2}]


def test_only_the_newest_are_kept_and_what_is_left_out_is_said(look: Any, constants: Constants) -> None:
    constants(fired, MOST=4, BUDGET=8)
    cluster = Cluster(many=(0, 9, CALLBACK), few=(0, 2, CALLBACK), plain=(0, 9, None))
    found = look(cluster)
    assert places(found) == [("many", 8), ("many", 7), ("many", 6), ("many", 5)]
    assert found.left_out == {
        "few": "it has older firings than the newest 4 of all topics",
        "many": "only its newest 4 records were read, about as many of each partition",
        "plain": "only its newest 2 records were read, about as many of each partition",
    }
    assert cluster.read == [{"few": 1, "many": 1, "plain": 2}, {"many": 3}, {"few": 1}], "what may be newer first"
    found = look(Cluster(many=(0, 9, None)))
    assert found.left_out == {"many": "only its newest 4 records were read, about as many of each partition"}


def test_the_bound_is_for_all_partitions_of_a_topic_together(look: Any, constants: Constants) -> None:
    """Of 64 partitions with 10,000 records each, a console had read only the first ones when its time was over."""
    constants(fired, MOST=10, BUDGET=10)

    class Partitions(Cluster):
        ends_of = (2, 50, 20, 3, 0)

        def ends(self, topics: Sequence[str]) -> Offsets:
            return {topic: dict(enumerate(self.ends_of)) for topic in topics}

        def at_time(self, topics: Sequence[str], time_ms: int) -> Offsets:
            return {topic: dict.fromkeys(range(len(self.ends_of)), 0) for topic in topics}

    cluster = Partitions(orders=(0, 0, CALLBACK))
    found = look(cluster)
    read = sorted((record.partition, record.offset) for record in found.records)
    assert read == [(0, 0), (0, 1), (1, 47), (1, 48), (1, 49), (2, 17), (2, 18), (2, 19), (3, 1), (3, 2)]
    assert found.left_out == {"orders": "only its newest 10 records were read, about as many of each partition"}
    Partitions.ends_of = (2, 5, 1, 0, 2)
    found = look(cluster)
    assert (len(found.records), found.left_out) == (10, {})


def test_what_fired_before_and_becomes_readable_meanwhile_is_not_shown(look: Any) -> None:
    """A position by time is never behind the last stable offset: that of an open transaction, which then commits."""

    class Committing(Cluster):
        asked = 0

        def ends(self, topics: Sequence[str]) -> Offsets:
            self.asked += 1
            return {topic: {0: 20 if self.asked > 1 else 0} for topic in topics}

        def at_time(self, topics: Sequence[str], time_ms: int) -> Offsets:
            return self.ends(topics)

    assert look(Committing(orders=(0, 0, CALLBACK))).records == []


def test_a_topic_that_cannot_be_read_does_not_hide_the_others(look: Any) -> None:
    found = look(Cluster(refused=(0, 1, CALLBACK), unreadable=(0, 1, CALLBACK), orders=(0, 1, CALLBACK)))
    assert places(found) == [("orders", 0)]
    assert found.left_out["refused"] == "topic 'refused' cannot be read"
    assert found.left_out["unreadable"].startswith("it cannot be read (")


def test_topics_that_cannot_be_read_in_time_are_left_out(look: Any) -> None:
    found = look(Cluster(orders=(0, 1, CALLBACK)), within_s=-1.0)
    assert found.left_out == {"orders": "it was not read within -1 s"}


def test_reading_ends_when_no_request_waits_for_it(look: Any) -> None:
    class AbandonedError(Exception): ...

    def check() -> None:
        raise AbandonedError

    with pytest.raises(AbandonedError):
        look(Cluster(orders=(0, 5, CALLBACK)), check=check)


def test_a_partition_is_not_read_longer_than_the_time_allows(look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.0, 0.5, 9.0])
    monkeypatch.setattr(fired, "monotonic", lambda: next(clock, 9.0))
    found = look(Cluster(orders=(0, 5, CALLBACK)), within_s=1.0)
    assert places(found) == [("orders", 1), ("orders", 0)]
    assert found.left_out == {"orders": "it was not read within 1 s"}
