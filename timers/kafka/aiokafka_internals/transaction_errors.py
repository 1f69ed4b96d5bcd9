"""What follows from each error in the answer to a request of a transaction.

A code that is not in :data:`ANSWERS` comes from a topic if it is the answer to a batch: what a broker says of a batch
is a fault of its topic. Else the machine is opened anew, which rolls back and reads the committed progress [I5].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from aiokafka import errors
from confluent_kafka import KafkaError as Code

from timers.kafka.aiokafka_internals.refusals import INVALID_RECORD, INVALID_TIMESTAMP


class VersionAbsent(errors.InvalidTxnState):
    """A broker does not know the request, or refuses its version: the cluster may have gone back to version 1."""


class Does(Enum):
    """What follows from an answer."""

    DONE = "the broker has done it, now or before"
    AGAIN = "the broker has not done it: the same request is sent again after a pause"
    LOOK = "another broker may be the leader or coordinator: it is looked up, and the request is sent again"
    REFUSED = "records of the batch are bad: the transaction is rolled back, and filled without them"
    ANEW = "the transaction cannot go on: the machine is opened anew"
    FENCED = "another opening has this transactional id: the group says which worker owns the partition"
    RIGHT = "the worker lacks a right, and ends"
    TOPIC = "the topic does not take the batch: its timers go to the retry topic or the dead-letter topic"


ANSWERS: Mapping[int, Does] = {
    Code.NO_ERROR: Does.DONE,
    Code.DUPLICATE_SEQUENCE_NUMBER: Does.DONE,
    # The markers of the last transaction are being written, or another leader adds its partitions just now.
    Code.CONCURRENT_TRANSACTIONS: Does.AGAIN,
    Code.COORDINATOR_LOAD_IN_PROGRESS: Does.AGAIN,
    Code.NOT_ENOUGH_REPLICAS: Does.AGAIN,
    Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Does.AGAIN,
    # Another partition of the same request could not be added, and has another code.
    Code.OPERATION_NOT_ATTEMPTED: Does.AGAIN,
    Code.REQUEST_TIMED_OUT: Does.LOOK,
    Code.COORDINATOR_NOT_AVAILABLE: Does.LOOK,
    Code.NOT_COORDINATOR: Does.LOOK,
    Code.NETWORK_EXCEPTION: Does.LOOK,
    Code.LEADER_NOT_AVAILABLE: Does.LOOK,
    Code.NOT_LEADER_FOR_PARTITION: Does.LOOK,
    Code.UNKNOWN_TOPIC_OR_PART: Does.LOOK,
    Code.KAFKA_STORAGE_ERROR: Does.LOOK,
    INVALID_RECORD: Does.REFUSED,
    INVALID_TIMESTAMP: Does.REFUSED,
    Code.INVALID_PRODUCER_EPOCH: Does.FENCED,
    Code.PRODUCER_FENCED: Does.FENCED,
    # The cluster has gone back to version 1: the opening asks for the version.
    Code.UNSUPPORTED_VERSION: Does.ANEW,
    # A broker has lost what it knew of the producer, or the coordinator has ended the transaction: it lasted too long.
    Code.OUT_OF_ORDER_SEQUENCE_NUMBER: Does.ANEW,
    Code.UNKNOWN_PRODUCER_ID: Does.ANEW,
    Code.INVALID_PRODUCER_ID_MAPPING: Does.ANEW,
    Code.INVALID_TXN_STATE: Does.ANEW,
    Code.TRANSACTION_COORDINATOR_FENCED: Does.ANEW,
    Code.TRANSACTION_ABORTABLE: Does.ANEW,
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Does.RIGHT,
}

FENCING = {Code.UNKNOWN, Code.INVALID_TXN_STATE}
"""Codes of an answer to an end, with which a coordinator may mean that it fences the producer just now. Asked again, it
says so. UNKNOWN: an opening has marked the transaction, and does not abort it yet; the commit fails with an exception.
INVALID_TXN_STATE: version 2, it has been aborted, and the other opening is not answered yet (KAFKA-20785)."""

_NOT_ADDED = "added to the transaction"
"""Brokers of Kafka 4.0 to 4.4 say of a batch "Unable to verify the partition has been added to the transaction", with
the code of too few replicas, if the coordinator was busy or absent. Then the topic is not at fault."""

_SENTENCE = 3

_FEW = {Code.NOT_ENOUGH_REPLICAS, Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
_BUSY = {
    Code.CONCURRENT_TRANSACTIONS,
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_COORDINATOR,
    Code.NETWORK_EXCEPTION,
    Code.OPERATION_NOT_ATTEMPTED,
}


def effect_of(code: int) -> Does:
    """What follows from an error code."""
    return ANSWERS.get(code, Does.TOPIC)


def effect_of_error(error: BaseException) -> Does:
    """The same of an error that aiokafka has raised. Those without a code are of a topic, but for these two."""
    if isinstance(error, errors.ProducerFenced):
        return Does.FENCED
    if isinstance(error, errors.IllegalOperation):
        return Does.ANEW
    code: int | None = getattr(error, "errno", None)
    return Does.TOPIC if code is None else effect_of(code)


def is_of_replicas(code: int, others: Sequence[Any]) -> bool:
    """Whether a leader says of a batch that too few replicas of its partition are in sync.

    Args:
        others: the fields of the answer after the offset; from version 8 on the fourth one is a sentence.
    """
    return code in _FEW and not (len(others) > _SENTENCE and _NOT_ADDED in (others[_SENTENCE] or ""))


def is_busy(code: int, others: Sequence[Any]) -> bool:
    """Whether a leader answers a batch, and the coordinator does not add its partition now. As :func:`is_of_replicas`.
    Then neither the leader is silent nor the topic at fault."""
    few = code in _FEW and not is_of_replicas(code, others)
    return few or code in _BUSY


def error_of(code: int, *named: object) -> errors.KafkaError:
    """The error to raise for a code that ends a transaction."""
    match effect_of(code):
        case Does.FENCED:
            return errors.ProducerFenced()
        case Does.ANEW if code == Code.UNSUPPORTED_VERSION:
            return VersionAbsent(Code(code).name(), *named)
        case Does.ANEW:
            return errors.InvalidTxnState(Code(code).name(), *named)
    kind: type[errors.KafkaError] = errors.for_code(code)
    return kind(f"error code {code}", *named) if kind is errors.UnknownError else kind(*named)
