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

_TIMEOUT_S = 30.0


class Found(NamedTuple):
    """What the log says of rows that a relay has begun to send."""

    sent: set[str]
    """Ids of the rows whose requests are in it."""
    unknown: set[str]
    """Ids of rows whose requests may have been in a part of the log that is deleted."""


def find(settings: Settings, rows: Sequence[Row], now_ms: int) -> Found:
    """Look for the requests of rows. It reads the partitions of their timers from shortly before the first mark on.

    Args:
        now_ms: epoch milliseconds.

    Raises:
        TimersError: the topic cannot be read.
    """
    topic = settings.id_topic
    offsets = TopicOffsets(settings, _TIMEOUT_S)
    if not offsets.existing([topic]):
        raise PublishError(f"topic {topic!r} does not exist at {settings.brokers}: start a worker, which creates it")
    count = len(offsets.partitions(topic))
    by_partition: dict[int, set[str]] = defaultdict(set)
    for row in rows:
        by_partition[partition_of(row.aggregateid.encode(), count)].add(row.id)
    from_ms = {row.id: (row.sent_ms or 0) - CLOCKS_MS for row in rows}
    starts = offsets.at_time([topic], max(0, min(from_ms.values())))[topic]
    ends, whole_since_ms = offsets.high_watermarks([topic])[topic], offsets.whole_since_ms([topic], now_ms)[topic]
    reports = connection.ErrorReports(settings)
    # A request may stand behind the open transaction of another program. None of ours is in a transaction.
    properties = {**connection.librdkafka(settings), "isolation.level": "read_uncommitted", "error_cb": reports}
    sent: set[str] = set()
    unknown: set[str] = set()
    failed = f"topic {topic!r} cannot be read"
    with (
        closing(reader(properties, enable_partition_eof=True, fetch_wait_max_ms=10)) as consumer,
        reports.explained(failed),
    ):
        for partition, ids in by_partition.items():
            for message in read(consumer, topic, partition, starts[partition], ends[partition], timeout_s=_TIMEOUT_S):
                id = row_of(headers_of(message))
                if id in ids:
                    sent.add(id)
            unknown |= {id for id in ids - sent if whole_since_ms[partition] > from_ms[id]}
    return Found(sent, unknown)
