"""librdkafka's error codes, grouped by what they mean for a caller."""

from confluent_kafka import KafkaError, KafkaException

UNREACHABLE = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._AUTHENTICATION,
    }
)
"""No broker answers. Requests on their way have the last one if a login fails, as when no login token comes for a
while; :class:`timers.kafka.connection.ErrorReports` knows whether brokers refuse the login."""

NO_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
"""The topic or the partition does not exist."""

MOVING = frozenset(
    {
        KafkaError._NOENT,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
"""The leader of a partition is not known yet, because the topic is new or the leader moves. A retry helps."""

NOT_ALLOWED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""An ACL is missing."""

UNREADABLE = frozenset({KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError._NOT_IMPLEMENTED})
"""A record batch that librdkafka cannot read, or unpack. A retry does not help."""

RECORD_REFUSED = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_RECORD})
"""The topic takes other records, but not this one or not this batch."""

NO_GROUP = frozenset({KafkaError.GROUP_ID_NOT_FOUND})
"""The consumer group does not exist: it has no members and no commits."""

NO_COORDINATOR = frozenset(
    {
        KafkaError._WAIT_COORD,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)
"""No broker takes the offsets of a consumer group now: its partition of ``__consumer_offsets`` moves, is loaded, or has
too few replicas. A retry helps."""

FENCED = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})
"""A newer producer uses the same transactional id."""

_TOO_LOW = {
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "transaction.max.timeout.ms of the brokers is lower than the 10000 ms that "
    "workers, queues and commands need: raise it on each broker",
    KafkaError.OFFSET_METADATA_TOO_LARGE: "offset.metadata.max.bytes of the brokers is lower than the 4096 bytes that "
    "workers and queues need: raise it on each broker",
}
"""Codes of the protocol, which aiokafka has too -> the limit of the brokers that is lower than what we ask for."""


def limit_of(code: int) -> str:
    """A sentence, if brokers refuse with this code because a limit of theirs is lower than Kafka's default."""
    found = _TOO_LOW.get(code, "")
    return found and f"{found} (docs/operations.md#limits-of-the-brokers)"


def code_of(error: KafkaException) -> int:
    """The code of an exception, to be looked up in the groups above."""
    code: int = error.args[0].code()
    return code
