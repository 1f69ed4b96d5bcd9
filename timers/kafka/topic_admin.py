"""Topics that commands write to or callbacks go to: whether they exist, and creating them."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from timers.config.settings import Settings
from timers.errors import TimersError
from timers.kafka import connection
from timers.kafka.tail import TIMEOUT_S, no_answer, quiet_log

_GRACE_S = 5.0


def exists(settings: Settings, topic: str) -> bool:
    """Whether there is such a topic; asking does not create it.

    Raises:
        TimersError: no broker answers, or lets us in.
    """
    admin, reports = _admin(settings)
    try:
        return connection.metadata(admin, reports, TIMEOUT_S, topic).topics[topic].error is None
    except KafkaException as error:
        raise _explained(error, settings, reports, topic) from error


def ensure(settings: Settings, topic: str, *, partitions: int, cleanup_policy: str = "delete") -> bool:
    """Create the topic unless it exists, with the broker's own timestamps, so that a lag is measured by the broker.

    Args:
        settings: where the brokers are, how to log in, and the replication of a new topic.
        topic: its name.
        partitions: how many a new one gets.
        cleanup_policy: of a new one.

    Returns:
        Whether it was created.

    Raises:
        TimersError: no broker answers, or it refuses.
    """
    admin, reports = _admin(settings)
    config = {"message.timestamp.type": "LogAppendTime", "cleanup.policy": cleanup_policy}
    new = NewTopic(topic, num_partitions=partitions, replication_factor=settings.replication or -1, config=config)
    try:
        connection.metadata(admin, reports, TIMEOUT_S)
        created = admin.create_topics([new], operation_timeout=TIMEOUT_S, request_timeout=TIMEOUT_S)
        created[topic].result(TIMEOUT_S + _GRACE_S)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise _explained(error, settings, reports, topic) from error
    return True


def _admin(settings: Settings) -> tuple[AdminClient, connection.Reports]:
    reports = connection.Reports(settings)
    config: dict[str, Any] = {
        **connection.librdkafka(settings),
        "allow.auto.create.topics": False,
        "error_cb": reports,
    }
    return AdminClient(config, logger=quiet_log), reports


def _explained(error: KafkaException, settings: Settings, reports: connection.Reports, topic: str) -> TimersError:
    reason: KafkaError = error.args[0]
    if reason.code() in connection.UNREACHABLE:
        return no_answer(settings, reports, "timers broker start runs one here, timers run a worker as well")
    return TimersError(f"topic {topic!r}: {reason.str()} ({reason.name()})")
