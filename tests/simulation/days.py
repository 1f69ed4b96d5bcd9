"""Long runs of a timer system: simulated days, in which idle time is skipped.

A run is a list of actions: each day has so many of them, by chance, with idle times between. Each action has random
sources of its own, so a run without some of its actions is a run, too. This is how a failing run is shrunk
(:mod:`tests.simulation.shrinking`).

A night ends each day: faults stop until all that is due has fired, and all is checked. Then the checkers forget what is
settled, and the next day begins on the same logs, stores and workers. After :data:`CLUSTER_DAYS` another cluster
begins, with other settings: so a year takes no more memory than a month.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from random import Random
from typing import Any, NamedTuple
from zlib import crc32

from tests.simulation.kit.log import SimRecord
from tests.simulation.kit.worker import SimWorker
from tests.simulation.life_mutations import SlowWorker
from tests.simulation.loss_simulator import LossSimulator
from tests.simulation.machine_mutations import UpgradedWorker
from tests.simulation.queue_simulator import QueueSimulator
from tests.simulation.simulator import SimulationFailed, Simulator

DAY_S = 86_400
CLUSTER_DAYS = 30
"""So long a cluster lives: its settings, and what its brokers refuse, are chosen once."""
PAUSING = 0.25
"""Part of the clusters in which operators pause targets."""
LOSSES_EVERY_DAYS = 3
HISTORY = 200
"""So many lines of the history are kept, or twice as many."""
FAR = (600, 3600, 6 * 3600, DAY_S, 3 * DAY_S, 10 * DAY_S)
"""Far timers are due after so many seconds."""
IDLE_S = DAY_S - 7200
"""Idle time of a day. The rest is for what is done, and for the night."""
ACTIONS_A_BUSY_TIME = 25
"""So many actions come without idle time between, on average."""
SET_BACK_S = 3600
"""By so much, at most, a clock is set back."""
TELLS_EVERY_S = 5
"""In real time."""

FAULTS: dict[str, Collection[str]] = {
    "crash": ("crash",),
    "commit": (),
    "failure": (),
    "takeover": (
        *("rebalance", "take_over", "flap", "open_late", "read_ahead"),
        *("let_go", "open_slowly", "end_pauses", "change_log"),
    ),
    "log-end": ("lose_progress", "lose_log_ends"),
    "clock": ("step_clock", "jump_clock", "leap", "leap_in_steps", "pause_oscillator", "tick_again", "repair"),
    "upgrade": ("change_version", "raise_level", "raise_all"),
    "fetch": ("lose_fetch", "read_again"),
    "compaction": ("compact_requests",),
    "damage": ("damage", "read_damaged"),
    "target": ("change_target", "fall_silent"),
    "hold": ("pause", "resume", "read_commands", "raise_to_holds", "pause_in_burst"),
}
"""Kind of fault -> the actions that it adds. A crash and a commit may also happen in the middle of a step: ``arm``."""


class Action(NamedTuple):
    """One action of a run. ``seconds`` is of an idle time."""

    day: int
    number: int
    name: str
    seconds: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """What names it in a run."""
        return self.day, self.number


class DaysCluster(Simulator):
    """A cluster that lives for some days.

    Args:
        seed: of this cluster.
        faults: kinds of faults.
    """

    has_long_logs = True

    def __init__(self, seed: int, faults: Collection[str], worker: type[SimWorker] | None) -> None:
        if worker is None:
            others = SlowWorker if "takeover" in faults else SimWorker
            worker = UpgradedWorker if "upgrade" in faults and Random(seed).random() < 0.5 else others
        self._pausing = PAUSING if "hold" in faults else 0.0
        super().__init__(seed, worker=worker)
        excluded = {name for kind, names in FAULTS.items() if kind not in faults for name in names}
        self._weighted = [each for each in self._weighted if name_of(each[0]) not in excluded]
        crashes, commits = "crash" in faults, "commit" in faults
        self._armable = [each for each in self._armable if (crashes if each.startswith("crash") else commits)]
        if not self._armable:
            self._weighted = [each for each in self._weighted if name_of(each[0]) != "arm"]
        self._machines_fail = self._machines_fail and "failure" in faults
        self._workload.live_long(FAR)
        self._day = 0
        self._loses_log_ends = "log-end" in faults
        self.counted: Counter[str] = Counter()
        self._by_name: dict[str, Callable[[], str]] = {name_of(each): each for each, _ in self._weighted}

    def plan(self, day: int, actions: int) -> Iterator[Action]:
        """The actions of a day."""
        random = Random(f"{self.seed} day {day}")
        weights = [weight * random.choice([0.2, 1, 1, 3, 6]) for _, weight in self._weighted]
        names = random.choices([name_of(each) for each, _ in self._weighted], weights, k=actions)
        idle = [random.expovariate(1) if random.random() < 1 / ACTIONS_A_BUSY_TIME else 0 for _ in names]
        scale_s = IDLE_S / max(sum(idle), 1)
        yield Action(day, 0, "dawn")
        for number, (name, share) in enumerate(zip(names, idle, strict=True), 1):
            yield Action(day, number, name, round(scale_s * share))
        yield Action(day, actions + 1, "receive")
        if self._loses_log_ends and day % LOSSES_EVERY_DAYS == 0:
            yield Action(day, actions + 2, "lose_log_ends")
        yield Action(day, actions + 3, "night")

    def do(self, action: Action) -> None:
        """Do one action: the same one also if others are left out of the run."""
        start = crc32(repr((self.seed, action.place)).encode())
        for number, source in enumerate(self._sources):
            source.seed(start * len(self._sources) + number)
        done = "?"
        try:
            if action.seconds:
                self._pass_idle(action.seconds)
            self._day = action.day
            call: Callable[[], str] = self._by_name.get(action.name) or getattr(self, f"_{action.name}")
            done = call()
            self.checkers.check()
        finally:
            when_s = self.clock.boot_ms // 1000
            self.history.append(f"{when_s} s {action.day}.{action.number} {action.name}: {done}")
        self.counted[action.name] += 1
        if len(self.history) > 2 * HISTORY:
            del self.history[:HISTORY]

    def end(self) -> None:
        """End the run of this cluster, with all checks."""
        self._settle()

    # ---- actions --------------------------------------------------------------------------------------------------

    def _dawn(self) -> str:
        self._take_habits()
        self._workload.renew_ids(self._day)
        self._assign_unowned()
        return f"{len(self._owner)} machines run"

    def _night(self) -> str:
        """Let all settle, forget what is settled, and sleep until the next day begins."""
        self._settle()
        self._settle_far()
        left = self._forget()
        self._pass_idle(DAY_S - self.clock.boot_ms // 1000 % DAY_S)
        return f"{left} requests are left"

    def _receive(self) -> str:
        """Let a queue have a time of its own, of the length of a short run."""
        simulator = QueueSimulator(crc32(repr(("queue", self.seed, self._day)).encode()))
        simulator.run()
        return "a queue was settled"

    def _lose_log_ends(self) -> str:
        """Let the logs of another cluster lose their ends. The checks of such runs are their own."""
        simulator = LossSimulator(crc32(repr(("losses", self.seed, self._day)).encode()))
        simulator.run()
        self.rounds += simulator.counts["rounds"]
        return f"{dict(simulator.counts)}"

    def _dated_records(self) -> Iterable[SimRecord]:
        """Not the ticks that are further ahead than :data:`SET_BACK_S`, of which some are years ahead: each night the
        clock would go on by as much. After a clock was set back, timers wait for the other ones."""
        ticks, latest_ms = self._settings.oscillator_topic, self.clock.now_ms + 1000 * SET_BACK_S
        return (each for each in self.log.committed if each.topic != ticks or each.timestamp_ms <= latest_ms)

    def _pass_idle(self, seconds: int) -> None:
        """Let time pass in which nothing comes. One tick stands for all until the next timer is due."""
        until_ms = self.clock.boot_ms + 1000 * seconds
        self._paused, pause_s = 0, 1
        while self.clock.boot_ms < until_ms:
            self._settle_once()
            self.checkers.check()
            if self._is_quiet():
                pause_s = 1
            leap_s = max(pause_s, self._next_due_s() - self.clock.now_s)
            pause_s = min(2 * pause_s, 600)
            self.clock.advance_ms(min(1000 * leap_s, until_ms - self.clock.boot_ms))
        self._settle_once()

    def _next_due_s(self) -> int:
        """The second at which the next timer is due in an open machine, or in the cold tier."""
        due = [runner.machine.oldest_due_s for worker in self.workers for runner in worker.runners.values()]
        return min([*(each for each in due if each is not None), self._cold.next_due_s(self.clock.now_s)])

    def _settle_far(self) -> None:
        """Let the checks forget the leaps of clocks, once the clocks show the latest time of the run."""
        newest_s = max(log.progress.fired_through[0] for log in self.checkers.logs.values())
        if newest_s <= self.clock.now_s:
            self.checkers.times.steps_back.clear()
            self.checkers.times.early_limit_s = 0

    def _forget(self) -> int:
        """Forget what is settled. Returns the number of requests that are left."""
        left = self.checkers.forget(self.clock.now_s)
        self._cold.forget(self.checkers.knows)
        for worker in self.workers:
            for runner in worker.runners.values():
                runner.observed = runner.observed[-1:]
        return left


def name_of(action: Callable[[], str]) -> str:
    """The name of an action in histories and in :data:`FAULTS`."""
    return action.__name__.strip("_")


class Days:
    """A run of some days.

    Args:
        seed: of the run.
        days: how many.
        actions: of each day.
        faults: kinds of faults.
        only: the actions that are done; None: all.
        tell: gets a line for each simulated day, or for each hour of a run of up to three days.
        worker: class of the workers; None: any.

    Attributes:
        counts: what happened.
        rounds: rounds of machines that were done.
        faults_done: how often each action was done.
        done: the actions that were begun.
    """

    def __init__(
        self,
        seed: int,
        days: int,
        actions: int = 200,
        faults: Collection[str] = tuple(FAULTS),
        only: Collection[tuple[int, int]] | None = None,
        tell: Callable[[str], None] = lambda line: None,
        worker: type[SimWorker] | None = None,
    ) -> None:
        self.seed, self.days, self.actions, self.faults, self.only = seed, days, actions, faults, only
        self._tell, self._worker = tell, worker
        self.counts: Counter[str] = Counter()
        self.faults_done: Counter[str] = Counter()
        self.rounds = 0
        self.done: list[tuple[int, int]] = []
        self._hours = days <= 3
        self._told: Any = (0, Counter[str](), Counter[str](), 0)
        self._told_at = time.monotonic()

    def run(self) -> None:
        """Do all actions, and check.

        Raises:
            SimulationFailed: a promise was broken.
        """
        for first in range(0, self.days, CLUSTER_DAYS):
            days = range(first, min(first + CLUSTER_DAYS, self.days))
            if self.only is None or any(day in days for day, _ in self.only):
                self._run_cluster(crc32(repr((self.seed, first)).encode()), days)

    def _run_cluster(self, seed: int, days: range) -> None:
        cluster = DaysCluster(seed, self.faults, self._worker)
        self._told = (days[0] * 24, Counter(), Counter(), 0)
        try:
            for day in days:
                for action in cluster.plan(day, self.actions):
                    if self.only is None or action.place in self.only:
                        self.done.append(action.place)
                        cluster.do(action)
                        self._tell_time(cluster, days[0], is_night=action.name == "night")
            cluster.end()
        except Exception as error:
            raise SimulationFailed(self.seed, cluster.history, error, self.options(self.only)) from error
        finally:
            self.rounds += cluster.rounds
            self.counts += cluster.checkers.counts + cluster.checkers.holds.counts
            self.faults_done += cluster.counted

    def _tell_time(self, cluster: DaysCluster, first_day: int, *, is_night: bool) -> None:
        hour = first_day * 24 + cluster.clock.boot_ms // 3_600_000
        is_late = time.monotonic() > self._told_at + TELLS_EVERY_S
        if not (is_late or is_night or (self._hours and hour > self._told[0])):
            return
        from_hour, counts, counted, rounds = self._told
        self._told = hour, cluster.checkers.counts.copy(), cluster.counted.copy(), cluster.rounds
        self._told_at = time.monotonic()
        new, done = cluster.checkers.counts - counts, cluster.counted - counted
        what = ", ".join(f"{new[name]} {name}" for name in ("accepted", "fired", "dead-lettered", "forwarded"))
        faults = {name for names in FAULTS.values() for name in names} | {"arm"}
        did = ", ".join(f"{n} {name}" for name, n in sorted(done.items()) if name in faults) or "none"
        self._tell(
            f"day {from_hour // 24} {from_hour % 24:02}:00 to day {hour // 24} {hour % 24:02}:00: {what}; "
            f"{cluster.rounds - rounds} rounds; faults: {did}"
        )

    def options(self, only: Collection[tuple[int, int]] | None) -> str:
        """The options of a command that repeats a run of some of these actions."""
        text = f"--seed {self.seed} --days {self.days}"
        if self.actions != 200:
            text += f" --events {self.actions}"
        if set(self.faults) != set(FAULTS):
            text += f" --faults {','.join(self.faults)}"
        return text if only is None else f"{text} --only {as_text(only)}"


def as_text(only: Collection[tuple[int, int]]) -> str:
    """Names actions: ``day.number``, or ``day.first-last`` for those of one day that follow each other."""
    spans: list[list[int]] = []
    for day, number in sorted(only):
        if spans and spans[-1][0] == day and spans[-1][2] == number - 1:
            spans[-1][2] = number
        else:
            spans.append([day, number, number])
    return ",".join(f"{day}.{first}" if first == last else f"{day}.{first}-{last}" for day, first, last in spans)


def from_text(text: str) -> set[tuple[int, int]]:
    """The actions that :func:`as_text` names."""
    only = set()
    for span in text.split(","):
        day, _, numbers = span.partition(".")
        first, _, last = numbers.partition("-")
        only |= {(int(day), number) for number in range(int(first), int(last or first) + 1)}
    return only


def quiet() -> None:
    """Print no log lines of the simulated workers: there are many, and they say what was injected."""
    logging.disable(logging.CRITICAL)
