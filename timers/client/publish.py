"""Publishes requests, for :class:`TimersClient` and :class:`AsyncTimersClient`.

There are two ways, each with a librdkafka producer that is created at the first use:

* :meth:`Publisher.schedule`, for single timers: short linger; a thread polls and calls back with the answer.
  (confluent-kafka's ``AIOProducer`` takes no headers and waits up to a second to fill its batches.)
* :meth:`Publisher.publish_many`, for many timers: long linger, large batches, polled by the caller. Without ids,
  librdkafka reports failures only, which saves a Python call for each timer.

Every producer is idempotent (a retry inside librdkafka never makes a second timer) and waits for all in-sync replicas.
Requests without an id are spread by librdkafka's ``random`` partitioner, which ignores the key, so that a second with a
million timers loads all partitions equally. With ``keep_order`` the callback's key chooses the partition instead. New
partitions are used as soon as the metadata shows them. Requests with an id have a producer of their own, because the
partitioner is a property of a producer.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, InvalidStateError
from functools import partial
from time import monotonic
from typing import Any, TypeAlias, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from timers.client import tracing
from timers.client.config import ID_PARTITIONER, Connection, is_fatal
from timers.client.request import BytesLike, Encoder, TimerRequest, condition_headers, wrong_request
from timers.errors import (
    InvalidTimerError,
    PartlyPublishedError,
    PublishError,
    TimersError,
    UnacknowledgedError,
    UnreachableError,
)
from timers.kafka.clients import flush
from timers.kafka.lost_brokers import LOST_BROKERS, LostBrokers
from timers.process.threads import tell_of_forks
from timers.wire.headers import Header, OneContext
from timers.wire.key_partition import partition_of

logger = logging.getLogger(__name__)

_COUNT_S = 5.0
"""Seconds between two questions for the number of partitions of the request topic, with ``keep_order``."""

_COUNT_ANSWER_S = 1.0

_SINGLE_LINGER_MS = 1
_BULK_LINGER_MS = 50
_FULL_QUEUE_WAIT_S = 0.02
PRODUCER_POLL_S = 0.1
CLOSED = "this client is closed: open a new one"
"""What calls after :meth:`Publisher.close` say."""
_REOPENED = "the producer of this client has ended after an error: try again, which makes a new one"
_GRACE_S = 0.3
"""Added to the time of a call for the last answers."""


OnResult: TypeAlias = Callable[[str | TimersError], None]
"""Called once for each request: with its source when the brokers have it, or with an error. It must not block."""

_T = TypeVar("_T")


def left_s(deadline: float) -> float:
    """Seconds until a time of the monotonic clock; 0 if it is over."""
    return max(0.0, deadline - monotonic())


def begin(thread: threading.Thread) -> None:
    """Start a thread.

    Raises:
        UnreachableError: the machine has no more threads for this process now.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise UnreachableError(f"no Kafka client can be made now: {error}") from error


def forked(what: str) -> str:
    """Why an object that was used before ``os.fork()`` does not work in the child."""
    return (
        f"this {what} was opened before os.fork(): its connections and threads are those of process {os.getppid()}, "
        f"and this process, {os.getpid()}, has none of them. Make a new one in each process, after the fork"
    )


def set_result(future: Future[_T], result: _T | TimersError) -> None:
    """Set a future's result or exception, unless it has one or was cancelled."""
    with contextlib.suppress(InvalidStateError):
        if isinstance(result, TimersError):
            future.set_exception(result)
        else:
            future.set_result(result)


def _is_owned(lock: threading.RLock) -> bool:
    """Whether this thread has a lock. Python's own Condition asks in the same way."""
    return bool(lock._is_owned())  # type: ignore[attr-defined]


def _is_taken(lock: threading.RLock) -> bool:
    """Whether a thread has a lock that no call can use any more: this may take it."""
    return _is_owned(lock) or not lock.acquire(blocking=False)


