"""Reads headers of confluent-kafka messages and ranges of offsets, and writes a few records."""

from __future__ import annotations

import codecs
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import call
from time import monotonic
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from timers.kafka.clients import LIBRDKAFKA_LOG
from timers.kafka.error_codes import NO_TOPIC
from timers.wire.headers import Header

_POLL_S = 0.2
_BATCH = 1000


def headers_of(message: Any) -> list[Header]:
    """Headers of a message. A name that is not UTF-8 has U+FFFD in the place of its wrong bytes, as Java reads it.

    Empty also if the message has more than 100,000 headers, which librdkafka does not show.
    """
    # confluent-kafka decodes the names once, by Python's handler of wrong bytes. If it refuses them, they are lost, and
    # reading the list that stays in the message crashes the process: the error cannot be caught first. All threads
    # have the same handler, so it is another one only for the time of one C call. `list` and `map` run the steps with
    # no Python code between them, so no other thread, signal handler or finalizer runs meanwhile; up to Python 3.11 a
    # collection of garbage could run them. The handler is set back on each way out.
    steps: tuple[Callable[[], Any], ...] = (_replace_wrong_bytes, message.headers, _refuse_wrong_bytes)
    if gc.isenabled():
        steps = (gc.disable, *steps, gc.enable)
    try:
        answers = list(map(call, steps))
    except BaseException:
        for step in steps[len(steps) // 2 + 1 :]:
            step()
        raise
    return answers[len(steps) // 2] or []


_replace_wrong_bytes = partial(codecs.register_error, "strict", codecs.replace_errors)
_refuse_wrong_bytes = partial(codecs.register_error, "strict", codecs.strict_errors)


def read(
    consumer: Consumer,
    topic: str,
    partition: int,
    start: int,
    end: int,
    *,
    timeout_s: float,
    while_waiting: Callable[[], None] = lambda: None,
) -> Iterator[Message]:
    """Records with offsets from ``start``, inclusive, to ``end``, exclusive, in order.

    Compaction and aborted transactions leave gaps, and transaction markers use offsets. So reading ends with the record
    before ``end``, with a later record, or when the consumer reports a position at ``end`` or after it. A
    ``read_committed`` consumer waits there for the end of open transactions.

    Args:
        consumer: with ``enable.partition.eof``; it gets this partition assigned.
        start: first offset; records before the log's start are skipped according to ``auto.offset.reset``.
        timeout_s: longest time without a record.
        while_waiting: called while there is no record; may raise to stop.

    Raises:
        KafkaException: the partition cannot be read; ``_TIMED_OUT`` after ``timeout_s`` without a record.
    """
    if start >= end:
        return
    consumer.assign([TopicPartition(topic, partition, start)])
    try:
        deadline = monotonic() + timeout_s
        while True:
            first = consumer.poll(_POLL_S)
            if first is None:
                while_waiting()
                if monotonic() > deadline:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
                continue
            for message in (first, *consumer.consume(_BATCH, timeout=0)):
                error, offset = message.error(), message.offset() or 0
                if error is None and offset < end:
                    yield message
                    if offset + 1 == end:
                        return
                    deadline = monotonic() + timeout_s  # set here, because the caller may need long for a record
                elif error is None or error.code() == KafkaError._PARTITION_EOF:
                    if offset >= end:
                        return
                elif error.code() in NO_TOPIC or not error.retriable():
                    raise KafkaException(error)
    finally:
        consumer.unassign()


def write(
    properties: Mapping[str, Any], topic: str, partition: int, records: Iterable[tuple[bytes, bytes]], timeout_s: float
) -> None:
    """Write records, each a key and a value, and return when the brokers have them.

    Raises:
        KafkaException: they do not take them, or do not answer.
    """
    failures: list[KafkaError] = []

    def note(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer({**properties, "enable.idempotence": True}, logger=LIBRDKAFKA_LOG)
    for key, value in records:
        producer.produce(topic, value, key, partition, on_delivery=note)
    left = producer.flush(timeout_s)
    if failures or left:
        raise KafkaException(failures[0] if failures else KafkaError(KafkaError._TIMED_OUT))
