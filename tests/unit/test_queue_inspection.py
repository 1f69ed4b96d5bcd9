"""The state of a queue whose partitions do not all have a leader. No brokers."""

from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.harness.sim_admin import answered
from timers.errors import AccessError, QueueError, UnacknowledgedError
from timers.kafka.connection import ErrorReports
from timers.process.config.settings import Settings
from timers.queue.inspection import Inspection
from timers.queue.metadata import Commit, Partition, Saved, encode


class SimInspection(Inspection):
    """A queue of three partitions, with two messages in each; ``away`` has those whose leaders do not answer."""

    def __init__(self, *away: int) -> None:
        here = {partition: partition not in away for partition in range(3)}
        offsets: Any = SimpleNamespace(
            existing=lambda names: [name for name in names if name == "jobs"],
            starts=lambda _: {"jobs": {number: 0 for number, is_here in here.items() if is_here}},
            ends=lambda _: {"jobs": {number: 2 for number, is_here in here.items() if is_here}},
            unknown={("jobs", number): "its leader does not answer" for number in away} | {("other", 0): "so"},
        )
        self._offsets = offsets
        self._settings = Settings.load({"TIMERS_BROKERS": "nowhere:1"})

    def _commits(self, group: str, names: Collection[str] = ()) -> dict[Partition, Commit]:
        return {("jobs", number): Commit(1, encode(Saved(1), "log") or "") for number in range(3)}

    def _tags(self, names: list[str]) -> dict[str, str]:
        return dict.fromkeys(names, "log")

    def _times(self, starts: Mapping[Partition, int]) -> dict[Partition, int | None]:
        return dict.fromkeys(starts, 0)

    def _members(self, group: str) -> int:
        return 0


def test_a_partition_without_a_leader_is_named_and_the_others_are_read() -> None:
    stats = SimInspection(1).stats("jobs", "jobs", with_delayed=False)
    assert (stats.depth, [each.partition for each in stats.partitions], stats.unread) == (2, [0, 2], ("jobs/1",))
    whole = SimInspection().stats("jobs", "jobs", with_delayed=False)
    assert (whole.depth, len(whole.partitions), whole.unread) == (3, 3, ())


def test_a_purge_needs_all_partitions() -> None:
    with pytest.raises(QueueError, match="nothing was purged: the leader of jobs/1 does not answer"):
        SimInspection(1).purge("jobs", "jobs")


def test_a_purge_without_an_answer_may_be_done() -> None:
    asked = answered(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
    inspection = SimInspection()
    inspection._reports = ErrorReports(inspection._settings)
    inspection._admin = cast(Any, SimpleNamespace(alter_consumer_group_offsets=lambda *_, **__: {"queue.jobs": asked}))
    inspection._reports(KafkaError(KafkaError._AUTHENTICATION, "sasl_ssl://a:1/1: no (after 3ms in state AUTH_REQ)"))
    with pytest.raises(UnacknowledgedError) as error:
        inspection.purge("jobs", "jobs")
    assert type(error.value.__cause__) is AccessError


def test_the_commits_of_a_group_say_which_topic_its_queue_has() -> None:
    host = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    for topic in ("orders", "other"):
        brokers = host.list_topics(topic, timeout=10).brokers
    address = next(iter(brokers.values()))
    settings = Settings.load({"TIMERS_BROKERS": f"{address.host}:{address.port}"})
    login = {"bootstrap.servers": settings.brokers, "group.id": "queue.jobs", "enable.auto.commit": False}
    with closing(Consumer(login)) as consumer:
        consumer.commit(offsets=[TopicPartition("orders", 2, 7)], asynchronous=False)
    inspection = Inspection(settings)
    assert inspection.topic_of("jobs") == "orders"
    assert inspection._commits("queue.jobs", ["orders"]) == {("orders", 2): Commit(7, "")}
    assert inspection._commits("queue.jobs", ["other"]) == inspection._commits("queue.none") == {}


def test_no_admin_client_asks_for_commits() -> None:
    """If the coordinator of the group moves meanwhile, librdkafka ends the process with SIGSEGV (its issue 5040)."""
    product = Path(__file__).parents[2] / "timers"
    asking = [path.name for path in product.rglob("*.py") if "list_consumer_group_offsets" in path.read_text("utf-8")]
    assert asking == []
