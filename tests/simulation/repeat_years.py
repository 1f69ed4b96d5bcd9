"""Long simulated runs with timers that repeat: thousands of occurrences each, over hours or years.

``python -m tests.simulation.repeat_years --occurrences 1000000`` makes as many runs as it takes: in about an hour of
one core. Idle time is skipped: time leaps to the next due second. In between, all happens that happens in other runs,
and more: workers restore snapshots, and get other zone data. What is sent and missed is compared with the seconds of
the rules at each callback; stores and outcomes are checked after some hundred records.
"""

import argparse
import re
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from random import Random

from tests.simulation import days
from tests.simulation.checkers import Checkers
from tests.simulation.kit.worker import SimRunner, SimWorker
from tests.simulation.repeat_rules import NO_ZONES, ZONES_CHANGED, zone_data
from tests.simulation.repeat_simulator import (
    LINES,
    ZONES,
    RepeatCheckers,
    RepeatSimulator,
    RepeatWorkload,
)
from tests.simulation.simulator import SimulationFailed
from tests.simulation.snapshot_simulator import snapshot_workers, take_steps
from tests.simulation.snapshots import SnapshotWorker
from timers.core.timer import TopicPartition
from timers.wire.topics import ID_REQUEST
from timers.wire.zones import zone_names

CHECKED_RECORDS = 400
"""After so many records in all topics, everything is checked."""

LEAPS = (5, 40, 150)
"""So many due seconds follow each other without another action."""

OTHERS = 0.1
"""So often machines without timers that repeat do a step."""

STEPS_A_SECOND = 12
"""A machine does so many steps at most before time goes on."""

SHORT_GAP_S = 15
"""Longest leap while a target is paused: the oracle of holds knows only short gaps between ticks."""

MORE_LINES = ("0 9 * * *", "0 9 * * 1-5", "*/15 3 * * *", "0 0 1 * *", "0 12 13 * 5", "*/2 * * * *", "59 23 28-31 * *")
MORE_ZONES = ("America/Vancouver", "Asia/Beirut", "Asia/Kathmandu", "Pacific/Apia", "America/St_Johns")


@cache
def _other_zones() -> Sequence[str]:
    """A hundred other zones, the same ones in each run."""
    return Random(0).sample(sorted(name for name in zone_names() if "/" in name), 100)


class YearsWorkload(RepeatWorkload):
    """Sets timers that are due each few seconds, or seldom.

    Attributes:
        is_slow: seldom.
    """

    is_slow = False

    def _rule(self) -> str:
        random = self.rules
        if not self.is_slow or random.random() < 0.1:
            rule = super()._rule()
            # What is the last occurrence by some zone data need not be it by other data.
            return re.sub("until=[0-9]+(; )?", "", rule).removesuffix("; ") if "zone=" in rule else rule
        zone = random.choice([*ZONES, *MORE_ZONES, random.choice(_other_zones())])
        parts = [f"cron={random.choice([*LINES, *MORE_LINES])}", f"zone={zone}"]
        if random.random() < 0.4:
            parts = [f"every={random.choice([600, 3600, 86_400])}", f"from={random.randrange(4) * 200}"]
        elif zone not in ZONES_CHANGED and random.random() < 0.2:
            parts.append(f"until={self._log.clock.now_s + random.randrange(90 * 86_400)}")
        return "; ".join([*parts, f"catch-up={random.choice(['latest', 'all', 'none'])}"])


class YearsCheckers(RepeatCheckers):
    """Looks at what is sent and missed at once, and at the rest after some hundred records."""

    _checked_seq = 0

    def _check_state(self, runner: SimRunner | None) -> None:
        if self._log.seq - self._checked_seq >= CHECKED_RECORDS:
            self.check_whole(runner)
            return
        for machine, log in self.logs.items():
            if log.changed:
                self._check_witness(machine, log)
                self.holds.forget_sent(machine)
        if runner is not None and runner.machine.progress.holds:
            self.holds.check(runner)

    def check_whole(self, runner: SimRunner | None = None) -> None:
        """Check everything."""
        self._checked_seq = self._log.seq
        super()._check_state(runner)

    def check_covered(self, until_s: int) -> None:
        self.check_whole()
        super().check_covered(until_s)

    def check_end(self, until_s: int) -> None:
        self.check_whole()
        super().check_end(until_s)


class YearsWorker(SnapshotWorker):
    """A worker of such runs."""

    conditions = True


