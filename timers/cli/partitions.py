"""Commands about the partitions of an app: who has them, how far they have fired, their levels."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from timers.cli.output import Output, output_option, say
from timers.cli.reach import load_settings
from timers.core import levels as feature_levels
from timers.core.keys import NOTHING_FIRED
from timers.core.printable import utc_text
from timers.errors import TimersError
from timers.offline.app_state import LevelsInUse, explained, levels_in_use, read_progress
from timers.process.config.settings import Settings
from timers.process.counted import counted
from timers.wire.topics import partition_name

if TYPE_CHECKING:
    from timers.core.progress import Progress
    from timers.core.timer import TopicPartition
    from timers.kafka.topics import Cluster


DO_NOT_FIRE_CODE, NOT_KNOWN_CODE = 3, 4

_COLUMNS = ("PARTITION", "WORKER", "STATE", "SINCE", "FROM")
_WIDTHS = (28, 24, 10, 12, 0)


@click.command()
@output_option()
def status(output: Output) -> int:
    """Show whether all timers fire. For each partition, show its worker, since when, and what it was restored from.

    FROM names this source: the worker's own store, a snapshot, or the log. If a worker has not answered, or has had no
    tick, for 2 s, it is not known what it fires.

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
        fired = None if progress.fired_through == NOTHING_FIRED else utc_text(progress.fired_through[0])
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
    type=click.IntRange(feature_levels.FIRST_LEVEL),
    metavar="LEVEL",
    help="Allow the workers to use this level.",
)
@output_option()
def levels(wanted: int | None, output: Output) -> None:
    """Show the feature levels of workers and partitions, and allow a higher one.

    After an upgrade, workers do not use new features that the former version would misread. When all workers run the
    new version and you will not go back to the former one, allow the new level: the workers raise each partition within
    seconds. After that you cannot go back to the former version. docs/operations.md#feature-levels says more.
    """
    settings = load_settings()
    found = levels_in_use(settings)
    if wanted is not None:
        _allow(settings, found, wanted)
        found = found._replace(allowed=wanted)
    in_use = {"supported": feature_levels.SUPPORTED, "lowest": found.lowest, "highest": found.highest}
    output.show({**in_use, **found._asdict()}, *_lines(found))


def _lines(found: LevelsInUse) -> list[str]:
    used = f"{found.lowest}" if found.lowest == found.highest else f"{found.lowest} to {found.highest}"
    lines = [
        f"in use      {used} by {len(found.partitions)} partitions",
        f"allowed     {found.allowed}",
        f"supported   {feature_levels.SUPPORTED} by this version of timers",
        *(f"            {level} by worker {worker}" for worker, level in sorted(found.workers.items())),
    ]
    if not found.workers:
        lines.append(f"what the workers support is not known: {found.taken or 'none runs'}")
    if found.next > found.allowed:
        lines.append(f"timers levels --raise {found.next} allows level {found.next}; after that you cannot go back")
    return lines


def _allow(settings: Settings, found: LevelsInUse, wanted: int) -> None:
    from timers.kafka.progress_log import allow

    if wanted > feature_levels.RAISED_TO_LEVEL:
        raise TimersError(
            f"level {wanted} is too high: this version raises partitions to {feature_levels.RAISED_TO_LEVEL}"
        )
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
