"""Timers with an id: published, and what became of a cancel or an update awaited.

The engine says so on the verdict topic, to whom it may concern. Here one reader hears all of it and hands each answer
to whoever asked, known by the record that asked (``timer-source``).

An update of a timer that is not there gets no verdict, and silence cannot be awaited. So whoever awaits an update also
cancels an id that nobody has, right behind it on its partition and answered right behind it: once that is told
``unknown``, all that there was to say of the update has been said.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from timers.client.config import Connection
from timers.client.publish import CLOSED
from timers.client.request import Encoder, TimerRequest, id_key
from timers.core.operation import UNKNOWN
from timers.errors import NoVerdictError, PublishError, SettingsError, TimersError
from timers.wire import headers as h
from timers.wire import topics, verdict
from timers.wire.formats import future_by_id
from timers.wire.verdict import VerdictMessage

PARTITIONER = "murmur2_random"
"""Java's. All records of an id must be on one partition, so every producer of the topic must hash alike."""

_POLL_S = 0.1
_Headers: TypeAlias = Sequence[tuple[str, bytes | str | None]]
_Answer: TypeAlias = Callable[[str | TimersError], None]


class _Question:
    """Somebody who waits for what becomes of a record, which may be told before its source is known."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._source: bytes | None = None
        self._heard: dict[bytes, VerdictMessage] = {}
        self.answer: Future[VerdictMessage] = Future()

    def hear(self, source: bytes, told: VerdictMessage) -> None:
        """A verdict on a record of this id."""
        with self._lock:
            self._heard[source] = told
            mine = source == self._source
        if mine:
            self.settle(told)

    def known(self, source: bytes) -> None:
        """The brokers have the record."""
        with self._lock:
            self._source = source
            told = self._heard.get(source)
        if told is not None:
            self.settle(told)

    def settle(self, told: VerdictMessage | TimersError) -> None:
        """Answer, unless that was done, or nobody waits any more."""
        with contextlib.suppress(InvalidStateError):
            if isinstance(told, TimersError):
                self.answer.set_exception(told)
            else:
                self.answer.set_result(told)


class ById:
    """A producer for the topic of timers with an id, and a reader of verdicts once somebody awaits one. Thread-safe.

    Args:
        to: where requests without an id go.

    Raises:
        SettingsError: the request format is closed.
    """

    def __init__(self, to: Connection) -> None:
        if not to.settings.id_topic:
            raise SettingsError(
                "TIMERS_ID_TOPIC is not set, so timers have no ids: set it for workers and clients alike "
                f"(try {topics.ID_REQUEST})"
            )
        self._to = to.with_topic(to.settings.id_topic)
        self._topic = self._to.request_topic
        self._verdict_topic = to.settings.verdict_topic
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._closed = threading.Event()
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._threads: list[threading.Thread] = []
        self._questions: dict[bytes, list[_Question]] = {}
        self._verdict_partitions = 1

    def open(self) -> None:
        """Connect. Blocks for up to ``timeout_s``, the first time.

        Raises:
            PublishError: no broker answers, or there is no such topic.
            AccessError: the brokers do not let us in.
        """
        with self._opening:
            if self._closed.is_set():
                raise PublishError(CLOSED)
            if self._producer is None:
                producer = self._to.producer(linger_ms=1, partitioner=PARTITIONER)
                self._to.partitions_of(producer, self._topic)
                self._producer = producer
                self._run("timers-client-by-id", partial(self._poll, producer))

    @property
    def listening(self) -> bool:
        """Whether :meth:`listen` has been called, and need not be again."""
        return self._consumer is not None and not self._closed.is_set()

    def listen(self) -> None:
        """Connect, and hear every verdict from now on. Blocks, the first time.

        Raises:
            TimersError: no broker answers or lets us in, or a topic is not there.
        """
        self.open()
        with self._opening:
            if self._consumer is not None:
                return
            consumer = self._to.consumer()
            try:
                self._verdict_partitions = count = self._to.partitions_of(consumer, self._verdict_topic)
                places = [TopicPartition(self._verdict_topic, partition) for partition in range(count)]
                for place in places:
                    _, place.offset = consumer.get_watermark_offsets(place, timeout=self._to.timeout_s, cached=False)
                consumer.assign(places)
            except KafkaException as error:
                consumer.close()
                raise self._to.explain(error.args[0]) from error
            except BaseException:
                consumer.close()
                raise
            self._consumer = consumer
            self._run("timers-client-verdicts", partial(self._hear, consumer))

    def _run(self, name: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """Wait for what is on its way; whoever still waits for a verdict is told that nobody will say."""
        with self._opening:
            with self._lock:
                self._closed.set()
            if self._producer is not None:
                self._producer.flush(self._to.timeout_s)
        for thread in self._threads:
            thread.join()
        with self._lock:
            waiting = [question for questions in self._questions.values() for question in questions]
        for question in waiting:
            question.settle(PublishError("the client was closed before the verdict came"))

    # ---- asking -----------------------------------------------------------------------------------------------------

    def schedule(self, id: str, request: TimerRequest) -> Future[str]:
        """Publish a timer, or a new version of one. The future is the id, once the brokers have it. Needs :meth:`open`.

        Raises:
            InvalidTimerError: an argument is wrong.
            PublishError: the producer does not take it.
            BufferError: its queue is full; try again in a moment. So do the other two.
        """
        key, value, headers = self._encode(id, request)
        taken: Future[str] = Future()

        def answer(said: str | TimersError) -> None:
            with contextlib.suppress(InvalidStateError):
                taken.set_exception(said) if isinstance(said, TimersError) else taken.set_result(id)

        self._publish(key, value, headers, answer)
        return taken

    def update(self, id: str, request: TimerRequest) -> Future[VerdictMessage]:
        """Publish a new version of a timer. The future says what became of the one before. Needs :meth:`listen`."""
        key, value, headers = self._encode(id, request)
        question = self._ask(key)
        probe = self._ask_behind(key, question)
        try:
            self._publish(key, value, headers, partial(self._sent, question, then=probe))
        except BaseException:
            self._drop(key, question)
            raise
        return question.answer

    def cancel(self, id: str) -> Future[VerdictMessage]:
        """Publish a cancel. The future says what became of the timer. Needs :meth:`listen`."""
        key = id_key(id)
        question = self._ask(key)
        try:
            self._publish(key, None, (), partial(self._sent, question))
        except BaseException:
            self._drop(key, question)
            raise
        return question.answer

    def wait(self, asked: Future[VerdictMessage], timeout_s: float) -> VerdictMessage:
        """The verdict.

        Raises:
            NoVerdictError: nobody said in time.
        """
        try:
            return asked.result(timeout_s)
        except TimeoutError:
            asked.cancel()
            raise self.silence(timeout_s) from None

    def silence(self, timeout_s: float) -> NoVerdictError:
        """Nobody said in time."""
        return NoVerdictError(
            f"nobody said within {timeout_s:g} s what came of it: does a worker run with "
            f"TIMERS_ID_TOPIC={self._topic}? It is in that topic, and counts as soon as one reads it"
        )

    def _encode(self, id: str, request: TimerRequest) -> tuple[bytes, bytes, _Headers]:
        due, value, headers = Encoder(self._to.max_request_bytes)(request)
        return id_key(id), value, [*(headers or ()), *future_by_id.encode_headers(int(due))]

    def _publish(
        self, key: bytes, value: bytes | None, headers: _Headers, answer: _Answer, partition: int = -1
    ) -> None:
        def report(error: KafkaError | None, message: Message) -> None:
            source = f"{message.topic()}/{message.partition()}/{message.offset()}"
            answer(source if error is None else self._to.explain(error))

        with self._lock:  # nothing is handed over once close() has begun to wait for it
            if self._producer is None or self._closed.is_set():
                raise PublishError(CLOSED)
            try:
                self._producer.produce(self._topic, value, key, partition, headers=list(headers), on_delivery=report)
            except KafkaException as error:
                raise self._to.explain(error.args[0]) from error

    def _sent(self, question: _Question, said: str | TimersError, *, then: Callable[[int], None] | None = None) -> None:
        if isinstance(said, TimersError):
            question.settle(said)
            return
        question.known(said.encode())
        if then is not None:
            then(int(said.rsplit("/", 2)[1]))

    def _ask_behind(self, key: bytes, question: _Question) -> Callable[[int], None]:
        """What asks, once it is known on which partition, whether there is still anything to come for ``question``."""

        def told(answer: Future[VerdictMessage]) -> None:
            if not answer.cancelled() and answer.exception() is None:
                question.settle(VerdictMessage(key.decode(), UNKNOWN, None))

        def ask(partition: int) -> None:
            probe = _probe(key, self._verdict_partitions)
            behind = self._ask(probe)
            behind.answer.add_done_callback(told)
            question.answer.add_done_callback(lambda _: behind.answer.cancel())
            try:
                self._publish(probe, None, (), partial(self._sent, behind), partition)
            except (TimersError, BufferError) as error:
                question.settle(error if isinstance(error, TimersError) else PublishError(str(error)))

        return ask

    # ---- hearing ----------------------------------------------------------------------------------------------------

    def _ask(self, key: bytes) -> _Question:
        question = _Question()
        with self._lock:
            self._questions.setdefault(key, []).append(question)
        question.answer.add_done_callback(lambda _: self._drop(key, question))
        return question

    def _drop(self, key: bytes, question: _Question) -> None:
        with self._lock:
            left = [each for each in self._questions.get(key, ()) if each is not question]
            if left:
                self._questions[key] = left
            else:
                self._questions.pop(key, None)

    def _poll(self, producer: Producer) -> None:
        while not self._closed.is_set():
            producer.poll(_POLL_S)

    def _hear(self, consumer: Consumer) -> None:
        while not self._closed.is_set():
            message = consumer.poll(_POLL_S)
            if message is not None and message.error() is None:
                self._tell(message)
        consumer.close()

    def _tell(self, message: Message) -> None:
        with self._lock:
            questions = list(self._questions.get(message.key() or b"", ()))
        if questions:
            source = dict(message.headers() or ())[h.TIMER_SOURCE]
            assert isinstance(source, bytes), "only workers write verdicts"
            told = verdict.decode(message.value() or b"")
            for question in questions:
                question.hear(source, told)


def _probe(key: bytes, partitions: int) -> bytes:
    """An id that nobody has, whose verdict comes by the same partition as that of ``key``, and so behind it."""
    from timers.wire.partitioner import partitions_of  # not at the top: numpy takes its time

    home = partitions_of([key], partitions)[0]
    while True:
        name = uuid.uuid4().hex
        probes = [f"probe-{name}-{number:06}".encode() for number in range(2 * partitions)]
        for probe, partition in zip(probes, partitions_of(probes, partitions), strict=True):
            if partition == home:
                return probe
