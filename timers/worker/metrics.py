"""Every metric of a worker: name, kind, labels, help text, and the function that reads its value at a scrape.

Totals are kept once a transaction (:mod:`timers.core.counters`); all other values are read at a scrape, in a thread of
its own: collections that other threads change are copied first. ``docs/metrics.md`` has the same table as
:data:`METRICS`; a test compares them. The number of label values is bounded: partitions that this worker has owned, and
the codes and ways that this version has.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial, reduce
from itertools import product
from pathlib import Path
from time import monotonic
from typing import Any

from timers.core.counters import (
    MAX_COUNTED_CALLERS,
    MAX_COUNTED_TOPICS,
    OTHER_CALLERS,
    OTHER_TOPICS,
    Counters,
    Histogram,
    TopicCounters,
    added,
)
from timers.core.fired import PAUSE, Hold
from timers.core.machine import Machine
from timers.core.operation import CANCELLED, VERDICTS
from timers.core.ports import MISSED_REASONS
from timers.core.progress import NamedSnapshot
from timers.core.snapshots import bytes_of_snapshot, offsets_since
from timers.core.timer import TopicPartition
from timers.kafka.login_tokens import present_source
from timers.kafka.own_topics import NOTE, RED, WARNING
from timers.machines.life import REASONS
from timers.machines.machine_parts import BUILD_LABELS
from timers.machines.queries.pages import QUERY_KINDS, QUERY_OUTCOMES
from timers.machines.store.opening import store_path
from timers.process import partition_metrics
from timers.process.metrics import Entry, Labels, Samples
from timers.process.partition_metrics import FENCED, PartitionMetrics
from timers.wire.dead_letter import CODES
from timers.worker import health
from timers.worker.canary import Observation
from timers.worker.health import WorkerStatus
from timers.worker.machines.runner import Runner

RELEASE = "release"
"""Why timers are held: the pause is over, and they are being sent."""

UNSTABLE_S = 30.0
"""Longer than a quota delays a fetch, and less than an alert waits."""

FAILURES = ("delivery", FENCED, "unknown")
"""Why a transaction failed: a target refused, another worker owns the partition, or its outcome is not known."""


def single(value: Callable[[WorkerStatus], float | None], status: WorkerStatus) -> Samples:
    """A value without labels; no sample for None."""
    found = value(status)
    return [] if found is None else [((), found)]


# ---- totals of all partitions that this process has owned -----------------------------------------------------------


def measured(status: WorkerStatus) -> list[PartitionMetrics]:
    """The measurements of each partition."""
    return list(status.pool.partition_metrics.values())


def all_counters(status: WorkerStatus) -> Iterator[Counters]:
    """The counters of each partition."""
    return (metrics.counters for metrics in measured(status))


def summed(value: Callable[[PartitionMetrics], float], status: WorkerStatus) -> Samples:
    """Sum of a value."""
    return [((), sum(map(value, measured(status))))]


def of_each(value: Callable[[PartitionMetrics], float], status: WorkerStatus) -> Samples:
    """A value of each partition that this process has owned."""
    return [(_labels(tp), value(metrics)) for tp, metrics in list(status.pool.partition_metrics.items())]


def totals(status: WorkerStatus) -> dict[str, float]:
    """What was counted since the start, for the figures of the last day."""
    transactions = sum(sum(each.transactions.counts) for each in measured(status))
    return reduce(added, (each.numbers() for each in all_counters(status)), {"transactions": float(transactions)})


def present(status: WorkerStatus) -> dict[str, float]:
    """What there is now, for the figures of the last day."""
    runners = status.pool.owned
    late_s = max((overdue(status, *each) or 0.0 for each in runners.items()), default=0.0)
    memory = 0
    with suppress(OSError, ValueError):  # only Linux says it
        memory = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    pending = sum(runner.machine.pending for runner in runners.values())
    return {"pending": pending, "overdue_s": round(late_s, 1), "memory_bytes": memory}


def merged(histogram: Callable[[PartitionMetrics], Histogram], status: WorkerStatus) -> Samples:
    """The histogram of all partitions. It begins empty, so that ``rate()`` sees its first increase."""
    return [((), _merged(map(histogram, [PartitionMetrics(), *measured(status)])))]


def by_format(total: Callable[[Counters], float], status: WorkerStatus) -> Samples:
    """Totals of each open request format. Records of the retry topic are left out: they were accepted before."""
    retry_topic = status.settings.retry_topic
    formats = {topic: each.name for topic, each in status.pool.formats.items() if topic != retry_topic}
    totals = dict.fromkeys(formats.values(), 0.0)
    for (topic, _), metrics in list(status.pool.partition_metrics.items()):
        if topic in formats:
            totals[formats[topic]] += total(metrics.counters)
    return [((name,), value) for name, value in totals.items()]


def _label(name: str, shown: set[str], most: int, other: str) -> str:
    """The label of a caller or topic: its name, or ``other`` if ``most`` are shown. One that has a label keeps it, so
    that no total decreases."""
    if name not in shown and len(shown) >= most:
        return other
    shown.add(name)
    return name


def callers(status: WorkerStatus) -> Samples:
    """Records by caller."""
    totals: dict[Labels, float] = {}
    for counters in all_counters(status):
        for (caller, outcome), count in list(counters.callers.items()):
            label = _label(caller, status.shown_callers, MAX_COUNTED_CALLERS, OTHER_CALLERS)
            totals[label, outcome] = totals.get((label, outcome), 0) + count
    return totals.items()


def fired_by_topic(status: WorkerStatus) -> Samples:
    """Callbacks by topic."""
    return [((topic,), sum(each.fired for each in parts)) for topic, parts in _topics(status).items()]


def lag_by_topic(status: WorkerStatus) -> Samples:
    """Lags by callback topic, of timers that waited for their second."""
    for topic, parts in _topics(status).items():
        yield (topic,), _merged(each.lag for each in parts)


def _topics(status: WorkerStatus) -> dict[str, list[TopicCounters]]:
    """The totals of all partitions by callback topic."""
    found: dict[str, list[TopicCounters]] = {}
    for counters in all_counters(status):
        for topic, of_topic in list(counters.topics.items()):
            label = _label(topic, status.shown_topics, MAX_COUNTED_TOPICS, OTHER_TOPICS)
            found.setdefault(label, []).append(of_topic)
    return found


def sum_by(known: Iterable[str], parts: Iterable[Mapping[str, int]]) -> Samples:
    """Totals by label. Each known label begins at 0, so that ``rate()`` sees its first increase."""
    totals = dict.fromkeys(known, 0)
    for part in parts:
        for label, count in list(part.items()):
            totals[label] = totals.get(label, 0) + count
    return [((label,), count) for label, count in totals.items()]


def _merged(parts: Iterable[Histogram]) -> Histogram:
    """The sum of one histogram or more."""
    found = list(parts)
    merged = Histogram(found[0].bounds)
    merged.counts = [sum(counts) for counts in zip(*(part.counts for part in found), strict=True)]
    merged.sum = sum(part.sum for part in found)
    return merged


def ids_placed(status: WorkerStatus) -> Samples:
    """Requests with an id by their place."""
    found = measured(status)
    yield ("murmur2",), sum(each.ids_in_place for each in found)
    yield ("elsewhere",), sum(each.ids_elsewhere for each in found)


def lag(status: WorkerStatus) -> Samples:
    """Lags by kind of firing: waited, late or retried."""
    for kind, empty in Counters().lag.items():
        yield (kind,), _merged([empty, *(counters.lag[kind] for counters in all_counters(status))])


# ---- partitions that this worker owns now ---------------------------------------------------------------------------


def owned(value: Callable[[WorkerStatus, TopicPartition, Runner], float | None], status: WorkerStatus) -> Samples:
    """A value of each partition that this worker owns, and that has one."""
    values = ((tp, value(status, tp, runner)) for tp, runner in status.pool.owned.items())
    return [(_labels(tp), found) for tp, found in values if found is not None]


def _labels(tp: TopicPartition) -> Labels:
    return tp[0], str(tp[1])


def of_machine(value: Callable[[Machine], float], status: WorkerStatus) -> Samples:
    return owned(lambda _, tp, runner: value(runner.machine), status)


def of_metrics(value: Callable[[PartitionMetrics], float | None], status: WorkerStatus) -> Samples:
    """A value of the measurements of each partition that this worker owns, and that has one."""
    return owned(lambda _, tp, runner: value(status.pool.partition_metrics[tp]), status)


def recovery(value: Callable[[Machine], float], status: WorkerStatus) -> Samples:
    """A value of each machine, also of those that read ahead: if no worker is left, its partition waits for that."""
    return [(_labels(tp), value(runner.machine)) for tp, runner in status.pool.runners.items()]


def newest_snapshot(value: Callable[[NamedSnapshot], float], status: WorkerStatus) -> Samples:
    """A value of the newest snapshot of each partition that this worker owns, and that has one."""
    named = ((tp, runner.machine.progress.snapshot) for tp, runner in status.pool.owned.items())
    return [(_labels(tp), value(snapshot)) for tp, snapshot in named if snapshot is not None]


def snapshot_age(status: WorkerStatus, tp: TopicPartition, _: Runner) -> float | None:
    """How long ago the newest snapshot was complete."""
    now_s, written_ms = status.tick_scheduler.broker_now_s(), status.pool.partition_metrics[tp].snapshot_ms
    return None if now_s is None or written_ms is None else max(0.0, now_s - written_ms / 1000)


def overdue(status: WorkerStatus, tp: TopicPartition, _: Runner) -> float | None:
    """How long the next timer has been due."""
    now_s, oldest_s = status.tick_scheduler.broker_now_s(), status.pool.partition_metrics[tp].oldest_due_s
    return now_s and (0.0 if oldest_s is None else max(0.0, now_s - oldest_s))


def store_bytes(status: WorkerStatus, tp: TopicPartition, _: Runner) -> int:
    """Size of the files of a store, without those that RocksDB deletes meanwhile."""
    total = 0
    with suppress(FileNotFoundError), os.scandir(store_path(status.settings, tp)) as files:
        for file in files:
            with suppress(FileNotFoundError):
                total += file.stat().st_size
    return total


def data_disk(value: Callable[[Any], int], status: WorkerStatus) -> Samples:
    """A value of the usage of the file system that holds the stores."""
    try:
        return [((), value(shutil.disk_usage(status.settings.data_dir)))]
    except OSError:  # the directory does not exist yet, or the disk fails
        return []


def last_stable(status: WorkerStatus) -> Samples:
    """Last stable offset of each partition that is read."""
    return [(_labels(tp), stable) for tp, (_, stable) in status.consumer.watermarks().items()]


def unstable(status: WorkerStatus) -> Samples:
    """High watermark minus last stable offset; 0 where the last answer of a broker is older than :data:`UNSTABLE_S`."""
    fresh = status.consumer.watermarks(UNSTABLE_S)
    for tp in status.consumer.watermarks():
        high, stable = fresh.get(tp, (0, 0))
        yield _labels(tp), high - stable


def unread(status: WorkerStatus) -> Samples:
    """Number of offsets of each partition that are not accepted yet."""
    ends = {tp: high for tp, (high, _) in status.consumer.watermarks().items()}
    begins = {tp: runner.machine.progress.next_offset for tp, runner in status.pool.owned.items() if tp in ends}
    return [(_labels(tp), max(0, ends[tp] - begin)) for tp, begin in begins.items()]


def waiting(status: WorkerStatus) -> Samples:
    """Number of partitions whose timers wait, by reason, and whether they are open."""
    runners = status.pool.runners
    found = [(why.reason, "open" if tp in runners else "closed") for tp, why in status.pool.waiting.items()]
    return [(labels, found.count(labels)) for labels in product(REASONS, ("closed", "open"))]


def wrong_topics(status: WorkerStatus) -> Iterator[Mapping[str, int]]:
    """Severity -> 1, for each setting that is wrong, and each topic or snapshot that was deleted."""
    for wrong in status.log_watch.cluster.wrong_configs:
        if wrong.severity != NOTE:
            yield {wrong.severity: 1}
    for _ in (*status.log_watch.made_anew, *status.lost_snapshots()):
        yield {RED: 1}


def _holds(status: WorkerStatus) -> Iterator[tuple[str, str, Hold, int | None]]:
    """(label of the callback topic, why, hold, its rows) of each hold; rows: None if they were not counted."""
    for runner in status.pool.owned.values():
        for hold in runner.machine.progress.holds:
            label = _label(hold.target, status.shown_topics, MAX_COUNTED_TOPICS, OTHER_TOPICS)
            why = RELEASE if hold.reason == PAUSE and not hold.is_paused else hold.reason
            yield label, why, hold, runner.machine.held.known(hold)


def held(status: WorkerStatus) -> Samples:
    """Timers that are held, by callback topic and why."""
    totals: Counter[Labels] = Counter()
    for label, why, _, rows in _holds(status):
        if rows is not None:
            totals[label, why] += rows
    return list(totals.items())


def hold_ages(status: WorkerStatus) -> Samples:
    """Seconds since the oldest hold began, by callback topic and why."""
    since: dict[Labels, int] = {}
    for label, why, hold, _ in _holds(status):
        since[label, why] = min(hold.since_s, since.get((label, why), hold.since_s))
    now_s = status.pool.tick_s or 0
    return [(labels, max(0, now_s - second)) for labels, second in since.items()]


def oldest_pause_s(status: WorkerStatus) -> float:
    """Seconds since the oldest pause without an end began; 0: there is none."""
    holds = [hold for _, _, hold, _ in _holds(status) if hold.is_paused and not hold.until_s]
    return max([(status.pool.tick_s or 0) - hold.since_s for hold in holds], default=0)


def canary(value: Callable[[Observation], float | None], status: WorkerStatus) -> Samples:
    """A value of the canary of each partition that has one."""
    for partition, observation in (status.canary.latest if status.canary else {}).items():
        seen = value(observation)
        if seen is not None:
            yield (status.settings.request_topic, str(partition)), seen


METRICS: tuple[Entry[WorkerStatus], ...] = (
    Entry(
        "timers_accepted_total{format}",
        "Requests accepted: readable, and covered by a committed transaction.",
        partial(by_format, lambda counters: counters.accepted),
    ),
    Entry(
        "timers_late_total{format}",
        "Of the accepted requests, those whose second had fired already; they fire at once.",
        partial(by_format, lambda counters: counters.late),
    ),
    Entry(*partition_metrics.FIRED, partial(summed, lambda metrics: metrics.counters.fired)),
    Entry(
        "timers_topic_fired_total{topic}",
        "Callbacks sent to a topic, committed. The first hundred topics have their own label, all others are topic "
        "(other).",
        fired_by_topic,
    ),
    Entry(
        "timers_topic_lag_seconds{topic}",
        "As timers_lag_seconds with the way waited, by callback topic, with fewer bounds. The first hundred topics "
        "have their own label, all others are topic (other).",
        lag_by_topic,
        histogram=True,
    ),
    Entry(
        *partition_metrics.DEAD_LETTERED,
        lambda status: sum_by(CODES, (counters.dead_lettered for counters in all_counters(status))),
    ),
    Entry(*partition_metrics.RETRIED, partial(summed, lambda metrics: metrics.counters.retried)),
    Entry(*partition_metrics.FOLLOWED, partial(summed, lambda metrics: metrics.counters.followed)),
    Entry(*partition_metrics.MENDED, partial(summed, lambda metrics: metrics.counters.mended)),
    Entry(*partition_metrics.ZONE_UNKNOWN, partial(summed, lambda metrics: metrics.counters.zone_unknown)),
    Entry(
        *partition_metrics.MISSED,
        lambda status: sum_by(MISSED_REASONS, (counters.missed for counters in all_counters(status))),
    ),
    Entry(
        "timers_cancelled_total{format}",
        "Timers cancelled by the worker. 0 for format future: its timers are cancelled at their receiver.",
        partial(by_format, lambda counters: counters.verdicts.get(CANCELLED, 0)),
    ),
    Entry(
        "timers_verdicts_total{verdict}",
        "Verdicts on cancels, on replacements, and on requests with a condition or that ask for one, committed.",
        lambda status: sum_by(VERDICTS, (counters.verdicts for counters in all_counters(status))),
    ),
    Entry(
        "timers_ids_placed_total{place}",
        "Requests with an id that were looked at, about 20 of each fetch: those on the partition of Kafka's client for "
        "Java (murmur2), and those elsewhere. /health/partitions warns where both occur.",
        ids_placed,
    ),
    Entry(
        "timers_late_changes_unlisted_total",
        "Requests with timer-if that counted although the version that they name had fired, so that both fire, because "
        "1,000 that were refused are noted already.",
        partial(summed, lambda metrics: metrics.counters.unlisted),
    ),
    Entry(
        "timers_forwarded_total{format}",
        "Requests that went cold: due beyond the horizon, written to the cold topic, committed.",
        partial(by_format, lambda counters: counters.forwarded),
    ),
    Entry(
        "timers_promoted_total{format}",
        "Copies of cold requests that were promoted back to their partition and accepted, repeated ones included.",
        partial(by_format, lambda counters: counters.promoted),
    ),
    Entry(
        "timers_promoted_duplicates_total{format}",
        "Of the promoted copies, those that changed nothing: repeated, or of a timer that was replaced or cancelled "
        "while cold.",
        partial(by_format, lambda counters: counters.promoted_duplicates),
    ),
    Entry(
        "timers_caller_requests_total{caller,outcome}",
        "Records of TIMERS_COUNTDOWN_TOPIC by their header CALLER_SERVICE (none if it is missing), committed. "
        "outcome: accepted, cancel, rejected. The first hundred callers have their own label, all others are caller "
        "other.",
        callers,
    ),
    Entry(*partition_metrics.LAG, lag, histogram=True),
    Entry(
        "timers_transaction_seconds",
        "How long committed transactions took, from their first record to the commit's answer.",
        partial(merged, lambda metrics: metrics.transactions),
        histogram=True,
    ),
    Entry(
        "timers_takeover_wait_seconds",
        "How long the oldest due timer of a partition had waited when a machine of this worker began to fire it: after "
        "a restart, a deal or a failure. 0: none was due.",
        partial(merged, lambda metrics: metrics.waits),
        histogram=True,
    ),
    Entry(
        "timers_transactions_failed_total{reason}",
        "Transactions that failed: delivery (a target refused), fenced (another worker owns the partition; a planned "
        "handover does not count), unknown (the brokers did not report the outcome).",
        lambda status: sum_by(FAILURES, (metrics.failed for metrics in measured(status))),
    ),
    Entry(
        "timers_partitions_reopened_total",
        "Partitions opened again after a failure.",
        partial(summed, lambda metrics: metrics.reopened),
    ),
    Entry(
        "timers_snapshots_total{topic,partition}",
        "Snapshots that a progress names now or has named.",
        partial(of_each, lambda metrics: metrics.snapshots),
    ),
    Entry(
        "timers_snapshots_failed_total{topic,partition}",
        "Snapshots that were given up. The log says why; it is read instead.",
        partial(of_each, lambda metrics: metrics.snapshots_failed),
    ),
    Entry(*partition_metrics.SNAPSHOT_UNREAD, partial(of_machine, lambda machine: offsets_since(machine.progress))),
    Entry(*partition_metrics.SNAPSHOT_OFFSET, partial(newest_snapshot, lambda named: named.applied)),
    Entry(*partition_metrics.SNAPSHOT_BYTES, partial(newest_snapshot, bytes_of_snapshot)),
    Entry(*partition_metrics.SNAPSHOT_AGE, partial(owned, snapshot_age)),
    Entry(
        "timers_restoring_seconds_total",
        "Seconds for which this worker restored snapshots, summed over partitions.",
        partial(summed, lambda metrics: metrics.restoring_s),
    ),
    Entry(
        "timers_trimmed_bytes_total",
        "Size of the requests that were deleted because nothing needs them any more, by their mean size.",
        partial(summed, lambda metrics: metrics.trimmed_bytes),
    ),
    Entry(
        "timers_log_start_offset{topic,partition}",
        "First offset of the request log, as of the last look before a deletion.",
        partial(of_metrics, lambda metrics: metrics.log_start),
    ),
    Entry(
        "timers_log_not_trimmed{topic,partition}",
        "1 if something stands against the deletion of requests that nothing needs. The worker's log says what.",
        partial(of_metrics, lambda metrics: int(metrics.trim_refused)),
    ),
    Entry(
        "timers_throttled_seconds_total",
        "Seconds in which partitions sent nothing because a quota of the brokers throttled them; summed over "
        "partitions.",
        partial(summed, lambda metrics: metrics.throttled_s),
    ),
    Entry(*partition_metrics.PENDING, partial(of_machine, lambda machine: machine.pending)),
    Entry(*partition_metrics.OVERDUE, partial(owned, overdue)),
    Entry(
        "timers_store_bytes{topic,partition}",
        "Disk space of the partition's store, log files included.",
        partial(owned, store_bytes),
    ),
    Entry(
        "timers_stores_condemned_total{reason}",
        "Stores that were condemned, and rebuilt from their logs. reason: unreadable (a file is damaged), incomplete "
        "(written batches are missing), write-refused (RocksDB takes no more writes), stale (the store has not kept "
        "up with a compacted log).",
        lambda status: [
            ((reason,), count) for reason, count in list(status.pool.parts.condemnations.by_reason.items())
        ],
    ),
    Entry(
        "timers_data_disk_free_bytes",
        "Free space of the file system of TIMERS_DATA_DIR. When it is full, the worker ends; no timer is lost.",
        partial(data_disk, lambda usage: usage.free),
    ),
    Entry(
        "timers_data_disk_size_bytes",
        "Size of the file system of TIMERS_DATA_DIR.",
        partial(data_disk, lambda usage: usage.total),
    ),
    Entry(
        "timers_recovering{topic,partition}",
        "1 while the partition reads its log again and does not fire. If its former worker runs, that one fires it for "
        "up to 30 s.",
        partial(recovery, lambda machine: machine.recovering),
    ),
    Entry(
        "timers_recovery_remaining_offsets{topic,partition}",
        "Offsets still to be read again; at least as many as records.",
        partial(recovery, lambda machine: machine.left_to_replay),
    ),
    Entry(
        "timers_recovery_records_total",
        "Records read again by recoveries.",
        partial(summed, lambda metrics: metrics.counters.replayed),
    ),
    Entry(
        "timers_request_unread_offsets{topic,partition}",
        "High watermark minus the next offset to accept, as of the last fetch.",
        unread,
    ),
    Entry(
        "timers_request_unstable_offsets{topic,partition}",
        "High watermark minus last stable offset: records that an open transaction of a producer delays. 0 while no "
        "broker answers.",
        unstable,
    ),
    Entry(
        "timers_request_last_stable_offset{topic,partition}",
        "Last stable offset: it does not grow while a producer's transaction stays open.",
        last_stable,
    ),
    Entry(
        "timers_feature_level{topic,partition}",
        "Feature level that the partition was raised to.",
        partial(of_machine, lambda machine: machine.progress.level),
    ),
    Entry(
        "timers_transaction_version{topic,partition}",
        "Version of Kafka's transactions that the partition's producer makes; 0 before its first opening.",
        partial(of_metrics, lambda metrics: metrics.transaction_version),
    ),
    Entry(
        "timers_partitions",
        "Partitions of the request topics and the retry topic that this worker owns and has opened, or recovers.",
        partial(single, lambda status: len(status.pool.owned)),
    ),
    Entry(
        "timers_partitions_opening",
        "Of the partitions assigned to this worker, those that it is opening: it restores their snapshots, or reads "
        "their logs ahead. If their former worker runs, that one fires them for up to 30 s.",
        partial(single, lambda status: status.pool.opening + len(status.pool.runners) - len(status.pool.owned)),
    ),
    Entry(
        "timers_partitions_stopped",
        "Of the partitions assigned to this worker, those that must not run: their log lost records, or they were "
        "raised to a feature level that this worker does not support.",
        partial(single, lambda status: len(status.pool.stopped)),
    ),
    Entry(
        "timers_partitions_unreadable",
        "Of the partitions that this worker has opened, those whose log has a record batch that cannot be read: no "
        "record after it is read until an operator passes over it.",
        partial(single, lambda status: len(status.pool.unreadable.sentences)),
    ),
    Entry(
        "timers_partitions_waiting{reason,state}",
        "Of the partitions assigned to this worker, those whose timers wait. state: closed (after a failure, and tried "
        "again with pauses), open (without knowing the end of their log; timers_partitions counts them too). "
        "reason: brokers (no leader, or no answer), store "
        "(damaged again and again, or still open), unforeseen (an exception that no code expects), limits (the process "
        "may open no more files, or have no more threads).",
        waiting,
    ),
    Entry(
        "timers_wrong_configs{severity}",
        "Settings of the worker's topics that have another value than the promises need. severity: red (timers are "
        "lost or fire early; each topic of timers that was deleted and made anew in the last 10 minutes counts too, "
        "and each partition whose snapshots were deleted), warning (a promise is weaker than it could be).",
        lambda status: sum_by((RED, WARNING), wrong_topics(status)),
    ),
    Entry(
        "timers_paused_targets",
        "Callback topics that are paused, as the partitions of this worker know them.",
        partial(single, lambda status: len({hold.target for _, _, hold, _ in _holds(status) if hold.is_paused})),
    ),
    Entry(
        "timers_target_problems",
        "Partitions of this worker that hold something else than the topic of targets says for 10 s; 1 if that topic "
        "cannot be read. What is not held fires.",
        partial(single, lambda status: len(status.target_watch.problems)),
    ),
    Entry(
        "timers_held{topic,reason}",
        "Timers whose second is over and that wait, by callback topic; with ids, replaced versions count too. reason: "
        "pause, release (the pause is over, and they are being sent), noisy (there are so many that those of others "
        "would wait). Without partitions where they were not counted since the worker has them. The first hundred "
        "topics have their own label, all others are topic (other).",
        held,
    ),
    Entry(
        "timers_hold_age_seconds{topic,reason}",
        "Seconds since the callback topic was paused, or became noisy: the oldest such hold of this worker.",
        hold_ages,
    ),
    Entry(
        "timers_oldest_pause_seconds",
        "Seconds since the oldest pause without an end began; 0 if there is none.",
        partial(single, oldest_pause_s),
    ),
    Entry(
        "timers_unforeseen_failures_total",
        "Exceptions that no code expects. Each one closes a single partition, which is then opened again.",
        partial(summed, lambda metrics: metrics.unforeseen),
    ),
    Entry(
        "timers_login_token_failures",
        "How often in a row no new token for the brokers came. Missing for a login without tokens.",
        partial(single, lambda status: None if (found := present_source(status.settings)) is None else found.failures),
    ),
    Entry(
        "timers_partitions_unowned",
        "Partitions that no worker of the group has owned for 30 s, although a worker reads their topic. Missing while "
        "the group does not say who owns what.",
        partial(single, lambda status: status.group_watch.unowned.count),
    ),
    Entry(*partition_metrics.GROUP_TAKEN, partial(single, lambda status: bool(status.consumer.taken))),
    Entry(
        "timers_topic_partitions{topic}",
        "Number of partitions of each request topic and of the retry topic: all workers together should own as many.",
        lambda status: [((topic,), count) for topic, count in status.pool.partitions.items()],
    ),
    Entry(
        "timers_ready", "1 if /health/ready answers 200.", partial(single, lambda status: not health.unready(status))
    ),
    Entry(
        "timers_tick_age_seconds",
        "Seconds since the last counted tick: timers fire only at ticks.",
        partial(single, lambda status: status.tick_reader.age_s),
    ),
    Entry(
        "timers_ticks_missed_total",
        "Seconds without a tick of this worker.",
        partial(single, lambda status: status.tick_scheduler.missed),
    ),
    Entry(
        "timers_clock_skew_seconds",
        "This worker's clock minus the brokers'. Timers do not depend on it; other programs on the machine may.",
        partial(single, lambda status: status.clock_skew_s),
    ),
    Entry(
        "timers_broker_clock_back",
        "1 while the brokers' clock is behind seconds that have fired; new requests wait until it has caught up.",
        partial(single, lambda status: status.pool.clock_is_behind),
    ),
    Entry(
        "timers_brokers_held",
        "Brokers whose ticks are held: the time of these ticks is too far ahead, and no second clock agrees with it.",
        partial(single, lambda status: len(status.tick_reader.judge.holds)),
    ),
    Entry(*partition_metrics.OPEN_CIRCUITS, partial(single, lambda status: status.pool.open_circuits)),
    Entry(
        "timers_canary_lag_seconds{topic,partition}",
        "How late the last canary timer of the partition arrived at its receiver, by the brokers' clock.",
        partial(canary, lambda observation: observation.lag_s),
    ),
    Entry(
        "timers_canary_age_seconds{topic,partition}",
        "Seconds since the last canary timer of the partition arrived; before the first, since the worker took the "
        "partition.",
        partial(canary, lambda observation: monotonic() - observation.last_callback_at),
    ),
    Entry(
        "timers_canary_interval_seconds",
        "TIMERS_CANARY_INTERVAL_S, if canaries are on.",
        partial(single, lambda status: None if status.canary is None else status.settings.canary_interval_s),
    ),
    Entry(
        "timers_queries_total{query,outcome}",
        "Queries about timers that the web port answered. query: list (counts too), get, forwarded (by another "
        "worker); outcome: complete, partial (a partition did not answer), refused.",
        lambda status: [(each, status.query_counts.counts[each]) for each in product(QUERY_KINDS, QUERY_OUTCOMES)],
    ),
    Entry(
        "timers_query_seconds{query}",
        "How long queries about timers took.",
        lambda status: [((kind,), seconds) for kind, seconds in status.query_counts.seconds.items()],
        histogram=True,
    ),
    Entry(*partition_metrics.BUILD, lambda status: [(BUILD_LABELS, 1)]),
)
