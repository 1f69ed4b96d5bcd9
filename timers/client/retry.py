"""Retries of messages that a receiver could not handle: the delay grows, and after the last retry comes a dead letter.

The header ``retry-attempt`` of a message counts its retries, so the receiver stores nothing. The dead letter has the
form of the worker's dead letters: it contains a request for the message, so that ``timers dead-letters retry`` starts
again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from timers.client import tracing
from timers.client.request import Encoder, TimerRequest, sent_headers
from timers.client.times import due_second
from timers.client.tokens import given_headers, source_of
from timers.core.printable import quoted
from timers.core.timer import Rejected
from timers.errors import InvalidTimerError
from timers.wire import dead_letter, topics
from timers.wire import headers as h
from timers.wire.headers import ATTEMPT, Header

MAX_ATTEMPT_DIGITS = 6
_MS_DIGITS = 13
MAX_DEAD_LETTER_BYTES = 64 * 1024 * 1024
"""The brokers apply their own, smaller limit."""


@dataclass(frozen=True)
class Backoff:
    """Delays before the retries, and the number of retries.

    Attributes:
        first_s: delay before the first retry.
        factor: each further delay is this many times as long as the one before.
        most_s: longest delay.
        retries: how often the message is tried again after the first attempt. If the last retry fails too, it becomes a
            dead letter.
        jitter: largest share of a delay that is subtracted at random, so that messages that failed together are not
            all retried together. 0: none; 1: any delay from 0 to the whole.

    Raises:
        InvalidTimerError: a number is out of range.
    """

    first_s: float = 5.0
    factor: float = 2.0
    most_s: float = 3600.0
    retries: int = 10
    jitter: float = 0.2

    def __post_init__(self) -> None:
        numbers = self.first_s, self.factor, self.most_s, self.jitter
        if not (
            all(isinstance(number, int | float) for number in numbers)
            and 0 <= self.first_s <= self.most_s <= 10**9
            and 1 <= self.factor <= 1000
            and 0 <= self.jitter <= 1
            and isinstance(self.retries, int)
            and 0 <= self.retries < 10**MAX_ATTEMPT_DIGITS
        ):
            raise InvalidTimerError(
                f"{quoted(self)} makes no sense: 0 <= first_s <= most_s, factor from 1 to 1000, jitter from 0 to 1, "
                f"retries below {10**MAX_ATTEMPT_DIGITS}"
            )

    def delay_s(self, attempt: int, chance: float = 0.0) -> float:
        """Delay before retry ``attempt``, counted from 1. ``chance``, 0 to 1, is the share of the jitter to use."""
        wait_s = self.first_s
        for _ in range(attempt - 1):
            wait_s *= self.factor
            if wait_s >= self.most_s or self.factor == 1:
                break
        return min(wait_s, self.most_s) * (1 - self.jitter * chance)


DEFAULT_BACKOFF = Backoff()


class ReceivedMessage(NamedTuple):
    """A message of any Kafka client."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]

    @classmethod
    def of(cls, message: Any) -> ReceivedMessage:
        """Read a message.

        Args:
            message: has ``topic``, ``partition``, ``offset``, ``key``, ``value`` and ``headers`` as attributes
                (aiokafka) or methods (confluent-kafka), or has such a message as ``message`` (Faust's events).

        Raises:
            InvalidTimerError: it is not a message.
        """
        if hasattr(message, "message"):
            message = message.message
        fields = []
        for name in cls._fields:
            if not hasattr(message, name):
                raise InvalidTimerError(
                    f"{type(message).__name__} is no message: it has no {name} (give the record as a consumer handed "
                    "it over)"
                )
            value = given_headers(message) if name == "headers" else getattr(message, name)
            fields.append(value() if callable(value) else value)
        topic, partition, offset, key, value, headers = fields
        for name, part in (("key", key), ("value", value)):
            if part is not None and not isinstance(part, bytes):
                raise InvalidTimerError(
                    f"the message's {name} is of type {type(part).__name__}: bytes are expected, as they came; give "
                    "the record, not what was made of it"
                )
        return cls(topic, partition, offset, key, value, sent_headers(headers))


DeadLetterRecord: TypeAlias = tuple[str, bytes | None, bytes, list[Header]]
"""Topic, key, value and headers."""


def plan(
    message: Any, attempt: int | None, backoff: Backoff, topic: str | None, dead_letter_topic: str
) -> TimerRequest | DeadLetterRecord:
    """The next retry of a message that could not be handled, or its dead letter.

    Raises:
        InvalidTimerError: it cannot be sent again.
    """
    if not isinstance(backoff, Backoff):
        raise InvalidTimerError(f"backoff={quoted(backoff):.100} is not a Backoff, such as Backoff(retries=3)")
    received = ReceivedMessage.of(message)
    if received.value is None:
        raise InvalidTimerError("the message has no value (a tombstone), and a callback always has one")
    number = _attempt(received) + 1 if attempt is None else attempt
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number < 10**MAX_ATTEMPT_DIGITS:
        raise InvalidTimerError(f"attempt={quoted(attempt):.100} is not the number of a retry: 1, 2, ...")
    kept = [header for header in h.without_timer_headers(received.headers) if header[0] != ATTEMPT]
    other_headers = h.renewed(kept, tracing.current())
    target = received.topic if topic is None else topic
    if number > backoff.retries:
        return _dead_letter(received, other_headers, target, backoff, dead_letter_topic)
    delay_s = backoff.delay_s(number, random.random())
    counted = [*other_headers, (ATTEMPT, b"%d" % number)]
    return TimerRequest(target, received.key, received.value, None, delay_s, counted)


def _attempt(received: ReceivedMessage) -> int:
    """How many times a message was retried, by its header; 0 for a message without the header."""
    text = h.last(received.headers, ATTEMPT)
    return int(text) if text is not None and text.isdigit() and len(text) <= MAX_ATTEMPT_DIGITS else 0


def _dead_letter(
    received: ReceivedMessage, other_headers: Sequence[Header], target: str, backoff: Backoff, dead_letter_topic: str
) -> DeadLetterRecord:
    """The dead letter: a request that sends the message at once, and the source of the message's timer, if any."""
    fired_ms = h.last(received.headers, h.TIMER_FIRED) or b""
    # The time of the callback is the brokers'. The clock of this machine may be wrong.
    is_known = fired_ms.isdigit() and len(fired_ms) <= _MS_DIGITS
    due_s = int(fired_ms) // 1000 if is_known else due_second(time.time(), None)
    key, value, headers = Encoder(MAX_DEAD_LETTER_BYTES)(
        TimerRequest(target, received.key, received.value or b"", due_s, headers=other_headers)
    )
    fired = source_of(received.headers) or ""
    position = topics.source(received.topic, received.partition, received.offset)
    source = fired if topics.parse_source(fired) else position
    reason = f"the receiver of {received.topic!r} gave up after {backoff.retries} retries of the message at {position}"
    rejected = Rejected(0, dead_letter.RETRIES_EXHAUSTED, reason, key, value, headers or [])
    letter = dead_letter.encode(rejected, source, MAX_DEAD_LETTER_BYTES)
    return dead_letter_topic, letter.key, letter.value or b"", [*letter.headers]
