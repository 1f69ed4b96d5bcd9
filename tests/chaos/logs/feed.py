"""Publishes numbered timers to the log of a cell, and reads which of them the log holds.

The callback of timer ``i`` has the digits of ``i`` as its value, whatever the request format.
"""

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tests.chaos.logs.cells import BY_ID, COUNTDOWNS, PROGRESS, QUEUE, REQUEST, RETRY, SCHEDULES
from tests.harness.cluster import client_settings
from tests.harness.records import Headers, Reader, Record
from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S
from timers.core.timer import Origin
from timers.v1.future_pb2 import Future
from timers.wire import future, topics
from timers.wire.formats import countdown, future_by_id, schedule

READ_S = 60.0
"""Deadline for reading a topic: the brokers must first end transactions of workers that were killed."""

EVERY_S = 0.1
"""Seconds between two batches of a stream."""


def settings_of(kind: str) -> dict[str, str]:
    """The settings of a worker that turn the request format of a topic on, with names that no other system has."""
    run = uuid.uuid4().hex[:8]
    verdicts = {"TIMERS_VERDICT_TOPIC": f"verdict-{run}"}
    return {
        BY_ID: {"TIMERS_ID_TOPIC": f"by-id-{run}", **verdicts},
        COUNTDOWNS: {"TIMERS_COUNTDOWN_TOPIC": f"countdown-{run}", **verdicts},
        SCHEDULES: {"TIMERS_SCHEDULE_TOPICS": f"schedules-{run}", **verdicts},
    }.get(kind, {})


def number_in(kind: str, value: bytes | None) -> int | None:
    """The number of the timer in the value of a request; None if it is no request."""
    if not value:
        return None
    if kind in (SCHEDULES, QUEUE):
        return int(value) if value.isdigit() else None
    with suppress(Exception):
        text = json.loads(value)["message"] if kind == COUNTDOWNS else Future.FromString(value).callBack
        return int(text)
    return None


