"""Where topics begin and end, as jobs on Spark see it: no Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from tests.harness.records import Publisher
from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S
from timers.config.settings import Settings
from timers.errors import TimersError
from timers.kafka.topic_offsets import TopicOffsets

pytestmark = pytest.mark.broker

NOW_MS = 10**13


def test_where_topics_begin_and_end(system: System) -> None:
    whole, cut, compacted = system.target(2), system.target(1), system.target(1, cleanup_policy="compact")
    publishers = {topic: Publisher(system.address, topic) for topic in (whole, cut, compacted)}
    for topic, publisher in publishers.items():
        for number in range(4):
            publisher.send_raw(b"%d" % number, b"value", [], 0)
        reader = system.reader(topic)
        times = [record.append_ms for record in reader.take(4)]
    system.admin.delete_records([TopicPartition(cut, 0, 2)])[TopicPartition(cut, 0)].result(DEADLINE_S)
    topics = TopicOffsets(system.settings)
    assert topics.existing([cut, "nowhere", whole]) == sorted([cut, whole])
    assert topics.starts([whole, cut]) == {whole: {0: 0, 1: 0}, cut: {0: 2}}
    assert topics.ends([whole, "nowhere"]) == {whole: {0: 4, 1: 0}}
    assert topics.at_time([compacted], times[3] + 1) == {compacted: {0: 4}}
    assert topics.at_time([whole], 0) == {whole: {0: 0, 1: 0}}
    since = topics.whole_since_ms([whole, cut, compacted, "nowhere"], NOW_MS)
    assert (since[whole], since[compacted]) == (0, NOW_MS) and 0 < since[cut] < NOW_MS
    system.admin.delete_records([TopicPartition(cut, 0, 4)])[TopicPartition(cut, 0)].result(DEADLINE_S)
    assert topics.whole_since_ms([cut], NOW_MS) == {cut: NOW_MS}


def test_no_broker_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timers.kafka.topic_offsets.TIMEOUT_S", 1.0)
    with pytest.raises(TimersError, match=r"^no broker answers at 127\.0\.0\.1:1: is it running"):
        TopicOffsets(Settings.load({"TIMERS_BROKERS": "127.0.0.1:1"}))
