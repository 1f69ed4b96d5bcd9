"""One round: start workers, publish while faults are injected, wait until all has fired, check."""

import subprocess
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

from tests.chaos import report, split
from tests.chaos.checker import InjectedFault, Verdict, catch_up_s, verdict
from tests.chaos.faults import FAULTS, Steps
from tests.chaos.plan import ADD, BURST_EVERY_S, HOLD, STALL, Fault, Plan
from tests.chaos.repeats import BYTES_A_SECOND, Found, RepeatTraffic
from tests.chaos.state import Brokers, RoundState
from tests.harness.callbacks import read_callbacks
from tests.harness.judge import Callbacks
from tests.harness.printer import Printer
from tests.harness.process import ROOT, clean_environment, python
from tests.harness.publication import Publication, dues, start_publisher
from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S, wait_until

PARTITIONS = 6
PAYLOAD_BYTES = 100
SNAPSHOTS = 12
"""Of each partition in a round, about."""
BYTES_A_TIMER = 400
"""Request and callback on the wire, about."""
HEAD_START_S = 3
LOOK_AHEAD_S = 1.0
"""The victim is chosen this many seconds before the injection."""
MOST_FAILURES, MOST_CHARACTERS = 20, 500
"""So many broken promises of timers that repeat are named, so long each; their number is in the report."""
EXTRA_TIME_S = 600.0
"""Seconds that faults and publishing may take longer than planned, because the machine may be busy."""


def _delay(planned: list[Fault]) -> list[Fault]:
    """Delay the first fault by one burst, and the others so that each has a burst, and so a victim, of its own."""
    first_s = planned[0].at_s + BURST_EVERY_S
    return [replace(fault, at_s=max(fault.at_s, first_s + i * BURST_EVERY_S)) for i, fault in enumerate(planned)]


def _topics_with_ids() -> dict[str, str]:
    """Settings for timers with ids; their topics are deleted with the round."""
    run = uuid.uuid4().hex[:8]
    return {"TIMERS_ID_TOPIC": f"by-id-{run}", "TIMERS_VERDICT_TOPIC": f"verdict-{run}"}


@dataclass(frozen=True)
class Outcome:
    """The result of a round."""

    seed: int
    verdict: Verdict
    failures: list[str]

    @property
    def passed(self) -> bool:
        """Whether every promise was kept. The round may still not count."""
        return self.verdict.kept and not self.failures


