"""``timers import-pending``: sets the timers of an export in this app, each once.

Requests go in transactions. Each of them also commits how many timers of the file are set, in a record on the progress
topic under the number of the export. So an import that was interrupted goes on behind the last timer that is set, and
one that is repeated does nothing, also after years: the topic is compacted.

A timer with an id is set only if this app has and had none of this id: what was set or cancelled here is newer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from timers.config.settings import Settings
from timers.core.grouping import groups
from timers.core.operation import ABSENT
from timers.errors import TimersError
from timers.kafka.allowed_level import PARTITION
from timers.kafka.clients import librdkafka, max_message_bytes
from timers.kafka.progress_log import ProgressLog
from timers.kafka.topics import Cluster
from timers.kafka.transactions import Record, TransactionalWriter
from timers.key_partition import partition_of
from timers.pending.lines import Head, PendingTimer, Reader
from timers.wire import checks, future, progress, topics
from timers.wire import headers as h
from timers.wire.checks import InvalidRequestError
from timers.wire.formats import future_by_id

MAX_TIMERS = 1000
MAX_BYTES = 8 * 1024 * 1024
"""Limits of one transaction: workers wait for its end."""


class Contents(NamedTuple):
    """What a file holds."""

    head: Head
    timers: int
    by_topic: Counter[str]
    """Callback topic -> timers."""
    with_id: int
    failed: int
    """Timers that have failed in their app, and are sent at once."""
    first_s: int | None
    last_s: int | None
    """The first and the last due second."""


def look(path: Path, settings: Settings) -> Contents:
    """Returns what a file holds. All of it is checked.

    Raises:
        TimersError: it is not whole, or this app would refuse a timer of it.
    """
    by_topic: Counter[str] = Counter()
    with_id, failed = 0, 0
    first_s: int | None = None
    last_s: int | None = None
    with path.open("rb") as file:
        reader = Reader(file)
        for timer in reader:
            due_s = timer.origin.due_s
            by_topic[timer.row[1]] += 1
            with_id += timer.origin.has_id
            failed += timer.origin.attempt > 0
            first_s = due_s if first_s is None else min(first_s, due_s)
            last_s = due_s if last_s is None else max(last_s, due_s)
            try:
                checks.check_topic(timer.row[1], "topic")
                checks.check_size(_record(timer, 0, 1, settings).value or b"", settings.max_request_bytes)
            except InvalidRequestError as error:
                raise TimersError(f"line {reader.count + 1} of the file would be a dead letter here: {error}") from None
        head = reader.head
    if with_id and not settings.id_topic:
        raise TimersError(f"{with_id:,} timers of the file have an id, and TIMERS_ID_TOPIC is empty")
    return Contents(head, reader.count, by_topic, with_id, failed, first_s, last_s)


def imported(settings: Settings, cluster: Cluster, head: Head) -> int:
    """Returns how many timers of an export are set in this app already."""
    with closing(ProgressLog(settings, cluster)) as log:
        return _imported(log, head, after_fence=False)


def _imported(log: ProgressLog, head: Head, *, after_fence: bool) -> int:
    value = log.of_app(progress.import_key(head.export), after_fence=after_fence)
    return 0 if value is None else progress.decode_import(value)


def send(path: Path, settings: Settings, cluster: Cluster, report: Callable[[int], None]) -> int:
    """Set the timers of a file that are not set yet. Blocks. Returns how many it has set.

    Args:
        path: of a file that :func:`look` has checked.
        report: called after each transaction with the number of timers of the file that are set.

    Raises:
        KafkaException: the brokers do not answer, or refuse; or another import has begun. What is set is known: use
            it again.
    """
    writer = TransactionalWriter(librdkafka(settings), topics.importer_id(settings.app_id), max_message_bytes(settings))
    with path.open("rb") as file, closing(ProgressLog(settings, cluster)) as log:
        reader = Reader(file)
        first = done = _imported(log, reader.head, after_fence=True)
        key = progress.import_key(reader.head.export)
        for records in groups(_records(reader, first, settings, cluster), _size, MAX_TIMERS, MAX_BYTES):
            done += len(records)
            cursor = Record(settings.progress_topic, PARTITION, key, progress.encode_import(done), [])
            with writer.transaction() as send_records:
                send_records([*records, cursor])
            report(done)
    return done - first


def _records(reader: Reader, first: int, settings: Settings, cluster: Cluster) -> Iterator[Record]:
    """The requests of the timers from number ``first`` on."""
    for number, timer in enumerate(reader):
        if number >= first:
            topic = settings.id_topic if timer.origin.has_id else settings.request_topic
            yield _record(timer, number, cluster.partitions[topic], settings)


def _record(timer: PendingTimer, number: int, partitions: int, settings: Settings) -> Record:
    """The request of a timer, for a topic of so many partitions."""
    row, origin = timer
    if origin.has_id:
        key, value, headers = future_by_id.rebuild_request(row, origin)
        sent = [*headers, *future_by_id.encode_condition(ABSENT)]
        return Record(settings.id_topic, partition_of(key or b"", partitions), key, value, sent)
    key, value, headers = future.rebuild_request(row, origin)
    return Record(settings.request_topic, number % partitions, key, value, headers)


def _size(record: Record) -> int:
    headers: list[h.Header] = [(name, data if isinstance(data, bytes) else None) for name, data in record.headers]
    return len(record.key or b"") + len(record.value or b"") + sum(len(data or b"") for _, data in headers)
