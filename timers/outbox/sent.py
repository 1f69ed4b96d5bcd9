"""Finds the requests that a relay has sent before it ended, in the topic of requests with an id."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

from timers.errors import PublishError
from timers.kafka import connection
from timers.kafka.clients import reader
from timers.kafka.records import headers_of, read
from timers.kafka.topic_offsets import TopicOffsets
from timers.outbox.rows import Row, row_of
from timers.process.config.settings import Settings
from timers.wire.key_partition import partition_of

CLOCKS_MS = 120_000
"""Largest difference between the clocks of relays and brokers. So much of the log before a mark is read, too."""

_SENDING_MS = 20_000
"""A relay sends a row within this time after its mark."""

_TIMEOUT_S = 30.0


class Found(NamedTuple):
    """What the log says of rows that a relay has begun to send."""

    sent: set[str]
    """Ids of the rows whose requests are in it."""
    unknown: set[str]
    """Ids of rows whose requests may have been in a part of the log that is deleted."""
    unread: set[str]
    """Ids of rows whose partition has no leader now."""


def find(settings: Settings, rows: Sequence[Row], now_ms: int) -> Found:
    """Look for the requests of rows in the partitions of their timers, around the time of their marks.

    Raises:
        TimersError: the topic cannot be read.
    """
    topic = settings.id_topic
    offsets = TopicOffsets(settings, _TIMEOUT_S, skips_leaderless=True)
    if not offsets.existing([topic]):
        raise PublishError(f"topic {topic!r} does not exist at {settings.brokers}: start a worker, which creates it")
    count = len(offsets.partitions(topic))
    by_partition: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        by_partition[partition_of(row.key, count)].append(row)
    marks_ms = [min(row.sent_ms or 0, now_ms + CLOCKS_MS) for row in rows]
    starts = offsets.at_time([topic], max(0, min(marks_ms) - CLOCKS_MS))[topic]
    # Brokers refuse times in the future. The mark of a row that is harmless twice is its first one.
    last_ms = now_ms if any(row.is_harmless_twice for row in rows) else max(marks_ms) + CLOCKS_MS + _SENDING_MS
    ends = offsets.high_watermarks([topic])[topic]
    if last_ms < now_ms - CLOCKS_MS:
        # Where the time is behind the last stable offset, the answer is that offset: then all is read.
        stable, after = offsets.ends([topic])[topic], offsets.at_time([topic], last_ms)[topic]
        in_time = {partition for partition in after.keys() & stable.keys() if after[partition] < stable[partition]}
        ends |= {partition: max(after[partition], starts[partition]) for partition in in_time & starts.keys()}
    whole_since_ms = offsets.whole_since_ms([topic], now_ms)[topic]
    reports = connection.ErrorReports(settings)
    # A request may stand behind the open transaction of another program. None of ours is in a transaction.
    properties = {**connection.librdkafka(settings), "isolation.level": "read_uncommitted", **reports.callbacks}
    # A mark of the future was not written by this clock: nothing says where its request would be.
    found = Found(set(), {row.id for row in rows if (row.sent_ms or 0) > now_ms + CLOCKS_MS}, set())
    with (
        closing(reader(properties, enable_partition_eof=True, fetch_wait_max_ms=10)) as consumer,
        reports.explained(f"topic {topic!r} cannot be read"),
    ):
        for partition, those in by_partition.items():
            if any(partition not in known for known in (starts, ends, whole_since_ms)):
                found.unread.update(row.id for row in those)
                continue
            ids = {row.id for row in those}
            for message in read(consumer, topic, partition, starts[partition], ends[partition], timeout_s=_TIMEOUT_S):
                if (id := row_of(headers_of(message))) in ids:
                    found.sent.add(id)
            since_ms = whole_since_ms[partition]
            found.unknown.update(row.id for row in those if (row.sent_ms or 0) - CLOCKS_MS < since_ms)
    return found._replace(unknown=found.unknown - found.sent)