class Feed:
    """Publishes to the first partitions of the topic of one kind.

    Args:
        system: the settings name the topic.
        kind: one of the topics of a cell; for progress, requests.
        target: callback topic; of a queue, its own.
        partitions: the timers go to so many partitions in turn.

    Attributes:
        topic: that the timers are published to.
        due_s: due second of each timer that was given to the client.
        acked_at: epoch seconds of the acknowledgement of each timer.
    """

    def __init__(self, system: System, kind: str, target: str, partitions: int = 1) -> None:
        settings = system.settings
        self._partitions = partitions
        self.kind = REQUEST if kind == PROGRESS else kind
        self.topic = {
            REQUEST: settings.request_topic,
            BY_ID: settings.id_topic,
            RETRY: settings.retry_topic,
            SCHEDULES: (settings.schedule_topics or ("",))[0],
            COUNTDOWNS: settings.countdown_topic,
            QUEUE: target,
        }[self.kind]
        self.due_s: dict[int, int] = {}
        self.acked_at: dict[int, float] = {}
        self._sources: dict[int, str] = {}
        self._system = system
        self._target = target

    # ---- publishing ---------------------------------------------------------------------------------------------

    def send(self, due_s: Mapping[int, int]) -> None:
        """Publish timers (number -> due second), and wait for the acknowledgements."""
        producer = self._producer({"enable.idempotence": True, "message.timeout.ms": int(1000 * DEADLINE_S)})
        if self.kind == RETRY:
            self._write_sources(producer, due_s)
        with self._transaction(producer):
            for number, due in due_s.items():
                self._produce(producer, number, due)
            assert producer.flush(DEADLINE_S) == 0, f"{self.topic} did not take all timers"
        missing = due_s.keys() - self.acked_at.keys()
        assert not missing, f"{len(missing)} timers were not acknowledged by {self.topic}"

    @contextmanager
    def stream(self, first: int, per_s: int, due_of: Callable[[int], int]) -> Iterator[None]:
        """Publish timers with numbers from ``first`` on during the block. What a leader does not take is not repeated,
        so no timer is in the log twice."""
        stop = threading.Event()
        thread = threading.Thread(target=self._stream, args=(stop, first, per_s, due_of), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _stream(self, stop: threading.Event, first: int, per_s: int, due_of: Callable[[int], int]) -> None:
        once = {"message.send.max.retries": 0, "message.timeout.ms": 3000, "topic.metadata.refresh.interval.ms": 500}
        if self.kind == RETRY:
            del once["message.send.max.retries"]  # a transaction needs them
        producer, number, began = self._producer(once), first, time.monotonic()
        while not stop.wait(EVERY_S):
            wanted = first + int((time.monotonic() - began) * per_s)
            try:
                with self._transaction(producer):
                    for each in range(number, wanted):
                        self._produce(producer, each, due_of(each))
                    if self.kind == RETRY:
                        producer.flush(3.0)
            except (KafkaException, BufferError):
                with suppress(KafkaException):  # a transaction is not over yet: the next turn tries it again
                    producer = self._producer(once)
            number = wanted
            producer.poll(0)
        producer.flush(DEADLINE_S)

    def _producer(self, more: Mapping[str, Any]) -> Producer:
        """A producer; for the retry topic a transactional one, as the engine writes there."""
        settings = {**client_settings(self._system.address), "acks": "all", "linger.ms": 5, **more}
        if self.kind != RETRY:
            return Producer(settings)
        named = {"transactional.id": f"feed-{self.topic}", "transaction.timeout.ms": settings["message.timeout.ms"]}
        producer = Producer({**settings, **named})
        producer.init_transactions(DEADLINE_S)
        return producer

    @contextmanager
    def _transaction(self, producer: Producer) -> Iterator[None]:
        """A transaction around the block if the topic is written in transactions. Only what it commits is
        acknowledged."""
        if self.kind != RETRY:
            yield
            return
        before = dict(self.acked_at)
        try:
            producer.begin_transaction()
            yield
            producer.commit_transaction(DEADLINE_S)
        except BaseException:
            self.acked_at = before
            with suppress(KafkaException):
                producer.abort_transaction(DEADLINE_S)
            raise

    def _produce(self, producer: Producer, number: int, due_s: int) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.acked_at[number] = time.time()

        self.due_s[number] = due_s
        key, value, headers = self._record(number, due_s)
        sent: Any = headers  # its type stubs do not allow a list of Headers
        producer.produce(self.topic, value, key, number % self._partitions, delivered, headers=sent)
        producer.poll(0)

    def _write_sources(self, producer: Producer, due_s: Mapping[int, int]) -> None:
        """Write the requests of moved timers to the request topic, where dead letters look for them. They stand in an
        aborted transaction, so that they do not fire there: a request that was moved does not either."""
        topic = self._system.request_topic

        def delivered(number: int, error: KafkaError | None, message: Message) -> None:
            assert error is None, error
            self._sources[number] = topics.source(topic, 0, message.offset() or 0)

        producer.begin_transaction()
        for number, due in due_s.items():
            value = future.encode(self._target, "key", b"%d" % number)
            producer.produce(topic, value, b"%d" % due, 0, partial(delivered, number))
        producer.flush(DEADLINE_S)
        producer.abort_transaction(DEADLINE_S)

    def _record(self, number: int, due_s: int) -> tuple[bytes | None, bytes, Headers]:
        digits, target = b"%d" % number, self._target
        if self.kind == QUEUE:
            return None, digits, []
        if self.kind == BY_ID:
            return b"id-" + digits, future.encode(target, "key", digits), [*future_by_id.encode_headers(due_s)]
        if self.kind == RETRY:
            # Those of a stream are not in the log any more.
            source = self._sources.get(number) or topics.source(self._system.request_topic, 0, 10_000_000 + number)
            value, headers = future.encode_retry(target, "key", digits, None, Origin(source, due_s, 1))
            return b"%d" % due_s, value, [*headers]
        if self.kind == SCHEDULES:
            return b"id-" + digits, digits, [*schedule.encode_headers(due_s, target, b"key")]
        if self.kind == COUNTDOWNS:
            return None, countdown.encode(target, str(number), max(0, due_s - time.time())), []
        return b"%d" % due_s, future.encode(target, "key", digits), []

    def send_foreign(self, topic: str, count: int, key: bytes, value: bytes) -> None:
        """Publish ``count`` equal records to partition 0 of another topic."""
        producer = Producer({**client_settings(self._system.address), "acks": "all", "enable.idempotence": True})
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            failed.extend([error] if error is not None else [])

        for _ in range(count):
            producer.produce(topic, value, key, 0, delivered)
        assert producer.flush(DEADLINE_S) == 0 and not failed, f"{topic} did not take all records: {failed[:1]}"

    # ---- reading ------------------------------------------------------------------------------------------------

    def in_log(self) -> set[int]:
        """Numbers of the timers that the log holds. In a log of schedules, a record that has a newer tombstone counts
        too: its schedule has fired."""
        return {
            number for record in self.records(self.topic) if (number := number_in(self.kind, record.value)) is not None
        }

    def records(self, topic: str) -> list[Record]:
        """All committed records of a topic."""
        with closing(Reader(self._system.address, topic, append_time=False)) as reader:
            return reader.rest(READ_S)
