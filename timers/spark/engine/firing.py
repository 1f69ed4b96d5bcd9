"""The last step of the engine: it turns the timer batches that are due into messages.

The checks of a callback run when it fires, as in the worker: whether the settings allow its topic, whether the topic
exists, and whether the message fits in it. A callback that cannot be sent becomes a dead letter with the worker's codes
and sentences, and does not delay other timers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from timers.config.settings import Settings
from timers.core.delivery import DeliveryProblem
from timers.core.timer import Rejected, Row, key_bytes
from timers.spark.arrow import record_batch
from timers.spark.columns import schema
from timers.spark.engine import timer_batches
from timers.spark.engine.callback_topics import CallbackTopics, Limits
from timers.spark.engine.timer_batches import Request
from timers.wire import dead_letter, future
from timers.wire import headers as h
from timers.wire.callback_rules import CallbackRules

MESSAGES = 10_000
"""Number of messages after which an Arrow batch is passed on."""

ANY_SIZE = 2**62
"""No limit: the size of a request was checked when it was accepted."""

MESSAGE = schema(
    "topic string, key binary, value binary, headers headers, place string, offset bigint, due_s bigint, tick_ms bigint"
)
"""A message. For a dead letter, ``place`` and the columns after it are null."""

_ARROW = to_arrow_schema(MESSAGE)


@dataclass(frozen=True)
class Firing:
    """The function for ``mapInArrow``.

    Args:
        max_message_bytes: largest record that the dead letter topic takes.
    """

    settings: Settings
    max_message_bytes: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the messages of each timer batch."""
        yield from FiringTask(self, CallbackTopics.of(self.settings)).fire(batches)


class FiringTask:
    """Makes the messages of one task in one micro-batch."""

    def __init__(self, firing: Firing, callback_topics: CallbackTopics) -> None:
        self._settings = firing.settings
        self._max_message_bytes = firing.max_message_bytes
        self._rules = CallbackRules(firing.settings)
        self._callback_topics = callback_topics
        self._limits: dict[str, Limits | DeliveryProblem] = {}
        self._messages: list[tuple[Any, ...]] = []
        callback_topics.begin()

    def fire(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the messages of timer batches, as Arrow batches."""
        for batch in batches:
            for timer_batch, tick_ms in zip(
                batch["timer_batch"].to_pylist(), batch["tick_ms"].to_pylist(), strict=True
            ):
                for due_s, _, payload in timer_batches.unpack(timer_batch):
                    if due_s == timer_batches.AT_ONCE:
                        for letter in timer_batches.letters_of(payload):
                            self._letter(letter)
                    else:
                        self._fire(due_s, tick_ms, *timer_batches.requests_of(payload))
                    if len(self._messages) >= MESSAGES:
                        yield self._take()
        if self._messages:
            yield self._take()

    def _take(self) -> pa.RecordBatch:
        taken, self._messages = self._messages, []
        return record_batch(taken, _ARROW)

    def _fire(self, due_s: int, tick_ms: int, place: str, requests: list[Request]) -> None:
        decoded = future.decode(requests, ANY_SIZE)
        by_offset = {request[0]: request for request in requests}
        add = self._messages.append
        for row in decoded.rows[due_s]:
            limits = self._limits.get(row[1]) or self._limits_of(row[1])
            sent = limits if isinstance(limits, DeliveryProblem) else self._sent(row, limits, place, due_s, tick_ms)
            if isinstance(sent, DeliveryProblem):
                self._reject(by_offset[row[0]], place, sent)
            else:
                offset, topic, key, value, headers, _ = sent
                add((topic, key_bytes(key), value, headers, place, offset, due_s, tick_ms))

    def _sent(self, row: Row, limits: Limits, place: str, due_s: int, tick_ms: int) -> Row | DeliveryProblem:
        """A row as it is sent; or why its topic never takes it."""
        if limits.is_request_topic:
            request = self._rules.next_request(row, due_s)
            if isinstance(request, DeliveryProblem):
                return request
            row = request
        key = key_bytes(row[2])
        if row[4] is None and len(row[3]) + len(key or b"") <= limits.safe_bytes:
            return row
        source = f"{place}/{row[0]}".encode()
        headers = [*(row[4] or ()), *h.identity(source, source), *h.firing(due_s, b"%d" % tick_ms)]
        limit = limits.max_message_bytes
        if dead_letter.size(key, row[3], headers) <= limit:
            return row
        from timers.kafka.aiokafka_internals.record_batch import size_alone  # not at the top: few tasks need aiokafka

        size = size_alone(key, row[3], headers)
        return row if size <= limit else DeliveryProblem.too_large(row[1], size, limit)

    def _limits_of(self, topic: str) -> Limits | DeliveryProblem:
        self._limits[topic] = found = self._rules.check_topic(topic) or self._callback_topics.limits(topic)
        return found

    def _reject(self, request: Request, place: str, problem: DeliveryProblem) -> None:
        rejected = Rejected(request.offset, problem.code, problem.reason, request.key, request.value, request.headers)
        self._letter(dead_letter.encode(rejected, f"{place}/{request.offset}", self._max_message_bytes))

    def _letter(self, letter: dead_letter.DeadLetter) -> None:
        key, value, headers = letter
        self._messages.append((self._settings.dead_letter_topic, key, value, headers, None, None, None, None))
