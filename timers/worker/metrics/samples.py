"""Reads the values of metrics at a scrape, from the state of the worker.

A scrape runs in a thread of its own: collections that other threads change are copied first.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from time import monotonic
from typing import Any

from timers.core.counters import (
    MAX_CALLERS,
    MAX_TOPICS,
    OTHER_CALLERS,
    OTHER_TOPICS,
    TOPIC_LAG_BOUNDS_S,
    Counters,
    Histogram,
    TopicCounters,
)
from timers.core.progress import NamedSnapshot
from timers.core.timer import TopicPartition
from timers.metrics import Labels, Samples
from timers.partition_metrics import PartitionMetrics
from timers.store.opening import store_path
from timers.worker.canary import Observation
from timers.worker.machines.failures import REASONS
from timers.worker.machines.runner import Runner
from timers.worker.queries.pages import KINDS, OUTCOMES
from timers.worker.status import WorkerStatus

FAILURES = ("delivery", "fenced", "unknown")
"""Why a transaction failed: a target refused, another worker owns the partition, or its outcome is not known."""


def single(value: float | None) -> Samples:
    """The value of a metric without labels; no sample for None."""
    return [] if value is None else [((), value)]


def waiting(status: WorkerStatus) -> Samples:
    """Number of partitions whose timers wait, by reason."""
    reasons = [waiting.reason for waiting in status.pool.waiting.values()]
    return [((reason,), reasons.count(reason)) for reason in REASONS]


# ---- totals of all partitions that this process has owned -----------------------------------------------------------


def by_format(status: WorkerStatus, total: Callable[[Counters], float]) -> Samples:
    """Totals of each open request format. Records of the retry topic are left out: they were accepted before."""
    formats = {
        topic: request_format.name
        for topic, request_format in status.pool.formats.items()
        if topic != status.settings.retry_topic
    }
    totals = dict.fromkeys(formats.values(), 0.0)
    for (topic, _), metrics in list(status.pool.partition_metrics.items()):
        if topic in formats:
            totals[formats[topic]] += total(metrics.counters)
    return [((name,), value) for name, value in totals.items()]


def callers(status: WorkerStatus) -> Samples:
    """Records by caller. A caller that has a label keeps it, so that no total decreases."""
    totals: dict[Labels, float] = {}
    shown = status.shown_callers
    for counters in all_counters(status):
        for (caller, outcome), count in list(counters.callers.items()):
            label = caller if caller in shown or len(shown) < MAX_CALLERS else OTHER_CALLERS
            shown.add(label)
            totals[label, outcome] = totals.get((label, outcome), 0) + count
    return totals.items()


def fired_by_topic(status: WorkerStatus) -> Samples:
    """Callbacks by topic."""
    return [((topic,), sum(each.fired for each in parts)) for topic, parts in _topics(status).items()]


def lag_by_topic(status: WorkerStatus) -> Samples:
    """Lags by callback topic, of timers that waited for their second."""
    for topic, parts in _topics(status).items():
        yield (topic,), _merged(each.lag for each in parts) or Histogram(TOPIC_LAG_BOUNDS_S)


def _topics(status: WorkerStatus) -> dict[str, list[TopicCounters]]:
    """The totals of all partitions by callback topic. As with callers, a topic that has a label keeps it."""
    found: dict[str, list[TopicCounters]] = {}
    shown = status.shown_topics
    for counters in all_counters(status):
        for topic, of_topic in list(counters.topics.items()):
            label = topic if topic in shown or len(shown) < MAX_TOPICS else OTHER_TOPICS
            shown.add(label)
            found.setdefault(label, []).append(of_topic)
    return found


def partition_metrics(status: WorkerStatus) -> list[PartitionMetrics]:
    return list(status.pool.partition_metrics.values())


def all_counters(status: WorkerStatus) -> Iterator[Counters]:
    """The counters of each partition that this process has owned."""
    return (metrics.counters for metrics in partition_metrics(status))


def total(status: WorkerStatus, value: Callable[[Counters], float]) -> Samples:
    """Sum of a value over all partitions."""
    return single(sum(map(value, all_counters(status))))


def sum_by(known: Iterable[str], parts: Iterable[Mapping[str, int]]) -> Samples:
    """Totals by label. Each known label begins at 0, so that ``rate()`` sees its first increase."""
    totals = dict.fromkeys(known, 0)
    for part in parts:
        for label, count in list(part.items()):
            totals[label] = totals.get(label, 0) + count
    return [((label,), count) for label, count in totals.items()]


def _merged(parts: Iterable[Histogram]) -> Histogram | None:
    merged: Histogram | None = None
    for part in parts:
        merged = merged or Histogram(part.bounds)
        merged.counts = [first + second for first, second in zip(merged.counts, part.counts, strict=True)]
        merged.sum += part.sum
    return merged


def lag(status: WorkerStatus) -> Samples:
    """Lags by kind of firing: waited, late or retried."""
    for kind, empty in Counters().lag.items():
        yield (kind,), _merged([empty, *(counters.lag[kind] for counters in all_counters(status))]) or empty


def transactions(status: WorkerStatus) -> Samples:
    """Durations of transactions."""
    merged = _merged(metrics.transactions for metrics in partition_metrics(status))
    return [((), merged)] if merged else []


def waits(status: WorkerStatus) -> Samples:
    """How long timers had waited when machines began to fire."""
    merged = _merged(metrics.waits for metrics in partition_metrics(status))
    return [((), merged)] if merged else []


def failures(status: WorkerStatus) -> Samples:
    """Failed transactions by reason."""
    return sum_by(FAILURES, (metrics.failed for metrics in partition_metrics(status)))


# ---- partitions that this worker owns now ---------------------------------------------------------------------------


def per_partition(status: WorkerStatus, value: Callable[[Runner], float]) -> Samples:
    """A value of each owned partition."""
    return [(_labels(tp), value(runner)) for tp, runner in status.pool.runners.items()]


def of_owned(status: WorkerStatus, value: Callable[[PartitionMetrics], float | None]) -> Samples:
    """A value of the measurements of each owned partition that has one."""
    values = ((tp, value(status.pool.partition_metrics[tp])) for tp in status.pool.runners)
    return [(_labels(tp), found) for tp, found in values if found is not None]


def newest_snapshot(status: WorkerStatus, value: Callable[[NamedSnapshot], float]) -> Samples:
    """A value of the newest snapshot of each owned partition that has one."""
    named = ((tp, runner.machine.progress.snapshot) for tp, runner in status.pool.runners.items())
    return [(_labels(tp), value(snapshot)) for tp, snapshot in named if snapshot is not None]


def snapshot_age(status: WorkerStatus) -> Samples:
    """How long ago the newest snapshot of each owned partition was complete."""
    now_s, known = status.broker_now_s, status.pool.partition_metrics
    if now_s is not None:
        for tp in status.pool.runners:
            written_ms = known[tp].snapshot_ms
            if written_ms is not None:
                yield _labels(tp), max(0.0, now_s - written_ms / 1000)


def _labels(tp: TopicPartition) -> Labels:
    return tp[0], str(tp[1])


def overdue(status: WorkerStatus) -> Samples:
    """How long the next timer of each partition has been due."""
    now_s = status.broker_now_s
    if now_s is None:
        return
    for tp in status.pool.runners:
        oldest_s = status.pool.partition_metrics[tp].oldest_due_s
        yield _labels(tp), 0.0 if oldest_s is None else max(0.0, now_s - oldest_s)


def store_bytes(status: WorkerStatus) -> Samples:
    """Disk space of each partition's store."""
    for tp in status.pool.runners:
        yield _labels(tp), _directory_bytes(store_path(status.settings, tp))


