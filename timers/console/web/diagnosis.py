"""Says in words what is wrong, and what to do about it. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

from timers.console.figures import NOT_KNOWN, is_silent, silence
from timers.console.web.board import Figures
from timers.console.web.rendering import count, size, span

Worker: TypeAlias = dict[str, Any]
"""A worker as ``/v1/workers`` shows it."""

RED, UNKNOWN, AMBER, GREEN = LEVELS = "red", "unknown", "amber", "green"

LOSSY = "TimersConfigLosesTimers"
"""The page of a finding about timers that fire, and are lost if a worker has to read their log again."""

OVERDUE_S, LATE_S = 10.0, 2.0
"""A stored timer that is due for longer than the first is overdue, as everywhere in this project; after the second, it
is at least late, and the page does not say that all is well."""

DISK_FREE, UNREAD, SKEW_S = 0.1, 10_000, 1.0
"""A warning is shown below this share of free space, above this number of unread requests, or above this difference
of clocks in seconds."""


class Finding(NamedTuple):
    """Something that is wrong.

    Attributes:
        level: red: timers do not fire, or may not; unknown: it is not known whether they do; amber: look at it; green:
            good to know.
        where: what it is about, such as a worker.
        way_out: what the reader can do.
        page: of docs/operations.md, the heading with more.
        screen: of the console, with more.
    """

    level: str
    where: str
    why: str
    way_out: str = ""
    page: str = ""
    screen: str = ""


def findings(figures: Figures, new_letters: int = 0) -> list[Finding]:
    """What is wrong, the worst first; ``new_letters``: dead letters since the figures are read."""
    if figures.problem is not None or figures.is_old:
        way_out = "Check that the brokers at TIMERS_BROKERS run, and that this machine reaches them."
        why = str(figures.problem or "The question for the workers is not answered.")
        return [Finding(UNKNOWN, "brokers", why, way_out, "TimersNoTick")]
    if not figures.workers:
        return [
            Finding(RED, "workers", "No worker runs, so no timer fires.", "Start one: timers worker.", "TimersNoWorker")
        ]
    silent = UNKNOWN if figures.state.timers == NOT_KNOWN else AMBER
    found = [finding for worker in figures.workers for finding in _of_worker(worker, silent)]
    if silent == UNKNOWN and all(finding.level != UNKNOWN for finding in found):
        found.append(Finding(UNKNOWN, "workers", _sentence(figures.state.why), "", "TimersPartitionsUnowned"))
    if new_letters:
        why = f"New dead letters in the last half hour: {new_letters:,}."
        way_out = "Mend the cause, and retry them."
        found.append(Finding(AMBER, "dead letters", why, way_out, screen="dead-letters"))
    versions = sorted({str(worker["version"]) for worker in figures.workers if worker.get("version")})
    if len(versions) > 1:
        why = f"Workers run different versions: {', '.join(versions)}."
        found.append(Finding(AMBER, "workers", why, "Finish the upgrade, or go back.", "TimersVersionsMixed"))
    # A partition may be red on several workers.
    return sorted(dict.fromkeys(found), key=lambda finding: LEVELS.index(finding.level))


def level(found: list[Finding]) -> str:
    return found[0].level if found else GREEN


def headline(figures: Figures, found: list[Finding]) -> str:
    """What the findings mean for the timers."""
    if level(found) == AMBER:
        return "look at it when you have time"
    if level(found) == UNKNOWN:
        return "it is not known whether all timers fire"
    if not figures.workers:
        return "no timer fires"
    if all(finding.page == LOSSY for finding in found if finding.level == RED):
        return "timers fire, and may be lost"
    return "some timers do not fire"


def _of_worker(worker: Worker, silent: str) -> Iterator[Finding]:
    """What is wrong with a worker; ``silent``: the level if it cannot be asked."""
    name = str(worker["id"])
    if worker["ready"] is None:
        way_out = (
            "Look at its process and its log. If it runs, set TIMERS_CONSOLE_WORKERS to the network of the workers."
        )
        yield Finding(silent, name, f"The console cannot ask this worker: {worker['why']}.", way_out)
        return
    if is_silent(worker):
        way_out = "Check the brokers at TIMERS_BROKERS. If ticks are only slow, this passes by itself."
        yield Finding(silent, name, f"It {silence(worker)}.", way_out, "TimersNoTick")
    red = {**worker.get("red", {}), **(worker.get("stopped") or {})}
    lossy: dict[str, list[str]] = {}
    for partition in worker.get("lossy") or ():
        lossy.setdefault(str(red.pop(partition, "")), []).append(partition)
    for why, where in lossy.items():
        more = f" and {len(where) - 1} more" if len(where) > 1 else ""
        yield Finding(RED, f"{where[0]}{more}", _sentence(why), "", LOSSY)
    for partition, why in red.items():
        yield Finding(RED, partition, str(why), "Its timers wait until this is mended.", "TimersPartitionsWaiting")
    for sentences, shade in ((worker.get("warnings"), AMBER), (worker.get("notes"), GREEN)):
        for why in sentences or ():
            yield Finding(shade, "topics", _sentence(why), "", "TimersConfigWeak")
    for reason in worker.get("reasons") or ():
        if not any(reason in str(why) for why in red.values()):
            yield Finding(RED, name, f"This worker is not ready: {reason}.", "", "TimersNotReady")
    yield from _of_figures(worker)


def _of_figures(worker: Worker) -> Iterator[Finding]:
    """What the figures of a worker say. One that it does not have counts as 0."""
    name, figure = str(worker["id"]), defaultdict(int, {key: value or 0 for key, value in worker.items()})
    overdue_s, unread, unstable = figure["overdue_s"], figure["unread"], figure["unstable"]
    if overdue_s > LATE_S:
        why = f"The oldest timer that has not fired was due {span(overdue_s)} ago."
        way_out = "A burst of timers or a restart takes some seconds."
        if overdue_s > OVERDUE_S:
            way_out = "After a downtime this falls by itself. If it rises, look at the brokers and this worker's log."
        yield Finding(RED if overdue_s > OVERDUE_S else AMBER, name, why, way_out, "TimersOverdue")
    if figure["clock_back"]:
        why = "The brokers' clock is behind seconds that have fired. New requests wait until it has caught up."
        yield Finding(RED, name, why, "Find the broker whose clock went back.", "TimersBrokerClockBack")
    if held := figure["brokers_held"]:
        why = f"Brokers whose clock is too far ahead, and no second clock agrees: {count(held)}."
        way_out = "Their ticks do not count. Correct the clock of the broker that the worker's log names."
        yield Finding(AMBER, name, why, way_out, "TimersClockHeld")
    if recovering := figure["recovering"]:
        left = f"{count(figure['recovery_remaining'])} records are left."
        why = f"Partitions that read their log again and do not fire: {count(recovering)}. {left}"
        yield Finding(AMBER, name, why, "Wait. A restart does not make it faster.", "TimersRecoverySlow")
    if failing := figure["open_circuits"]:
        why = f"Callback topics that fail: {count(failing)}. Their timers are tried again, then become dead letters."
        yield Finding(AMBER, name, why, "The worker's log names each topic and says why.", "TimersTargetsFailing")
    if unstable and unread:
        why = f"An open transaction of a producer holds back {count(unstable)} records of request topics."
        way_out = "If it stays, find the producer and end its transaction."
        yield Finding(AMBER, name, why, way_out, "TimersRequestsHeldBack")
    if unread > UNREAD and not unstable:
        why = f"{count(unread)} requests are not read yet."
        yield Finding(AMBER, name, why, "Add workers if this does not fall.", "TimersRequestsUnread")
    free, disk = figure["disk_free_bytes"], figure["disk_size_bytes"]
    if free < disk * DISK_FREE:
        why = f"Only {size(free)} of {size(disk)} are free on its disk."
        yield Finding(AMBER, name, why, "Add disk space, or workers.", "TimersDiskFilling")
    if (skew_s := abs(figure["clock_skew_s"])) > SKEW_S:
        why = f"Its clock and the brokers' differ by {span(skew_s)}."
        way_out = "Timers follow the brokers' clock. Correct the wrong one."
        yield Finding(AMBER, name, why, way_out, "TimersClockSkew")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
