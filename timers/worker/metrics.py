"""Every metric of a worker: name, kind, labels, meaning, and where its value is read at a scrape.

Nothing is measured for a scrape's sake on the way of a timer: totals are kept once a transaction (:mod:`.meter`), the
rest is looked at when somebody asks. ``docs/metrics.md`` is the reader's copy of :data:`METRICS`; a test compares them.
Label values are bounded: partitions that this worker has owned, codes and ways that this code knows.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, product
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from timers import __version__
from timers.core.operation import CANCELLED, VERDICTS
from timers.core.tally import MAX_CALLERS, OTHER_CALLERS, Histogram, Tally
from timers.wire.dead_letter import CODES
from timers.worker import health, query_pages
from timers.worker.opening import store_path

if TYPE_CHECKING:
    from timers.worker.canary import Sight
    from timers.worker.meter import Meter
    from timers.worker.progress_log import Machine
    from timers.worker.runner import Runner
    from timers.worker.service import TimersApp

Labels: TypeAlias = tuple[str, ...]
Samples: TypeAlias = Iterable[tuple[Labels, float | Histogram]]

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
PARTITION = ("topic", "partition")
FAILURES = ("delivery", "fenced", "unknown")
"""Why a transaction was given up: a target refused, another worker owns the partition, or nobody knows how it ended."""


@dataclass(frozen=True)
class Entry:
    """One metric."""

    name: str
    """As Prometheus shows it; histograms without ``_bucket``, ``_sum`` and ``_count``."""
    kind: str
    labels: Labels
    help: str
    read: Callable[[TimersApp], Samples]


# ---- totals of all partitions that this process has owned -----------------------------------------------------------


def _by_door(app: TimersApp, total: Callable[[Tally], float]) -> Samples:
    """Totals of each open door. What is read from the retry topic was accepted before."""
    doors = {topic: door.name for topic, door in app.pool.doors.items() if topic != app.settings.retry_topic}
    totals = dict.fromkeys(doors.values(), 0.0)
    for (topic, _), meter in list(app.pool.meters.items()):
        if topic in doors:
            totals[doors[topic]] += total(meter.tally)
    return [((name,), value) for name, value in totals.items()]


def _callers(app: TimersApp) -> Samples:
    """Records by who asks. The first callers to be counted keep their names, so that no total ever goes back."""
    totals: dict[Labels, float] = {}
    for tally in _tallies(app):
        for (caller, outcome), count in list(tally.callers.items()):
            known = caller in app.callers or len(app.callers) < MAX_CALLERS
            label = caller if known else OTHER_CALLERS
            app.callers.add(label)
            totals[label, outcome] = totals.get((label, outcome), 0) + count
    return totals.items()


def _meters(app: TimersApp) -> list[Meter]:
    return list(app.pool.meters.values())  # a copy: a scrape has a thread of its own


def _tallies(app: TimersApp) -> Iterator[Tally]:
    return (meter.tally for meter in _meters(app))


def _sum_by(known: Iterable[str], parts: Iterable[Mapping[str, int]]) -> Samples:
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


def _lag(app: TimersApp) -> Samples:
    empty = Tally().lag
    for way, none in empty.items():
        yield (way,), _merged([none, *(tally.lag[way] for tally in _tallies(app))]) or none


def _transactions(app: TimersApp) -> Samples:
    merged = _merged(meter.transactions for meter in _meters(app))
    return [((), merged)] if merged else []


def _failures(app: TimersApp) -> Samples:
    return _sum_by(FAILURES, (meter.failed for meter in _meters(app)))


# ---- partitions that this worker owns now ---------------------------------------------------------------------------


def _runners(app: TimersApp) -> list[tuple[Machine, Runner]]:
    return list(app.pool.runners.items())


def _each(app: TimersApp, value: Callable[[Runner], float]) -> Samples:
    return [((topic, str(partition)), value(runner)) for (topic, partition), runner in _runners(app)]


def _overdue(app: TimersApp) -> Samples:
    now_s = app.broker_now_s()
    if now_s is None:
        return
    for machine, _ in _runners(app):
        oldest_s = app.pool.meters[machine].oldest_due_s
        yield (machine[0], str(machine[1])), 0.0 if oldest_s is None else max(0.0, now_s - oldest_s)


def _store_bytes(app: TimersApp) -> Samples:
    for machine, _ in _runners(app):
        yield (machine[0], str(machine[1])), _directory_bytes(store_path(app.settings, machine))


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


def _data_disk(app: TimersApp, value: Callable[[Any], int]) -> Samples:
    """``value`` of the usage of the file system that holds the stores."""
    try:
        return [((), value(shutil.disk_usage(app.settings.data_dir)))]
    except OSError:  # not made yet, or the disk is gone
        return []


def _topic_partitions(app: TimersApp) -> Samples:
    known = app.pool.partitions
    return [((topic,), known[topic]) for topic in app.pool.doors if topic in known]


def _watermarks(app: TimersApp, value: Callable[[int, int], int]) -> Samples:
    """``value`` of (high watermark, last stable offset) of each owned partition."""
    for (topic, partition), (high, stable) in app.watermarks().items():
        yield (topic, str(partition)), value(high, stable)


def _unread(app: TimersApp) -> Samples:
    for machine, (high, _) in app.watermarks().items():
        runner = app.pool.runners.get(machine)
        if runner is not None:
            yield (machine[0], str(machine[1])), max(0, high - runner.machine.progress.next_offset)


def _canary(app: TimersApp, value: Callable[[Sight], float | None]) -> Samples:
    if app.canary is None:
        return
    for partition, sight in app.canary.sights.items():
        seen = value(sight)
        if seen is not None:
            yield (app.settings.request_topic, str(partition)), seen


# ---- the worker -----------------------------------------------------------------------------------------------------


def _skew(app: TimersApp) -> Samples:
    now_s = app.broker_now_s()
    return [] if now_s is None else [((), app.clock.now_s() - now_s)]


def _tick_age(app: TimersApp) -> Samples:
    return [] if app.tick_reader is None else [((), app.tick_reader.age_s)]


def _queries(app: TimersApp) -> Samples:
    return [(labels, app.query_pages.counts[labels]) for labels in product(query_pages.KINDS, query_pages.OUTCOMES)]


METRICS = (
    Entry(
        "timers_accepted_total",
        COUNTER,
        ("door",),
        "Requests accepted: readable, and covered by a committed transaction.",
        lambda app: _by_door(app, lambda tally: tally.accepted),
    ),
    Entry(
        "timers_late_total",
        COUNTER,
        ("door",),
        "Of the accepted requests, those whose second had fired already; they fire at once.",
        lambda app: _by_door(app, lambda tally: tally.late),
    ),
    Entry(
        "timers_fired_total",
        COUNTER,
        (),
        "Callbacks sent to their topics, committed.",
        lambda app: [((), sum(tally.fired for tally in _tallies(app)))],
    ),
    Entry(
        "timers_dead_lettered_total",
        COUNTER,
        ("code",),
        "Dead letters written, committed, by timer-error code.",
        lambda app: _sum_by(CODES, (tally.dead_lettered for tally in _tallies(app))),
    ),
    Entry(
        "timers_retried_total",
        COUNTER,
        (),
        "Timers moved to the retry topic: their target failed, can never take them, or a backlog is spread out; each "
        "move counted.",
        lambda app: [((), sum(tally.retried for tally in _tallies(app)))],
    ),
    Entry(
        "timers_cancelled_total",
        COUNTER,
        ("door",),
        "Timers cancelled in the engine. A Future's cancellation is its receiver's: 0 for that door.",
        lambda app: _by_door(app, lambda tally: tally.verdicts.get(CANCELLED, 0)),
    ),
    Entry(
        "timers_verdicts_total",
        COUNTER,
        ("verdict",),
        "Cancels and updates of timers with an id, committed, by what they came to.",
        lambda app: _sum_by(VERDICTS, (tally.verdicts for tally in _tallies(app))),
    ),
    Entry(
        "timers_forwarded_total",
        COUNTER,
        ("door",),
        "Requests that went cold: due beyond the horizon, written to the cold topic, committed.",
        lambda app: _by_door(app, lambda tally: tally.forwarded),
    ),
    Entry(
        "timers_promoted_total",
        COUNTER,
        ("door",),
        "Copies of cold requests that were promoted back to their partition and accepted, repeated ones included.",
        lambda app: _by_door(app, lambda tally: tally.promoted),
    ),
    Entry(
        "timers_promoted_duplicates_total",
        COUNTER,
        ("door",),
        "Of these, copies that changed nothing: repeated, or of a timer that was replaced or cancelled while cold.",
        lambda app: _by_door(app, lambda tally: tally.promoted_duplicates),
    ),
    Entry(
        "timers_caller_requests_total",
        COUNTER,
        ("caller", "outcome"),
        "Records of TIMERS_COUNTDOWN_TOPIC by their header CALLER_SERVICE (none: without it), committed. outcome: "
        "accepted, cancel, rejected. The first hundred callers by name, all others as caller other.",
        _callers,
    ),
    Entry(
        "timers_lag_seconds",
        HISTOGRAM,
        ("way",),
        "From the start of the due second to the end of the transaction that fired, by the brokers' clock, one "
        "observation a callback. way: waited (the engine's punctuality), late (the request came after its second), "
        "retried (it came by the retry topic).",
        _lag,
    ),
    Entry(
        "timers_transaction_seconds",
        HISTOGRAM,
        (),
        "How long committed transactions took, from their first record to the commit's answer.",
        _transactions,
    ),
    Entry(
        "timers_transactions_failed_total",
        COUNTER,
        ("reason",),
        "Transactions that were not seen to commit: delivery (a target refused), fenced (another worker owns the "
        "partition), unknown (the brokers did not say).",
        _failures,
    ),
    Entry(
        "timers_partitions_reopened_total",
        COUNTER,
        (),
        "Partitions opened again after a failed transaction.",
        lambda app: [((), sum(meter.reopened for meter in _meters(app)))],
    ),
    Entry(
        "timers_pending",
        GAUGE,
        PARTITION,
        "Timers stored and not yet fired.",
        lambda app: _each(app, lambda runner: runner.machine.pending),
    ),
    Entry(
        "timers_oldest_overdue_seconds",
        GAUGE,
        PARTITION,
        "How long the oldest stored timer has been due, by the brokers' clock; 0 if none is.",
        _overdue,
    ),
    Entry(
        "timers_store_bytes",
        GAUGE,
        PARTITION,
        "Disk that the partition's store takes, log files included.",
        _store_bytes,
    ),
    Entry(
        "timers_data_disk_free_bytes",
        GAUGE,
        (),
        "Free on the file system of TIMERS_DATA_DIR. A full one ends the worker; nothing is lost by it.",
        lambda app: _data_disk(app, lambda usage: usage.free),
    ),
    Entry(
        "timers_data_disk_size_bytes",
        GAUGE,
        (),
        "Size of that file system.",
        lambda app: _data_disk(app, lambda usage: usage.total),
    ),
    Entry(
        "timers_recovering",
        GAUGE,
        PARTITION,
        "1 while the partition reads its log again and does not fire.",
        lambda app: _each(app, lambda runner: runner.machine.recovering),
    ),
    Entry(
        "timers_recovery_remaining_offsets",
        GAUGE,
        PARTITION,
        "Offsets still to be read again; at least as many as records.",
        lambda app: _each(app, lambda runner: runner.machine.remaining),
    ),
    Entry(
        "timers_recovery_records_total",
        COUNTER,
        (),
        "Records read again by recoveries.",
        lambda app: [((), sum(tally.replayed for tally in _tallies(app)))],
    ),
    Entry(
        "timers_request_unread_offsets",
        GAUGE,
        PARTITION,
        "High watermark minus the next offset to accept, as of the last fetch.",
        _unread,
    ),
    Entry(
        "timers_request_unstable_offsets",
        GAUGE,
        PARTITION,
        "High watermark minus last stable offset: what an open transaction of a producer holds back.",
        lambda app: _watermarks(app, lambda high, stable: high - stable),
    ),
    Entry(
        "timers_request_last_stable_offset",
        GAUGE,
        PARTITION,
        "Last stable offset: stands still while a producer's transaction hangs.",
        lambda app: _watermarks(app, lambda high, stable: stable),
    ),
    Entry(
        "timers_partitions",
        GAUGE,
        (),
        "Partitions that this worker owns of the topics that timers come in by, the retry topic among them.",
        lambda app: [((), len(app.pool.runners))],
    ),
    Entry(
        "timers_partitions_stopped",
        GAUGE,
        (),
        "Of the partitions assigned to this worker, those that must not run because their log lost records.",
        lambda app: [((), len(app.pool.stopped))],
    ),
    Entry(
        "timers_topic_partitions",
        GAUGE,
        ("topic",),
        "Partitions that each of those topics has: what all workers together should own.",
        _topic_partitions,
    ),
    Entry(
        "timers_ready",
        GAUGE,
        (),
        "1 if /health/ready says so.",
        lambda app: [((), not health.unready(app))],
    ),
    Entry(
        "timers_tick_age_seconds",
        GAUGE,
        (),
        "Seconds since a tick last moved time: nothing fires between ticks.",
        _tick_age,
    ),
    Entry(
        "timers_ticks_missed_total",
        COUNTER,
        (),
        "Seconds without a tick of this worker.",
        lambda app: [((), app.metronome.missed)],
    ),
    Entry(
        "timers_clock_skew_seconds",
        GAUGE,
        (),
        "This worker's clock minus the brokers'. Nothing fires by it; other programs on the machine may.",
        _skew,
    ),
    Entry(
        "timers_broker_clock_back",
        GAUGE,
        (),
        "1 while the brokers' clock stands before what has fired, and new requests wait.",
        lambda app: [((), app.pool.held)],
    ),
    Entry(
        "timers_quarantined_targets",
        GAUGE,
        (),
        "Callback topics that are spared because they failed; their timers go through the retry topic.",
        lambda app: [((), app.pool.quarantined_targets)],
    ),
    Entry(
        "timers_canary_lag_seconds",
        GAUGE,
        PARTITION,
        "How late the last canary timer of the partition came to its receiver, by the brokers' clock.",
        lambda app: _canary(app, lambda sight: sight.lag_s),
    ),
    Entry(
        "timers_canary_age_seconds",
        GAUGE,
        PARTITION,
        "Seconds since a canary timer of the partition came back; until the first one, since the worker took it.",
        lambda app: _canary(app, lambda sight: monotonic() - sight.seen_at),
    ),
    Entry(
        "timers_canary_interval_seconds",
        GAUGE,
        (),
        "TIMERS_CANARY_INTERVAL_S, where it is on.",
        lambda app: [] if app.canary is None else [((), app.canary.interval_s)],
    ),
    Entry(
        "timers_queries_total",
        COUNTER,
        ("query", "outcome"),
        "Questions about timers that the web port answered. query: list, get, forwarded (by another worker); outcome: "
        "complete, partial (a partition did not answer), refused.",
        _queries,
    ),
    Entry(
        "timers_query_seconds",
        HISTOGRAM,
        ("query",),
        "How long those answers took.",
        lambda app: [((kind,), seconds) for kind, seconds in app.query_pages.seconds.items()],
    ),
    Entry("timers_build_info", GAUGE, ("version",), "Always 1.", lambda app: [((__version__,), 1)]),
)


class WorkerCollector(Collector):
    """Reads :data:`METRICS` at each scrape."""

    def __init__(self, app: TimersApp) -> None:
        self._app = app

    def collect(self) -> Iterator[Metric]:
        """One family for each entry."""
        for entry in METRICS:
            yield _family(entry, list(entry.read(self._app)))


def _family(entry: Entry, samples: Samples) -> Metric:
    if entry.kind == HISTOGRAM:
        histograms = HistogramMetricFamily(entry.name, entry.help, labels=entry.labels)
        for labels, value in samples:
            assert isinstance(value, Histogram)
            bounds = [*map(str, map(float, value.bounds)), "+Inf"]
            buckets = list(zip(bounds, accumulate(list(value.counts)), strict=True))
            histograms.add_metric(labels, buckets, value.sum)
        return histograms
    kind = CounterMetricFamily if entry.kind == COUNTER else GaugeMetricFamily
    family = kind(entry.name, entry.help, labels=entry.labels)
    for labels, value in samples:
        assert not isinstance(value, Histogram)
        family.add_metric(labels, float(value))
    return family


def registry(app: TimersApp) -> CollectorRegistry:
    """The worker's metrics and those of its process."""
    made = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=made)
    made.register(WorkerCollector(app))
    return made
