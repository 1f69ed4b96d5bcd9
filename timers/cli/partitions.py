"""Commands about the partitions of an app: who has them, how far they have fired, levels, snapshots, logs, exports."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from timers.cli.lazy import NamedGroup
from timers.cli.output import Output, output_option, say
from timers.cli.reach import load_settings
from timers.core import levels as feature_levels
from timers.core.keys import NEVER
from timers.core.printable import utc_text
from timers.errors import TargetError, TimersError
from timers.offline.app_state import LevelsInUse, explained, levels_in_use, read_progress
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
    from timers.offline.pending import ExportedPartition


DO_NOT_FIRE_CODE, NOT_KNOWN_CODE = 3, 4

_COLUMNS = ("PARTITION", "WORKER", "STATE", "SINCE", "FROM")
_WIDTHS = (28, 24, 10, 12, 0)


@click.command()
@output_option()
def status(output: Output) -> int:
    """Show whether all timers fire, and for each partition its worker, since when it has it, and from what it began.

    FROM says where the worker had the state of the partition from: its own store, a snapshot, or the log. What
    has said nothing for 2 s is not known.

    Exit codes: 0 all timers fire, 3 some do not, 4 it is not known, 1 the group cannot be asked.
    """
    from timers.console.figures import DO_NOT_FIRE, NOT_KNOWN  # not at the top: it needs the extra `console`

    found = asyncio.run(look(load_settings()))
    output.table(_COLUMNS, _WIDTHS, _rows(found["workers"]))
    for worker in found["workers"]:
        if worker["ready"] is None:
            say(f"{worker['id']}: {worker['why']}")
    _say_held(found["workers"])
    timers, why = found["state"]["timers"], found["state"]["why"]
    sentences = {DO_NOT_FIRE: f"some timers do not fire: {why}", NOT_KNOWN: f"it is not known whether all fire: {why}"}
    say(sentences.get(timers, "all timers fire"))
    return {DO_NOT_FIRE: DO_NOT_FIRE_CODE, NOT_KNOWN: NOT_KNOWN_CODE}.get(timers, 0)


def _say_held(workers: list[Mapping[str, Any]]) -> None:
    """Say how many callback topics are paused, and how many timers wait for that or because their topic is noisy."""
    paused = int(max((worker.get("paused_targets") or 0 for worker in workers), default=0))
    held = int(sum(worker.get("held") or 0 for worker in workers))  # a worker that started during a pause counts later
    if paused or held:
        timers = f"{counted(held, 'timer')} {'is' if held == 1 else 'are'} held" if held else "its timers wait"
        topics = f"{counted(paused, 'callback topic')} {'is' if paused == 1 else 'are'} paused: " if paused else ""
        say(f"{topics}{timers} (`timers targets list` shows which)")


async def look(settings: Settings) -> dict[str, Any]:
    """What the workers say now, and whether all timers fire: see :func:`timers.console.worker_pages.look`."""
    from timers.console import worker_pages
    from timers.console.kafka_cluster import KafkaCluster

    cluster = KafkaCluster(settings)
    try:
        return await worker_pages.look(cluster)
    finally:
        await cluster.close()


def _rows(workers: list[Mapping[str, Any]]) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    from timers.console.figures import assigned

    for worker in workers:
        machines = worker.get("machines") or {}
        for name in sorted(assigned(worker) | machines.keys()):
            machine = machines.get(name, {})
            state = "unknown" if worker["ready"] is None else "fires" if name in worker["firing"] else "waits"
            age_s, origin = machine.get("age_s"), machine.get("from")
            fields = {"partition": name, "worker": worker["id"], "state": state, "age_s": age_s, "from": origin}
            since = "" if age_s is None else f"{age_s:,.0f} s"
            yield fields, (name, worker["id"], state, since, origin or "")


@click.command()
@click.option("--repair", is_flag=True, help="Take back the time of partitions that are ahead. Stop the workers first.")
@output_option()
def clock(repair: bool, output: Output) -> None:
    """Show up to which second each partition has fired.

    If the clock of a broker was ahead, a partition may have fired timers up to a second that has not come yet. Until
    that second has come, the partition accepts no new requests. --repair lets such partitions forget the second, and
    records which timers have fired: no timer fires again, and new requests are accepted and fire by the right clock.
    The clock of this machine must be right. Use the settings and the rights of a worker.
    docs/operations.md#the-way-back-from-a-wrong-time says more.
    """
    settings = load_settings()
    with explained(settings, f"{settings.progress_topic!r} cannot be used") as reports:
        cluster, found = read_progress(settings, reports)
        now_s = time.time()
        ahead = {tp: round(progress.fired_through[0] - now_s) for tp, progress in found.items()}
        ahead = {tp: seconds for tp, seconds in ahead.items() if seconds > settings.max_clock_leap_s}
        if not repair:
            _show_times(found, ahead, output)
        say(f"{len(ahead)} partitions are ahead of this machine's clock, {utc_text(now_s)}")
        if ahead and repair:
            _take_back(settings, cluster, ahead, output)
        elif ahead:
            say("if this clock is right: stop all workers, then use --repair")


def _show_times(found: dict[TopicPartition, Progress], ahead: dict[TopicPartition, int], output: Output) -> None:
    rows = []
    for tp, progress in sorted(found.items()):
        fired = None if progress.fired_through == NEVER else utc_text(progress.fired_through[0])
        ahead_s = ahead.get(tp, 0)
        fields = {"topic": tp[0], "partition": tp[1], "fired_through": fired, "ahead_s": ahead_s}
        rows.append((fields, (partition_name(*tp), fired or "nothing", f"{ahead_s} s ahead" if ahead_s else "")))
    width = max((len(cells[0]) for _, cells in rows), default=0)
    output.table(("partition", "fired through", ""), (width, 20, 0), rows)


def _take_back(settings: Settings, cluster: Cluster, ahead: dict[TopicPartition, int], output: Output) -> None:
    from timers.core.progress import Progress
    from timers.kafka import group_access, progress_log
    from timers.kafka.aiokafka_internals.group import strangers_in

    group = group_access.describe(settings)
    if group.is_taken:
        raise TimersError(f"nothing was taken back: {strangers_in(settings.app_id, group)}")
    if group.members:
        raise TimersError(
            f"the group {settings.app_id!r} has {len(group.members)} members: stop all workers first; the group "
            "forgets a stopped worker after TIMERS_SESSION_TIMEOUT_S"
        )
    for (topic, partition), ahead_s in sorted(ahead.items()):
        progress_log.commit_change(settings, cluster, (topic, partition), Progress.without_time)
        fields = {"topic": topic, "partition": partition, "ahead_s": ahead_s, "repaired": True}
        output.show(fields, f"{partition_name(topic, partition)} was {ahead_s} s ahead, and was taken back")


@click.command()
@click.option(
    "--raise",
    "wanted",
    type=click.IntRange(feature_levels.FIRST),
    metavar="LEVEL",
    help="Allow the workers to use this level.",
)
@output_option()
def levels(wanted: int | None, output: Output) -> None:
    """Show the feature levels of workers and partitions, and allow a higher one.

    After an upgrade, workers do not use what the version before would misread. When all workers run the new version and
    you will not go back to the one before, allow the new level: the workers raise each partition within seconds. There
    is no way back then. docs/operations.md#feature-levels says more.
    """
    settings = load_settings()
    found = levels_in_use(settings)
    level = found.next if wanted is None else wanted
    begins = feature_levels.allows_trimming(level) and not feature_levels.allows_trimming(found.allowed)
    deletable = _deletable(settings) if begins else {}
    if wanted is not None:
        _allow(settings, found, wanted)
        found = found._replace(allowed=wanted)
    in_use = {"supported": feature_levels.SUPPORTED, "lowest": found.lowest, "highest": found.highest}
    fields = {**in_use, **found._asdict(), "deletable": deletable}
    output.show(fields, *_lines(found), *_said_of(settings, level, deletable))


def _lines(found: LevelsInUse) -> list[str]:
    used = f"{found.lowest}" if found.lowest == found.highest else f"{found.lowest} to {found.highest}"
    lines = [
        f"in use      {used} by {len(found.partitions)} partitions",
        f"allowed     {found.allowed}",
        f"supported   {feature_levels.SUPPORTED} by this version of timers",
        *(f"            {level} by worker {worker}" for worker, level in sorted(found.workers.items())),
    ]
    if found.taken:
        lines.append(f"what the workers support is not known: {found.taken}")
    if found.next > found.allowed:
        lines.append(f"timers levels --raise {found.next} allows level {found.next}; there is no way back then")
    return lines


def _deletable(settings: Settings) -> dict[str, int]:
    """Topic -> number of offsets that workers delete when the level is allowed and they are old enough."""
    with explained(settings, "the logs cannot be looked at") as reports:
        from timers.core.snapshots import deletable_before
        from timers.kafka.topic_offsets import TopicOffsets

        _, found = read_progress(settings, reports)
        starts = TopicOffsets(settings).starts(sorted({topic for topic, _ in found}))
    counts: dict[str, int] = {}
    for (topic, partition), progress in found.items():
        if topic in settings.trimmed_topics:
            start = starts.get(topic, {}).get(partition, 0)
            counts[topic] = counts.get(topic, 0) + max(0, deletable_before(progress) - start)
    return counts


def _said_of(settings: Settings, level: int, deletable: dict[str, int]) -> list[str]:
    keep = "at once" if not settings.log_keep_s else f"when they are {settings.log_keep_s:.0f} s old"
    return [
        f"at level {level}, workers delete {count:,} offsets of {topic} {keep}, after they have "
        "compared the log with its snapshots (TIMERS_LOG_KEEP_S)"
        for topic, count in sorted(deletable.items())
    ]


def _allow(settings: Settings, found: LevelsInUse, wanted: int) -> None:
    from timers.kafka.progress_log import allow

    if wanted > feature_levels.RAISED_TO:
        raise TimersError(f"level {wanted} is too high: this version raises partitions to {feature_levels.RAISED_TO}")
    if found.taken:
        raise TimersError(
            f"level {wanted} was not allowed, because what the workers support is not known: {found.taken}"
        )
    older = [f"{worker} ({level})" for worker, level in sorted(found.workers.items()) if level < wanted]
    if older:
        raise TimersError(f"these workers do not support level {wanted}: {', '.join(older)}; replace them first")
    if wanted < found.highest:
        raised = next(name for name, level in sorted(found.partitions.items()) if level > wanted)
        raise TimersError(f"{raised} was raised to level {found.partitions[raised]} already: there is no way back")
    with explained(settings, f"level {wanted} cannot be written to {settings.progress_topic!r}"):
        allow(settings, wanted)


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
    offsets of the log neither this snapshot nor the one before it needs any more. From feature level 6 on, workers
    delete them when they are old enough (TIMERS_LOG_KEEP_S).

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

    It restores the older of the two snapshots that a partition has, reads the log after it, and compares all timers
    that will fire with those of the newer snapshot. Workers do the same before they delete requests of a partition for
    the first time. It needs disk for what is pending twice, and changes nothing.
    """
    settings = load_settings()
    different = 0
    with explained(settings, "the logs cannot be compared with their snapshots") as reports:
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
            fields = {"topic": tp[0], "partition": tp[1], "compared": True, **result._asdict()}
            read = f"offsets {result.from_offset:,} to {result.to_offset:,} read, {result.timers:,} timers compared"
            output.show(fields, f"{name}: {read}, {result.different:,} differ", *result.differences)
    if different:
        raise TimersError(
            f"logs and snapshots differ in {different:,} timers or ids: set TIMERS_LOG_KEEP_S=never on all workers, so "
            "that no request is deleted, and read docs/operations.md#log-and-snapshots-differ"
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


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--move", is_flag=True, help="Move the timers out of this app: it does not fire them any more.")
@output_option()
def export(file: Path, move: bool, output: Output) -> None:
    """Write all that is pending of this app to FILE: timers with and without an id, and those that wait for a retry.

    It reads snapshots and the logs after them, and no worker notices it. Without --move this is a copy: the app goes on
    to fire its timers. With --move each timer fires either here, before its partition is moved, or from the file: set
    it in another app with `timers import-pending`. Requests that come after the move stay here. If a move is
    interrupted, use the same command again. docs/operations.md#moving-pending-timers says more.
    """
    settings = load_settings()
    with explained(settings, f"what is pending of {settings.app_id!r} cannot be exported") as reports:
        from timers.kafka import topics
        from timers.kafka.request_formats import enabled_formats
        from timers.offline import pending

        cluster = topics.existing(settings, reports)
        if move:
            _warn_of_held(settings)

        def report(done: ExportedPartition) -> None:
            text = f"{done.name}: {counted(done.timers, 'timer')} pending at offset {done.offset}"
            output.show(done._asdict(), text)
            if done.may_be_cold:
                say(f"{done.name}: timers of it that are in the cold tier are not in the file, and fire in this app")

        began = time.monotonic()
        count = pending.export(settings, cluster, file, move=move, check=lambda: None, report=report)
    say(f"{counted(count, 'timer')} {'moved' if move else 'copied'} to {file} in {time.monotonic() - began:.1f} s")
    left = enabled_formats(settings).keys() - pending.exported_topics(settings)
    if left:
        say(f"timers of {', '.join(sorted(left))} are not exported: these topics belong to their users")


def _warn_of_held(settings: Settings) -> None:
    """Say that the other app does not know what is paused here."""
    from timers.offline.targets import look

    try:
        names = look(settings).names
    except TargetError:  # no worker has made the topic of targets yet
        return
    except TimersError as error:
        say(f"it is not known whether timers are held here: {error}")
        return
    if names:
        say(
            f"held here: the timers of {', '.join(names)}; the other app sends those whose second is over at once: "
            f"pause these topics there before the import, such as: timers targets pause {names[0]}"
        )


@click.command("import-pending")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--yes", "-y", is_flag=True, help="Set the timers. Without it, the command only says what it would do.")
@output_option()
def import_pending(file: Path, yes: bool, output: Output) -> None:
    """Set the timers of FILE, which `timers export` has written, in this app: each once.

    The file is checked first, as a whole. Without --yes the command ends then. If it is interrupted, use it again: it
    goes on behind the last timer that is set. Once all are set, it does nothing. A timer with an id is not set if this
    app has or had one of this id, also a cancelled one: what is here is newer.
    """
    settings = load_settings()
    with explained(settings, f"{settings.progress_topic!r} cannot be used") as reports:
        from timers.kafka import topics
        from timers.offline import pending

        cluster = topics.existing(settings, reports)
        found = pending.look(file, settings)
        head = found.head
        if not head.moved and (head.cluster, head.app) == (cluster.cluster_id, settings.app_id):
            raise TimersError(f"{file} is a copy of what is pending of this app, which fires it: each would fire twice")
        if found.with_id and (head.cluster, head.app) == (cluster.cluster_id, settings.app_id):
            raise TimersError(
                f"{file} has {counted(found.with_id, 'timer')} with an id that were moved out of this app, which still "
                "knows these ids and would not set them: import the file into another app"
            )
        done = pending.imported(settings, cluster, head)
        output.show(_fields_of_file(found, done), *_lines_of_file(found, done))
        if not yes or done == found.timers:
            return
        shown_at = time.monotonic()

        def report(set_so_far: int) -> None:
            nonlocal shown_at
            if time.monotonic() > shown_at + 5:
                shown_at = time.monotonic()
                say(f"{set_so_far:,} of {counted(found.timers, 'timer')} are set")

        count = pending.send(file, settings, cluster, report)
    say(f"{counted(count, 'timer')} set")


def _fields_of_file(found: Any, done: int) -> dict[str, Any]:
    return {
        "app": found.head.app,
        "cluster": found.head.cluster,
        "moved": found.head.moved,
        "timers": found.timers,
        "set": done,
        "with_id": found.with_id,
        "failed": found.failed,
        "first_due": found.first_s,
        "last_due": found.last_s,
        "topics": dict(found.by_topic),
    }


def _lines_of_file(found: Any, done: int) -> list[str]:
    head = found.head
    whose = f"of app {head.app!r} on cluster {head.cluster}"
    fires = "which does not fire them any more" if head.moved else "WHICH GOES ON TO FIRE THEM, because it is a copy"
    lines = [f"{counted(found.timers, 'timer')} {whose}, {fires}"]
    if found.timers:
        lines.append(f"due from {utc_text(found.first_s)} to {utc_text(found.last_s)}")
    lines += [f"{count:>10,} to {topic}" for topic, count in found.by_topic.most_common()]
    if found.with_id:
        lines.append(f"{found.with_id:,} have an id: they are not set if this app has or had one of this id")
    if found.failed:
        lines.append(f"{found.failed:,} have failed before: they are tried at once, and have no id")
    lines.append(f"{done:,} of them are set in this app already" if done else "none of them is set in this app yet")
    return lines
