"""Publishes timers with an id, and waits for the verdicts on cancels and updates.

Workers write all verdicts to one topic. A client reads the whole topic and gives each verdict to the call that waits
for it, by the source of the request (``timer-source``).

An update of an id without a timer gets a verdict because its request asks for one (``timer-verdict``). Each request
with a condition, and each for a timer that repeats, gets one in any case.

A producer learns topic, partition and offset of its request. After a log was cut, workers name the request with the
number of the cut behind these (:func:`timers.wire.topics.source`), so the number is not compared. An offset has two
records with one id only if the first was lost: its call gets the verdict on the second one, if it waits that long. To
accept the loss, a worker must be started anew meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import weakref
from concurrent.futures import Future
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaException, Message, TopicPartition

from timers.client import tracing
from timers.client.config import ID_PARTITIONER, Connection
from timers.client.publish import PRODUCER_POLL_S, Publisher, begin, left_s, set_result
from timers.client.request import Encoder, Record, TimerRequest, answered_headers, condition_headers, id_key
from timers.core.operation import UNCHANGED
from timers.errors import NoVerdictError, PublishError, TimersError, UnreachableError
from timers.kafka import connection
from timers.kafka.lost_brokers import LOST_BROKERS, LostBrokers
from timers.kafka.records import headers_of
from timers.wire import headers as h
from timers.wire import verdict
from timers.wire.headers import Header
from timers.wire.topics import without_cut
from timers.wire.verdict import VerdictMessage

if TYPE_CHECKING:
    from timers.kafka.admin_client import AdminClient

logger = logging.getLogger(__name__)

_MIN_WAIT_S = 0.1
"""A request to the brokers may take this long, also if the time of its call is over."""

READER = "timers-client-verdicts"
"""Name of the thread that reads verdicts."""

LOOK_S, MISSING_LOOK_S = 5.0, 1.0
"""Seconds between two looks at the topic of verdicts, and while it does not exist. It may get more partitions, or be
deleted and made anew; librdkafka reads on from its old offsets then, and says nothing."""

_LOOK_ANSWER_S = 2.0


class Call:
    """A call that waits for the verdict on one request. The verdict may arrive before the source of the request."""

    def __init__(self, *, sets_version: bool = False) -> None:
        self._sets_version = sets_version
        self._lock = threading.Lock()
        self._source: bytes | None = None
        """As the producer knows it: without the number of a cut."""
        self._verdicts: dict[bytes, tuple[bytes, VerdictMessage]] = {}
        """Source without the number of a cut -> source, verdict."""
        self.cut = b""
        """What follows the offset in the source, as the verdict names it."""
        self.future: Future[VerdictMessage] = Future()
        self.acknowledged: Future[None] = Future()
        """Done when the brokers have the request, or have not taken it; a verdict that came before it is the result."""

    @property
    def is_acknowledged(self) -> bool:
        return self._source is not None

    def add_verdict(self, source: bytes, outcome: VerdictMessage) -> None:
        """Store a verdict on a request of the same id; it is the result if the source is that of this call."""
        with self._lock:
            place = without_cut(source)
            self._verdicts[place] = source, outcome
            mine = place == self._source
        if mine:
            self._answer(source, outcome)

    def set_source(self, source: bytes) -> None:
        """Store the source of the request, which the brokers have acknowledged. It has no number of a cut."""
        with self._lock:
            self._source = source
            found = self._verdicts.get(source)
        if found is not None:
            self._answer(*found)
        set_result(self.acknowledged, None)

    def _answer(self, source: bytes, outcome: VerdictMessage) -> None:
        self.cut = source[len(without_cut(source)) :]
        self.set_result(outcome)

    def set_error(self, error: TimersError) -> None:
        """Set why the brokers have not taken the request."""
        set_result(self.acknowledged, error)
        self.set_result(error)

    def set_result(self, result: VerdictMessage | TimersError) -> None:
        """Set the result, unless there is one or the future was cancelled. An update says which version it is, unless
        the verdict does: with ``unchanged`` it is the one before."""
        if isinstance(result, VerdictMessage) and self._sets_version and self._source is not None:
            own = (self._source + self.cut).decode(errors="replace")
            version = result.version if result.verdict == UNCHANGED else own
            result = result._replace(version=version)
        set_result(self.future, result)


class _Topic(NamedTuple):
    """The topic of verdicts, as far as it is known."""

    id: bytes
    """The id that the cluster gave it; empty: not known yet, or no broker says it."""
    partitions: int

    def is_still(self, found: _Topic | None) -> bool:
        """Whether it is the same as ``found``, and has as many partitions."""
        return found is not None and self.partitions == found.partitions and self.has_id_of(found)

    def has_id_of(self, found: _Topic) -> bool:
        """Whether it may be another state of ``found``."""
        return not (self.id and found.id) or self.id == found.id


class _Look(NamedTuple):
    """A look at the topic of verdicts."""

    at: float
    """When it begins."""
    asked: Future[Any] | None
    """What the brokers answer; None: it has not begun."""


class ById(Publisher):
    """Publishes requests with an id; reads verdicts from the first :meth:`listen` on. Thread-safe."""

    def __init__(self, connection: Connection) -> None:
        self._calls_lock, self._opening = threading.Lock(), threading.RLock()
        super().__init__(connection.for_ids(), thread="timers-client-by-id", partitioner=ID_PARTITIONER)
        self._topic = self._kafka.request_topic
        self._verdict_topic = connection.settings.verdict_topic
        self._reader: threading.Thread | None = None
        self._calls: dict[bytes, list[Call]] = {}
        self._verdicts = _Topic(b"", 1)
        """The topic of verdicts that is read."""
        self._missed_at = -math.inf
        """When verdicts may have been lost, or not been read."""

    def after_fork(self) -> None:
        super().after_fork()
        self._calls_lock, self._opening = threading.Lock(), threading.RLock()

    @property
    def listening(self) -> bool:
        """Whether verdicts are being read, so that :meth:`listen` would do nothing."""
        return self._reader is not None and self.is_open

    def listen(self, deadline: float | None = None) -> None:
        """Connect, and read every verdict from now on. The first call blocks, as :meth:`open`."""
        if self.listening:
            return
        deadline = monotonic() + self._kafka.timeout_s if deadline is None else deadline
        self.open(deadline)
        with self._held(self._opening, deadline):
            self._begin_reading(deadline)

    def _begin_reading(self, deadline: float) -> None:
        if self._reader is None:
            lost = LostBrokers()
            consumer = self._kafka.consumer(lost)
            try:
                partitions_of = partial(self._kafka.partitions_of, consumer, is_over=lambda _: self.closed)
                self._partitions = partitions_of(self._topic, left_s(deadline))
                count = partitions_of(self._verdict_topic, left_s(deadline))
                self._verdicts = _Topic(b"", count)
                tps = [TopicPartition(self._verdict_topic, partition) for partition in range(count)]
                for tp in tps:
                    tp.offset = connection.while_moving(partial(self._end, consumer, tp, deadline), left_s(deadline))
                consumer.assign(tps)
                arguments = weakref.ref(self), consumer, self._kafka.admin(), lost
                reader = threading.Thread(target=_read_while_used, args=arguments, name=READER, daemon=True)
                begin(reader)
            except KafkaException as error:
                consumer.close()
                raise self._kafka.user_error(error.args[0]) from error
            except BaseException:
                consumer.close()
                raise
            self._reader = reader

    def _end(self, consumer: Consumer, tp: TopicPartition, deadline: float) -> int:
        """The end of a partition of verdicts. Without a leader it gets none: its end when it has a leader is enough."""
        timeout_s = max(_MIN_WAIT_S, left_s(deadline))
        found = connection.metadata(consumer, self._kafka.reports, timeout_s, tp.topic)
        if found.topics[tp.topic].partitions[tp.partition].leader == -1:
            return OFFSET_END
        _, end = consumer.get_watermark_offsets(tp, timeout=timeout_s, cached=False)
        return int(end)

    def close(self, deadline: float | None = None) -> None:
        """Wait for the brokers' answers, by default for up to ``timeout_s``. Calls that wait for a verdict get an
        error."""
        deadline = monotonic() + self._kafka.timeout_s if deadline is None else deadline
        self.refuse()  # so that a call that opens ends soon
        with contextlib.suppress(UnreachableError), self._held(self._opening, deadline):
            pass
        super().close(deadline)
        if (reader := self._reader) is not None:
            reader.join(max(_MIN_WAIT_S, left_s(deadline)))
        with self._calls_lock:
            waiting = [call for calls in self._calls.values() for call in calls]
        for call in waiting:
            call.set_result(PublishError("the client was closed before the verdict came"))

    # ---- requests ---------------------------------------------------------------------------------------------------

    def schedule(self, request: TimerRequest) -> Future[str]:
        """Publish a timer, or a new version of one. The future is its id, once the brokers have it. Needs :meth:`open`.

        Raises:
            InvalidTimerError: an argument is wrong.
            PublishError: the producer refuses the request.
            BufferError: the producer's queue is full; try again soon. :meth:`update` and :meth:`cancel` raise the same.
        """
        key, value, headers = self._encode(request)
        future: Future[str] = Future()

        def on_result(result: str | TimersError) -> None:
            set_result(future, result if isinstance(result, TimersError) else key.decode())

        self.submit_record(self._topic, key, value, headers, on_result)
        return future

    def update(self, request: TimerRequest, condition: str | None = None, request_hash: bytes | None = None) -> Call:
        """Publish a new version of a timer. The call waits for the verdict on the version before. Needs :meth:`listen`.

        Args:
            condition: ``absent``, or the source of the version that the request was made for; None: none.
            request_hash: of the header ``timer-request-hash``; None: it has none.
        """
        key, value, headers = self._encode(request)
        if request_hash is not None:
            headers = [*(headers or ()), (h.TIMER_REQUEST_HASH, request_hash)]
        headers = [*(headers or ()), *answered_headers(request, condition)]
        return self._publish_call(key, value, headers, sets_version=condition is None)

    def cancel(self, id: str, condition: str | None = None) -> Call:
        """Publish a cancel. The call waits for the verdict. Needs :meth:`listen`."""
        return self._publish_call(id_key(id), None, [*condition_headers(condition)])

    def _publish_call(
        self, key: bytes, value: bytes | None, headers: list[Header], *, sets_version: bool = False
    ) -> Call:
        call = self._add_call(key, sets_version=sets_version)
        try:
            self.submit_record(self._topic, key, value, headers, partial(self._sent, call))
        except BaseException:
            self._remove_call(key, call)
            raise
        return call

    def no_verdict_error(self, call: Call, timeout_s: float) -> TimersError:
        """End a call whose verdict did not come in time; return the error."""
        call.future.cancel()
        if not call.is_acknowledged:
            return self._kafka.unreachable_error(timeout_s=timeout_s)
        if monotonic() < self._missed_at + timeout_s + LOOK_S:
            return NoVerdictError(
                f"no verdict came within {timeout_s:g} s: topic {self._verdict_topic!r} was deleted and made anew, or "
                "got more partitions, and the verdict may be lost; or this client had lost the brokers, and has not "
                f"read it. The request is in {self._topic}, and counts"
            )
        return NoVerdictError(
            f"no verdict came within {timeout_s:g} s: does a worker run with TIMERS_ID_TOPIC={self._topic}, and is its "
            f"/health/partitions green? If partitions were added to {self._topic} ({self._partitions} now), all its "
            "timers have stopped: docs/operations.md#partitions-added-to-a-topic-of-ids. The request is in that topic, "
            "and counts as soon as a worker reads it, unless it becomes a dead letter"
        )

    def _encode(self, request: TimerRequest) -> Record:
        id_key("" if request.id is None else request.id)  # without an id the record would be one for another topic
        own = () if request.repeat is None else self._kafka.settings.own_topics
        return Encoder(self._kafka.max_request_bytes, own, tracing.current)(request)

    @staticmethod
    def _sent(call: Call, result: str | TimersError) -> None:
        if isinstance(result, TimersError):
            call.set_error(result)
        else:
            call.set_source(result.encode())

    # ---- verdicts ---------------------------------------------------------------------------------------------------

    def _add_call(self, key: bytes, *, sets_version: bool) -> Call:
        call = Call(sets_version=sets_version)
        with self._calls_lock:
            self._calls.setdefault(key, []).append(call)
        call.future.add_done_callback(lambda _: self._remove_call(key, call))
        return call

    def _remove_call(self, key: bytes, call: Call) -> None:
        with self._calls_lock:
            left = [each for each in self._calls.get(key, ()) if each is not call]
            if left:
                self._calls[key] = left
            else:
                self._calls.pop(key, None)

    def take(self, consumer: Consumer, admin: AdminClient, look: _Look, message: Message | None) -> _Look:
        """What the thread that reads verdicts does with what came, or if none came. Takes a step of a look at their
        topic."""
        if message is not None and message.error() is None:
            try:
                self._pass_on(message)
            except Exception:
                logger.exception("a record on topic %s could not be read", self._verdict_topic)
        return self._look(consumer, admin, look)

    def forget_reader(self) -> None:
        """Let the next :meth:`listen` make a new consumer. Calls whose verdicts come meanwhile do not get them."""
        logger.warning("the consumer of topic %s %s: the next call makes a new one", self._verdict_topic, LOST_BROKERS)
        self._missed_at = monotonic()
        self._reader = None

    def _look(self, consumer: Consumer, admin: AdminClient, look: _Look) -> _Look:
        """Take a step of a look at the topic of verdicts."""
        from timers.kafka.topic_admin import ask_for_identity  # not at the top: most clients need no admin client

        if look.asked is not None:
            if not look.asked.done():
                return look
            exists = False
            with contextlib.suppress(KafkaException):  # a consumer that cannot be told now is told at the next look
                exists = self._note(consumer, self._found(consumer, look.asked))
            return _Look(monotonic() + (LOOK_S if exists else MISSING_LOOK_S), None)
        if monotonic() < look.at:
            return look
        return _Look(look.at, ask_for_identity(admin, self._verdict_topic, _LOOK_ANSWER_S))

    def _found(self, consumer: Consumer, asked: Future[Any]) -> _Topic | None:
        """The topic of verdicts now; None if it does not exist. While no broker says it, it counts as unchanged."""
        from timers.kafka.topic_admin import identity_of

        with contextlib.suppress(KafkaException):
            found = identity_of(asked)
            return None if found is None else _Topic(*found)
        try:  # librdkafka asks for ids only when the cluster has a controller
            count = connection.partitions_of(consumer, self._kafka.reports, self._verdict_topic, _LOOK_ANSWER_S)
        except (KafkaException, TimersError) as error:
            logger.info("topic %s cannot be described: %s", self._verdict_topic, error)
            return self._verdicts
        return _Topic(b"", count) if count else None

    def _note(self, consumer: Consumer, found: _Topic | None) -> bool:
        """Go on with the topic of verdicts as it is now. Returns whether it exists."""
        known = self._verdicts
        if found is None:
            return False
        if not known.is_still(found):
            is_same = found.partitions > known.partitions and known.has_id_of(found)
            numbers = range(known.partitions if is_same else 0, found.partitions)
            # All that is in them was written after the last look.
            new = [TopicPartition(self._verdict_topic, number, OFFSET_BEGINNING) for number in numbers]
            if is_same:
                consumer.incremental_assign(new)
            else:
                consumer.assign(new)
            self._missed_at = monotonic()
            what = "has more partitions" if is_same else "was made anew"
            logger.info("topic %s %s: %d partitions are read", self._verdict_topic, what, found.partitions)
        self._verdicts = found._replace(id=found.id or known.id)
        return True

    def _pass_on(self, message: Message) -> None:
        with self._calls_lock:
            calls = list(self._calls.get(message.key() or b"", ()))
        if calls:
            headers = dict(headers_of(message))
            source = headers.get(h.TIMER_SOURCE)
            try:
                outcome = verdict.decode(message.value() or b"")
            except ValueError:
                return  # a worker did not write it
            if not isinstance(source, bytes):
                return
            for call in calls:
                call.add_verdict(source, outcome)


def _read_while_used(used: weakref.ref[ById], consumer: Consumer, admin: AdminClient, lost: LostBrokers) -> None:
    """The thread that reads verdicts for a client. It does not keep it, and ends with it, also without a close; or with
    the consumer, if that has lost all brokers."""
    look = _Look(0.0, None)
    while (ids := used()) is not None and not ids.closed:
        ids = None
        try:
            message = consumer.poll(PRODUCER_POLL_S)
            if (ids := used()) is not None:
                look = ids.take(consumer, admin, look, message)
                if lost.are_all:
                    ids.forget_reader()
                    break
        except Exception:  # every call of this client waits for this thread
            logger.exception("an error in this program: verdicts are read on")
            look = _Look(monotonic() + MISSING_LOOK_S, None)  # its answer would come again, and is not used twice
            sleep(PRODUCER_POLL_S)
        ids = None
    consumer.close()
