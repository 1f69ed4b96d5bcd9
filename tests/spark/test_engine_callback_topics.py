"""What the engine asks the brokers about callback topics."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.system import System
from tests.harness.waiting import wait_until
from timers.config.settings import Settings
from timers.core.delivery import DeliveryProblem
from timers.kafka.topic_metadata import DEFAULT_MAX_MESSAGE_BYTES
from timers.spark.engine.callback_topics import CallbackTopics, Limits

pytestmark = pytest.mark.spark


@pytest.fixture
def system(broker_address: str, tmp_path: Path) -> System:
    return System(broker_address, tmp_path)


def found(callback_topics: CallbackTopics, topic: str) -> Limits:
    """What a task hears of a topic that was made just now, be it not the first task."""

    def ask() -> Limits | None:
        callback_topics.begin()
        said = callback_topics.limits(topic)
        return said if isinstance(said, Limits) else None

    return wait_until(ask, f"a task finds {topic}")


def test_topics_say_what_they_take_and_are_looked_for_by_each_task(system: System) -> None:
    wide, narrow = system.target(), system.target(max_message_bytes="2000")
    callback_topics = CallbackTopics(system.settings)
    assert found(callback_topics, wide) == Limits(DEFAULT_MAX_MESSAGE_BYTES, False)
    assert found(callback_topics, narrow) == Limits(2000, False)
    late = f"{wide}-late"
    missing = callback_topics.limits(late)
    assert isinstance(missing, DeliveryProblem)
    assert (missing.code, missing.reason) == ("topic-unknown", f"callBackTopic '{late}' does not exist")
    system.create_topic(late)
    assert isinstance(callback_topics.limits(late), DeliveryProblem)  # the same task: one look is enough
    assert found(callback_topics, late)


def test_missing_topics_are_made_if_the_settings_say_so(system: System) -> None:
    settings = Settings.load({**system.environment, "TIMERS_CREATE_TARGET_TOPICS": "1"})
    callback_topics = CallbackTopics(settings)
    name = f"{system.target()}-made"
    assert found(callback_topics, name)
    assert name in system.admin.list_topics(timeout=20).topics