class Publisher:
    """Publishes requests to one request topic. Thread-safe.

    Args:
        thread: name of the thread that polls for answers.
        keep_order: whether the callback's key chooses the partition of a request without an id. So the number of
            partitions is looked up every :data:`_COUNT_S`, also for a caller that chooses partitions itself.
        properties: further properties of the producer for single timers, with ``_`` instead of ``.`` in their names.
    """

    def __init__(self, connection: Connection, *, thread: str, keep_order: bool = False, **properties: Any) -> None:
        self._kafka = connection
        self._keep_order = keep_order
        self._partitions = 0
        self._count_at = math.inf
        self._counting: threading.Thread | None = None
        self._count_error: tuple[Producer, KafkaException] | None = None
        self._count_lock = threading.Lock()
        self._thread = threading.Thread(target=_poll_while_used, args=[weakref.ref(self)], name=thread, daemon=True)
        self._properties = {name.replace("_", "."): value for name, value in properties.items()}
        self.timeout_s = connection.timeout_s
        self._submit_lock = threading.RLock()
        self._lock, self._bulk_lock = threading.RLock(), threading.RLock()
        """Taken by :meth:`_held` alone."""
        self._closed = threading.Event()
        self._why_closed = CLOSED
        self._single: Producer | None = None
        self._lost_brokers = LostBrokers()
        """Of :attr:`_single`. No other producer is polled all the time: one of a bulk that fails is used no more."""
        self._lost: list[Producer] = []
        """Former producers that cannot go on after a fatal error: what was given to them still gets answers."""
        self._bulk: dict[tuple[bool, bool], Producer] = {}
        self._current = _Bulk(connection, ids=False)
        """The answers to the call of :meth:`publish_many` that runs."""
        self._is_bulk_cut = False
        tell_of_forks(self)

    def after_fork(self) -> None:
        """Refuse all calls if this publisher was used before the fork."""
        is_used = self._single or self._lost or self._bulk or _is_taken(self._lock) or _is_taken(self._bulk_lock)
        is_closed = self._closed.is_set()
        self._submit_lock, self._lock, self._bulk_lock = threading.RLock(), threading.RLock(), threading.RLock()
        self._closed = threading.Event()
        if is_used or is_closed:
            self._closed.set()
        if is_used:
            self._why_closed = forked("client")

    def open(self, deadline: float | None = None) -> None:
        """Connect, and check once that the request topic exists. Blocks until the deadline of the monotonic clock, by
        default for up to ``timeout_s``.

        Raises:
            PublishError: no broker answers, the topic does not exist, or this process is a fork.
            AccessError: the brokers refuse the login.
        """
        if self.is_open:
            return
        deadline = monotonic() + self.timeout_s if deadline is None else deadline
        with self._held(self._lock, deadline):
            self.refuse_if_closed()
            if self._single is None:
                lost = self._lost_brokers = LostBrokers()
                single = self._connected(self._kafka, deadline, _SINGLE_LINGER_MS, lost=lost, **self._properties)
                if self._thread.ident is None:
                    begin(self._thread)
                self._single = single

    @property
    def is_open(self) -> bool:
        """Whether :meth:`open` would do nothing. After a fatal error it makes a new producer."""
        return self._single is not None and not self._closed.is_set()

    def refuse_if_closed(self) -> None:
        """Raise an error if this publisher is closed, or was opened before a fork."""
        if self.closed:
            raise PublishError(self._why_closed)

    @contextlib.contextmanager
    def _held(
        self, lock: threading.RLock, deadline: float, busy: Callable[[], TimersError] | None = None
    ) -> Iterator[None]:
        """Hold a lock that another thread may hold while it waits for the brokers. A handler of a signal does not wait
        for the call that it interrupts.

        A handler may raise an exception after each call here, such as KeyboardInterrupt, also after the lock was taken
        or before it is known whether it was. So it is released first, by one call.

        Args:
            busy: the error if the lock is not free in time. By default, that no broker answered.

        Raises:
            TimersError: that error.
        """
        error = busy or partial(self._kafka.unreachable_error, UnreachableError)
        if _is_owned(lock):
            raise error()
        try:
            if not lock.acquire(timeout=left_s(deadline)):
                raise error()
            yield
        finally:
            try:  # noqa: SIM105 - to make suppress() is a call, after which the lock might stay taken
                lock.release()
            except RuntimeError:
                pass

    def _connected(self, kafka: Connection, deadline: float, linger_ms: int, **properties: Any) -> Producer:
        """A producer that knows the request topic's metadata, so that it sends its first request sooner."""
        producer = kafka.producer(linger_ms=linger_ms, **properties)
        count = kafka.partitions_of(producer, kafka.request_topic, left_s(deadline), lambda _: self.closed)
        if kafka is self._kafka:
            self._partitions, self._count_at = count, monotonic() + PRODUCER_POLL_S
        return producer

    def _count_again(self, producer: Producer) -> None:
        """Soon after the start, look up the number of partitions again. librdkafka asks for the id of a producer,
        without which it sends nothing, when metadata arrive. If no connection to a broker of the cluster is open yet,
        as at the first time, it waits for the next metadata, or 0.5 s
        (findings/librdkafka-first-record-after-half-a-second.sh).

        With ``keep_order`` also from time to time, for :meth:`_partition`: an operator may add some, or make the topic
        anew with fewer. In a thread of its own: a broker that is silent must not delay the answers of others.
        """
        if not self._count_lock.acquire(blocking=False):  # the polling thread, or a call of publish_many
            return
        try:
            if self._counting is None and monotonic() >= self._count_at:
                self._count_at = monotonic() + _COUNT_S if self._keep_order else math.inf
                counting = threading.Thread(target=self._count, args=(producer,), name="timers-count", daemon=True)
                with contextlib.suppress(RuntimeError):  # there are too many threads, or the interpreter ends
                    counting.start()
                    self._counting = counting
            if self._counting is None or self._counting.is_alive():
                return
            error, self._counting, self._count_error = self._count_error, None, None
        finally:
            self._count_lock.release()
        # librdkafka raises a fatal error from one call only: while no broker answers, from this look-up.
        if error is not None:
            self._give_up_if_fatal(*error)

    def _count(self, producer: Producer) -> None:
        """Look up the number of partitions. Polls nothing: the polling thread does."""
        topic = self._kafka.request_topic
        try:
            found = producer.list_topics(topic, _COUNT_ANSWER_S).topics[topic].partitions
        except KafkaException as error:
            self._count_error = producer, error
        else:
            self._partitions = len(found) or self._partitions

    def _partition(self, key: str | BytesLike | None) -> int:
        """The partition of a request whose callback has this key; -1 leaves it to the partitioner."""
        if not self._keep_order or key is None:
            return -1
        return partition_of(key.encode() if isinstance(key, str) else bytes(key), self._partitions)

    @property
    def partitions(self) -> int:
        """Partitions that the topic had when this publisher was opened; with ``keep_order`` some seconds ago."""
        return self._partitions

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    # --- single timers ------------------------------------------------------------------------------------------------

    def schedule(self, request: TimerRequest) -> Future[str]:
        """Give one request to the producer. The future is its source, once the brokers have it. Needs :meth:`open`.

        Raises:
            InvalidTimerError: the request is wrong.
            BufferError: the producer's queue is full; try again soon.
            PublishError: the producer refuses the request.
        """
        record = Encoder(self._kafka.max_request_bytes, context=tracing.current)(request)
        return self.write(self._kafka.request_topic, *record, self._partition(request.key))

    def write(
        self, topic: str, key: bytes | None, value: bytes | None, headers: list[Header] | None, partition: int = -1
    ) -> Future[str]:
        """Give a record of any topic to the producer; for partition -1 the partitioner chooses. As :meth:`schedule`."""
        future: Future[str] = Future()
        self.submit_record(topic, key, value, headers, partial(set_result, future), partition)
        return future

    def submit_record(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: list[Header] | None,
        on_result: OnResult,
        partition: int = -1,
        timestamp_ms: int = 0,
    ) -> None:
        """As :meth:`write`. The polling thread calls ``on_result``. With ``timestamp_ms`` 0 the record gets the time of
        this machine, unless the brokers set the times of the topic."""
        report = partial(self._report, on_result)
        with self._submit_lock:  # close() waits for the records that were submitted before it
            producer = self._single
            self.refuse_if_closed()
            if producer is None:
                raise PublishError(_REOPENED)
            try:
                own = None if headers is None else OneContext(headers)
                producer.produce(topic, value, key, partition, report, None, timestamp_ms, own)
            except KafkaException as error:
                self._give_up_if_fatal(producer, error)
                raise self._kafka.with_topic(topic).user_error(error.args[0]) from error

    def _report(self, on_result: OnResult, error: KafkaError | None, message: Message) -> None:
        on_result(_timer_id(message) if error is None else self._kafka.user_error(error, sent=True))

    def next_to_poll(self) -> tuple[Producer | None, threading.Event]:
        """What the polling thread polls: it may be no producer; and what says that it must end."""
        return self._single, self._closed

    def note_poll(self, producer: Producer | None, error: KafkaException | None) -> None:
        """What the polling thread does after each poll, which has raised an error, or has not."""
        if producer is not None:
            if error is not None:
                self._give_up_if_fatal(producer, error)
            if self._lost_brokers.are_all:
                logger.warning("the producer of this client %s: the next request makes a new one", LOST_BROKERS)
                self._give_up(producer)
            self._count_again(producer)
        self._poll_lost()

    def _poll_lost(self) -> None:
        """Pass on the answers of former producers, and forget those that have no more to come."""
        for lost in self._lost[:]:
            with contextlib.suppress(KafkaException, SystemError):
                lost.poll(0)
            if not len(lost):
                self._lost.remove(lost)

    def _give_up_if_fatal(self, producer: Producer, error: KafkaException) -> None:
        if is_fatal(error.args[0]):
            self._give_up(producer)

    def _give_up(self, producer: Producer) -> None:
        """Let the next :meth:`open` make a new producer. What was given to the former one and not sent yet fails
        now."""
        with self._submit_lock:  # a request may find the same, and the next one open another producer
            if self._single is producer:
                self._single = None
                self._lost.append(producer)
                producer.purge(in_flight=False, blocking=False)

    # --- bulk ---------------------------------------------------------------------------------------------------------

    def publish_many(
        self, requests: Iterable[TimerRequest], *, ids: bool = True, condition: str | None = None
    ) -> list[str] | int:
        """Publish many requests, and wait for the answers to all: see :meth:`timers.client.TimersClient.schedule_many`.

        Args:
            condition: of each of them, ``absent``; each needs an id then.
        """
        deadline = monotonic() + self.timeout_s
        self.refuse_if_closed()
        with self._held(self._bulk_lock, deadline, self.busy_error):
            return self._publish_held(requests, deadline, ids, condition)

    def _publish_held(
        self, requests: Iterable[TimerRequest], deadline: float, ids: bool, condition: str | None
    ) -> list[str] | int:
        bulk = self._current = _Bulk(self._kafka, ids=ids)
        stopped: TimersError | None = None
        is_answered = False
        try:
            self.refuse_if_closed()
            self._bulk_producer(deadline, reports=ids, by_id=condition is not None)
            stall = _Stall(self._bulk, bulk, self.timeout_s)
            try:
                stopped = self._produce_all(requests, bulk, stall, condition)
            except BaseException as error:  # of the caller's iterable
                missing = self._flush_bulk(stall) + bulk.failed
                is_answered = True
                if missing:
                    error.add_note(f"{missing} of the {bulk.read} timers before it were not acknowledged by the broker")
                raise
            unanswered = self._flush_bulk(stall)
            is_answered = True
        finally:
            if self._is_bulk_cut or bulk.failed or isinstance(stopped, PublishError) or not is_answered:
                self._bulk.clear()  # one may have ended, or have answers for this call: the next one makes new ones
        if stall.is_over or (unanswered and not bulk.failed):
            bulk.first = self._kafka.unreachable_error()
        return bulk.result(unanswered, stopped)

    def busy_error(self) -> PublishError:
        """The error when another call of :meth:`publish_many` did not end in time."""
        return PublishError(
            f"another call of schedule_many has used this client for more than {self.timeout_s:g} s: nothing was sent. "
            "Use a client for each of them"
        )

    def _flush_bulk(self, stall: _Stall) -> int:
        """Wait for the answers, as long as some come; return how many requests have none."""
        while not stall.note_progress():
            if not sum(_flush(producer, _GRACE_S) for producer in self._bulk.values()):
                return 0
        for producer in self._bulk.values():
            producer.purge()
        unanswered = sum(_flush(producer, _GRACE_S) for producer in self._bulk.values())
        self._bulk.clear()
        return unanswered

    def _produce_all(
        self, requests: Iterable[TimerRequest], bulk: _Bulk, stall: _Stall, condition: str | None
    ) -> TimersError | None:
        """Encode and produce: 2 µs a timer, 3 µs with ids. The encoder takes 1 µs; keyword arguments would add 0.2.

        Returns why the last request that was read was not given to the producer; None: all were.
        """

        def note(index: int, id: str | None, error: KafkaError | None, message: Message) -> None:
            if error is not None:
                bulk.note_error(index, error, message.topic())
            elif sources is not None:
                sources[index] = id or _timer_id(message)

        sources = bulk.sources
        encode = Encoder(self._kafka.max_request_bytes, self._kafka.settings.own_topics, tracing.Current())
        by_id, conditions = condition is not None, condition_headers(condition)
        deadline = monotonic() + self.timeout_s
        topic, producer = self._bulk_producer(deadline, reports=sources is not None, by_id=by_id)
        report: Callable[[KafkaError | None, Message], None] | None = None
        for index, request in enumerate(requests):
            bulk.read = index + 1
            if self._is_bulk_cut:
                return PublishError("this client was closed meanwhile")
            try:
                key, value, headers = encode(request)
                id = request[7]  # by its place: a plain tuple serves, too
                if (id is not None) != by_id:
                    by_id = not by_id
                    deadline = monotonic() + self.timeout_s
                    topic, producer = self._bulk_producer(deadline, reports=sources is not None, by_id=by_id)
            except TimersError as error:
                return error
            if conditions:
                headers = [*(headers or ()), *conditions]
            if sources is not None:
                sources.append(None)
                report = partial(note, index, id)
            partition = self._partition(request[1]) if self._keep_order and not by_id else -1
            own = None if headers is None else OneContext(headers)
            while True:
                try:
                    producer.produce(topic, value, key, partition, report, None, 0, own)
                except BufferError:
                    _poll(producer, _FULL_QUEUE_WAIT_S)
                    stall.produced = index
                    if stall.note_progress():
                        return self._kafka.unreachable_error()
                except KafkaException as error:
                    return self._kafka.with_topic(topic).user_error(error.args[0])
                else:
                    break
            if not index & 1023:
                _poll(producer, 0)
        stall.produced = bulk.read
        return None

    def _bulk_producer(self, deadline: float, *, reports: bool, by_id: bool) -> tuple[str, Producer]:
        """The topic of requests with or without an id, and a producer for it."""
        kafka = self._kafka.for_ids() if by_id else self._kafka
        kind = reports, by_id
        if kind not in self._bulk:
            properties: dict[str, Any] = {"partitioner": ID_PARTITIONER} if by_id else {}
            if not reports:
                note = partial(_note_failure, weakref.ref(self))
                properties |= {"delivery.report.only.error": True, "on_delivery": note}
            self._bulk[kind] = self._connected(kafka, deadline, _BULK_LINGER_MS, **properties)
            with contextlib.suppress(KafkaException):  # for its id: see _count_again
                self._bulk[kind].list_topics(kafka.request_topic, min(_COUNT_ANSWER_S, left_s(deadline)))
        elif not by_id:
            self._count_again(self._bulk[kind])
        return kafka.request_topic, self._bulk[kind]

    def note_failure(self, error: KafkaError, topic: str | None) -> None:
        """Note a request of the call of :meth:`publish_many` that runs, with ``ids=False``, that was not taken."""
        self._current.note_error(None, error, topic)

    # --- both ---------------------------------------------------------------------------------------------------------

    def refuse(self) -> None:
        """Refuse new requests. Requests that were submitted before are still sent and answered."""
        with self._submit_lock:
            self._closed.set()

    def close(self, deadline: float | None = None) -> None:
        """Wait for the answers to submitted requests and for :meth:`publish_many`, by default for up to ``timeout_s``,
        and disconnect. May be called twice. In a fork it does nothing: the other process has the connections."""
        self.refuse()
        if self._why_closed is not CLOSED:
            return
        deadline = monotonic() + self.timeout_s if deadline is None else deadline
        with contextlib.suppress(UnreachableError), self._held(self._lock, deadline):
            for producer in (*self._lost, self._single):
                if producer is not None:
                    _flush(producer, left_s(deadline) + _GRACE_S)
            self._single = None
        try:
            with self._held(self._bulk_lock, deadline, self.busy_error):
                self._bulk.clear()
        except PublishError:  # the call that uses the producers reads no further request, waits for the answers, and
            self._is_bulk_cut = True  # frees them
        if self._thread.ident is not None:
            self._thread.join(left_s(deadline) + _GRACE_S)
        if (counting := self._counting) is not None:
            counting.join(left_s(deadline) + _GRACE_S)


