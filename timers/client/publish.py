"""Getting requests into the broker: what :class:`TimersClient` and :class:`AsyncTimersClient` have in common.

Two ways, each with its own librdkafka producer, made when first used:

* :meth:`Publisher.submit`, for single timers: short linger; the answer comes by a call out of :meth:`Publisher.poll`.
  The client without an event loop polls in a thread, the one for asyncio in the loop itself, where no thread contends
  with it for the interpreter's lock. (confluent-kafka's own ``AIOProducer`` takes no headers and waits up to a second
  to fill its batches.)
* :meth:`Publisher.publish_many`, for bulk: long linger, large batches, polled by the caller itself. Where no ids are
  asked for, librdkafka reports failures only, which saves a Python call for each timer.

Every producer is idempotent (a retry inside librdkafka is never a second timer) and waits for all in-sync replicas.
Requests are spread by librdkafka's ``random`` partitioner, which ignores the key: a second with a million timers lands
on every partition alike, and new partitions are used as soon as the metadata shows them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, TypeAlias, overload

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from timers.client.config import Connection
from timers.client.request import Encoder, SentHeaders, TimerRequest
from timers.errors import InvalidTimerError, PublishError, TimersError

_SINGLE_LINGER_MS = 1
_BULK_LINGER_MS = 50
_FULL_QUEUE_WAIT_S = 0.02
CLOSED = "this client is closed: open a new one"
_GRACE_S = 5.0
"""Beyond librdkafka's own time-out, before we stop believing that it will answer."""


class PartlyPublishedError(PublishError):
    """The broker took some timers of a bulk, not all.

    Attributes:
        ids: the timer id of each request in order, None for those not taken; empty if no ids were asked for.
    """

    def __init__(self, message: str, ids: list[str | None]) -> None:
        super().__init__(message)
        self.ids = ids


Answer: TypeAlias = Callable[[str | TimersError], None]
"""Called once for a request: with its timer id once the broker has it, or with what went wrong. Must not block."""