class RepeatYears(RepeatSimulator):
    """A long random run.

    Args:
        steps: number of actions; one of four lets time go on for many occurrences.
    """

    workload = YearsWorkload
    pausing_part = 0.15
    has_long_logs = True

    def __init__(self, seed: int, steps: int = 120, worker: type[SimWorker] = YearsWorker) -> None:
        super().__init__(seed, worker)
        self._steps = steps
        self._years_random = random = Random(f"{seed} years")
        self._sources.append(random)
        self.topics = snapshot_workers(self.workers, seed)
        self.topics.keep_s = random.choice([0, 3, 3600])
        assert isinstance(self._workload, YearsWorkload)
        self._workload.is_slow = random.random() < 0.5
        self._workload._ids += [b"more-%d" % number for number in range(random.choice([0, 8, 20]))]
        self._zone_data = ExitStack()
        self._weighted += [(self._snapshot, 8), (self._change_zone_data, random.choice([0, 0, 2]))]
        self._take_habits()
        self._actions.append(self._go_on)
        self._weights.append(sum(self._weights) / 3)

    def run(self) -> None:
        with self._zone_data:
            super().run()

    def _new_checkers(self) -> Checkers:
        return YearsCheckers(self.log, self._settings, self.machines, has_conditions=self._has_conditions)

    def _snapshot(self) -> str:
        """Take some steps of a snapshot; sometimes a worker loses its disk, and restores the last one."""
        random = self._years_random
        done = take_steps(self.workers, random)
        if random.random() < 0.2 and not self._is_doubtful():
            worker = random.choice(self.workers)
            worker.crash()
            worker.disk.wipe()
            worker.start()
            self._assign_unowned()
            done += f", and {worker.name} lost its disk"
        return done

    def _change_zone_data(self) -> str:
        """All workers start again with other zone data, or with the former."""
        assert isinstance(self.checkers, RepeatCheckers)
        for worker in self.workers:
            worker.crash()
        self.checkers.check()
        changes = self.checkers.zones
        zones = NO_ZONES if changes and changes[-1][1] else ZONES_CHANGED
        self.log.seq += 1
        changes.append((self.log.seq, zones))
        self._zone_data.close()
        self._zone_data.enter_context(zone_data(zones))
        for worker in self.workers:
            worker.start()
        self._assign_unowned()
        return f"{dict(zones)}"

    def _go_on(self) -> str:
        """Let time go on, from one due second to the next. Each second, a worker may crash."""
        random = self._years_random
        number, crashes = random.choice(LEAPS), random.choice([0, 0, 0.03, 0.2])
        if random.random() < 0.7:
            for worker in self.workers:
                if not worker.alive:
                    worker.start()
            self._assign_unowned()
        before = self.checkers.counts["occurrences"]
        for each in range(number):
            if random.random() < (0.5 if each < 5 else 0.05):
                self._workload.set_by_id() if random.random() < 0.9 else self._workload.cancel()
            self._leap_on()
            if random.random() < crashes:
                self._random_worker().faults.crash_after(random.randint(0, 12))
            for name, owner in list(self._owner.items()):
                if name[0] == ID_REQUEST or random.random() < OTHERS:
                    self._work_until_idle(owner, name)
            if random.random() < crashes:
                self._restart()
        return f"{number} seconds, {self.checkers.counts['occurrences'] - before} occurrences"

    def _leap_on(self) -> None:
        """Let time go on to the next due second."""
        now_ms, runners = self.clock.now_ms, [each for worker in self.workers for each in worker.runners.values()]
        due = [each.machine.oldest_due_s for each in runners if each.name[0] == ID_REQUEST]
        leap_ms = max(1000, min((each for each in due if each is not None), default=0) * 1000 - now_ms)
        if self._pauses is not None:
            leap_ms = min(leap_ms, SHORT_GAP_S * 1000)
        self.clock.advance_ms(leap_ms + self._years_random.choice([0, 0, 20, 300]))
        self._tick()

    def _has_settled(self, runner: SimRunner) -> bool:
        # In a long run the retries of a topic that fails are thousands: at three steps a second they are not all read.
        return runner.loop.idle and runner.machine.position >= self.log.last_stable(*runner.name)

    def _work_until_idle(self, worker: SimWorker, name: TopicPartition) -> None:
        for _ in range(STEPS_A_SECOND):
            if not worker.alive or name not in worker.runners:
                return
            worker.poll_ticks()
            self._deliver(worker, name)
            if (runner := worker.runners.get(name)) is None:
                return
            self._step_once(worker, runner)
            if name[0] == ID_REQUEST and runner.machine.position < self.log.last_stable(*name):
                continue
            if runner.loop.idle:
                return

    def _step_once(self, worker: SimWorker, runner: SimRunner) -> None:
        """Do a step without the checks that read the whole log again."""
        assert isinstance(self.checkers, RepeatCheckers)
        self.rounds += 1
        if self._pauses is not None:
            self._pauses.tell(worker, runner)
        self.checkers.holds.note_step(runner)
        self.checkers.note_step(runner)
        worker.step(runner.name)
        self.checkers.check(runner if worker.runners.get(runner.name) is runner else None)


def main() -> int:
    """Make runs; return 1 if one broke a promise."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.repeat_years", description=__doc__)
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="SEED", help="first seed (default 0)")
    parser.add_argument("--occurrences", type=int, default=10_000, metavar="N", help="how many in all (default 10000)")
    parser.add_argument("--most-s", type=float, default=1e9, metavar="S", help="begin no run after so many seconds")
    options = parser.parse_args()
    days.quiet()
    begun, seed, failed = time.monotonic(), options.first, []
    counts: Counter[str] = Counter()
    simulated_s = 0
    while counts["occurrences"] < options.occurrences and time.monotonic() - begun < options.most_s:
        simulator = RepeatYears(seed)
        try:
            simulator.run()
        except SimulationFailed as failure:
            failed.append(seed)
            print(f"seed {seed}: {failure.__cause__}", flush=True)
        assert isinstance(simulator.checkers, RepeatCheckers)
        counts += simulator.checkers.counts
        counts["judged"] += simulator.checkers.judged
        simulated_s += simulator.clock.boot_ms // 1000
        seed += 1
    took_s = time.monotonic() - begun
    print(", ".join(f"{number:,} {what}" for what, number in sorted(counts.items())))
    print(
        f"{seed - options.first} runs, {simulated_s / 86_400 / 365:.1f} years, {counts['occurrences']:,} occurrences "
        f"in {took_s:,.0f} s; seeds that broke a promise: {failed or 'none'}"
    )
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
