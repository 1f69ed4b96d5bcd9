"""Sends messages to the topic of a queue."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from time import sleep
from typing import TypeAlias

from timers.client.config import Connection
from timers.client.publish import Publisher, set_result
from timers.client.request import BytesLike, HeadersLike, SentHeaders
from timers.queue.records import as_bytes

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
        """
        self._publisher.open()
        futures = [self._submit(*message) for message in messages]
        return [future.result() for future in futures]

    def _submit(self, key: str | BytesLike | None, value: str | BytesLike, headers: HeadersLike) -> Future[str]:
        future: Future[str] = Future()
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        listed: SentHeaders = [(name, None if data is None else as_bytes(data)) for name, data in pairs]
        record_key, record_value = None if key is None else as_bytes(key), as_bytes(value)
        while True:
            with contextlib.suppress(BufferError):
                self._publisher.submit_record(
                    self._topic, record_key, record_value, listed, partial(set_result, future)
                )
                return future
            sleep(_FULL_QUEUE_WAIT_S)

    def close(self) -> None:
        """Wait for the answers of the brokers, and disconnect."""
        self._publisher.close()
