"""The state of a running worker: why it is not alive, why it is not ready, and which partitions are red.

Alive: its threads make progress; a worker that waits for brokers is alive. Ready: the worker has joined its group and
got its partitions, which may be none, each of them fires or is red, and ticks count. Red: the timers of a partition do
not fire, its requests cannot be read, or its topics are configured so that timers are lost. A partition that no restart
can help does not keep a worker from becoming ready, and one that has been ready stays ready when a partition turns red:
a rolling update waits until each worker is ready, and would stop there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic

from timers.core.printable import quoted, utc_text
from timers.core.timer import TopicPartition
from timers.errors import LevelTooHigh
from timers.kafka import login_tokens
from timers.kafka.own_topics import RED
from timers.machines.life import STORE, UNFORESEEN
from timers.machines.queries.pages import QueryCounts
from timers.process.clock import Clock
from timers.process.config.settings import Settings
from timers.process.counted import counted
from timers.process.past_figures import PastFigures
from timers.wire.topics import partition_name
from timers.wire.zones import zone_data_version
from timers.worker.canary import Canary
from timers.worker.consumer.group_watch import GroupWatch
from timers.worker.consumer.log_watch import LogWatch
from timers.worker.consumer.requests import PartitionConsumer
from timers.worker.consumer.target_watch import TargetWatch
from timers.worker.machines import id_places
from timers.worker.machines.pool import Pool
from timers.worker.ticks import MAX_TICK_SILENCE_S, TickReader, TickScheduler

LOOKED_MIN = 2
"""A timer whose zone is not known looks again each minute. So many minutes after it was seen last, it has gone."""

STUCK_S = 30.0
"""A thread that has work and makes no progress for this long does not recover. No single step may take as long:
requests to brokers time out after 5 to 6 s, a chunk of timers takes a fraction of a second."""

READY_TICK_S = 5.0
"""A worker that has counted no tick for this long is not ready."""


@dataclass
class WorkerStatus:
    """What health pages and metrics may read of one worker. Any thread may read it.

    The app sets the fields without a value before its web port answers.
    """

    settings: Settings
    query_counts: QueryCounts
    tick_scheduler: TickScheduler
    clock: Clock
    pool: Pool = field(init=False)
    cluster_id: str = field(init=False)
    consumer: PartitionConsumer = field(init=False)
    tick_reader: TickReader = field(init=False)
    log_watch: LogWatch = field(init=False)
    group_watch: GroupWatch = field(init=False)
    target_watch: TargetWatch = field(init=False)
    lost_snapshots: Callable[[], Mapping[TopicPartition, str]] = dict
    """Returns partitions of this worker whose snapshots were deleted with their topic -> a sentence."""
    past_figures: PastFigures | None = None
    """None until the worker has its cluster."""
    canary: Canary | None = None
    """None if canary timers are off."""
    was_ready: bool = False
    """Whether the worker has been ready since its start."""
    shown_callers: set[str] = field(default_factory=set)
    """Callers that have a label of their own in the metrics."""
    shown_topics: set[str] = field(default_factory=set)
    """Callback topics that have one."""

    @property
    def clock_skew_s(self) -> float | None:
        """This worker's clock minus the brokers'; None if that is not known yet."""
        now_s = self.tick_scheduler.broker_now_s()
        return None if now_s is None else self.clock.now_s() - now_s


def stuck(status: WorkerStatus) -> list[str]:
    """A sentence for each thread that makes no progress. This answer proves that the main event loop makes progress."""
    heartbeats = {
        "the producers' event loop": status.pool.producers.heartbeat,
        "the consumer's event loop": status.consumer.heartbeat,
        **{
            f"the thread of {partition_name(*tp)}": metrics.heartbeat
            for tp, metrics in status.pool.partition_metrics.items()
        },
    }
    return [
        f"{name} has made no progress for {silent_s:.0f} s"
        for name, heartbeat in heartbeats.items()
        if (silent_s := heartbeat.silent_s) > STUCK_S
    ]


def red_partitions(status: WorkerStatus) -> dict[TopicPartition, str]:
    """Partitions whose timers do not fire, or whose requests are not read -> why, in a sentence. Of other workers: only
    those without an owner."""
    unowned = {
        tp: f"no worker has owned this partition for {seconds:.0f} s, although a worker of the group reads its topic"
        for tp, seconds in status.group_watch.unowned.red().items()
    }
    waiting = {tp: waiting.sentence for tp, waiting in status.pool.waiting.items()}
    stopped = {tp: str(why) for tp, why in status.pool.stopped.items()}
    return {**unowned, **status.pool.unreadable.sentences, **waiting, **stopped}


def lossy(status: WorkerStatus) -> dict[str, str]:
    """What is configured so that timers are lost or fire early, was made anew, or lacks its snapshots -> why, in a
    sentence.

    These are partitions of this worker if their own topic or that of progress is meant, and else the topic.
    """
    pool, found = status.pool, {**status.log_watch.made_anew}
    found |= {partition_name(*tp): why for tp, why in status.lost_snapshots().items()}
    for wrong in status.log_watch.cluster.wrong_configs:
        owned = {*pool.runners, *pool.stopped, *pool.waiting}
        if wrong.topic != status.settings.progress_topic:
            owned = {tp for tp in owned if tp[0] == wrong.topic}
        if wrong.severity == RED:
            named = [partition_name(*tp) for tp in sorted(owned)] or [wrong.topic]
        elif wrong.is_short_retention:
            open_ones = sorted(owned & pool.runners.keys())
            named = [partition_name(*tp) for tp in open_ones if pool.runners[tp].machine.pending]
        else:
            named = []
        for name in named:
            found.setdefault(name, wrong.sentence)
    return found


def zoneless(status: WorkerStatus) -> dict[str, str]:
    """Partitions with repeating timers that wait, because this worker does not know their zone -> a sentence."""
    found: dict[str, str] = {}
    for tp, runner in status.pool.runners.items():
        seen = status.pool.partition_metrics[tp].counters.lacking.copy()
        latest = runner.machine.progress.fired_through[0] // 60 - LOOKED_MIN if seen else 0
        waiting = {zone: max(counts) for zone, (minute, *counts) in seen.items() if minute >= latest}
        if waiting:
            version, number = zone_data_version(), counted(sum(waiting.values()), "repeating timer")
            has = f"its package tzdata is {version}" if version else "it has no package tzdata"
            zones = ", ".join(map(quoted, sorted(waiting)))
            found[partition_name(*tp)] = (
                f"this worker does not know the zone of {number} ({zones}), and {has}: these wait, and all others fire "
                "(docs/operations.md#timerszoneunknown)"
            )
    return found


def firing(status: WorkerStatus) -> list[str]:
    """The partitions whose timers this worker fires now, as far as it knows: it may have had no tick for a while."""
    pool = status.pool
    blocked = pool.waiting.keys() | {tp for tp in pool.unreadable.sentences if pool.formats[tp[0]].has_ids}
    open_ones = {tp: runner.machine for tp, runner in pool.runners.items() if tp not in blocked}
    return sorted(partition_name(*tp) for tp, each in open_ones.items() if not each.recovering)


def machines(status: WorkerStatus) -> dict[str, dict[str, object]]:
    """Open partition -> for how many seconds this worker has had it, from what its machine began, and the version of
    its transactions."""
    metrics, now = status.pool.partition_metrics, monotonic()
    return {
        partition_name(*tp): {
            "age_s": round(now - opened_at, 1),
            "from": metrics[tp].opened_from,
            "transaction_version": metrics[tp].transaction_version,
        }
        for tp in sorted(status.pool.runners)
        if (opened_at := metrics[tp].opened_at) is not None
    }


def unready(status: WorkerStatus) -> list[str]:
    """The reasons why some or all timers do not fire, a sentence each."""
    pool, ticks, refusal = status.pool, status.tick_reader, status.group_watch.refusal
    reasons = login_tokens.troubles(status.settings)
    if ticks.age_s > MAX_TICK_SILENCE_S and ticks.judge.holds:
        reasons.extend(hold.sentence for hold in ticks.judge.holds)
    elif ticks.age_s > READY_TICK_S:
        reasons.append(f"no tick was counted for {ticks.age_s:.1f} s")
    elif not ticks.has_counted:
        reasons.append("no tick was counted since the worker started")
    if status.consumer.taken:
        reasons.append(status.consumer.taken)
    elif not status.consumer.was_dealt:
        reasons.append("the worker joins its group")
    elif not status.consumer.in_group:
        reasons.append("partitions are being assigned")
    missing = status.log_watch.missing
    if missing:
        reasons.append(f"topics were deleted: {', '.join(missing)} (docs/operations.md#a-deleted-topic)")
    if status.log_watch.refusal:
        reasons.append(f"they cannot be created: {status.log_watch.refusal}")
    if status.log_watch.failed:
        reasons.append(f"{status.log_watch.failed}; partitions may wait for it")
    reasons.extend(status.log_watch.problems.values())
    if not status.was_ready:
        # A restart does not help if a log lost records or has no leader, or if the worker cannot open more partitions
        # before the next worker starts. Another version of this project, or another disk, may help: a rolling update
        # stops at such a worker.
        reasons.extend(str(why) for why in pool.stopped.values() if isinstance(why, LevelTooHigh))
        reasons.extend(waiting.sentence for waiting in pool.waiting.values() if waiting.reason in (STORE, UNFORESEEN))
    if refusal is not None:
        reasons.append(str(refusal))
    if pool.opening or (pool.waiting and not (pool.runners or status.was_ready)):
        reasons.append("partitions are being opened")
    recovering = sum(runner.machine.recovering for runner in pool.runners.values())
    if recovering:
        reasons.append(f"{recovering} of {len(pool.runners)} partitions are recovering")
    if pool.clock_is_behind:
        fired_s = max((runner.machine.progress.fired_through[0] for runner in pool.runners.values()), default=0)
        reasons.append(
            f"the brokers' clock went back: new requests wait until it shows {utc_text(fired_s)}, the last second that "
            "has fired (if that time was wrong: docs/operations.md#the-way-back-from-a-wrong-time)"
        )
    return reasons


def mixed_places(status: WorkerStatus) -> list[str]:
    """A sentence, if senders place ids by two partitioners."""
    topic, pool = status.settings.id_topic, status.pool
    measured = [metrics for tp, metrics in pool.partition_metrics.items() if tp[0] == topic]
    return id_places.warnings(topic, measured, pool.partitions.get(topic, 0))
