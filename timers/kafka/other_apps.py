"""Finds other apps that read the request topics of this one: each of them fires each timer.

Two apps need two request topics. With one for both, each timer fires twice, and each app alone looks sound: this is
seen only from outside, in the progress that the other one writes.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing

from timers.kafka.clients import librdkafka, reader
from timers.kafka.records import read_all
from timers.kafka.topic_offsets import TopicOffsets
from timers.process.config.settings import Settings
from timers.wire import topics as names
from timers.wire.progress import decode_key

_MOST_TOPICS, _MOST_RECORDS = 20, 500
"""Topics that may have the progress of apps, and newest records of each of their partitions."""

_SILENT_S, _TIMEOUT_S = 2.0, 5.0

RUNNING_WITHIN_S = 3600.0
"""An app whose progress is younger probably runs."""


def other_apps(settings: Settings, request_topics: Collection[str]) -> dict[str, tuple[list[str], int]]:
    """App id -> those of the topics on which it has progress, and when it wrote that last, in epoch milliseconds.

    Topics of progress that this login may not see are left out. Blocks for some seconds.

    Raises:
        TimersError: the brokers do not answer.
    """
    own, suffix = settings.progress_topic, names.progress("")
    offsets = TopicOffsets(settings, _TIMEOUT_S, skips_leaderless=True)
    written = [topic for topic in offsets.all() if topic.endswith(suffix) and topic != own][:_MOST_TOPICS]
    starts, ends = offsets.starts(written), offsets.ends(written)
    left = {
        (topic, partition): range(max(starts[topic].get(partition, 0), end - _MOST_RECORDS), end)
        for topic in written
        for partition, end in ends[topic].items()
    }
    found: dict[str, tuple[list[str], int]] = {}
    left = {place: span for place, span in left.items() if span}
    with closing(reader(librdkafka(settings), enable_partition_eof=True, fetch_wait_max_ms=10)) as consumer:
        for message in read_all(consumer, left, timeout_s=_SILENT_S, while_waiting=lambda: None):
            try:
                topic, _ = decode_key(message.key() or b"")
            except ValueError:
                continue  # a topic of that name of another program
            if not message.error() and topic in request_topics:
                app = (message.topic() or "").removesuffix(suffix)
                known, newest_ms = found.get(app, ([], 0))
                found[app] = sorted({*known, topic}), max(newest_ms, message.timestamp()[1])
    return found


def sentence_about(app: str, topics: Collection[str]) -> str:
    """What another app on the same topics means, and what to do."""
    return (
        f"another app, {app!r}, has progress on {', '.join(topics)}: while its workers run, each timer fires once for "
        "each of the two. Stop it, or give each app a TIMERS_REQUEST_TOPIC of its own"
    )
