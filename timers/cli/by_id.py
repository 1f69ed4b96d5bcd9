"""Timers with an id, published from the shell."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Message

from timers.client.config import Connection
from timers.client.request import Encoder, TimerRequest
from timers.errors import InvalidTimerError, SettingsError, TimersError
from timers.settings import Settings
from timers.wire import topics
from timers.wire.doors import future_by_id
from timers.wire.future import InvalidRequestError

PARTITIONER = "murmur2_random"
"""Java's. All records of an id must be on one partition, so every producer of the topic must hash alike."""


class ById:
    """A producer for the topic of timers with an id.

    Args:
        settings: of the app.
        timeout_s: how long a record may take to the brokers.

    Raises:
        SettingsError: the door is closed.
    """

    def __init__(self, settings: Settings, timeout_s: float) -> None:
        if not settings.id_topic:
            raise SettingsError(
                "TIMERS_ID_TOPIC is not set, so timers have no ids: set it for workers and commands alike "
                f"(try {topics.ID_REQUEST})"
            )
        self._to = Connection.resolve(settings.brokers, settings.id_topic, None, timeout_s, None)
        self._producer = self._to.producer(linger_ms=0, partitioner=PARTITIONER)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producer.flush(0)

    def set(self, id: str, request: TimerRequest) -> str:
        """Publish a timer, or a new version of one. Returns once the brokers have it: its source.

        Raises:
            InvalidTimerError: an argument is wrong.
            PublishError: the brokers did not take it.
        """
        due, value, headers = Encoder(self._to.max_request_bytes)(request)
        return self._publish(id, value, [*(headers or ()), *future_by_id.encode_headers(int(due))])

    def cancel(self, id: str) -> str:
        """Publish a cancel. Returns once the brokers have it: its source; a verdict with it says what came of it."""
        return self._publish(id, None, [])

    def _publish(self, id: str, value: bytes | None, headers: list[Any]) -> str:
        key = id.encode(errors="surrogateescape")
        try:
            future_by_id.decode_id(key)
        except InvalidRequestError as error:
            raise InvalidTimerError(str(error)) from None
        answers: list[str | TimersError] = []

        def answer(error: KafkaError | None, message: Message) -> None:
            source = f"{message.topic()}/{message.partition()}/{message.offset()}"
            answers.append(source if error is None else self._to.explain(error))

        try:
            self._producer.produce(self._to.request_topic, value, key, headers=headers, on_delivery=answer)
        except KafkaException as error:
            raise self._to.explain(error.args[0]) from error
        while not answers:
            self._producer.poll(0.1)
        if isinstance(answers[0], TimersError):
            raise answers[0]
        return answers[0]
