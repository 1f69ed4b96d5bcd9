"""The topics that callbacks go to: whether they exist, and creating them."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from timers.cli.tail import TIMEOUT_S, quiet_log
from timers.errors import TimersError

_GRACE_S = 5.0


def exists(brokers: str, topic: str) -> bool:
    """Whether there is such a topic; asking does not create it.

    Raises:
        TimersError: no broker answers.
    """
    admin = AdminClient({"bootstrap.servers": brokers, "allow.auto.create.topics": False}, logger=quiet_log)
    try:
        return admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].error is None
    except KafkaException as error:
        raise _explained(error, brokers, topic) from error


def ensure(brokers: str, topic: str, *, partitions: int, replication: int) -> bool:
    """Create the topic unless it exists, with the broker's own timestamps, so that a lag is measured by the broker.

    Args:
        brokers: bootstrap servers.
        topic: its name.
        partitions: how many a new one gets.
        replication: its replication factor; 0 takes the broker's default.

    Returns:
        Whether it was created.

    Raises:
        TimersError: no broker answers, or it refuses.
    """
    admin = AdminClient({"bootstrap.servers": brokers}, logger=quiet_log)
    config = {"message.timestamp.type": "LogAppendTime"}
    new = NewTopic(topic, num_partitions=partitions, replication_factor=replication or -1, config=config)
    created = admin.create_topics([new], operation_timeout=TIMEOUT_S, request_timeout=TIMEOUT_S)
    try:
        created[topic].result(TIMEOUT_S + _GRACE_S)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise _explained(error, brokers, topic) from error
    return True


def _explained(error: KafkaException, brokers: str, topic: str) -> TimersError:
    reason: KafkaError = error.args[0]
    if reason.code() in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN):
        return TimersError(
            f"no broker answers at {brokers}: is it running, and is TIMERS_BROKERS right? "
            "(timers broker start runs one here, timers run a worker as well.)"
        )
    return TimersError(f"topic {topic!r}: {reason.str()} ({reason.name()})")