class Round:
    """One round of chaos.

    Args:
        brokers: they are started, and faults may kill them and start them again.
        plan: the faults.
        timers: how many are published.
        repeating: how many more repeat.
        directory: for the workers' logs and data.
    """

    def __init__(
        self, brokers: Brokers, plan: Plan, timers: int, directory: Path, printer: Printer, repeating: int = 0
    ) -> None:
        address = brokers.start()
        self._plan = plan
        self._timers = timers
        self._directory = directory
        self._printer = printer
        self._system = System(
            address,
            directory,
            TIMERS_PARTITIONS=str(PARTITIONS),
            # Snapshots, and deletions of what they replace, every few seconds.
            TIMERS_SNAPSHOT_RECORDS=str(max(10, timers // PARTITIONS // SNAPSHOTS)),
            TIMERS_LOG_KEEP_S="0",
            **(_topics_with_ids() if repeating else {}),
        )
        bytes_per_s = BYTES_A_TIMER * timers // plan.storm_s + repeating * BYTES_A_SECOND
        stalls = any(fault.kind == STALL for fault in plan.faults)
        self._state = RoundState(brokers, self._system, lambda text: printer.line(f"    {text}"), bytes_per_s, stalls)
        self._repeating = repeating
        self._found = Found()
        self._injected: list[InjectedFault] = []
        self._first_s = 0

    def run(self) -> Outcome:
        """Run the round and end all workers."""
        try:
            return self._run()
        finally:
            self._state.close()

    def _run(self) -> Outcome:
        target = self._system.target(PARTITIONS)
        self._state.targets = (target,)
        with self._printer.doing(f"starting {len(self._plan.clock_offsets_s)} workers"):
            for clock_offset_s in self._plan.clock_offsets_s:
                self._state.add(clock_offset_s)
            wait_until(self._state.note_starts, "each worker has written its first line")
            for member in self._state.members:
                member.worker.ready()
        repeats = self._set_repeating() if self._repeating else None
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
            burst_every_s=BURST_EVERY_S,
        )
        self._storm(publication)
        found = self._settle(publication, repeats)
        judged = verdict(found, dues(publication), self._injected, self._catch_up_s)
        outcome = Outcome(self._plan.seed, judged, self._state.failures)
        if not outcome.passed:
            self._state.failures += [each[:MOST_CHARACTERS] for each in split.of_brokers(self._directory.parent)]
        if repeats is not None:
            self._printer.line(f"  repeating: {self._found.line()}")
        for line in report.lines(self._plan.seed, judged, self._injected, self._state.failures, self._first_s):
            self._printer.line(line)
        self._system.delete_topics()
        if repeats is not None:
            self._system.cluster.delete([self._system.settings.id_topic, self._system.settings.verdict_topic])
        return outcome

    def _set_repeating(self) -> RepeatTraffic:
        held = any(fault.kind == HOLD for fault in self._plan.faults)
        repeats = RepeatTraffic(self._system, self._repeating, PARTITIONS, may_be_held=held)
        self._state.targets = (*self._state.targets, repeats.target)
        with self._printer.doing(f"setting {self._repeating:,} timers that repeat"):
            repeats.set(int(time.time()) + HEAD_START_S + self._plan.storm_s, self._plan.storm_s)
        return repeats

    # ---- publishing and faults ----------------------------------------------------------------------------------

    def _storm(self, publication: Publication) -> None:
        """Publish and inject the faults, until both are done."""
        publisher = start_publisher(publication, self._directory)
        planned = list(self._plan.faults)
        under_way: list[tuple[float, Steps, Fault]] = []
        give_up = self._first_s + self._plan.storm_s + EXTRA_TIME_S
        try:
            with self._printer.doing("storm", self._progress):
                while planned or under_way or publisher.running:
                    if time.time() > give_up:
                        self._state.failures.append(f"faults or publishing did not end within {EXTRA_TIME_S:.0f} s")
                        break
                    self._state.watch()
                    if planned and time.time() > self._moment(planned[0]) - LOOK_AHEAD_S:
                        fault = planned.pop(0)
                        steps = self._start_fault(fault)
                        if steps is None:
                            self._printer.line(f"    {fault.at_s:3} s: {fault.kind} waits for a rebalance or a fault")
                            planned = _delay([fault, *planned])
                        else:
                            under_way.append((self._moment(fault), steps, fault))
                    under_way = [entry for old in under_way for entry in self._advance(*old)]
                    next_s = min((at for at, _, _ in under_way), default=time.time() + 0.05)
                    time.sleep(max(0.0, min(0.05, next_s - time.time())))
            if not publisher.running:
                code = publisher.exit_code()
                if code != 0:
                    self._state.failures.append(f"publishing failed: {publisher.tail()}")
        finally:
            for _, steps, _ in under_way:
                steps.close()  # a disk that stalls goes on, and so the worker on it can be killed
            publisher.end(1)
        late_s = time.time() - self._first_s - self._plan.storm_s
        slowest = f"the slowest worker began after {self._state.slowest_start_s:.1f} s"
        self._printer.line(f"    publishing and faults are done, {late_s:.1f} s later than planned; {slowest}")

    def _moment(self, fault: Fault) -> float:
        return self._first_s + fault.at_s + fault.offset_ms / 1000

    def _start_fault(self, fault: Fault) -> Steps | None:
        """Choose the worker that a fault will hit, and begin.

        Returns:
            None while fewer than two workers hold partitions, or a fault is under way beside which no other one begins.
        """
        held = self._state.held()
        eligible = [
            member
            for member in self._state.members
            if member.wanted and not member.paused and member.worker.running and member.name in held
        ]
        if len(eligible) < 2 or self._state.alone:
            return None
        victim = eligible[fault.victim % len(eligible)]
        whom = "" if fault.kind == ADD else f" ({victim.name} has request partitions {held[victim.name]})"
        self._printer.line(f"    {fault.at_s:3} s: {fault.kind}{whom}")
        self._state.chosen_ends = self._state.ends()
        return FAULTS[fault.kind](self._state, fault, victim, held)

    def _advance(self, at_s: float, steps: Steps, fault: Fault) -> list[tuple[float, Steps, Fault]]:
        if time.time() < at_s:
            return [(at_s, steps, fault)]
        try:
            return [(time.time() + next(steps), steps, fault)]
        except StopIteration as over:
            self._injected.append(over.value)
            self._printer.line(f"         {fault.kind} is over")
            return []

    def _progress(self) -> str:
        at_s = time.time() - self._first_s
        running = sum(member.worker.running for member in self._state.members)
        return f"{at_s:.0f} s after the first due second, {running} workers run"

    # ---- afterwards ---------------------------------------------------------------------------------------------

    @property
    def _catch_up_s(self) -> float:
        return catch_up_s(self._state.slowest_start_s)

    def _settle(self, publication: Publication, repeats: RepeatTraffic | None) -> Callbacks:
        """Wait until all timers have fired, stop the workers, and read the callbacks."""
        cluster, due_s = self._system.cluster, dues(publication)
        last_ms = max((injected.over_ms + injected.grace_ms for injected in self._injected), default=0)
        give_up = max(int(due_s.max()), last_ms / 1000) + 3 * self._catch_up_s
        try:
            with self._printer.doing("waiting until all timers have fired"):
                wait_until(lambda: time.time() > due_s.max(), "the last due second", 2 * DEADLINE_S)
                self._system.wait_past(int(due_s.max()), max(DEADLINE_S, give_up - time.time()))
        except AssertionError as error:
            self._state.failures.append(f"due timers do not fire: {error}")
        while True:
            ends = cluster.ends(publication.target)
            with self._printer.doing("reading the callbacks"):
                found = read_callbacks(cluster, publication, sources=True)
            missing = verdict(found, due_s, []).fired.lost
            if not missing or time.time() > give_up:
                break
            self._printer.line(f"    {missing:,} are still missing")
        if repeats is not None:
            with self._printer.doing("reading what repeats"):
                repeats.end(self._found, last_ms, 3 * self._catch_up_s)
            self._state.failures += [each[:MOST_CHARACTERS] for each in self._found.failures[:MOST_FAILURES]]
        with self._printer.doing("stopping the workers"):
            self._stop()
        with self._printer.doing("comparing logs and snapshots"):
            self._verify()
            wait_until(lambda: self._settled(publication.target), "no transaction is open on the target")
        if cluster.ends(publication.target) != ends:
            found = read_callbacks(cluster, publication, sources=True)
        letters = cluster.end(self._system.settings.dead_letter_topic)
        if letters:
            self._state.failures.append(f"{letters} records in {self._system.settings.dead_letter_topic}")
        return found

    def _verify(self) -> None:
        """Compare the logs with the snapshots. Later the log heals no bug of a store."""
        environment = clean_environment(**self._system.environment)
        done = subprocess.run(
            python("timers.cli.main", "log", "verify"), cwd=ROOT, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            self._state.failures.append(f"log verify: {done.stdout}{done.stderr}")
        compared = done.stdout.count("differ")
        deleted = sum(self._system.cluster.starts(self._system.request_topic).values())
        self._printer.line(f"    {compared} logs compared with their snapshots; {deleted:,} offsets were deleted")

    def _settled(self, topic: str) -> bool:
        return self._system.cluster.ends(topic, committed=True) == self._system.cluster.ends(topic)

    def _stop(self) -> None:
        self._state.watch()
        wanted = [member for member in self._state.members if member.wanted]
        for member in wanted:
            member.wanted = False
            try:
                member.worker.stop()
            except AssertionError as error:
                self._state.failures.append(f"{member.name}: {error}")