def _poll_while_used(used: weakref.ref[Publisher]) -> None:
    """The polling thread of a publisher. It does not keep it, and ends with it, also without a close."""
    while (publisher := used()) is not None and not publisher.closed:
        producer, closed = publisher.next_to_poll()
        publisher = None
        try:
            error = _poll_once(producer, closed)
            if (publisher := used()) is not None:
                publisher.note_poll(producer, error)
        except Exception:  # each call of this client waits for this thread
            logger.exception("an error in this program: the client goes on")
            closed.wait(PRODUCER_POLL_S)
        publisher = None


def _poll_once(producer: Producer | None, closed: threading.Event) -> KafkaException | None:
    """Pass on the answers that come in a moment. Returns an error of the producer."""
    if producer is None:
        closed.wait(PRODUCER_POLL_S)
        return None
    try:
        producer.poll(PRODUCER_POLL_S)
    except KafkaException as error:  # raised once; each later call of it says it, too
        return error
    except SystemError:  # a fatal error while a report was made: the next request finds it
        pass
    return None


class _Bulk:
    """What became of the requests of one :meth:`Publisher.publish_many`.

    Attributes:
        read: how many were read from the caller's iterable.
        sources: of each that was given to the producer, its id or source; None while it has no answer, or if it failed.
            With ``ids=False`` None.
        failed: how many the brokers have not taken, as far as answers say.
        first: why the first of them was not taken.
    """

    def __init__(self, kafka: Connection, *, ids: bool) -> None:
        self.read = 0
        self.sources: list[str | None] | None = [] if ids else None
        self.failed = 0
        self.first: TimersError | None = None
        self._kafka = kafka
        self._refused: set[int] = set()
        """Numbers of requests that were surely not taken; -1, -2 and so on where numbers are not known."""
        self._errors: dict[tuple[int, str | None], TimersError] = {}

    def note_error(self, index: int | None, error: KafkaError, topic: str | None) -> None:
        """Note that a request was not taken. Without a number it is one of a call with ``ids=False``."""
        kind = error.code(), topic
        if kind not in self._errors:
            kafka = self._kafka if topic is None else self._kafka.with_topic(topic)
            self._errors[kind] = kafka.user_error(error, sent=True)
        self._fail(-1 - self.failed if index is None else index, self._errors[kind])

    def _fail(self, index: int, error: TimersError, *, is_sent: bool = True) -> None:
        self.failed += 1
        self.first = self.first or error
        if not (is_sent and isinstance(error, UnacknowledgedError)):
            self._refused.add(index)

    def result(self, unanswered: int, stopped: TimersError | None) -> list[str] | int:
        """The answer to the call.

        Args:
            unanswered: requests without an answer; librdkafka counts its statistics that wait for their callback, too.
            stopped: why the last request that was read was not given to the producer; None: it was.

        Raises:
            InvalidTimerError: the last request is wrong, and the others are scheduled.
            PartlyPublishedError: the brokers did not take all.
            TimersError: nothing was given to the producer.
        """
        sources = self.sources or []
        missing, last = min(self.failed + unanswered, self.read), self.read - 1
        if stopped is not None:
            if isinstance(stopped, InvalidTimerError) and not missing:
                wrong = type(stopped)(wrong_request(last, stopped))
                wrong.ids = [id for id in sources if id is not None]
                raise wrong from stopped
            if not (missing or last):
                raise stopped
            sources += [None] * (self.sources is not None and len(sources) < self.read)
            is_wrong = isinstance(stopped, InvalidTimerError)
            self._fail(last, TimersError(f"request {last}: {stopped}") if is_wrong else stopped, is_sent=False)
            missing += 1
        if missing:
            maybe = missing - len(self._refused)
            may_be = f" ({maybe} of them may have been taken)" if maybe else ""
            sentence = f"{missing} of {self.read} timers were not acknowledged by the broker{may_be}: {self.first}"
            unknown = {number for number, id in enumerate(sources) if id is None} - self._refused
            raise PartlyPublishedError(sentence, sources, unknown, self.read) from stopped
        return self.read if self.sources is None else [id for id in sources if id is not None]


