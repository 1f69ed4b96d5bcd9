"""``timers apply``: sets the repeating timers of a file, and cancels those that are no longer in it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from timers.cli.output import Output, output_option, say
from timers.cli.reach import WorkerToAsk, load_settings, traced, worker_option
from timers.cli.repeats import say_zone_data
from timers.cli.timers import CANCELS_IN_FLIGHT, NEXT_OCCURRENCE_S, Pages, warn_of_missing_topics
from timers.core.grouping import groups
from timers.errors import InvalidTimerError, QueryError, TimersError
from timers.process.counted import counted
from timers.wire import query as wire
from timers.wire.query import Query, Timer
from timers.wire.verdict import VerdictMessage

if TYPE_CHECKING:
    from timers.client import TimerRequest
    from timers.client.wanted import WantedSet

TIMEOUT_S = 10.0

CHANGES_CODE = 3
"""Exit code of ``--dry-run`` if something would change."""

TRIES = 5
"""An occurrence that has just fired is followed by the next one within a second."""


class Step(NamedTuple):
    """What is to be done with one timer."""

    id: str
    action: str
    """``set``, ``change``, ``unchanged`` or ``cancel``."""
    lines: list[str]
    """What differs, as ``diff`` shows it."""
    timer: Timer | None
    """What a worker says; None: it is not set."""


@click.command()
@click.option(
    "--file",
    "-f",
    "file",
    type=click.Path(dir_okay=False, allow_dash=True),
    required=True,
    metavar="FILE",
    help="YAML or JSON; - reads stdin.",
)
@click.option("--prune", is_flag=True, help="Cancel the timers of this set that are not in the file.")
@click.option(
    "--dry-run", is_flag=True, help=f"Only show what would change: exit code {CHANGES_CODE} if something would."
)
@worker_option
@output_option()
@traced
def apply(file: str, prune: bool, dry_run: bool, worker: str | None, output: Output) -> int:
    """Set the repeating timers of FILE, which is the wanted state of a set.

    The command shows what differs, as `kubectl diff` does, and sets only what differs: a second run changes nothing.
    The whole file is checked first. --prune cancels only timers whose header timers-set has the name of this set.

    Workers must show values to compare these (TIMERS_QUERIES=values). If they do not, only what they show is compared,
    all timers are sent, and the verdict says what has changed.

    \b
      timers apply -f schedules.yaml --dry-run
      timers apply -f schedules.yaml --prune

    A file:

    \b
      set: billing
      timers:
        - id: daily-report
          repeat: {cron: "0 9 * * 1-5", zone: Europe/Paris}
          topic: reports
          value: daily

    docs/repeating.md says more.
    """
    from timers.client import wanted
    from timers.client.request import Encoder  # not at the top: `--help` needs no protobuf

    try:
        with click.open_file(file, "rb") as stream:
            text = stream.read(wanted.MAX_BYTES + 1)
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror}") from None
    try:
        asked = wanted.read(text, time.time_ns(), say)
    except InvalidTimerError as error:
        first, *others = str(error).split("\n")
        for line in others:
            say(line)
        raise InvalidTimerError(first) from None
    for sentence in asked.over.values():
        say(sentence)
    settings = load_settings()
    encode = Encoder(settings.max_request_bytes, settings.own_topics)
    for request in asked.timers.values():
        encode(request)
    asking = WorkerToAsk(worker)
    present, are_shown = _present(asking, asked, prune=prune)
    steps = plan(asked, present, prune=prune)
    for step in steps:
        _show(step, output, dry_run=dry_run)
    changes = [step for step in steps if step.action != "unchanged"]
    warn_of_missing_topics(settings, {str(request.topic) for request in asked.timers.values()})
    kept = sorted(present.keys() - asked.timers.keys() - asked.over.keys())
    if kept and not prune:
        are = "is" if len(kept) == 1 else "are"
        say(f"{counted(len(kept), 'timer')} of {asked.name} {are} not in the file, such as {kept[0]} (--prune cancels)")
    if not are_shown:
        say("values and headers are not compared, because workers do not show them (TIMERS_QUERIES=values)")
    if dry_run:
        say(_summary(steps, "would "))
        return CHANGES_CODE if changes else 0
    sent = changes if are_shown else steps
    code = _carry_out(settings.brokers, asked, sent, output)
    if any(request.repeat is not None and request.repeat.zone for request in asked.timers.values()):
        say_zone_data(settings)
    return code


def plan(asked: WantedSet, present: Mapping[str, Timer], *, prune: bool) -> list[Step]:
    """What is to be done, by id.

    Args:
        present: id -> what a worker says of the timers of this set, and of others with an id of the file.
    """
    from timers.client.wanted import differences, of_answer, of_request

    steps = []
    for id, request in asked.timers.items():
        timer = present.get(id)
        lines = differences(None if timer is None else of_answer(timer), of_request(request))
        action = "set" if timer is None else "change" if lines else "unchanged"
        steps.append(Step(id, action, lines, timer))
    for id in sorted(present.keys() - asked.timers.keys() - asked.over.keys()) if prune else ():
        gone = [f"- {name}: {text}" for name, text in of_answer(present[id]).items()]
        steps.append(Step(id, "cancel", gone, present[id]))
    return steps


def _present(asking: WorkerToAsk, asked: WantedSet, *, prune: bool) -> tuple[dict[str, Timer], bool]:
    """Id -> timer of those that are set: of this set, or with an id of the file; and whether workers show values."""
    try:
        return _read(asking, asked, with_values=True, prune=prune), True
    except QueryError as error:
        if "TIMERS_QUERIES=values" not in str(error):
            raise
        return _read(asking, asked, with_values=False, prune=prune), False


def _read(asking: WorkerToAsk, asked: WantedSet, *, with_values: bool, prune: bool) -> dict[str, Timer]:
    present = _listed(asking, asked, with_values)
    if prune:  # no list has a timer that fires just now: its next occurrence is not read yet
        time.sleep(NEXT_OCCURRENCE_S)
        present |= _listed(asking, asked, with_values)
    for id in asked.timers.keys() - present.keys():
        timer = _found(asking, id, with_values)
        if timer is not None:
            present[id] = timer
    return present


def _listed(asking: WorkerToAsk, asked: WantedSet, with_values: bool) -> dict[str, Timer]:
    pages = Pages(Query(set=asked.name, with_values=with_values), asking, 0)
    # Callbacks have the header of the set, too: a receiver that copies it makes single timers with it.
    listed = {
        timer["id"]: timer
        for timer in pages
        if "retry" not in timer and ("repeat" in timer or timer["id"] in asked.timers)
    }
    pages.check()  # else what was not listed would be set as new
    return listed


def _found(asking: WorkerToAsk, id: str, with_values: bool) -> Timer | None:
    for _ in range(TRIES):
        answer = asking.ask(wire.FIND_PATH, {"id": id, "value": str(int(with_values))})
        timers: list[Timer] = answer["timers"]
        if not timers:
            return None
        if timers[0]["state"] == wire.COLD:
            return timers[0]
        # Without a topic: it fired, and its next occurrence is not read yet.
        if timers[0]["state"] == wire.PENDING and "topic" in timers[0]:
            return timers[0]
        if timers[0].get("due", 0) < time.time() - TRIES * NEXT_OCCURRENCE_S:  # it was a single one
            return None
        time.sleep(NEXT_OCCURRENCE_S)
    return None


def _show(step: Step, output: Output, *, dry_run: bool) -> None:
    if step.action == "unchanged" and not dry_run:
        return  # the verdicts say so
    words = {"set": "to set", "change": "to change", "cancel": "to cancel", "unchanged": "unchanged"}
    if dry_run:
        output.show(
            {"id": step.id, "action": step.action, "diff": step.lines}, f"{step.id}: {words[step.action]}", *step.lines
        )
    else:
        for line in (f"{step.id}: {words[step.action]}", *step.lines):
            say(line)


def _summary(steps: list[Step], would: str = "") -> str:
    counts = Counter(step.action for step in steps)
    return (
        ", ".join(f"{counts[action]:,} {would if action != 'unchanged' else ''}{action}" for action in counts)
        or "no timer"
    )


def _carry_out(brokers: str, asked: WantedSet, steps: list[Step], output: Output) -> int:
    results: Counter[str] = Counter()
    for group in groups(steps, lambda step: 1, CANCELS_IN_FLIGHT, CANCELS_IN_FLIGHT):
        for step, result in zip(group, asyncio.run(_send(brokers, asked.timers, group)), strict=True):
            if isinstance(result, TimersError):
                results["without a verdict"] += 1
                say(f"{step.id}: {result}")
                continue
            results[_said(result)] += 1
            output.show({**result.fields(), "action": step.action}, f"{step.id}: {_said(result)}")
    unchanged = len(asked.timers) - sum(step.action != "cancel" for step in steps)
    if unchanged:
        results["unchanged"] += unchanged
    say(", ".join(f"{number:,} {what}" for what, number in sorted(results.items())) or "nothing to do")
    if results["without a verdict"]:
        raise TimersError(f"{counted(results['without a verdict'], 'timer')} without a verdict: use the command again")
    return 0


def _said(result: VerdictMessage) -> str:
    return {"unknown": "set", "already-fired": "set"}.get(result.verdict, result.verdict)


async def _send(
    brokers: str, requests: Mapping[str, TimerRequest], steps: list[Step]
) -> list[VerdictMessage | TimersError]:
    """Set or cancel the timers of some steps. One that was changed since is not cancelled, unless it is held."""
    from timers.client import AsyncTimersClient

    async with AsyncTimersClient(brokers, timeout_s=TIMEOUT_S) as client:

        async def one(step: Step) -> Any:
            try:
                if step.action == "cancel":
                    assert step.timer is not None
                    return await client.cancel(step.id, if_source=wire.condition_of(step.timer), timeout_s=TIMEOUT_S)
                return await client.update_if(requests[step.id], None, timeout_s=TIMEOUT_S)
            except TimersError as error:
                return error

        return list(await asyncio.gather(*map(one, steps)))
