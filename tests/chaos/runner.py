"""One round: start, storm, faults, settle, check."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from bench.harness.checker import Read, read
from bench.harness.cluster import Cluster
from bench.harness.console import Console
from bench.harness.process import Process
from bench.harness.publisher import Publication, argument, dues
from bench.harness.subject import ROOT, environment, python
from tests.chaos import report
from tests.chaos.checker import CALM_S, InjectedFault, Verdict, verdict
from tests.chaos.faults import COURSES, Course
from tests.chaos.plan import ADD, GATHER_S, Fault, Plan
from tests.chaos.world import World
from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.broker import EmbeddedBroker

PARTITIONS = 6
PAYLOAD_BYTES = 100
HEAD_START_S = 3
LOOK_AHEAD_S = 1.0
"""The victim is chosen this long before it is was injected."""
PATIENCE_S = 240.0
"""For faults and publishing beyond the time that the plan gives them; the machine may be busy."""


def _put_off(planned: list[Fault]) -> list[Fault]:
    """The first by a burst, and the others so far that each has a burst of its own: no two have one victim at once."""
    first_s = planned[0].at_s + GATHER_S
    return [replace(fault, at_s=max(fault.at_s, first_s + i * GATHER_S)) for i, fault in enumerate(planned)]


@dataclass(frozen=True)
class Outcome:
    """What became of a round."""

    seed: int
    verdict: Verdict
    failures: list[str]

    @property
    def passed(self) -> bool:
        """Every promise was kept, whether the round counts or not."""
        return self.verdict.kept and not self.failures


class Round:
    """One round of chaos.

    Args:
        broker: running; it will be killed and started again.
        plan: what goes wrong.
        timers: how many.
        directory: for the workers' logs and data.
    """

    def __init__(self, broker: EmbeddedBroker, plan: Plan, timers: int, directory: Path, console: Console) -> None:
        address = broker.start()
        self._plan = plan
        self._timers = timers
        self._directory = directory
        self._console = console
        self._system = System(address, directory, TIMERS_PARTITIONS=str(PARTITIONS))
        self._world = World(broker, self._system, Cluster(address), lambda text: console.line(f"    {text}"))
        self._strikes: list[InjectedFault] = []
        self._first_s = 0

    def run(self) -> Outcome:
        """Do it. Everything that was started is ended again."""
        try:
            return self._run()
        finally:
            self._system.close()

    def _run(self) -> Outcome:
        target = self._system.target(PARTITIONS)
        with self._console.doing(f"starting {len(self._plan.clocks_s)} workers"):
            for clock_s in self._plan.clocks_s:
                self._world.add(clock_s)
            for member in self._world.members:
                member.worker.ready()
        self._first_s = int(time.time()) + HEAD_START_S
        publication = Publication(
            brokers=self._system.address,
            topic=self._system.request_topic,
            target=target,
            timers=self._timers,
            first_due_s=self._first_s,
            spread_s=1,
            payload_bytes=PAYLOAD_BYTES,
            partitions=PARTITIONS,
            partitioner="spread",
            pace_s=self._plan.storm_s,
            delays_s=self._plan.delays_s,
            gather_s=GATHER_S,
        )
        self._storm(publication)
        found = self._settle(publication)
        judged = verdict(found, dues(publication), self._strikes)
        outcome = Outcome(self._plan.seed, judged, self._world.failures)
        for line in report.lines(self._plan.seed, judged, self._strikes, self._world.failures, self._first_s):
            self._console.line(line)
        self._system.delete_topics()
        return outcome

    # ---- the storm ----------------------------------------------------------------------------------------------

    def _storm(self, publication: Publication) -> None:
        """Publish, and let the plan happen, until both are through."""
        command = python("bench.harness.publisher", argument(publication))
        publisher = Process("publisher", command, environment(), ROOT, self._directory / "publisher.log")
        planned = list(self._plan.faults)
        courses: list[tuple[float, Course, Fault]] = []
        give_up = self._first_s + self._plan.storm_s + PATIENCE_S
        try:
            with self._console.doing("storm", self._progress):
                while planned or courses or publisher.running:
                    if time.time() > give_up:
                        self._world.failures.append(f"faults or publishing did not end within {PATIENCE_S:.0f} s")
                        break
                    self._world.watch()
                    if planned and time.time() > self._moment(planned[0]) - LOOK_AHEAD_S:
                        fault = planned.pop(0)
                        course = self._aim(fault)
                        if course is None:
                            self._console.line(
                                f"    {fault.at_s:3} s: {fault.kind} waits: fewer than 2 workers have partitions"
                            )
                            planned = _put_off([fault, *planned])
                        else:
                            courses.append((self._moment(fault), course, fault))
                    courses = [entry for old in courses for entry in self._advance(*old)]
                    next_s = min((at for at, _, _ in courses), default=time.time() + 0.05)
                    time.sleep(max(0.0, min(0.05, next_s - time.time())))
            if not publisher.running:
                code = publisher.wait(DEADLINE_S)
                if code != 0:
                    self._world.failures.append(f"publishing failed: {publisher.tail()}")
        finally:
            publisher.stop(1)
        late_s = time.time() - self._first_s - self._plan.storm_s
        self._console.line(f"    storm over, {late_s:.1f} s later than planned")

    def _moment(self, fault: Fault) -> float:
        return self._first_s + fault.at_s + fault.phase_ms / 1000

    def _aim(self, fault: Fault) -> Course | None:
        """Choose whom it will hit; None if there is nobody at present who holds a partition."""
        held = self._world.held()
        eligible = [
            member
            for member in self._world.members
            if member.wanted and not member.paused and member.worker.running and member.name in held
        ]
        if len(eligible) < 2:
            return None
        victim = eligible[fault.victim % len(eligible)]
        who = "" if fault.kind == ADD else f" ({victim.name} has request partitions {held[victim.name]})"
        self._console.line(f"    {fault.at_s:3} s: {fault.kind}{who}")
        return COURSES[fault.kind](self._world, fault, victim, held)

    def _advance(self, at_s: float, course: Course, fault: Fault) -> list[tuple[float, Course, Fault]]:
        if time.time() < at_s:
            return [(at_s, course, fault)]
        try:
            return [(time.time() + next(course), course, fault)]
        except StopIteration as over:
            self._strikes.append(over.value)
            self._console.line(f"         {fault.kind} is over")
            return []

    def _progress(self) -> str:
        at_s = time.time() - self._first_s
        running = sum(member.worker.running for member in self._world.members)
        return f"{at_s:.0f} s after the first due second, {running} workers run"

    # ---- afterwards ---------------------------------------------------------------------------------------------

    def _settle(self, publication: Publication) -> Read:
        """Wait until everything is out, end the workers, and read what there is."""
        cluster, due_s = self._world.cluster, dues(publication)
        last_ms = max((injected.over_ms for injected in self._strikes), default=0)
        give_up = max(int(due_s.max()), last_ms / 1000) + 3 * CALM_S
        try:
            with self._console.doing("waiting for everything to fire"):
                wait_until(lambda: time.time() > due_s.max(), "the last due second", 2 * DEADLINE_S)
                self._system.wait_past(int(due_s.max()))
        except AssertionError as error:
            self._world.failures.append(f"what is due does not fire: {error}")
        while True:
            ends = cluster.ends(publication.target)
            with self._console.doing("reading what was fired"):
                found = read(cluster, publication, sources=True)
            missing = verdict(found, due_s, []).fired.lost
            if not missing or time.time() > give_up:
                break
            self._console.line(f"    {missing:,} are still missing")
        with self._console.doing("stopping the workers"):
            self._stop()
            wait_until(lambda: self._settled(publication.target), "no transaction is open on the target")
        if cluster.ends(publication.target) != ends:
            found = read(cluster, publication, sources=True)
        letters = cluster.end(self._system.settings.dead_letter_topic)
        if letters:
            self._world.failures.append(f"{letters} records in {self._system.settings.dead_letter_topic}")
        return found

    def _settled(self, topic: str) -> bool:
        return self._world.cluster.ends(topic, committed=True) == self._world.cluster.ends(topic)

    def _stop(self) -> None:
        self._world.watch()
        wanted = [member for member in self._world.members if member.wanted]
        for member in wanted:
            member.wanted = False
            try:
                member.worker.stop()
            except AssertionError as error:
                self._world.failures.append(f"{member.name}: {error}")
