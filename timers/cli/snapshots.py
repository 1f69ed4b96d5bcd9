"""``timers snapshots`` and ``timers log``: what replaces the logs of requests, and whether it agrees with them."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from timers.cli.lazy import NamedGroup
from timers.cli.output import Output, output_option, say
from timers.cli.reach import load_settings
from timers.errors import TimersError
from timers.offline.app_state import explained, read_progress
from timers.process.config.settings import Settings
from timers.process.counted import counted
from timers.process.http.asking import ask
from timers.wire.query import SNAPSHOT_PATH
from timers.wire.topics import partition_name

if TYPE_CHECKING:
    from timers.core.progress import NamedSnapshot, Progress
    from timers.core.timer import TopicPartition
    from timers.kafka.connection import ErrorReports
    from timers.kafka.topics import Cluster
    from timers.machines.verifying import Verified

ANSWER_S = 10.0
"""How long to wait for the brokers with one snapshot."""

NAMED_S = 120.0
"""How long to wait for the next snapshot of any partition. A worker writes one at a time."""

SAID_S = 2.0
"""Seconds after which a command that goes on says how far it is."""


@click.command()
@click.option("--now", is_flag=True, help="Let workers write a snapshot of each partition first, and wait for it.")
@output_option()
def snapshots(now: bool, output: Output) -> None:
    """Show the newest snapshot of each partition: what it holds, its age, and how much of the log came after it.

    A worker without the store of a partition reads the snapshot and the log after it. The last column says how many
    offsets of the log neither this snapshot nor the one before it needs any more. Workers delete them when they are
    old enough (TIMERS_LOG_KEEP_S).

    Exit code 1 if --now was given, and a partition has got no new snapshot.
    """
    settings = load_settings()
    with explained(settings, "the snapshots cannot be read") as reports:
        failed = _take(settings, reports) if now else {}
        from timers.kafka.topic_offsets import TopicOffsets

        _, found = read_progress(settings, reports)
        offsets, names = TopicOffsets(settings), sorted({topic for topic, _ in found})
        starts, ends = offsets.starts(names), offsets.ends(names)
        rows, said_at = list[tuple[dict[str, Any], tuple[str, ...]]](), time.monotonic()
        with ExitStack() as stack:
            looks = _SnapshotAges(settings, stack)
            for (topic, partition), progress in sorted(found.items()):
                start, end = starts.get(topic, {}).get(partition, 0), ends.get(topic, {}).get(partition, 0)
                fields = _snapshot(looks, (topic, partition), progress, start, end)
                rows.append((fields, _cells(fields)))
                if time.monotonic() > said_at + SAID_S:
                    said_at = time.monotonic()
                    say(f"{len(rows)} of {len(found)} snapshots were looked at ...")
    widths = [max((len(cells[at]) for _, cells in rows), default=0) for at in range(6)]
    columns = "partition", "offset", "timers", "size", "age", "log since", "not needed"
    output.table(columns, (*map(max, widths, map(len, columns)), 0), rows)
    if failed:
        raise TimersError("no new snapshot of " + "; ".join(f"{name}: {why}" for name, why in sorted(failed.items())))


def _take(settings: Settings, reports: ErrorReports) -> dict[str, str]:
    """Let the workers take snapshots. Returns the partitions that got none -> why."""
    from timers.kafka import progress_log

    cluster, found = read_progress(settings, reports)
    answer = ask(settings, SNAPSHOT_PATH, {}, cluster.cluster_id)
    failed = {each["partition"]: each["reason"] for each in answer["missing"]}
    left = {tp: each.snapshot for tp, each in found.items() if each.next_offset and partition_name(*tp) not in failed}
    until = time.monotonic() + NAMED_S
    while left and time.monotonic() < until:
        time.sleep(1)
        named = {tp: each.snapshot for tp, each in progress_log.read_all(settings, cluster).items()}
        if new := {tp for tp, former in left.items() if named.get(tp) != former}:
            left = {tp: former for tp, former in left.items() if tp not in new}
            until = time.monotonic() + NAMED_S
            say(f"{counted(len(new), 'new snapshot')}, {len(left)} to come")
    late = f"none was named within {NAMED_S:.0f} s; the log of its worker says what stands against it"
    return failed | {partition_name(*tp): late for tp in left}


def _snapshot(looks: _SnapshotAges, tp: TopicPartition, progress: Progress, start: int, end: int) -> dict[str, Any]:
    from timers.core.snapshots import bytes_of_snapshot

    newest, older = progress.snapshot, progress.older_snapshot
    fields: dict[str, Any] = {"topic": tp[0], "partition": tp[1], "offset": None}
    if newest is None:
        return fields
    age_s, problem = looks.at(tp, newest)
    return {
        **fields,
        "offset": newest.applied,
        "timers": newest.rows,
        "most_bytes": bytes_of_snapshot(newest),
        "age_s": age_s,
        "log_since": max(0, end - newest.applied),
        "not_needed": 0 if older is None or problem else max(0, min(newest.applied, older.applied) - start),
        "problem": problem,
    }


class _SnapshotAges:
    """Looks at snapshots, with one client for each topic."""

    def __init__(self, settings: Settings, stack: ExitStack) -> None:
        self._settings = settings
        self._stack = stack
        self._until = 0.0
        self._logs = dict[str, Any]()

    def at(self, tp: TopicPartition, named: NamedSnapshot) -> tuple[int | None, str | None]:
        """The age of a snapshot in seconds, or why it cannot be read."""
        from timers.core.ports import Lost
        from timers.core.snapshots import Unreadable
        from timers.kafka.snapshot_log import SnapshotLog
        from timers.wire import topics

        def check() -> None:
            if time.monotonic() > self._until:
                raise Lost(f"the brokers did not answer within {ANSWER_S:.0f} s")

        topic, partition = tp
        if topic not in self._logs:
            name = topics.snapshots(self._settings.app_id, topic)
            log = SnapshotLog(self._settings, name, partition, check)
            self._logs[topic] = self._stack.enter_context(closing(log))
        log, self._until = self._logs[topic], time.monotonic() + ANSWER_S
        log.partition = partition
        try:
            return max(0, round(time.time() - log.written_ms(named) / 1000)), None
        except (Unreadable, Lost) as why:
            return None, str(why)


def _cells(fields: dict[str, Any]) -> tuple[str, ...]:
    name = partition_name(fields["topic"], fields["partition"])
    if fields["offset"] is None:
        return name, "none", "", "", "", "", ""
    size = f"{fields['most_bytes'] / 1e6:.1f} MB"
    age = "unreadable" if fields["problem"] else f"{fields['age_s']} s"
    offset, timers, since, unneeded = (f"{fields[key]:,}" for key in ("offset", "timers", "log_since", "not_needed"))
    return name, offset, timers, size, age, since, fields["problem"] or unneeded


@click.group(cls=NamedGroup)
def log() -> None:
    """Look at the logs of requests."""


@log.command()
@output_option()
def verify(output: Output) -> None:
    """Compare the log of each partition with its snapshots. Exit code 1 if they differ.

    It says of each partition that differs whether its log is whole, and what may be done.

    It restores the older of the two snapshots that a partition has, reads the log after it, and compares all timers
    that will fire with those of the newer snapshot. Workers do the same before they delete requests of a partition for
    the first time. It needs disk space for two copies of the pending timers. It changes nothing.
    """
    settings = load_settings()
    different = 0
    with explained(settings, "the logs cannot be compared with their snapshots") as reports:
        from timers.kafka.topic_offsets import TopicOffsets
        from timers.machines.verifying import way_on

        cluster, found = read_progress(settings, reports)
        for tp in sorted(found):
            result = _verify(settings, cluster, tp)
            name = partition_name(*tp)
            if result is None:
                output.show(
                    {"topic": tp[0], "partition": tp[1], "compared": False},
                    f"{name}: no two snapshots yet, or a compacted topic",
                )
                continue
            different += result.different
            fields = {"topic": tp[0], "partition": tp[1], "compared": True, **result._asdict(), "way_on": None}
            if result.different:  # a worker may have deleted requests while they were compared
                fields["way_on"] = way_on(TopicOffsets(settings).starts([tp[0]])[tp[0]][tp[1]])
            read = f"offsets {result.from_offset:,} to {result.to_offset:,} read, {result.timers:,} timers compared"
            lines = [*result.differences, *([f"{name}: {fields['way_on']}"] if fields["way_on"] else [])]
            output.show(fields, f"{name}: {read}, {result.different:,} differ", *lines)
    if different:
        raise TimersError(
            f"logs and snapshots differ in {different:,} timers or ids: set TIMERS_LOG_KEEP_S=never on all workers, so "
            "that no request is deleted, and do of each partition only what is said of it above"
        )


VERIFY_S = 3600.0
"""How long one partition may take."""

VERIFY_TRIES = 3
"""A worker may name a new snapshot, and delete the one before, while they are compared."""


def _verify(settings: Settings, cluster: Cluster, tp: TopicPartition) -> Verified | None:
    """Compare a partition; None if it has no two snapshots."""
    from timers.core.ports import Lost
    from timers.core.snapshots import Unreadable
    from timers.kafka.progress_log import ProgressLog
    from timers.kafka.request_formats import enabled_formats
    from timers.kafka.snapshot_log import SnapshotLog
    from timers.machines.store.failures import Condemnations
    from timers.machines.store.memory_limit import RocksMemory
    from timers.machines.store.opening import Stores
    from timers.machines.verifying import verify as compare
    from timers.wire import progress as record
    from timers.wire import topics

    until, why = time.monotonic() + VERIFY_S, ""
    memory = RocksMemory(settings.store_memory_bytes)
    stores = Stores(settings, cluster, memory, Condemnations(), enabled_formats(settings))

    def check() -> None:
        if time.monotonic() > until:
            raise TimersError(f"{partition_name(*tp)} was not compared within {VERIFY_S:.0f} s")

    for _ in range(VERIFY_TRIES):
        with (
            closing(ProgressLog(settings, cluster)) as progress_log,
            closing(SnapshotLog(settings, topics.snapshots(settings.app_id, tp[0]), tp[1], check)) as snapshots,
            tempfile.TemporaryDirectory() as directory,
        ):
            records = progress_log.read([tp], after_fence=False)
            progress = record.decode(records[tp], record.ANY_LEVEL)[0]
            try:
                return compare(stores, tp, progress, snapshots, Path(directory), check)
            except (Unreadable, Lost) as error:
                why = str(error)
    raise TimersError(f"{partition_name(*tp)} cannot be compared: {why}")