class Publisher:
    """Publishes requests to one request topic. Thread-safe.

    Args:
        to: where, and how.
    """

    def __init__(self, to: Connection) -> None:
        self._to = to
        self.timeout_s = to.timeout_s
        self._handing = threading.Lock()
        self._lock = threading.Lock()
        self._bulk_lock = threading.Lock()
        self._closed = threading.Event()
        self._single: Producer | None = None
        self._bulk: dict[bool, Producer] = {}
        self._bulk_failures: list[KafkaError] = []

    def open(self) -> None:
        """Connect, and make sure once that the request topic exists. Blocks for up to ``timeout_s``.

        Raises:
            PublishError: no broker answers, or there is no such topic.
            AccessError: the brokers do not let us in.
        """
        with self._lock:
            self._refuse_if_closed()
            if self._single is None:
                self._single = self._connected(linger_ms=_SINGLE_LINGER_MS)

    def _connected(self, **properties: Any) -> Producer:
        """A producer that has seen the request topic; its first request goes out half a second sooner for that."""
        producer = self._to.producer(**properties)
        self._to.partitions_of(producer, self._to.request_topic)
        return producer

    def _refuse_if_closed(self) -> None:
        if self.closed:
            raise PublishError(CLOSED)

    @property
    def closed(self) -> bool:
        """Whether nothing more is taken."""
        return self._closed.is_set()

    # --- single timers ------------------------------------------------------------------------------------------------

    def submit(self, request: TimerRequest, answer: Answer) -> None:
        """Hand one request to the producer; ``answer`` will be called out of a later :meth:`poll`. Needs :meth:`open`.

        Raises:
            InvalidTimerError: the request is wrong.
            BufferError: the producer's queue is full; try again in a moment.
            PublishError: the producer does not take it.
        """
        self.submit_record(self._to.request_topic, *Encoder(self._to.max_request_bytes)(request), answer)

    def submit_record(
        self, topic: str, key: bytes | None, value: bytes, headers: SentHeaders | None, answer: Answer
    ) -> None:
        """The same for a record of any topic; ``answer`` is called with where it stands."""
        report = partial(self._pass_on, answer)
        with self._handing:  # nothing is handed over once close() has begun to wait for it
            producer = self._single
            if producer is None or self._closed.is_set():
                raise PublishError(CLOSED)
            try:
                producer.produce(topic, value, key, headers=headers, on_delivery=report)
            except KafkaException as error:
                raise self._to.with_topic(topic).explain(error.args[0]) from error

    def _pass_on(self, answer: Answer, error: KafkaError | None, message: Message) -> None:
        answer(_timer_id(message) if error is None else self._to.explain(error))

    def poll(self, wait_s: float) -> bool:
        """Pass on what the broker has answered; wait for up to ``wait_s`` if there is nothing yet.

        Returns:
            False once the publisher is closed: there will be no more.
        """
        producer = self._single
        if producer is not None:
            producer.poll(wait_s)
        return not self._closed.is_set()

    # --- bulk ---------------------------------------------------------------------------------------------------------

    @overload
    def publish_many(self, requests: Iterable[TimerRequest], *, ids: Literal[True] = True) -> list[str]: ...
    @overload
    def publish_many(self, requests: Iterable[TimerRequest], *, ids: Literal[False]) -> int: ...
    @overload
    def publish_many(self, requests: Iterable[TimerRequest], *, ids: bool) -> list[str] | int: ...
    def publish_many(self, requests: Iterable[TimerRequest], *, ids: bool = True) -> list[str] | int:
        """Publish all of ``requests`` and wait until the broker has them. One bulk at a time; others wait.

        See :meth:`timers.client.TimersClient.schedule_many`.
        """
        with self._bulk_lock:
            self._refuse_if_closed()
            found: list[str | None] = []
            failures = self._bulk_failures = []
            producer = self._bulk_producer(reports=ids)
            try:
                count = self._produce_all(producer, requests, found if ids else None, failures)
            finally:  # also when the caller's iterable raised: what was handed over is on its way
                unanswered = producer.flush(self.timeout_s + _GRACE_S)
            if failures or unanswered:
                first = self._to.explain(failures[0]) if failures else self._to.unreachable()
                missing = len(failures) + unanswered
                raise PartlyPublishedError(f"{missing} of {count} timers were not taken by the broker: {first}", found)
        return [timer_id for timer_id in found if timer_id is not None] if ids else count

    def _produce_all(
        self,
        producer: Producer,
        requests: Iterable[TimerRequest],
        found: list[str | None] | None,
        failures: list[KafkaError],
    ) -> int:
        """The hot loop. Of its 2 µs a timer (3 µs with an id) one is the encoder's. Arguments by position save 0.2."""

        def note(index: int, error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append(error)
            elif found is not None:
                found[index] = _timer_id(message)

        encode = Encoder(self._to.max_request_bytes)
        topic, produce, poll = self._to.request_topic, producer.produce, producer.poll
        index = -1
        report: Callable[[KafkaError | None, Message], None] | None = None
        for index, request in enumerate(requests):
            try:
                key, value, headers = encode(request)
            except InvalidTimerError as error:
                before = f"the {index} before it are scheduled" if index else "nothing is scheduled"
                raise InvalidTimerError(f"request {index}: {error} ({before})") from error
            if found is not None:
                found.append(None)
                report = partial(note, index)
            while True:
                try:
                    produce(topic, value, key, -1, report, None, 0, headers)
                except BufferError:
                    poll(_FULL_QUEUE_WAIT_S)
                except KafkaException as error:
                    raise self._to.explain(error.args[0]) from error
                else:
                    break
            if not index & 1023:
                poll(0)
        return index + 1

    def _bulk_producer(self, *, reports: bool) -> Producer:
        if reports not in self._bulk:
            quiet: dict[str, Any] = {"delivery.report.only.error": True, "on_delivery": self._note_failure}
            self._bulk[reports] = self._connected(linger_ms=_BULK_LINGER_MS, **({} if reports else quiet))
        return self._bulk[reports]

    def _note_failure(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._bulk_failures.append(error)

    # --- both ---------------------------------------------------------------------------------------------------------

    def refuse(self) -> None:
        """Take nothing more; what was taken goes on its way, and is answered."""
        with self._handing:
            self._closed.set()

    def close(self) -> None:
        """Wait for what is on its way, for up to ``timeout_s``, and let go of the broker. May be called twice."""
        self.refuse()
        with self._lock:
            if self._single is not None:
                self._single.flush(self.timeout_s + _GRACE_S)
            self._single = None
            self._bulk.clear()


def queue_stayed_full(timeout_s: float) -> PublishError:
    """There was no room for a request."""
    return PublishError(f"the producer's queue stayed full for {timeout_s:g} s")


def _timer_id(message: Message) -> str:
    return (
        f"{message.topic()}/{message.partition()}/{message.offset()}"  # topics.source, without a call in the hot loop
    )
