"""Writes records in Kafka transactions: all records of a transaction become visible, or none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from timers.kafka.clients import LIBRDKAFKA_LOG, TRANSACTION_TIMEOUT_MS
from timers.kafka.connection import TIMEOUT_S
from timers.wire import topics

_POLL_S = 0.1
_INIT_TIMEOUT_S = 30.0
_COMMIT_TRIES = 3


class Record(NamedTuple):
    """One record to write."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, str | bytes | None]]


Send: TypeAlias = Callable[[Sequence[Record]], list[str]]
"""Sends records, waits until the brokers have them, and returns their sources."""


class TransactionalWriter:
    """A transactional producer. Opening it fences the former one with the same id and aborts its open transaction.

    Raises:
        KafkaException: the brokers do not answer, or refuse. The methods raise it too.
    """

    def __init__(self, properties: Mapping[str, Any], transactional_id: str, max_message_bytes: int) -> None:
        config = {
            "error_cb": lambda error: None,  # without one a fatal error would be raised in any delivery callback
            **properties,
            "allow.auto.create.topics": False,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "message.max.bytes": max_message_bytes,
            "linger.ms": 5,
        }
        self._producer = Producer(config, logger=LIBRDKAFKA_LOG)
        self._producer.init_transactions(_INIT_TIMEOUT_S)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Send]:
        """One transaction: committed at the end of the block, aborted by an exception."""
        self._producer.begin_transaction()
        try:
            yield self._send
            self._commit()
        except BaseException:
            with contextlib.suppress(KafkaException):  # then the brokers abort it after its timeout
                self._producer.abort_transaction(TIMEOUT_S)
            raise

    def _send(self, records: Sequence[Record]) -> list[str]:
        sources: dict[int, str] = {}
        failures: list[KafkaError] = []

        def on_delivery(index: int, error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append(error)
            else:
                sources[index] = topics.source(message.topic(), message.partition(), message.offset())  # type: ignore[arg-type]

        for index, (topic, partition, key, value, headers) in enumerate(records):
            report = partial(on_delivery, index)
            self._producer.produce(topic, value, key, partition, headers=list(headers), on_delivery=report)
            self._producer.poll(0)
        deadline = monotonic() + TRANSACTION_TIMEOUT_MS / 1000
        # flush() is not used: it calls delivery callbacks even while the exception of a fatal error is pending.
        while len(sources) + len(failures) < len(records):
            self._producer.poll(_POLL_S)
            if monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        if failures:
            raise KafkaException(failures[0])
        return [sources[index] for index in range(len(records))]

    def _commit(self) -> None:
        """Commit. A call that timed out is repeated: it continues the same commit."""
        for tries_left in reversed(range(_COMMIT_TRIES)):
            try:
                self._producer.commit_transaction(TIMEOUT_S)
                return
            except KafkaException as error:
                if not tries_left or not error.args[0].retriable():
                    raise
