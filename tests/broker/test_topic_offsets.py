"""Where topics begin and end, as jobs on Spark see it: no Spark is started."""

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.harness.records import Publisher
from tests.harness.system import System
from tests.harness.three_brokers import ThreeBrokers
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.cli.broker.embedded import NODE_ID
from timers.errors import TimersError
from timers.kafka.topic_offsets import Offsets, TopicOffsets
from timers.process.config.settings import Settings

pytestmark = pytest.mark.broker

NOW_MS = 10**13


def test_where_topics_begin_and_end(system: System) -> None:
    whole, cut, compacted = system.target(2), system.target(2), system.target(1, cleanup_policy="compact")
    young = system.target(1, cleanup_policy="compact", min_compaction_lag_ms="5000")
    publishers = {topic: Publisher(system.address, topic) for topic in (whole, cut, compacted)}
    for topic, publisher in publishers.items():
        for number in range(4):
            publisher.send_raw(b"%d" % number, b"value", [], 0)
        reader = system.reader(topic)
        times = [record.append_ms for record in reader.take(4)]
    system.cluster.delete_records(cut, {0: 2})
    topics = TopicOffsets(system.settings)
    assert topics.existing([cut, "nowhere", whole]) == sorted([cut, whole])
    assert topics.starts([whole, cut]) == {whole: {0: 0, 1: 0}, cut: {0: 2, 1: 0}}
    assert topics.ends([whole, "nowhere"]) == {whole: {0: 4, 1: 0}}
    assert topics.at_time([compacted], times[3] + 1) == {compacted: {0: 4}}
    assert topics.at_time([whole], 0) == {whole: {0: 0, 1: 0}}
    since = topics.whole_since_ms([whole, cut, compacted, young, "nowhere"], NOW_MS)
    assert since == {
        whole: {0: 0, 1: 0},
        cut: {0: since[cut][0], 1: 0},
        compacted: {0: NOW_MS},
        young: {0: NOW_MS - 5000},
    }
    assert 0 < since[cut][0] < NOW_MS
    system.cluster.delete_records(cut, {0: 4})
    assert topics.whole_since_ms([cut], NOW_MS) == {cut: {0: NOW_MS, 1: 0}}


class GivenOffsets(TopicOffsets):
    """Topics whose offsets are given."""

    def __init__(self, first: Offsets, ends: Offsets) -> None:
        self._first, self._ends = first, ends

    def starts(self, topics: Iterable[str]) -> Offsets:
        return self._first

    def ends(self, topics: Iterable[str]) -> Offsets:
        return self._ends


def test_what_is_left_of_a_range() -> None:
    """Records were deleted, a topic was created again and has fewer records, and another one is gone."""
    starts = {"a": {0: 5, 1: 7, 2: 3}, "again": {0: 100}, "gone": {0: 1}}
    first, ends = {"a": {0: 0, 1: 9}, "again": {0: 0}}, {"a": {0: 8, 1: 12}, "again": {0: 4}}
    assert GivenOffsets(first, ends).remaining(starts) == (
        {"a": {0: 5, 1: 9}, "again": {0: 4}},
        {"a": {0: 8, 1: 12}, "again": {0: 4}},
        2,
    )
    assert GivenOffsets({}, {}).remaining({"gone": {0: 1}}) == ({}, {}, 0)


def test_when_the_newest_record_was_appended(system: System) -> None:
    """By the brokers' clock: times that producers set do not count."""
    by_broker, by_producer = system.target(2), system.target(1, message_timestamp_type="CreateTime")
    topics = TopicOffsets(system.settings)
    assert topics.newest_append_ms(by_broker) == {}
    for topic in (by_broker, by_producer):
        Publisher(system.address, topic).send_raw(b"key", b"value", [], 0)
    (record,) = system.reader(by_broker).take(1)
    assert topics.newest_append_ms(by_broker) == {0: (NODE_ID, record.append_ms)}
    assert topics.newest_append_ms(by_producer) == topics.newest_append_ms("nowhere") == {}


def test_an_open_transaction_ends_a_topic_for_committed_readers(system: System) -> None:
    """Only until it ends, which the audit waits for."""
    topic = system.target(2)
    open_producer = Producer({"bootstrap.servers": system.address, "transactional.id": f"open-{topic}"})
    open_producer.init_transactions(DEADLINE_S)
    open_producer.begin_transaction()
    open_producer.produce(topic, b"value", b"key", partition=1)
    assert open_producer.flush(DEADLINE_S) == 0
    topics = TopicOffsets(system.settings)
    high = topics.high_watermarks([topic, "nowhere"])
    assert high == {topic: {0: 0, 1: 1}}
    assert topics.settled(high, timeout_s=0) == topics.ends([topic]) == {topic: {0: 0, 1: 0}}
    ender = threading.Timer(0.3, open_producer.commit_transaction)
    ender.start()
    assert topics.settled(high, timeout_s=DEADLINE_S) == high, "not the marker of the transaction, which came later"
    ender.join()


def test_no_broker_is_one_sentence() -> None:
    with pytest.raises(TimersError, match=r"^no broker answers at 127\.0\.0\.1:1: is it running"):
        TopicOffsets(Settings.load({"TIMERS_BROKERS": "127.0.0.1:1"}), timeout_s=1.0)


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill", "freeze"])
def test_partitions_of_a_dead_or_frozen_broker_do_not_hide_the_others(fault: str, tmp_path: Path) -> None:
    brokers = ThreeBrokers(tmp_path)
    try:
        settings = Settings.load({"TIMERS_BROKERS": brokers.start()})
        topic = brokers.create("orders", [1, 2, 3])
        alone = brokers.create("alone", [3])
        Publisher(brokers.address, topic).send_raw(b"key", b"value", [], 0)
        topics = TopicOffsets(settings, skips_leaderless=True)

        def are_known() -> bool:  # by all brokers: the topics are new
            try:
                return topics.ends([topic, alone]) == {topic: {0: 1, 1: 0, 2: 0}, alone: {0: 0}}
            except TimersError:
                return False

        wait_until(are_known, "the offsets while all brokers live")
        getattr(brokers, fault)(3)
        for offsets in (topics, TopicOffsets(settings, skips_leaderless=True)):
            assert offsets.ends([topic, alone]) == {topic: {0: 1, 1: 0}, alone: {}}
            assert set(offsets.unknown) == {(topic, 2), (alone, 0)}
        with pytest.raises(TimersError, match="the leader of orders/2 does not answer"):
            TopicOffsets(settings, 5.0).ends([topic])
    finally:
        brokers.stop()


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"skips_leaderless": True, "skip_s": 15.0}])
def test_the_leader_that_takes_over_from_a_frozen_one_is_asked(options: dict[str, Any], tmp_path: Path) -> None:
    """The cluster names the frozen one until its session ends, and the first question begins before that."""
    brokers = ThreeBrokers(tmp_path)
    try:
        settings = Settings.load({"TIMERS_BROKERS": brokers.start()})
        topic, other = brokers.create("orders", [(3, 2, 1)]), brokers.create("other", [2])
        Publisher(brokers.address, topic).send_raw(b"key", b"value", [], 0)
        expected: Offsets = {topic: {0: 1}, other: {0: 0}}
        wait_until(lambda: TopicOffsets(settings).ends(expected) == expected, "the record is in all replicas")
        topics = TopicOffsets(settings, **options)
        brokers.freeze(3)
        assert topics.ends(expected) == expected
        assert brokers.led_by(3) == set(), "the frozen broker was not asked"
        assert topics.unknown == {}
    finally:
        brokers.stop()
