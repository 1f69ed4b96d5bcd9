"""Every metric of a worker: name, kind, labels, help text, and the function that reads its value at a scrape.

Totals are kept once a transaction (:mod:`timers.core.counters`); all other values are read at a scrape
(:mod:`.samples`). ``docs/metrics.md`` has the same table as :data:`METRICS`; a test compares them. The number of label
values is bounded: partitions that this worker has owned, and the codes and ways that this version has.
"""

from __future__ import annotations

from timers import partition_metrics
from timers.core.operation import CANCELLED, VERDICTS
from timers.core.snapshots import bytes_of_snapshot, offsets_since
from timers.kafka.own_topics import NOTE, RED, WARNING
from timers.machine_parts import BUILT
from timers.metrics import Entry
from timers.wire.dead_letter import CODES
from timers.worker import health
from timers.worker.metrics import samples
from timers.worker.status import WorkerStatus

METRICS: tuple[Entry[WorkerStatus], ...] = (
    Entry(
        "timers_accepted_total{format}",
        "Requests accepted: readable, and covered by a committed transaction.",
        lambda status: samples.by_format(status, lambda counters: counters.accepted),
    ),
    Entry(
        "timers_late_total{format}",
        "Of the accepted requests, those whose second had fired already; they fire at once.",
        lambda status: samples.by_format(status, lambda counters: counters.late),
    ),
    Entry(
        *partition_metrics.FIRED,
        lambda status: samples.total(status, lambda counters: counters.fired),
    ),
    Entry(
        "timers_topic_fired_total{topic}",
        "Callbacks sent to a topic, committed. The first hundred topics have their own label, all others are topic "
        "(other).",
        samples.fired_by_topic,
    ),
    Entry(
        "timers_topic_lag_seconds{topic}",
        "As timers_lag_seconds with the way waited, by callback topic, with fewer bounds. The first hundred topics "
        "have their own label, all others are topic (other).",
        samples.lag_by_topic,
        histogram=True,
    ),
    Entry(
        *partition_metrics.DEAD_LETTERED,
        lambda status: samples.sum_by(CODES, (counters.dead_lettered for counters in samples.all_counters(status))),
    ),
    Entry(
        *partition_metrics.RETRIED,
        lambda status: samples.total(status, lambda counters: counters.retried),
    ),
    Entry(
        "timers_cancelled_total{format}",
        "Timers cancelled by the worker. 0 for format future: its timers are cancelled at their receiver.",
        lambda status: samples.by_format(status, lambda counters: counters.verdicts.get(CANCELLED, 0)),
    ),
    Entry(
        "timers_verdicts_total{verdict}",
        "Verdicts on cancels, on replacements and on requests with a condition, committed.",
        lambda status: samples.sum_by(VERDICTS, (counters.verdicts for counters in samples.all_counters(status))),
    ),
    Entry(
        "timers_forwarded_total{format}",
        "Requests that went cold: due beyond the horizon, written to the cold topic, committed.",
        lambda status: samples.by_format(status, lambda counters: counters.forwarded),
    ),
    Entry(
        "timers_promoted_total{format}",
        "Copies of cold requests that were promoted back to their partition and accepted, repeated ones included.",
        lambda status: samples.by_format(status, lambda counters: counters.promoted),
    ),
    Entry(
        "timers_promoted_duplicates_total{format}",
        "Of the promoted copies, those that changed nothing: repeated, or of a timer that was replaced or cancelled "
        "while cold.",
        lambda status: samples.by_format(status, lambda counters: counters.promoted_duplicates),
    ),
    Entry(
        "timers_caller_requests_total{caller,outcome}",
        "Records of TIMERS_COUNTDOWN_TOPIC by their header CALLER_SERVICE (none if it is missing), committed. "
        "outcome: accepted, cancel, rejected. The first hundred callers have their own label, all others are caller "
        "other.",
        samples.callers,
    ),
    Entry(
        *partition_metrics.LAG,
        samples.lag,
        histogram=True,
    ),
    Entry(
        "timers_transaction_seconds",
        "How long committed transactions took, from their first record to the commit's answer.",
        samples.transactions,
        histogram=True,
    ),
    Entry(
        "timers_takeover_wait_seconds",
        "How long the oldest due timer of a partition had waited when a machine of this worker began to fire it: after "
        "a restart, a deal or a failure. 0: none was due.",
        samples.waits,
        histogram=True,
    ),
    Entry(
        "timers_transactions_failed_total{reason}",
        "Transactions that failed: delivery (a target refused), fenced (another worker owns the partition), unknown "
        "(the brokers did not report the outcome).",
        samples.failures,
    ),
    Entry(
        "timers_partitions_reopened_total",
        "Partitions opened again after a failure.",
        lambda status: samples.single(sum(metrics.reopened for metrics in samples.partition_metrics(status))),
    ),
    Entry(
        "timers_snapshots_total",
        "Snapshots that a progress names now or has named.",
        lambda status: samples.single(sum(metrics.snapshots for metrics in samples.partition_metrics(status))),
    ),
    Entry(
        "timers_snapshots_failed_total",
        "Snapshots that were given up. The log says why; it is read instead.",
        lambda status: samples.single(sum(metrics.snapshots_failed for metrics in samples.partition_metrics(status))),
    ),
    Entry(
        "timers_snapshot_unread_offsets{topic,partition}",
        "Offsets of the request log since the newest snapshot: a worker without a store reads them, and the snapshot.",
        lambda status: samples.per_partition(status, lambda runner: offsets_since(runner.machine.progress)),
    ),
    Entry(
        "timers_snapshot_offset{topic,partition}",
        "Offset of the request log up to which the newest snapshot holds what is pending.",
        lambda status: samples.newest_snapshot(status, lambda named: named.applied),
    ),
    Entry(
        "timers_snapshot_bytes{topic,partition}",
        "Size of the newest snapshot before compression, rounded up to 512 KB.",
        lambda status: samples.newest_snapshot(status, bytes_of_snapshot),
    ),
    Entry(
        "timers_snapshot_age_seconds{topic,partition}",
        "Seconds since the newest snapshot was complete. Absent for up to 11 minutes after a takeover.",
        samples.snapshot_age,
    ),
    Entry(
        "timers_restoring_seconds_total",
        "Seconds for which this worker restored snapshots, summed over partitions.",
        lambda status: samples.single(sum(metrics.restoring_s for metrics in samples.partition_metrics(status))),
    ),
    Entry(
        "timers_trimmed_bytes_total",
        "Size of the requests that were deleted because nothing needs them any more, by their mean size.",
        lambda status: samples.single(sum(metrics.trimmed_bytes for metrics in samples.partition_metrics(status))),
    ),
    Entry(
        "timers_log_start_offset{topic,partition}",
        "First offset of the request log, as of the last look before a deletion.",
        lambda status: samples.of_owned(status, lambda metrics: metrics.log_start),
    ),
    Entry(
        "timers_log_not_trimmed{topic,partition}",
        "1 if something stands against the deletion of requests that nothing needs. The worker's log says what.",
        lambda status: samples.of_owned(status, lambda metrics: int(metrics.trim_refused)),
    ),
    Entry(
        "timers_throttled_seconds_total",
        "Seconds in which partitions sent nothing because a quota of the brokers throttled them; summed over "
        "partitions.",
        lambda status: samples.single(sum(metrics.throttled_s for metrics in samples.partition_metrics(status))),
    ),
    Entry(
        *partition_metrics.PENDING,
        lambda status: samples.per_partition(status, lambda runner: runner.machine.pending),
    ),
    Entry(
        *partition_metrics.OVERDUE,
        samples.overdue,
    ),
    Entry(
        "timers_store_bytes{topic,partition}",
        "Disk space of the partition's store, log files included.",
        samples.store_bytes,
    ),
    Entry(
        "timers_stores_condemned_total{reason}",
        "Stores that were condemned, and rebuilt from their logs. reason: unreadable (a file is damaged), incomplete "
        "(written batches are missing), write-refused (RocksDB takes no more writes), stale (the store has not kept "
        "up with a compacted log).",
        lambda status: [((reason,), count) for reason, count in list(status.pool.condemnations.by_reason.items())],
    ),
    Entry(
        "timers_data_disk_free_bytes",
        "Free space of the file system of TIMERS_DATA_DIR. When it is full, the worker ends; no timer is lost.",
        lambda status: samples.data_disk(status, lambda usage: usage.free),
    ),
    Entry(
        "timers_data_disk_size_bytes",
        "Size of the file system of TIMERS_DATA_DIR.",
        lambda status: samples.data_disk(status, lambda usage: usage.total),
    ),
    Entry(
        "timers_recovering{topic,partition}",
        "1 while the partition reads its log again and does not fire.",
        lambda status: samples.per_partition(status, lambda runner: runner.machine.recovering),
    ),
    Entry(
        "timers_recovery_remaining_offsets{topic,partition}",
        "Offsets still to be read again; at least as many as records.",
        lambda status: samples.per_partition(status, lambda runner: runner.machine.remaining),
    ),
    Entry(
        "timers_recovery_records_total",
        "Records read again by recoveries.",
        lambda status: samples.total(status, lambda counters: counters.replayed),
    ),
    Entry(
        "timers_request_unread_offsets{topic,partition}",
        "High watermark minus the next offset to accept, as of the last fetch.",
        samples.unread,
    ),
    Entry(
        "timers_request_unstable_offsets{topic,partition}",
        "High watermark minus last stable offset: records that an open transaction of a producer delays.",
        lambda status: samples.watermarks(status, lambda high, stable: high - stable),
    ),
    Entry(
        "timers_request_last_stable_offset{topic,partition}",
        "Last stable offset: it does not grow while a producer's transaction stays open.",
        lambda status: samples.watermarks(status, lambda high, stable: stable),
    ),
    Entry(
        "timers_feature_level{topic,partition}",
        "Feature level that the partition was raised to.",
        lambda status: samples.per_partition(status, lambda runner: runner.machine.progress.level),
    ),
    Entry(
        "timers_partitions",
        "Partitions of the request topics and the retry topic that this worker has opened, recovering ones included.",
        lambda status: samples.single(len(status.pool.runners)),
    ),
    Entry(
        "timers_partitions_stopped",
        "Of the partitions assigned to this worker, those that must not run: their log lost records, or they were "
        "raised to a feature level that this worker does not support.",
        lambda status: samples.single(len(status.pool.stopped)),
    ),
    Entry(
        "timers_partitions_waiting{reason}",
        "Of the partitions assigned to this worker, those whose timers wait: closed after a failure and tried again "
        "with pauses, or open without knowing the end of their log. reason: brokers (no leader, or no answer), store "
        "(damaged again and again, or still open), unforeseen (an exception that no code expects), limits (the process "
        "may open no more files, or have no more threads).",
        samples.waiting,
    ),
    Entry(
        "timers_wrong_configs{severity}",
        "Settings of the worker's topics that have another value than the promises need. severity: red (timers are "
        "lost or fire early), warning (a promise is weaker than it could be).",
        lambda status: samples.sum_by(
            (RED, WARNING),
            ({wrong.severity: 1} for wrong in status.wrong_configs if wrong.severity != NOTE),
        ),
    ),
    Entry(
        "timers_unforeseen_failures_total",
        "Exceptions that no code expects. Each one closes a single partition, which is then opened again.",
        lambda status: samples.single(status.pool.unforeseen_failures),
    ),
    Entry(
        "timers_partitions_unowned",
        "Partitions that no worker of the group has owned for 30 s, although a worker reads their topic.",
        lambda status: samples.single(len(status.unowned.red())),
    ),
    Entry(
        "timers_topic_partitions{topic}",
        "Number of partitions of each request topic and of the retry topic: all workers together should own as many.",
        samples.topic_partitions,
    ),
    Entry(
        "timers_ready",
        "1 if /health/ready answers 200.",
        lambda status: samples.single(not health.unready(status)),
    ),
    Entry(
        "timers_tick_age_seconds",
        "Seconds since the last counted tick: timers fire only at ticks.",
        lambda status: samples.single(status.tick_age_s),
    ),
    Entry(
        "timers_ticks_missed_total",
        "Seconds without a tick of this worker.",
        lambda status: samples.single(status.missed_ticks),
    ),
    Entry(
        "timers_clock_skew_seconds",
        "This worker's clock minus the brokers'. Timers do not depend on it; other programs on the machine may.",
        lambda status: samples.single(status.clock_skew_s),
    ),
    Entry(
        "timers_broker_clock_back",
        "1 while the brokers' clock is behind seconds that have fired; new requests wait until it has caught up.",
        lambda status: samples.single(status.pool.clock_is_behind),
    ),
    Entry(
        "timers_brokers_held",
        "Brokers whose ticks are held: the time of these ticks is too far ahead, and no second clock agrees with it.",
        lambda status: samples.single(len(status.held_ticks)),
    ),
    Entry(
        *partition_metrics.OPEN_CIRCUITS,
        lambda status: samples.single(status.pool.open_circuits),
    ),
    Entry(
        "timers_canary_lag_seconds{topic,partition}",
        "How late the last canary timer of the partition arrived at its receiver, by the brokers' clock.",
        lambda status: samples.canary(status, lambda observation: observation.lag_s),
    ),
    Entry(
        "timers_canary_age_seconds{topic,partition}",
        "Seconds since the last canary timer of the partition arrived; before the first, since the worker took the "
        "partition.",
        samples.canary_age,
    ),
    Entry(
        "timers_canary_interval_seconds",
        "TIMERS_CANARY_INTERVAL_S, if canaries are on.",
        lambda status: samples.single(None if status.canary is None else status.canary.interval_s),
    ),
    Entry(
        "timers_queries_total{query,outcome}",
        "Queries about timers that the web port answered. query: list (counts too), get, forwarded (by another "
        "worker); outcome: complete, partial (a partition did not answer), refused.",
        samples.queries,
    ),
    Entry(
        "timers_query_seconds{query}",
        "How long queries about timers took.",
        lambda status: [((kind,), seconds) for kind, seconds in status.query_counts.seconds.items()],
        histogram=True,
    ),
    Entry(*partition_metrics.BUILD, lambda status: [(BUILT, 1)]),
)