class _Stall:
    """Knows whether the brokers have taken no request of a bulk for too long.

    Attributes:
        produced: how many requests were given to the producers.
        is_over: they have taken none for too long, and the call gives up.
    """

    def __init__(self, producers: dict[Any, Producer], bulk: _Bulk, timeout_s: float) -> None:
        self.produced = 0
        self.is_over = False
        self._producers = producers
        self._answers = bulk
        self._timeout_s = timeout_s
        self._taken = 0
        self._since: float | None = None

    def note_progress(self) -> bool:
        """Look whether requests were taken since the last call; return :attr:`is_over`."""
        waiting = sum(len(producer) for producer in self._producers.values())
        taken = self.produced - waiting - self._answers.failed
        if self._since is None or taken > self._taken:
            self._taken, self._since = taken, monotonic()
        self.is_over = self.is_over or monotonic() - self._since > self._timeout_s
        return self.is_over


def _poll(producer: Producer, timeout_s: float) -> None:
    """Poll a producer of a bulk. A fatal error is raised once: each later request finds it, too."""
    try:
        producer.poll(timeout_s)
    except (KafkaException, SystemError):
        producer.purge(in_flight=False, blocking=False)  # nothing of it will be sent


def _flush(producer: Producer, timeout_s: float) -> int:
    """Wait for the answers to what a producer has; return how many have not come. As :func:`_poll`."""
    try:
        return flush(producer, timeout_s)
    except (KafkaException, SystemError):
        producer.purge(in_flight=False, blocking=False)
        return len(producer)


def _note_failure(used: weakref.ref[Publisher], error: KafkaError | None, message: Message) -> None:
    if error is not None and (publisher := used()) is not None:
        publisher.note_failure(error, message.topic())


def _timer_id(message: Message) -> str:
    # As topics.source, but without a call for each timer.
    return f"{message.topic()}/{message.partition()}/{message.offset()}"
