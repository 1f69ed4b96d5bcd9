"""Where the values of metrics are read: each function looks, at a scrape, at what is there anyway.

A scrape has a thread of its own: what others write meanwhile is copied first.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from timers.core.counters import MAX_CALLERS, OTHER_CALLERS, Counters, Histogram
from timers.worker.machines.opening import store_path
from timers.worker.queries import pages as query_pages

if TYPE_CHECKING:
    from timers.core.timer import TopicPartition
    from timers.worker.canary import Sight
    from timers.worker.machines.runner import Runner
    from timers.worker.partition_metrics import PartitionMetrics
    from timers.worker.service import TimersApp

Labels: TypeAlias = tuple[str, ...]
Samples: TypeAlias = Iterable[tuple[Labels, float | Histogram]]

FAILURES = ("delivery", "fenced", "unknown")
"""Why a transaction was given up: a target refused, another worker owns the partition, or nobody knows how it ended."""


# ---- totals of all partitions that this process has owned -----------------------------------------------------------


def by_format(app: TimersApp, total: Callable[[Counters], float]) -> Samples:
    """Totals of each open request format. What is read from the retry topic was accepted before."""
    formats = {
        topic: request_format.name
        for topic, request_format in app.pool.formats.items()
        if topic != app.settings.retry_topic
    }
    totals = dict.fromkeys(formats.values(), 0.0)
    for (topic, _), metrics in list(app.pool.partition_metrics.items()):
        if topic in formats:
            totals[formats[topic]] += total(metrics.counters)
    return [((name,), value) for name, value in totals.items()]


def callers(app: TimersApp) -> Samples:
    """Records by who asks. The first callers to be counted keep their names, so that no total ever goes back."""
    totals: dict[Labels, float] = {}
    for counters in tallies(app):
        for (caller, outcome), count in list(counters.callers.items()):
            known = caller in app.callers or len(app.callers) < MAX_CALLERS
            label = caller if known else OTHER_CALLERS
            app.callers.add(label)
            totals[label, outcome] = totals.get((label, outcome), 0) + count
    return totals.items()


def partition_metrics(app: TimersApp) -> list[PartitionMetrics]:
    """Of each partition, whoever owns it now."""
    return list(app.pool.partition_metrics.values())  # a copy: a scrape has a thread of its own


def tallies(app: TimersApp) -> Iterator[Counters]:
    """The totals of each partition."""
    return (metrics.counters for metrics in partition_metrics(app))


def sum_by(known: Iterable[str], parts: Iterable[Mapping[str, int]]) -> Samples:
    """Totals by label; those that never happened are 0, so that the first one is an increase."""
    totals = dict.fromkeys(known, 0)
    for part in parts:
        for label, count in list(part.items()):
            totals[label] = totals.get(label, 0) + count
    return [((label,), count) for label, count in totals.items()]


def _merged(parts: Iterable[Histogram]) -> Histogram | None:
    merged: Histogram | None = None
    for part in parts:
        merged = merged or Histogram(part.bounds)
        merged.counts = [ours + more for ours, more in zip(merged.counts, part.counts, strict=True)]
        merged.sum += part.sum
    return merged


def lag(app: TimersApp) -> Samples:
    """Lags by the way to the firing."""
    empty = Counters().lag
    for way, none in empty.items():
        yield (way,), _merged([none, *(counters.lag[way] for counters in tallies(app))]) or none


def transactions(app: TimersApp) -> Samples:
    """How long transactions took."""
    merged = _merged(metrics.transactions for metrics in partition_metrics(app))
    return [((), merged)] if merged else []


def failures(app: TimersApp) -> Samples:
    """Transactions that failed, by reason."""
    return sum_by(FAILURES, (metrics.failed for metrics in partition_metrics(app)))


# ---- partitions that this worker owns now ---------------------------------------------------------------------------


def _runners(app: TimersApp) -> list[tuple[TopicPartition, Runner]]:
    return list(app.pool.runners.items())


def each(app: TimersApp, value: Callable[[Runner], float]) -> Samples:
    """A value of each partition that this worker owns."""
    return [((topic, str(partition)), value(runner)) for (topic, partition), runner in _runners(app)]


def overdue(app: TimersApp) -> Samples:
    """How long the next timer of each partition has been due."""
    now_s = app.broker_now_s()
    if now_s is None:
        return
    for tp, _ in _runners(app):
        oldest_s = app.pool.partition_metrics[tp].oldest_due_s
        yield (tp[0], str(tp[1])), 0.0 if oldest_s is None else max(0.0, now_s - oldest_s)


def store_bytes(app: TimersApp) -> Samples:
    """Disk that each partition takes."""
    for tp, _ in _runners(app):
        yield (tp[0], str(tp[1])), _directory_bytes(store_path(app.settings, tp))


def _directory_bytes(path: Path) -> int:
    """What the files in a directory take; one that RocksDB deletes meanwhile counts nothing."""
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


def data_disk(app: TimersApp, value: Callable[[Any], int]) -> Samples:
    """``value`` of the usage of the file system that holds the stores."""
    try:
        return [((), value(shutil.disk_usage(app.settings.data_dir)))]
    except OSError:  # not made yet, or the disk is gone
        return []


def topic_partitions(app: TimersApp) -> Samples:
    """Partitions of each topic that timers come in by."""
    known = app.pool.partitions
    return [((topic,), known[topic]) for topic in app.pool.formats if topic in known]


def watermarks(app: TimersApp, value: Callable[[int, int], int]) -> Samples:
    """``value`` of (high watermark, last stable offset) of each owned partition."""
    for (topic, partition), (high, stable) in app.watermarks().items():
        yield (topic, str(partition)), value(high, stable)


def unread(app: TimersApp) -> Samples:
    """Offsets of each partition that are not accepted yet."""
    for tp, (high, _) in app.watermarks().items():
        runner = app.pool.runners.get(tp)
        if runner is not None:
            yield (tp[0], str(tp[1])), max(0, high - runner.machine.progress.next_offset)


def canary(app: TimersApp, value: Callable[[Sight], float | None]) -> Samples:
    """A value of each partition's canary, as far as there is one."""
    if app.canary is None:
        return
    for partition, sight in app.canary.sights.items():
        seen = value(sight)
        if seen is not None:
            yield (app.settings.request_topic, str(partition)), seen


# ---- the worker -----------------------------------------------------------------------------------------------------


def skew(app: TimersApp) -> Samples:
    """This clock less the brokers'."""
    now_s = app.broker_now_s()
    return [] if now_s is None else [((), app.clock.now_s() - now_s)]


def tick_age(app: TimersApp) -> Samples:
    """How old the last tick is."""
    return [] if app.tick_reader is None else [((), app.tick_reader.age_s)]


def queries(app: TimersApp) -> Samples:
    """Questions by kind and outcome."""
    return [(labels, app.query_pages.counts[labels]) for labels in product(query_pages.KINDS, query_pages.OUTCOMES)]
