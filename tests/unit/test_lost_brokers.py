"""Which statistics of librdkafka say that a client has lost the addresses of all brokers. No brokers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from tests.harness.waiting import wait_until
from timers.client.config import Connection
from timers.kafka import lost_brokers, records
from timers.kafka.lost_brokers import LostBrokers
from timers.offline import pending
from timers.process.config.settings import Settings

AWAY = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "reconnect.backoff.max.ms": 100}


@pytest.mark.parametrize("of_client", [{}, {"group.id": "group"}])
def test_brokers_that_are_away_are_not_lost(of_client: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_brokers, "STATISTICS_MS", 20)
    taken: list[str] = []

    class Noting(LostBrokers):
        def __call__(self, statistics: str) -> None:
            super().__call__(statistics)
            taken.append(statistics)
            assert self._since is None

    config = {**AWAY, **of_client, **Noting().properties}
    client: Any = Consumer(config) if of_client else Producer(config)
    wait_until(lambda: (client.poll(0.05), len(taken) > 20)[1], "statistics")
    if of_client:
        client.close()
    # As librdkafka writes it: this is what is looked for.
    (source,) = {each["source"] for each in json.loads(taken[-1])["brokers"].values() if each["source"] != "logical"}
    assert f'"source":"{source}"' in lost_brokers._KNOWN


LOST = '{"brokers":{"GroupCoordinator":{"source":"logical"}, ":0/internal":{"source":"internal"}}}'
HERE = LOST.replace("internal", "learned")


@pytest.mark.parametrize(
    ("every_s", "statistics", "are_all"),
    [
        (10, (), False),
        (10, (LOST,), False),
        (10, (LOST, LOST), True),
        (10, (LOST, HERE, LOST), False),
        (10, (LOST, LOST, HERE), False),
        (3600, (LOST, LOST), True),
        (0.1, [LOST] * 90, False),
        (0.1, [LOST] * 100, True),
    ],
)
def test_two_statistics_must_say_it_or_more_if_they_come_more_often(
    every_s: float, statistics: Sequence[str], are_all: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the first 10 s, the client may be about to take those of ``bootstrap.servers`` again."""
    now_s = count(1000.0, every_s)
    lost = LostBrokers()
    for each in statistics:
        at_s = next(now_s)
        monkeypatch.setattr(lost_brokers, "monotonic", lambda at_s=at_s: at_s)
        lost(each)
    assert lost.are_all is are_all


def test_an_import_which_reads_the_verdicts_when_all_is_sent_gathers_no_statistics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """librdkafka keeps them until they are taken, and an import may take hours."""
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(records, "reader", made.append)
    pending.Answers(Settings())
    records.TopicReader(Settings(), "topic")
    assert [each.get("statistics.interval.ms") for each in made] == [None, lost_brokers.STATISTICS_MS]


def test_statistics_of_the_application_are_passed_on_and_come_as_often_as_it_wants() -> None:
    theirs: list[str] = []
    config = {"statistics.interval.ms": 20, "stats_cb": theirs.append, "reconnect.backoff.max.ms": 100}
    lost, ours = LostBrokers(), list[str]()
    lost.__class__ = type("Noting", (LostBrokers,), {"__call__": lambda _, statistics: ours.append(statistics)})
    producer = Connection.resolve("127.0.0.1:1", None, config, 1.0, None).producer(linger_ms=0, lost=lost)
    wait_until(lambda: (producer.poll(0.05), len(theirs) > 2)[1], "statistics")
    assert ours == theirs
