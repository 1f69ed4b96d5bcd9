"""What the engine asks the brokers about callback topics."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.system import System
from tests.harness.waiting import wait_until
from timers.config.settings import Settings
from timers.kafka.topic_metadata import DEFAULT_MAX_MESSAGE_BYTES, Limits, TopicMetadata
from timers.wire.future import InvalidRequestError

pytestmark = pytest.mark.spark


@pytest.fixture
def system(broker_address: str, tmp_path: Path) -> System:
    return System(broker_address, tmp_path)


def found(topic_metadata: TopicMetadata, topic: str) -> Limits:
    """What a task hears of a topic that was made just now, be it not the first task."""

    def ask() -> Limits | None:
        topic_metadata.begin()
        said = topic_metadata.limits(topic)
        return said if isinstance(said, Limits) else None

    return wait_until(ask, f"a task finds {topic}")


def test_topics_say_what_they_take_and_are_looked_for_by_each_task(system: System) -> None:
    wide, narrow = system.target(), system.target(max_message_bytes="2000")
    topic_metadata = TopicMetadata(system.settings)
    assert found(topic_metadata, wide) == Limits(DEFAULT_MAX_MESSAGE_BYTES, False)
    assert found(topic_metadata, narrow) == Limits(2000, False)
    late = f"{wide}-late"
    missing = topic_metadata.limits(late)
    assert isinstance(missing, InvalidRequestError)
    assert (missing.code, str(missing)) == ("topic-unknown", f"callBackTopic '{late}' does not exist")
    system.create_topic(late)
    assert isinstance(topic_metadata.limits(late), InvalidRequestError)  # the same task: one look is enough
    assert found(topic_metadata, late)


def test_missing_topics_are_made_if_the_settings_say_so(system: System) -> None:
    settings = Settings.load({**system.environment, "TIMERS_CREATE_TARGET_TOPICS": "1"})
    topic_metadata = TopicMetadata(settings)
    name = f"{system.target()}-made"
    assert found(topic_metadata, name)
    assert name in system.admin.list_topics(timeout=20).topics
