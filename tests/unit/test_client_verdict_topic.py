"""A client goes on reading verdicts when their topic gets more partitions, or is deleted and made anew. No brokers."""

from __future__ import annotations

from threading import Timer
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_BEGINNING, TopicPartition

from tests.harness.sim_consumer import SimConsumer
from timers.client import TimersClient, clients
from timers.client.by_id import ById, Call, _ProbedCall, _Topic
from timers.client.config import Connection
from timers.wire.verdict import VerdictMessage

OLD = _Topic(b"old", 2)


class Looking:
    """A client that reads verdicts, and looks at their topic."""

    def __init__(self) -> None:
        self.consumer = SimConsumer()
        self.ids = ById(Connection.resolve("b:1", None, None, 10, None))
        self.ids._verdicts = OLD

    def look(self, found: _Topic | None) -> bool:
        return self.ids._note(cast(Any, self.consumer), found, len(self.ids._unproved))

    def probed(self) -> Call:
        """A call whose probe was answered."""
        call = Call()
        self.ids._unproved.append(_ProbedCall(call, "id", self.ids._verdicts))
        return call


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


def test_a_probe_counts_while_the_topic_is_the_same(looking: Looking) -> None:
    call = looking.probed()
    assert looking.look(OLD)
    assert call.future.result(0).verdict == "unknown"


@pytest.mark.parametrize("found", [None, _Topic(b"old", 4), _Topic(b"new", 2)])
def test_a_probe_does_not_count_after_a_change_of_the_topic(looking: Looking, found: _Topic | None) -> None:
    """The verdict on the update may be in another partition, or was deleted with the topic."""
    call = looking.probed()
    looking.look(found)
    looking.look(OLD if found is None else found)
    assert not call.future.done()


def test_a_probe_that_was_answered_after_the_question_waits_for_the_next_one(looking: Looking) -> None:
    first, second = looking.probed(), looking.probed()
    looking.ids._note(cast(Any, looking.consumer), OLD, 1)
    assert first.future.done() and not second.future.done()
    looking.look(OLD)
    assert second.future.done()


def test_an_id_that_was_not_known_at_first_is_no_change(looking: Looking) -> None:
    looking.ids._verdicts = _Topic(b"", 2)
    call = looking.probed()
    assert looking.look(OLD) and call.future.done()
    assert looking.look(_Topic(b"", 2)), "brokers without a controller do not say it"
    assert looking.ids._verdicts == OLD and not looking.consumer.assigned


def test_a_call_without_a_verdict_says_that_the_topic_was_made_anew(looking: Looking) -> None:
    call = looking.probed()
    call.set_source(b"timer-request-by-id/0/7")
    assert "does a worker run" in str(looking.ids.no_verdict_error(call, 5))
    looking.look(_Topic(b"new", 2))
    assert "'timer-verdict' was deleted and made anew" in str(looking.ids.no_verdict_error(call, 5))


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
