"""Offsets that are noted in a group without members, while no broker coordinates it. No broker answers here."""

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.harness.constants import Constants
from timers.kafka import clients

PLACES = [TopicPartition("orders", 0, 5)]


class SimConsumer:
    def __init__(self, *failures: int) -> None:
        self.refused = dict[str, KafkaError]()
        self._failures, self.tries, self.noted, self.is_closed = [*failures], 0, list[Any](), False

    def commit(self, offsets: list[TopicPartition], *, asynchronous: bool) -> list[Any]:
        self.tries += 1
        if self._failures:
            raise KafkaException(KafkaError(self._failures.pop(0)))
        assert not asynchronous
        self.noted += offsets
        return [SimpleNamespace(error=self.refused.get(each.topic)) for each in offsets]

    def close(self) -> None:
        self.is_closed = True


def opened(monkeypatch: pytest.MonkeyPatch, *failures: int) -> SimConsumer:
    made = SimConsumer(*failures)
    monkeypatch.setattr(clients, "reader", lambda *_, **__: made)
    return made


def test_a_coordinator_that_moves_is_waited_for(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> None:
    constants(clients, _PART_S=0.0)
    consumer = opened(monkeypatch, KafkaError._WAIT_COORD, KafkaError.COORDINATOR_NOT_AVAILABLE)
    clients.note_offsets({}, "group", PLACES, timeout_s=60)
    assert (consumer.noted, consumer.tries, consumer.is_closed) == (PLACES, 3, True)


@pytest.mark.parametrize(
    ("code", "timeout_s"), [(KafkaError.NOT_COORDINATOR, 0), (KafkaError.GROUP_AUTHORIZATION_FAILED, 60)]
)
def test_what_does_not_help_is_not_tried_again(code: int, timeout_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = opened(monkeypatch, code)
    with pytest.raises(KafkaException):
        clients.note_offsets({}, "group", PLACES, timeout_s)
    assert (consumer.tries, consumer.is_closed) == (1, True)


def test_a_topic_that_is_refused_is_an_error_though_others_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a word workers would trim what is not read there; one that was deleted has nothing to be trimmed."""
    consumer = opened(monkeypatch)
    places = [*PLACES, TopicPartition("other", 0, 5)]
    consumer.refused["other"] = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    clients.note_offsets({}, "group", places, timeout_s=60)
    consumer.refused["other"] = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        clients.note_offsets({}, "group", places, timeout_s=60)
    assert consumer.tries == 2
