"""A client goes on reading verdicts when their topic gets more partitions, or is deleted and made anew. No brokers."""

from threading import Timer
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Producer, TopicPartition

from tests.harness.sim_consumer import SimConsumer
from timers.client import TimersClient, clients
from timers.client.by_id import ById, Call, _Topic
from timers.client.config import Connection
from timers.errors import NoVerdictError, UnreachableError
from timers.wire.topics import ID_REQUEST, VERDICT
from timers.wire.verdict import VerdictMessage

OLD = _Topic(b"old", 2)


class Looking:
    """A client that reads verdicts, and looks at their topic."""

    def __init__(self) -> None:
        self.consumer = SimConsumer()
        self.ids = ById(Connection.resolve("b:1", None, None, 10, None))
        self.ids._verdicts = OLD

    def look(self, found: _Topic | None) -> bool:
        return self.ids._note(cast(Any, self.consumer), found)


@pytest.fixture
def looking() -> Looking:
    return Looking()


def read(partitions: list[TopicPartition]) -> list[tuple[int, int]]:
    return [(each.partition, each.offset) for each in partitions]


def test_new_partitions_are_read_from_their_beginning_and_the_others_go_on(looking: Looking) -> None:
    assert looking.look(_Topic(b"old", 4))
    assert read(looking.consumer.added) == [(2, OFFSET_BEGINNING), (3, OFFSET_BEGINNING)]
    assert looking.consumer.assigned == []


@pytest.mark.parametrize("partitions", [1, 2, 4])
def test_a_topic_that_was_made_anew_is_read_from_its_beginning(looking: Looking, partitions: int) -> None:
    """The old offsets would skip its first verdicts."""
    assert not looking.look(None)
    assert looking.consumer.assigned == []
    assert looking.look(_Topic(b"new", partitions))
    assert read(looking.consumer.assigned) == [(number, OFFSET_BEGINNING) for number in range(partitions)]
    assert looking.consumer.added == []


def test_an_id_that_was_not_known_at_first_is_no_change(looking: Looking) -> None:
    looking.ids._verdicts = _Topic(b"", 2)
    assert looking.look(OLD)
    assert looking.look(_Topic(b"", 2)), "brokers without a controller do not say it"
    assert looking.ids._verdicts == OLD and not looking.consumer.assigned


def test_a_call_without_a_verdict_says_that_the_topic_was_made_anew(looking: Looking) -> None:
    call = Call()
    call.set_source(b"timer-request-by-id/0/7")
    assert "does a worker run" in str(looking.ids.no_verdict_error(call, 5))
    looking.look(_Topic(b"new", 2))
    assert "'timer-verdict' was deleted and made anew" in str(looking.ids.no_verdict_error(call, 5))


def test_a_call_whose_consumer_had_lost_the_brokers_says_so(looking: Looking) -> None:
    """The verdict may have come before the new consumer began."""
    call = Call()
    call.set_source(b"timer-request-by-id/0/7")
    looking.ids.forget_reader()
    assert "had lost the brokers" in str(looking.ids.no_verdict_error(call, 5))


def test_verdicts_are_read_as_soon_as_the_machine_lets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without threads or files for an admin client now is not one whose verdicts nobody reads."""
    cluster = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    address = next(iter(cluster.list_topics(ID_REQUEST, timeout=10).brokers.values()))
    cluster.list_topics(VERDICT, timeout=10)
    made: list[Any] = []

    def admin(self: Connection) -> Any:
        made.append(None)
        if len(made) < 3:
            self._made(lambda: (_ for _ in ()).throw(KafkaException(KafkaError(KafkaError._CRIT_SYS_RESOURCE, "no"))))
        return real(self)

    real = Connection.admin
    monkeypatch.setattr(Connection, "admin", admin)
    with TimersClient(f"{address.host}:{address.port}", timeout_s=60) as client:
        for _ in range(2):
            with pytest.raises(UnreachableError, match="no Kafka client can be made now"):
                client.cancel("one")
        with pytest.raises(NoVerdictError):
            client.cancel("one", timeout_s=0.1)
        ids = client._ids
        assert ids is not None and ids.listening and ids._reader is not None and ids._reader.is_alive()


def test_a_verdict_that_was_read_before_its_request_was_acknowledged_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short the call is: it has waited for the acknowledgement, and the answer is known."""
    monkeypatch.setattr(clients, "_LONGER_S", 60.0)
    call, verdict = Call(), VerdictMessage("one", "cancelled", 9)
    call.add_verdict(b"source", verdict)
    acknowledge = Timer(0.05, call.set_source, [b"source"])
    client = TimersClient("b:1")
    client._ids = cast(Any, SimpleNamespace(listening=True, cancel=lambda *_: call, close=lambda _: None))
    with client:
        acknowledge.start()
        assert client.cancel("one", timeout_s=0.0) == verdict
