"""``timers export`` and ``timers import-pending``: all that is pending, in a file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from timers.cli.output import Output, output_option, say
from timers.cli.reach import load_settings
from timers.core.operation import EXISTS
from timers.core.printable import utc_text
from timers.errors import TargetError, TimersError
from timers.offline.app_state import explained
from timers.process.config.settings import Settings
from timers.process.counted import counted

if TYPE_CHECKING:
    from timers.offline.pending import ExportedPartition


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
@click.option(
    "--skip-known", is_flag=True, help="Also if timers were moved out of this app: those whose id it knows are not set."
)
@output_option()
def import_pending(file: Path, yes: bool, skip_known: bool, output: Output) -> None:
    """Set the timers of FILE, which `timers export` has written, in this app: each once.

    The file is checked first, as a whole. Without --yes the command ends then. If it is interrupted, use it again: it
    goes on after the last timer that is set. Once all are set, it does nothing. A timer with an id is not set if this
    app has or had one of this id, also a cancelled one: what is here is newer. The command waits for the verdicts, and
    says how many these are.

    A timer that repeats goes on with what the other app has not sent: what has come due meanwhile is caught up by its
    rule. One whose last second is over is set as a single timer.
    """
    settings = load_settings()
    with explained(settings, f"{settings.progress_topic!r} cannot be used") as reports:
        from timers.kafka import topics
        from timers.offline import pending

        cluster = topics.existing(settings, reports)
        found = pending.look(file, settings, int(time.time()))
        head = found.head
        if not head.moved and (head.cluster, head.app) == (cluster.cluster_id, settings.app_id):
            raise TimersError(f"{file} is a copy of what is pending of this app, which fires it: each would fire twice")
        left = pending.moved_out(settings, cluster) if found.with_id and not skip_known else []
        if left:
            raise TimersError(
                f"{file} has {counted(found.with_id, 'timer')} with an id, and timers were moved out of "
                f"{', '.join(left)} of this app before. It still knows the ids of those, and would not set a timer "
                "with one of them: import the file into another app, or leave such timers out with --skip-known"
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

        with pending.Answers(settings) as answers:
            count = pending.send(file, settings, cluster, time.time, answers, report)
            try:
                verdicts, unanswered = answers.wait()
            except TimersError as error:
                say(f"{counted(count, 'request')} sent; how many of those with an id are not set is not known: {error}")
                return
    _say_outcome(count, verdicts[EXISTS], unanswered)


def _say_outcome(count: int, refused: int, unanswered: int) -> None:
    """Say what became of the requests of an import."""
    say(f"{counted(count - refused - unanswered, 'timer')} set")
    if refused:
        say(f"{counted(refused, 'timer')} not set: this app has or had one of the same id")
    if unanswered:
        say(
            f"{counted(unanswered, 'timer')} without a verdict: a worker sets or refuses them when it reads them; a "
            "request that is a dead letter has none (`timers dead-letters list`)"
        )


def _fields_of_file(found: Any, done: int) -> dict[str, Any]:
    return {
        "app": found.head.app,
        "cluster": found.head.cluster,
        "moved": found.head.moved,
        "timers": found.timers,
        "set": done,
        "with_id": found.with_id,
        "failed": found.failed,
        "ended": found.ended,
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
    if found.ended:
        lines.append(f"{found.ended:,} repeated, and have come to their last second: each is set as a single timer")
    if found.failed:
        lines.append(f"{found.failed:,} have failed before: they are tried at once, and have no id")
    lines.append(f"{done:,} of them are set in this app already" if done else "none of them is set in this app yet")
    return lines
