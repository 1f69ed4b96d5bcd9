"""What is left of the offsets of topics while topics are deleted or made, or have no leader. No broker answers here."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.harness.constants import Constants
from tests.harness.sim_admin import SimAdmin
from tests.harness.waiting import DEADLINE_S
from timers.errors import TimersError
from timers.kafka import connection, topic_offsets
from timers.kafka.topic_offsets import TopicOffsets
from timers.process.config.settings import Settings

NO_TOPIC, NO_LEADER = (
    KafkaException(KafkaError(code)) for code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE)
)


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> SimAdmin:
    made = SimAdmin(orders=2, strange=1)
    monkeypatch.setattr(topic_offsets, "admin_client", lambda *_: made)
    constants(topic_offsets, OFFSETS_TIMEOUT_S=0.3, _POLL_S=0.01, _SKIP_S=0.1)
    return made


def offsets(**more: Any) -> TopicOffsets:
    return TopicOffsets(Settings.load({}), 0.3, **more)


@contextmanager
def late_election(admin: SimAdmin) -> Iterator[None]:
    """All partitions get their leaders while they are asked for."""
    election = threading.Timer(3 * topic_offsets._SKIP_S, admin.offsets.clear)
    election.start()
    yield
    election.join()


def test_a_topic_that_is_deleted_while_it_is_asked_for_is_left_out(admin: SimAdmin) -> None:
    topics = offsets()
    del admin.topics["strange"]
    assert topics.starts(["orders", "strange"]) == {"orders": {0: 7, 1: 7}}
    assert topics.existing(["orders", "strange"]) == ["orders"]
    admin.topics["orders"] = [1]  # it was made anew with fewer partitions
    assert topics.ends(["orders"]) == {"orders": {0: 7}}


def test_a_topic_that_a_broker_does_not_know_yet_is_asked_for_again(admin: SimAdmin) -> None:
    topics = offsets()
    admin.failures = [NO_TOPIC]
    assert topics.ends(["strange"]) == {"strange": {0: 7}}


def test_a_leader_that_is_elected_late_is_waited_for_by_those_who_say_so(admin: SimAdmin) -> None:
    admin.offsets["strange", 0] = NO_LEADER
    topics = TopicOffsets(Settings.load({}), DEADLINE_S, skips_leaderless=True, skip_s=DEADLINE_S)
    with late_election(admin):
        assert topics.ends(topics.all()) == {"orders": {0: 7, 1: 7}, "strange": {0: 7}}


@pytest.mark.parametrize("skips", [True, False])
def test_a_silent_leader_is_given_more_time_with_each_one(admin: SimAdmin, constants: Constants, skips: bool) -> None:
    """A dead leader never answers, and the one that is elected meanwhile gets the next question. A slow one does."""
    constants(connection, GRACE_S=0.0)
    admin.offsets["strange", 0] = None
    topics = TopicOffsets(Settings.load({}), DEADLINE_S, skips_leaderless=skips, skip_s=DEADLINE_S)
    with late_election(admin):
        assert topics.ends(topics.all()) == {"orders": {0: 7, 1: 7}, "strange": {0: 7}}
    admin.offsets["strange", 0], admin.needs_s = None, 2 * topic_offsets._SKIP_S
    topics = TopicOffsets(Settings.load({}), 2.0, skips_leaderless=skips, skip_s=2.0)
    assert topics.ends(topics.all()) == {"orders": {0: 7, 1: 7}, "strange": {0: 7}}


def test_a_leader_that_goes_between_two_questions_leaves_its_partition_unknown(
    admin: SimAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = offsets(skips_leaderless=True)
    admin.offsets["orders", 0] = 0
    starts = topics.starts(["orders"])
    admin.offsets["orders", 1] = NO_LEADER
    monkeypatch.setattr(topics, "starts", lambda _: starts)
    admin.configs["orders"] = {"cleanup.policy": "delete"}
    assert topics.whole_since_ms(["orders"], 9) == {"orders": {0: 0}}


def test_a_first_record_that_cannot_be_read_leaves_the_other_partitions_known(
    admin: SimAdmin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[int] = []

    def first_ms(topic: str, partition: int, start: int, end: int) -> int:
        asked.append(partition)
        if partition == 1:
            raise TimersError("the batch cannot be unpacked")
        return 5

    topics = offsets()
    monkeypatch.setattr(topics, "first_ms", first_ms)
    admin.configs["orders"] = {"cleanup.policy": "delete"}
    assert topics.whole_since_ms(["orders"], 9, within=[0]) == {"orders": {0: 5}}
    assert asked == [0], "others are nobody's question"
    assert topics.whole_since_ms(["orders"], 9, within=[0, 1]) == {"orders": {0: 5}}
    assert "what partition 1 of orders has lost is not known: the batch cannot be unpacked" in caplog.text
    with pytest.raises(TimersError, match="unpacked"):
        topics.whole_since_ms(["orders"], 9)


def test_what_was_left_out_matters_to_those_who_need_it(admin: SimAdmin) -> None:
    admin.offsets["strange", 0] = NO_LEADER
    topics = offsets(skips_leaderless=True)
    assert topics.ends(topics.all()) == {"orders": {0: 7, 1: 7}, "strange": {}}
    topics.check_known(["orders"])
    for ask in (topics.check_known, offsets().ends):
        with pytest.raises(TimersError, match=r"^the leader of strange/0 does not answer$"):
            ask(["orders", "strange"])
