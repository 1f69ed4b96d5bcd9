"""Publishes timers with an id, and waits for the verdicts on cancels and updates.

Workers write all verdicts to one topic. A client reads the whole topic and gives each verdict to the call that waits
for it, by the source of the request (``timer-source``).

An update of an id without a timer gets no verdict. So the client publishes a second request, a probe, after each update
that waits: a cancel of an id that has no timer, with the same request and verdict partitions. When its verdict,
``unknown``, arrives, no verdict on the update can follow.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from functools import partial

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from timers.client.config import Connection
from timers.client.publish import Answer, Publisher
from timers.client.request import Encoder, SentHeaders, TimerRequest, id_key
from timers.core.operation import UNKNOWN
from timers.errors import NoVerdictError, PublishError, SettingsError, TimersError
from timers.wire import headers as h
from timers.wire import topics, verdict
from timers.wire.formats import future_by_id
from timers.wire.verdict import VerdictMessage

PARTITIONER = "murmur2_random"
"""The default of Java's producer. All producers must hash alike, so that all requests of an id are on one partition."""

_POLL_S = 0.1


class _Question:
    """A call that waits for the verdict on one request. The verdict may arrive before the request's source is known."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._source: bytes | None = None
        self._heard: dict[bytes, VerdictMessage] = {}
        self.answer: Future[VerdictMessage] = Future()

    def hear(self, source: bytes, told: VerdictMessage) -> None:
        """Note a verdict on some request of the same id."""
        with self._lock:
            self._heard[source] = told
            mine = source == self._source
        if mine:
            self.settle(told)

    def known(self, source: bytes) -> None:
        """Note the source of the request: the brokers have it."""
        with self._lock:
            self._source = source
            told = self._heard.get(source)
        if told is not None:
            self.settle(told)

    def settle(self, told: VerdictMessage | TimersError) -> None:
        """Set the answer, unless it is set or its future was cancelled."""
        with contextlib.suppress(InvalidStateError):
            if isinstance(told, TimersError):
                self.answer.set_exception(told)
            else:
                self.answer.set_result(told)


class ById:
    """A publisher of requests with an id, and a reader of verdicts that opens at the first :meth:`listen`. Thread-safe.

    Args:
        to: connection of the client.

    Raises:
        SettingsError: no topic for timers with an id is set.
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
        self._publisher = Publisher(self._to, partitioner=PARTITIONER)
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._consumer: Consumer | None = None
        self._threads: list[threading.Thread] = []
        self._questions: dict[bytes, list[_Question]] = {}
        self._verdict_partitions = 1

    def open(self) -> None:
        """Connect. The first call blocks for up to ``timeout_s``.

        Raises:
            PublishError: no broker answers, or the topic does not exist.
            AccessError: the brokers refuse the login.
        """
        self._publisher.open()
        with self._opening:
            if not self._threads:
                self._run("timers-client-by-id", self._poll)

    @property
    def listening(self) -> bool:
        """Whether verdicts are being read, so that :meth:`listen` would do nothing."""
        return self._consumer is not None and not self._publisher.closed

    def listen(self) -> None:
        """Connect, and read every verdict from now on. The first call blocks.

        Raises:
            TimersError: no broker answers or accepts the login, or a topic does not exist.
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
        """Wait for the brokers' answers. Calls that wait for a verdict get an error."""
        with self._opening:
            self._publisher.close()
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
            PublishError: the producer refuses the request.
            BufferError: the producer's queue is full; try again soon. :meth:`update` and :meth:`cancel` raise the same.
        """
        key, value, headers = self._encode(id, request)
        taken: Future[str] = Future()

        def answer(said: str | TimersError) -> None:
            with contextlib.suppress(InvalidStateError):
                taken.set_exception(said) if isinstance(said, TimersError) else taken.set_result(id)

        self._publish(key, value, headers, answer)
        return taken

    def update(self, id: str, request: TimerRequest) -> Future[VerdictMessage]:
        """Publish a new version of a timer. The future is the verdict on the version before. Needs :meth:`listen`."""
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
        """Publish a cancel. The future is the verdict. Needs :meth:`listen`."""
        key = id_key(id)
        question = self._ask(key)
        try:
            self._publish(key, None, [], partial(self._sent, question))
        except BaseException:
            self._drop(key, question)
            raise
        return question.answer

    def wait(self, asked: Future[VerdictMessage], timeout_s: float) -> VerdictMessage:
        """The verdict.

        Raises:
            NoVerdictError: no verdict came in time.
        """
        try:
            return asked.result(timeout_s)
        except TimeoutError:
            asked.cancel()
            raise self.silence(timeout_s) from None

    def silence(self, timeout_s: float) -> NoVerdictError:
        """The error for a verdict that did not come in time."""
        return NoVerdictError(
            f"no verdict came within {timeout_s:g} s: does a worker run with TIMERS_ID_TOPIC={self._topic}? The "
            "request is in that topic, and counts as soon as a worker reads it"
        )

    def _encode(self, id: str, request: TimerRequest) -> tuple[bytes, bytes, SentHeaders]:
        due, value, headers = Encoder(self._to.max_request_bytes)(request)
        return id_key(id), value, [*(headers or ()), *future_by_id.encode_headers(int(due))]

    def _publish(
        self, key: bytes, value: bytes | None, headers: SentHeaders, answer: Answer, partition: int = -1
    ) -> None:
        self._publisher.submit_record(self._topic, key, value, headers, answer, partition)

    def _sent(self, question: _Question, said: str | TimersError, *, then: Callable[[int], None] | None = None) -> None:
        if isinstance(said, TimersError):
            question.settle(said)
            return
        question.known(said.encode())
        if then is not None:
            then(int(said.rsplit("/", 2)[1]))

    def _ask_behind(self, key: bytes, question: _Question) -> Callable[[int], None]:
        """A function that publishes the probe for ``question`` to a partition."""

        def told(answer: Future[VerdictMessage]) -> None:
            if not answer.cancelled() and answer.exception() is None:
                question.settle(VerdictMessage(key.decode(), UNKNOWN, None))

        def ask(partition: int) -> None:
            probe = _probe(key, self._verdict_partitions)
            behind = self._ask(probe)
            behind.answer.add_done_callback(told)
            question.answer.add_done_callback(lambda _: behind.answer.cancel())
            try:
                self._publish(probe, None, [], partial(self._sent, behind), partition)
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

    def _poll(self) -> None:
        while self._publisher.poll(_POLL_S):
            pass

    def _hear(self, consumer: Consumer) -> None:
        while not self._publisher.closed:
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
    """A new id whose verdict is written to the same partition as the verdict on ``key``."""
    from timers.wire.partitioner import partitions_of  # not at the top: numpy's import takes 0.1 s

    home = partitions_of([key], partitions)[0]
    while True:
        name = uuid.uuid4().hex
        probes = [f"probe-{name}-{number:06}".encode() for number in range(2 * partitions)]
        for probe, partition in zip(probes, partitions_of(probes, partitions), strict=True):
            if partition == home:
                return probe
