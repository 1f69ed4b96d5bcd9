"""Sends messages to the topic of a queue."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from time import monotonic, sleep
from typing import TypeAlias

from timers.client.config import Connection
from timers.client.parts import Submission
from timers.client.publish import Publisher, left_s, set_result
from timers.client.request import BytesLike, HeadersLike, SentHeaders, sent_headers
from timers.queue.records import as_bytes
from timers.wire.headers import Header

_FULL_QUEUE_WAIT_S = 0.01
_FEW = 1000
"""So many messages are sent within the time of one call."""


Sendable: TypeAlias = tuple[str | BytesLike | None, str | BytesLike, HeadersLike]
"""Key, value and headers."""


class Sender:
    """An idempotent producer. Messages of one key go to one partition, the same as with Java's producer."""

    def __init__(self, kafka: Connection, topic: str) -> None:
        self._topic = topic
        self._kafka = kafka
        self._publisher = Publisher(kafka.with_topic(topic), thread="queue-sender", partitioner="murmur2_random")

    def send(self, messages: Iterable[Sendable]) -> list[str]:
        """Send messages, each as (key, value, headers), and return their sources when the brokers have all of them.

        Raises:
            PublishError: the brokers did not take one of them.
            InvalidTimerError: a key, a value or a header cannot be sent; those before it may be sent.
        """
        began_s, timeout_s = monotonic(), self._publisher.timeout_s
        self._publisher.open(began_s + timeout_s)
        futures = [self._submit_message(*message) for message in messages]
        # To read many messages may take longer, because the brokers take some of them meanwhile.
        deadline = began_s + timeout_s if len(futures) <= _FEW else monotonic() + timeout_s
        return [self._result(future, deadline) for future in futures]

    def publish(
        self, topic: str, key: bytes | None, value: bytes | None, headers: list[Header], deadline: float
    ) -> None:
        """Write a record to any topic, and return when the brokers have it.

        Args:
            deadline: how long to wait, by the monotonic clock.

        Raises:
            PublishError: the brokers did not take it.
        """
        self._publisher.open(deadline)
        self._result(self._submit(topic, key, value, [*headers]), deadline)

    def _result(self, future: Future[str], deadline: float) -> str:
        try:
            return future.result(left_s(deadline))
        except TimeoutError:
            raise self._kafka.unreachable_error() from None

    def _submit_message(self, key: str | BytesLike | None, value: str | BytesLike, headers: HeadersLike) -> Future[str]:
        sent = sent_headers(headers)
        return self._submit(self._topic, None if key is None else as_bytes(key), as_bytes(value), sent)

    def _submit(self, topic: str, key: bytes | None, value: bytes | None, headers: SentHeaders) -> Future[str]:
        future: Future[str] = Future()
        submit = partial(self._publisher.submit_record, topic, key, value, headers, partial(set_result, future))
        submission = Submission(submit, self._publisher.timeout_s)
        while not submission.is_done():
            sleep(_FULL_QUEUE_WAIT_S)
        return future

    def close(self, deadline: float) -> None:
        """Wait for the answers of the brokers until the deadline, and disconnect."""
        self._publisher.close(deadline)
