"""Reads a part of a log into a store as a worker does, without a worker: nothing is sent, and no machine notices it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException, Message

from timers.config.settings import Settings
from timers.core.machine import Machine
from timers.core.ports import Lost, Outbox, Store
from timers.core.progress import HOT_HORIZON, VERDICT_RETENTION, Progress
from timers.core.timer import CUT_VALUE_BYTES, CutValue, Fetched, TopicPartition
from timers.kafka.clients import librdkafka, reader
from timers.kafka.records import headers_of, read
from timers.partition import PartitionSpec, spec_of
from timers.wire.formats import RequestFormat, RequestRecord
from timers.wire.topics import partition_name

FETCH_RECORDS = 500
FETCH_BYTES = 1024 * 1024
"""Limits of the records that are accepted at once."""

WAITING_KBYTES = 4 * 1024
"""Memory of records that were fetched and wait."""

SILENT_S = 30.0


def replayed(
    settings: Settings,
    request_format: RequestFormat,
    tp: TopicPartition,
    progress: Progress,
    store: Store,
    check: Callable[[], None],
) -> Machine:
    """Returns a machine whose store holds what it holds at ``next_offset`` of a progress. Blocks.

    Args:
        store: after :func:`timers.core.store_validity.catch_up`; the log is read from where it ends.
        check: called after each fetch; may raise to stop.

    Raises:
        Lost: the log begins later, or has no leader for long.
        KafkaException: the brokers do not answer, or refuse.
    """
    machine = spec_at(settings, request_format, tp, progress).machine(progress, store, cast(Outbox, None))
    config = {
        **librdkafka(settings),
        "error_cb": lambda error: None,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",  # what was deleted meanwhile must not be passed over
        "queued.max.messages.kbytes": WAITING_KBYTES,
    }
    with closing(reader(config)) as consumer:
        try:
            messages = read(
                consumer, *tp, machine.position, progress.next_offset, timeout_s=SILENT_S, while_waiting=check
            )
            for fetched in _fetches(messages, machine, progress.next_offset):
                machine.accept(fetched)
                check()
        except KafkaException as error:
            if error.args[0].code() != KafkaError._AUTO_OFFSET_RESET:
                raise
            raise Lost(f"{partition_name(*tp)} begins after offset {machine.position}: records were deleted") from error
    return machine


def spec_at(settings: Settings, request_format: RequestFormat, tp: TopicPartition, progress: Progress) -> PartitionSpec:
    """Returns the specification of a machine that replays as that of a progress did."""
    spec = spec_of(settings, tp, request_format, 1)
    horizon_s = progress.setting_at(HOT_HORIZON, progress.next_offset, 0)
    retention_s = progress.setting_at(VERDICT_RETENTION, progress.next_offset, spec.retention_s)
    return replace(spec, hot_horizon_s=horizon_s, retention_s=retention_s)


def _fetches(messages: Iterator[Message], machine: Machine, end: int) -> Iterator[Fetched]:
    records: list[Any] = []
    start, size, value_limit = machine.position, 0, machine.value_limit
    for message in messages:
        records.append(_record(message, value_limit))
        size += len(message)
        if len(records) >= FETCH_RECORDS or size >= FETCH_BYTES:
            to_offset = records[-1].offset + 1
            yield Fetched(start, to_offset, records)
            start, records, size = to_offset, [], 0
    if start < end:
        yield Fetched(start, end, records)


def _record(message: Message, value_limit: int) -> RequestRecord:
    """Returns a record as the worker's consumer gives it. It does not hold values that are too large [I23]."""
    kind, timestamp_ms = message.timestamp()
    value: Any = message.value()
    if value is not None and len(value) > value_limit:
        value = CutValue.of(value[:CUT_VALUE_BYTES], len(value), sha256(value).digest())
    # librdkafka's types are 0 (not known), 1 (the producer's time) and 2 (the broker's).
    return RequestRecord(
        message.offset() or 0, message.key(), value, headers_of(message), timestamp_ms, max(0, kind - 1)
    )