def _directory_bytes(path: Path) -> int:
    """Size of the files in a directory, without those that RocksDB deletes meanwhile."""
    total = 0
    try:
        with os.scandir(path) as files:
            for file in files:
                try:
                    total += file.stat().st_size
                except FileNotFoundError:
                    continue
    except FileNotFoundError:
        return 0
    return total


def data_disk(status: WorkerStatus, value: Callable[[Any], int]) -> Samples:
    """A value of the usage of the file system that holds the stores."""
    try:
        return single(value(shutil.disk_usage(status.settings.data_dir)))
    except OSError:  # the directory does not exist yet, or the disk fails
        return []


def topic_partitions(status: WorkerStatus) -> Samples:
    """Number of partitions of each request topic and the retry topic."""
    known = status.pool.partitions
    return [((topic,), known[topic]) for topic in status.pool.formats if topic in known]


def watermarks(status: WorkerStatus, value: Callable[[int, int], int]) -> Samples:
    """A value computed from high watermark and last stable offset of each owned partition."""
    return [(_labels(tp), value(high, stable)) for tp, (high, stable) in status.watermarks.items()]


def unread(status: WorkerStatus) -> Samples:
    """Number of offsets of each partition that are not accepted yet."""
    for tp, (high, _) in status.watermarks.items():
        runner = status.pool.runners.get(tp)
        if runner is not None:
            yield _labels(tp), max(0, high - runner.machine.progress.next_offset)


def canary(status: WorkerStatus, value: Callable[[Observation], float | None]) -> Samples:
    """A value of the canary of each partition that has one."""
    for partition, observation in status.canaries.items():
        seen = value(observation)
        if seen is not None:
            yield (status.settings.request_topic, str(partition)), seen


def canary_age(status: WorkerStatus) -> Samples:
    """Seconds since the last canary of each partition came back."""
    return canary(status, lambda observation: monotonic() - observation.last_callback_at)


# ---- the worker -----------------------------------------------------------------------------------------------------


def queries(status: WorkerStatus) -> Samples:
    """Queries by kind and outcome."""
    return [(labels, status.query_counts.counts[labels]) for labels in product(KINDS, OUTCOMES)]
