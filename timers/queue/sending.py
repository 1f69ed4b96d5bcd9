"""Sends messages to the topic of a queue."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from time import sleep
from typing import TypeAlias

from timers.client.config import Connection
from timers.client.publish import Publisher, set_result
from timers.client.request import BytesLike, HeadersLike, SentHeaders, sent_headers
from timers.queue.records import as_bytes
from timers.wire.headers import Header

_FULL_QUEUE_WAIT_S = 0.01


Sendable: TypeAlias = tuple[str | BytesLike | None, str | BytesLike, HeadersLike]
"""Key, value and headers."""


class Sender:
    """An idempotent producer. Messages of one key go to one partition, the same as with Java's producer."""

    def __init__(self, kafka: Connection, topic: str) -> None:
        self._topic = topic
        self._publisher = Publisher(kafka.with_topic(topic), thread="queue-sender", partitioner="murmur2_random")

    def send(self, messages: Iterable[Sendable]) -> list[str]:
        """Send messages, each as (key, value, headers), and return their sources when the brokers have all of them.

        Raises:
            PublishError: the brokers did not take one of them.
            InvalidTimerError: a key, a value or a header cannot be sent; those before it may be sent.
        """
        self._publisher.open()
        futures = [self._submit_message(*message) for message in messages]
        return [future.result() for future in futures]

    def publish(self, topic: str, key: bytes | None, value: bytes | None, headers: list[Header]) -> None:
        """Write a record to any topic, and return when the brokers have it.

        Raises:
            PublishError: the brokers did not take it.
        """
        self._publisher.open()
        self._submit(topic, key, value, [*headers]).result()

    def _submit_message(self, key: str | BytesLike | None, value: str | BytesLike, headers: HeadersLike) -> Future[str]:
        sent = sent_headers(headers)
        return self._submit(self._topic, None if key is None else as_bytes(key), as_bytes(value), sent)

    def _submit(self, topic: str, key: bytes | None, value: bytes | None, headers: SentHeaders) -> Future[str]:
        future: Future[str] = Future()
        while True:
            with contextlib.suppress(BufferError):
                self._publisher.submit_record(topic, key, value, headers, partial(set_result, future))
                return future
            sleep(_FULL_QUEUE_WAIT_S)

    def close(self) -> None:
        """Wait for the answers of the brokers, and disconnect."""
        self._publisher.close()
