"""The newest figures of the workers. They are read while a page shows them, and at no other time; what was before, the
workers have kept themselves.

All users of a console see the same figures, so the workers are asked once for all of them. :func:`findings` says in
words what is wrong, and what to do about it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from timers.console.figures import (
    NOT_KNOWN,
    SILENT_AFTER_S,
    FiringState,
    Point,
    Ways,
    added,
    is_silent,
    judged,
    parsed,
    points,
    quantile,
    silence,
)
from timers.console.problems import Problem
from timers.process.counted import count, size, span

logger = logging.getLogger(__name__)

FIGURES_REUSED_S = 1.0
"""Younger figures are not read again."""

FIGURES_CURRENT_S = FIGURES_REUSED_S + SILENT_AFTER_S
"""Older figures are not those of now."""

SPAN_S = 60.0
"""Rates and quantiles are those of the last minute."""

KEPT_S = 1800.0
"""Older figures of workers are not shown. The workers have those of a day."""

STEP_S, BIN_S = 5.0, 15.0
"""Workers count in steps of the first length; the line of time has points of the second, since their steps differ."""

WAITED = "waited"
"""The way of timers that waited for their second. Others are late because of their sender, or of their target."""


Ask: TypeAlias = Callable[..., Awaitable[Any]]
"""Asks a route of the API, by its name and with its parameters."""

Worker: TypeAlias = dict[str, Any]
"""A worker as ``/v1/workers`` shows it. If it does not answer, it has what it said last, at ``seen_at_s``."""


class Figures(NamedTuple):
    """What the workers said at one time.

    Attributes:
        ways: the lags since the workers' starts.
        problem: why they could not be asked since then; without an earlier answer there are no workers.
        is_old: whether the answer of a question that was asked later does not come.
        last_known_s: when it was last known which timers fire; None: never.
        lost: workers that left the group in the last half hour, and what they said last.
        taken: who has the workers' group, if it is another program.
    """

    at_s: float
    workers: list[Worker]
    ways: Ways
    problem: Problem | None = None
    is_old: bool = False
    last_known_s: float | None = None
    lost: Sequence[Worker] = ()
    taken: str = ""

    @property
    def state(self) -> FiringState:
        """Whether all timers fired at that time."""
        return judged(self.workers, self.taken)

    @property
    def is_known(self) -> bool:
        """Whether it is known which timers fire."""
        return self.problem is None and not self.is_old and self.state.timers != NOT_KNOWN

    @property
    def known_at_s(self) -> float:
        """When that was known last."""
        return self.at_s if self.is_known or self.last_known_s is None else self.last_known_s

    @property
    def dead_lettered(self) -> int | None:
        """Dead letters since the starts of the workers, as each said last; None if none has answered."""
        return self.total("dead_lettered")

    @property
    def pending(self) -> int | None:
        """Timers that wait, as each worker said last; None if none has answered."""
        return self.total("pending")

    def total(self, figure: str, added: Callable[[Iterable[int]], int] = sum) -> int | None:
        """A figure of all workers, as each said last; None if none has said it."""
        counts = [int(worker[figure]) for worker in self.workers if worker.get(figure) is not None]
        return added(counts) if counts else None

    def is_part(self, figure: str) -> bool:
        """Whether a worker has not said a figure."""
        return any(worker.get(figure) is None for worker in self.workers)


def lag_s(ways: Ways, share: float) -> float | None:
    """The lag below which this share of the punctual timers is; None: there are none."""
    return quantile(ways.get(WAITED, Counter()), share)


class Recent(NamedTuple):
    """Firings of a stretch of time.

    Attributes:
        at_s: its end.
        seconds: its length.
        per_s: callbacks a second.
        ways: the lags.
    """

    at_s: float
    seconds: float
    per_s: float
    ways: Ways

    @classmethod
    def of(cls, steps: Iterable[tuple[str, Point]], at_s: float) -> Recent:
        """What all workers fired in steps; the first of each pair is the worker. Their steps may end at other times."""
        fired, seconds = Counter[str](), Counter[str]()
        ways = []
        for worker, step in steps:
            fired[worker] += step.fired
            seconds[worker] += round(step.seconds)
            ways.append(step.ways)
        per_s = sum(fired[worker] / length for worker, length in seconds.items() if length)
        return cls(at_s, max(seconds.values(), default=0), per_s, added(ways))


class Board:
    """Keeps the newest figures, those of the last half hour, and the last ones of a worker that does not answer.

    Attributes:
        coming: user -> when the next timers were read for him, and what the API said.
        queue_letters: user -> when dead letters of queues were counted for him, and how many there are, as a text.
        counting: user -> what counts them for him now.
    """

    def __init__(self) -> None:
        self.coming: dict[str, tuple[float, dict[str, Any]]] = {}
        self.queue_letters: dict[str, tuple[float, str | None]] = {}
        self.counting: dict[str, asyncio.Task[None]] = {}
        self._newest: Figures | None = None
        self._reading: asyncio.Task[None] | None = None
        self._asked_at_s = float("-inf")
        self._last_known_s: float | None = None
        self._seen: dict[str, Worker] = {}
        self._steps: dict[str, dict[int, Point]] = {}
        self._past: asyncio.Task[None] | None = None
        self._past_at_s = float("-inf")
        self._read_until: dict[str, int] = {}

    async def look(
        self, ask: Ask, clock: Callable[[], float], wait_s: float, good_s: float = FIGURES_REUSED_S
    ) -> Figures | None:
        """The newest figures; None if there are none yet. They are read in the background if they are old.

        Args:
            clock: returns epoch seconds.
            wait_s: how long the caller waits for new figures.
            good_s: the age up to which it does not wait.
        """
        if self._newest is None or clock() - self._newest.at_s > FIGURES_REUSED_S:
            if self._reading is None or self._reading.done():
                self._asked_at_s = clock()
                self._reading = asyncio.create_task(self._read(ask, clock))
            newest = self._newest
            if newest is None or newest.problem is not None or clock() - newest.at_s > good_s:
                await asyncio.wait([self._reading], timeout=wait_s)
        newest = self._newest
        if newest is None or newest.problem is not None:
            return newest
        if clock() - newest.at_s < FIGURES_CURRENT_S:
            return newest
        # No page was open for a while, and the first answer is on its way; or it does not come.
        return newest._replace(is_old=True) if clock() - self._asked_at_s >= SILENT_AFTER_S else None

    async def _read(self, ask: Ask, clock: Callable[[], float]) -> None:
        try:
            said = await ask("workers")
            self._keep(said["workers"], said["taken"], clock())
        except Exception as error:
            self._newest = (self._newest or Figures(clock(), [], {}))._replace(problem=_problem(error))
            return
        if (self._past is None or self._past.done()) and clock() - self._past_at_s >= STEP_S:
            self._past_at_s = clock()
            self._past = asyncio.create_task(self._read_past(ask, clock()))

    def _keep(self, workers: list[Worker], taken: str, now_s: float) -> None:
        answered = {worker["id"]: worker for worker in workers if worker["ready"] is not None}
        here = {worker["id"] for worker in workers}
        self._seen |= {id: {**worker, "seen_at_s": now_s} for id, worker in answered.items()}
        self._seen = {id: last for id, last in self._seen.items() if id in here or now_s - last["seen_at_s"] < KEPT_S}
        # What a worker said last stays, also that it does not answer now.
        shown = [{**self._seen.get(worker["id"], {}), **worker} for worker in workers]
        lost = [last for id, last in self._seen.items() if id not in here]
        ways = added(parsed(worker.get("lags", {})) for worker in shown)
        newest = Figures(now_s, shown, ways, lost=lost, taken=taken)
        if newest.state.timers != NOT_KNOWN:
            self._last_known_s = now_s
        self._newest = newest._replace(last_known_s=self._last_known_s)

    async def _read_past(self, ask: Ask, now_s: float) -> None:
        """Read the steps that are new, and of a worker that was not read the last time all of the last half hour."""
        oldest_s = int(now_s - KEPT_S)
        try:
            said = await ask("figures", since=max(oldest_s, min(self._read_until.values(), default=0)))
        except Exception as error:
            logger.info("the figures of the last minutes cannot be read: %s", _problem(error))
            return
        for worker in said["workers"]:
            known = self._steps.setdefault(worker["id"], {})
            for step in points(worker):
                if step.seconds > STEP_S:  # after a restart, in place of the short steps of this time
                    for at_s in [each for each in known if step.at_s - step.seconds < each <= step.at_s]:
                        del known[at_s]
                if step.at_s <= now_s + SPAN_S:  # a clock may have been ahead
                    known[step.at_s] = step
        kept = {id: {at_s: each for at_s, each in of.items() if at_s > oldest_s} for id, of in self._steps.items()}
        self._steps = {id: of for id, of in kept.items() if of}
        until = {worker["id"]: max(self._steps.get(worker["id"], [oldest_s])) for worker in said["workers"]}
        is_whole = not self._read_until or until.keys() <= self._read_until.keys()
        self._read_until = until if is_whole else {}  # the next question asks for what a new one counted before

    def _all(self) -> list[tuple[str, Point]]:
        return [(id, step) for id, of in self._steps.items() for step in of.values()]

    def recent(self) -> Recent | None:
        """The last minute of which something is known; None without figures."""
        steps = self._all()
        if not steps:
            return None
        until_s = max(step.at_s for _, step in steps)
        return Recent.of([each for each in steps if each[1].at_s > until_s - SPAN_S], until_s)

    def new_letters(self) -> int:
        """Dead letters of the last half hour."""
        return sum(step.dead_lettered for _, step in self._all())

    def line(self) -> list[Recent]:
        """The last half hour in stretches of :data:`BIN_S`."""
        bins: dict[int, list[tuple[str, Point]]] = {}
        for id, step in self._all():
            bins.setdefault(int(step.at_s // BIN_S), []).append((id, step))
        return [Recent.of(steps, (number + 1) * BIN_S) for number, steps in sorted(bins.items())]


def _problem(error: Exception) -> Problem:
    if isinstance(error, Problem):
        return error
    logger.error("the workers' figures cannot be read", exc_info=error)
    return Problem("failed", "the workers' figures cannot be read: see the log of the console")


RED, UNKNOWN, AMBER, GREEN = LEVELS = "red", "unknown", "amber", "green"

DIFFERS = "TimersTargetsDiffer"
LOSSY = "TimersConfigLosesTimers"
"""The page of a finding about timers that fire, and are lost if a worker has to read their log again."""
WAITING, ZONELESS = "TimersPartitionsWaiting", "TimersZoneUnknown"
"""The pages of findings about partitions whose timers wait, and of which some timers wait."""

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
        why = str(figures.problem or "They do not say which workers there are.")
        if figures.problem is not None and figures.problem.code != "brokers-unreachable":
            return [Finding(UNKNOWN, "console", why, page="TimersNotReady")]
        return [Finding(UNKNOWN, "brokers", why, way_out, "TimersNoTick")]
    if figures.taken:  # it hides the workers and their addresses, so what is found of them would be wrong
        return [Finding(UNKNOWN, "group", _sentence(figures.taken), "Restart no worker.", "TimersGroupTaken")]
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
        way_out = "Fix the cause, then retry them."
        found.append(Finding(AMBER, "dead letters", why, way_out, "TimersDeadLetters", "dead-letters"))
    if paused := max((worker.get("paused_targets") or 0 for worker in figures.workers), default=0):
        topics = f"{paused:.0f} callback topics are" if paused > 1 else "A callback topic is"
        found.append(
            Finding(AMBER, "paused topics", f"{topics} paused: their timers wait.", "", "TimersPauseOpen", "targets")
        )
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
    pages = {finding.page for finding in found if finding.level == RED}
    if pages == {DIFFERS}:
        return "timers fire, and not all is held as it was asked for"
    if pages <= {LOSSY, DIFFERS}:
        return "timers fire, and may be lost"
    return "some timers do not fire"


def _of_worker(worker: Worker, silent: str) -> Iterator[Finding]:
    """What is wrong with a worker; ``silent``: the level if it cannot be asked."""
    name = str(worker["id"])
    if worker["ready"] is None:
        way_out = (
            "Look at its process and its log. If it runs, set TIMERS_CONSOLE_WORKERS to the network of the workers."
        )
        why = f"The console cannot ask this worker: {worker['why']}."
        yield Finding(silent, name, why, way_out, "TimersNotReady")
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
        page = DIFFERS if where[0] in (worker.get("targets") or ()) else LOSSY
        yield Finding(RED, f"{where[0]}{more}", _sentence(why), "", page)
    for partition, why in red.items():
        is_zone = partition in (worker.get("zoneless") or ())
        way_out = "Install the newest tzdata." if is_zone else "Its timers wait until this is fixed."
        yield Finding(RED, partition, str(why), way_out, ZONELESS if is_zone else WAITING)
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
        why = (
            "The brokers' clock shows a time before a second that has already fired. New requests wait until it has "
            "caught up."
        )
        yield Finding(RED, name, why, "Find the broker whose clock went back.", "TimersBrokerClockBack")
    if held := figure["brokers_held"]:
        clocks = "The clock of 1 broker is" if held == 1 else f"The clocks of {count(held)} brokers are"
        why = f"{clocks} too far ahead, and no second clock agrees."
        way_out = "Their ticks do not count. Correct the clock of the broker that the worker's log names."
        yield Finding(AMBER, name, why, way_out, "TimersClockHeld")
    if recovering := figure["recovering"]:
        left = f"{count(figure['recovery_remaining'])} records are left."
        reads = "1 partition is reading its" if recovering == 1 else f"{count(recovering)} partitions are reading their"
        why = f"{reads} log again. Timers wait until this has ended, if no other worker fires them. {left}"
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
