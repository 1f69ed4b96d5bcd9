"""What a queue sends outside its transactions: messages, and the ends of guards."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from time import monotonic, sleep
from typing import TypeAlias

from timers.client import TimersClient, tracing
from timers.client.clients import FULL_QUEUE_WAIT_S, refuse_if_full
from timers.client.config import Connection
from timers.client.publish import OnResult, Publisher, left_s
from timers.client.request import BytesLike, HeadersLike, sent_headers, wrong_request
from timers.core.operation import CANCELLED
from timers.errors import InvalidTimerError, PartlyPublishedError, TimersError, UnacknowledgedError
from timers.kafka.brokers_time import BrokersTime
from timers.queue.records import Record, as_bytes
from timers.wire.headers import Header, with_context

_log = logging.getLogger("timers.queue")


class Guard:
    """The guard of one delivery: a timer that returns a message whose partition moves while its handler works on it.

    Without a guard, the new owner of the partition would deliver the message at once, so that two handlers work on it.
    With a guard, the message is done, and a timer with an id returns it when its lease is over. Timer and offset are
    committed in one transaction, before the partition has another owner. The handler's ``ack`` cancels the timer, and
    counts only if the verdict says that the timer was cancelled: so either the acknowledgement counts or the message is
    delivered again.

    A guard is written once and never changed: an update of one that just fired would be a timer of its own, and the
    message would come back twice. A message with outputs has no guard, because its outputs belong into the transaction
    in which it is done; an ordered message has none, because it would come back after later messages of its key. They
    are delivered again at once, and the first handler's calls are refused.

    Attributes:
        id: id of its timer.
        is_over: the delivery was settled.
    """

    def __init__(self, client: Guards, id: str) -> None:
        self.id = id
        self.is_over = False
        self._client = client
        self._is_set: Future[bool] = Future()

    def decide(self, *, is_set: bool = True) -> None:
        """Note whether the transaction with the timer was committed; False also if its outcome is not known.

        The handler's call waits for this. The first answer counts: a late commit only returns the message.
        """
        if not self._is_set.done():
            self._is_set.set_result(is_set)

    def leave(self, timeout_s: float) -> bool:
        """Let the timer return the message; False if there is no timer, or the delivery was settled before."""
        try:
            is_set = self._is_set.result(timeout_s)
        except TimeoutError:
            return False
        was_over, self.is_over = self.is_over, True
        return is_set and not was_over

    def cancel(self, timeout_s: float) -> bool:
        """Cancel the timer; False if the message comes back, or may come back."""
        deadline = monotonic() + timeout_s
        return self.leave(timeout_s) and self._client.cancel(self.id, left_s(deadline))

    def write_letter(self, letter: Record, timeout_s: float) -> bool:
        """Write a dead letter, then cancel the timer; False if the message comes back, or may come back.

        After a crash between these two steps, or if it is not known whether the timer was cancelled, the message exists
        twice. The other order could lose it.
        """
        deadline = monotonic() + timeout_s
        return (
            self.leave(timeout_s)
            and self._client.publish(letter, left_s(deadline))
            and self._client.cancel(self.id, left_s(deadline))
        )


class Guards:
    """Makes the guards of a queue.

    Args:
        id_topic: topic of timers with an id; empty if there is none, and then there are no guards.
    """

    def __init__(
        self, timers: TimersClient, sender: Sender, id_topic: str, dead_letter_topic: str, timeout_s: float
    ) -> None:
        self.are_possible = bool(id_topic)
        self.timeout_s = timeout_s
        self._timers = timers
        self._sender = sender
        self._dead_letter_topic = dead_letter_topic

    def new(self, source: str) -> Guard:
        """Return a guard for a delivery of a message."""
        return Guard(self, f"queue-guard/{source}/{uuid.uuid4().hex}")

    def cancel(self, id: str, timeout_s: float) -> bool:
        """Cancel a timer; False unless the verdict is that it was cancelled. Blocks."""
        try:
            return self._timers.cancel(id, timeout_s=timeout_s).verdict == CANCELLED
        except TimersError as error:  # no verdict: the timer may fire
            _log.warning("it is not known whether the guard %s was cancelled: %s", id, error)
            return False

    def publish(self, letter: Record, timeout_s: float) -> bool:
        """Write a dead letter, whose request is due now; False if it may not have been written. Blocks."""
        deadline = monotonic() + timeout_s
        key = None if letter.after_ms is None else b"%d" % self._sender.brokers_time.now_s()
        try:
            self._sender.publish(self._dead_letter_topic, key, letter.value, letter.headers, deadline)
        except TimersError as error:  # the timer returns the message
            _log.warning("the dead letter of %s was not written: %s", letter.source, error)
            return False
        return True


_Key: TypeAlias = str | BytesLike | None
_Value: TypeAlias = str | BytesLike

Sendable: TypeAlias = _Value | tuple[_Key, _Value] | tuple[_Key, _Value, HeadersLike]
"""A value, (key, value), or (key, value, headers)."""


class _Answers:
    """The answers of the brokers to some messages, in the order of the messages."""

    def __init__(self) -> None:
        self._sources: list[str | None] = []
        self._refused: set[int] = set()
        """Numbers of messages that were surely not taken."""
        self._failure: TimersError | None = None
        self._answered = 0
        self._changed = threading.Condition()

    def expect(self) -> OnResult:
        """A function that takes the answer to the next message."""
        self._sources.append(None)
        return partial(self._note, len(self._sources) - 1)

    def _note(self, index: int, result: str | TimersError) -> None:
        with self._changed:
            self._answered += 1
            if isinstance(result, TimersError):
                self._failure = self._failure or result
                if not isinstance(result, UnacknowledgedError):
                    self._refused.add(index)
            else:
                self._sources[index] = result
            if self._answered == len(self._sources):
                self._changed.notify_all()

    def wait(self, kafka: Connection, deadline: float, wrong: InvalidTimerError | None = None) -> list[str]:
        """The sources of the messages. After the deadline it waits as long as answers come within ``timeout_s``.

        Args:
            wrong: why the message after them was not sent.

        Raises:
            PublishError: the brokers did not take all of them.
            InvalidTimerError: ``wrong``.
        """
        with self._changed:
            answered = self._answered
            while not self._changed.wait_for(lambda: self._answered == len(self._sources), left_s(deadline)):
                if self._answered == answered:
                    self._failure = self._failure or kafka.unreachable_error()
                    break
                answered, deadline = self._answered, monotonic() + kafka.timeout_s
            sources = [source for source in self._sources if source is not None]
            if self._failure is None:
                if wrong is not None:
                    raise _wrong_message(sources, wrong) from wrong
                return sources
            if len(self._sources) == 1 and wrong is None:
                raise self._failure
            ids = self._sources if wrong is None else [*self._sources, None]
            self._refused |= {*range(len(self._sources), len(ids))}
            missing = len(ids) - len(sources)
            sentence = f"{missing} of {len(ids)} messages were not taken by the brokers: {self._failure}"
            unknown = {number for number, source in enumerate(ids) if source is None} - self._refused
            raise PartlyPublishedError(sentence, list(ids), unknown, len(ids)) from wrong


class Sender:
    """An idempotent producer. Messages of one key go to one partition, the same as with Java's producer."""

    def __init__(self, kafka: Connection, topic: str) -> None:
        self._topic = topic
        self._kafka = kafka
        self._publisher = Publisher(kafka.with_topic(topic), thread="queue-sender", partitioner="murmur2_random")
        self.brokers_time = BrokersTime.of(kafka.settings)

    def send(self, messages: Iterable[Sendable]) -> list[str]:
        """Send messages, and return their sources when the brokers have all of them.

        Raises:
            PublishError: the brokers did not take one of them. After one that cannot be sent, no further one is read.
            InvalidTimerError: a key, a value or a header cannot be sent; the message is named by its number, and those
                before it are sent.
        """
        deadline = monotonic() + self._publisher.timeout_s
        self._publisher.open(deadline)
        remaining_s = left_s(deadline)
        answers, wrong, context = _Answers(), None, tracing.Current()
        for message in messages:
            try:
                record = record_of(message, context())
            except InvalidTimerError as error:
                wrong = error
                break
            on_result = answers.expect()
            try:
                self._submit(self._topic, *record, on_result)
            except TimersError as error:  # the answers say what became of the messages before it
                on_result(error)
                break
        # To read the messages may take longer than a call may wait: the brokers take some of them meanwhile.
        return answers.wait(self._kafka, monotonic() + remaining_s, wrong)

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
        answers = _Answers()
        self._submit(topic, key, value, [*headers], answers.expect())
        answers.wait(self._kafka, deadline)

    def _submit(
        self, topic: str, key: bytes | None, value: bytes | None, headers: list[Header], on_result: OnResult
    ) -> None:
        timeout_s = self._publisher.timeout_s
        deadline = monotonic() + timeout_s
        while True:
            with suppress(BufferError):
                at_ms = self.brokers_time.record_ms()
                return self._publisher.submit_record(topic, key, value, headers, on_result, timestamp_ms=at_ms)
            refuse_if_full(timeout_s, deadline)
            sleep(FULL_QUEUE_WAIT_S)

    def close(self, deadline: float) -> None:
        """Wait for the answers of the brokers until the deadline, and disconnect."""
        self._publisher.close(deadline)


def _wrong_message(sources: list[str], error: InvalidTimerError) -> InvalidTimerError:
    """The error for a message that cannot be sent, after others that were sent."""
    sentence = wrong_request(len(sources), error).replace("request", "message", 1).replace("scheduled", "sent")
    wrong = type(error)(sentence if sources else str(error))
    wrong.ids = sources
    return wrong


def record_of(message: Sendable, context: Sequence[Header] = ()) -> tuple[bytes | None, bytes, list[Header]]:
    """Key, value and headers of a message. ``context``: headers of the current trace context."""
    if isinstance(message, str | BytesLike):
        message = None, message
    if not isinstance(message, tuple | list) or not 2 <= len(message) <= 3:
        raise InvalidTimerError(
            f"a message is of type {type(message).__name__}: give a value, (key, value), or (key, value, headers)"
        )
    key, value, *headers = message
    sent = with_context(sent_headers(headers[0] if headers else None), context)
    return None if key is None else as_bytes(key), as_bytes(value), sent
