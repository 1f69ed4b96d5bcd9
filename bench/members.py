"""``python -m bench.members``: lag of callbacks while workers join, leave, restart and are killed.

Three workers fire timers at a steady rate, beside others that wait, after a log of others that have fired. One step
follows the other: a process as large as a worker starts that does not join, for comparison, and then as many of them as
there are workers, one after the other; a fourth worker joins; one is stopped with SIGTERM for good; all are restarted
one after the other, each when the one before is ready; one is killed for good. The figures of a step are of the timers
that were due between its begin and that of the next step. A worker that is restarted hands its partitions over and gets
them back: until the next one is restarted, its partitions are none that stayed.
"""

import argparse
import json
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.session import Session, measuring
from bench.workload import DAY_S
from tests.harness import kafka_version
from tests.harness.callbacks import read_callbacks
from tests.harness.cluster import client_settings
from tests.harness.judge import Ints, judge
from tests.harness.publication import Publication, dues, publish_in_process
from tests.harness.scrape import health
from tests.harness.system import System
from tests.harness.waiting import wait_until
from tests.harness.worker import Worker
from timers.kafka.admin_client import AdminClient

PAYLOAD_BYTES = 100
HISTORY_BYTES = 16
LEAD_S = 25
CHUNK = 1_000_000
"""Timers of the history that are published at a time, overdue: they fire when they are accepted."""
PATIENCE_S = 900.0
FIRST = "no change"
BESIDE, BESIDE_EACH, JOIN, LEAVE, RESTART, KILL = "beside", "beside-each", "join", "leave", "restart", "kill"
STEPS = (BESIDE, BESIDE_EACH, JOIN, LEAVE, RESTART, KILL)
TICK_GAP_ASKED_S = 1.5
FILE, CLOSED = "ticks", "closed"
"""As :mod:`bench.members_app` writes them. An import of it would start to write."""


@dataclass(frozen=True)
class Run:
    """What is measured."""

    partitions: int
    per_s: int
    pending: int
    fired: int
    step_s: int
    steps: Sequence[str]


class Members:
    """The workers of the run, and which partitions they have."""

    def __init__(self, system: System, partitions: int) -> None:
        self._system = system
        self._partitions = partitions
        self._admin = AdminClient(client_settings(system.address))
        self._beside: System | None = None
        self.running: list[Worker] = []

    def add(self) -> None:
        """Start a worker, and wait until it is ready."""
        self.running.append(self._started(self._system))

    def start_beside(self) -> None:
        """Start a worker of another app, with as many partitions as a worker of this one has then."""
        count = str(max(1, self._partitions // (len(self.running) + 1)))
        directory = self.running[0].data_dir.parent.parent / "beside"
        self._beside = System(self._system.address, directory, TIMERS_PARTITIONS=count)
        self._started(self._beside)

    def end_beside(self) -> None:
        """End the worker of the other app."""
        if self._beside is not None:
            self._beside.close()
            self._beside = None

    def start_beside_each(self) -> None:
        """Start such workers of another app one after the other, as many as there are of this one."""
        for _ in self.running:
            self.end_beside()
            self.start_beside()

    def stop(self) -> None:
        """Stop a worker for good."""
        self.running.pop(0).stop()

    def kill(self) -> None:
        """Kill a worker for good."""
        self.running.pop(0).kill()

    def restart_all(self) -> list[tuple[float, list[int]]]:
        """Restart one worker after the other, as a rolling update does. Returns when, and with which partitions."""
        restarts = []
        for worker in self.running:
            owned = [partition for partition, owner in self.owners().items() if owner == worker.worker_id]
            restarts.append((time.time(), owned))
            worker.stop()
            worker.start()
            self._wait_ready(worker)
        return restarts

    def _started(self, system: System) -> Worker:
        worker = system.worker(forked=False)
        worker.app = "bench.members_app"
        worker.start()
        self._wait_ready(worker)
        return worker

    @staticmethod
    def _wait_ready(worker: Worker) -> None:
        def is_ready() -> bool:
            try:
                return health(worker.port, "ready")[0] == 200
            except OSError:
                return False

        wait_until(is_ready, "the worker is ready", 120)

    def owners(self) -> dict[int, str]:
        """Partition of the request topic -> id of its worker, once the group is stable."""

        def look() -> dict[int, str] | None:
            asked = self._admin.describe_consumer_groups([self._system.app_id])
            told = asked[self._system.app_id].result(10)
            found = {
                place.partition: str(member.group_instance_id)
                for member in told.members
                for place in (member.assignment.topic_partitions if member.assignment else ())
                if place.topic == self._system.request_topic
            }
            return found if len(found) == self._partitions and told.state.name == "STABLE" else None

        return wait_until(look, "each partition has an owner", 60)

    def must_move(self, step: str, owners: dict[int, str]) -> int:
        """How many partitions have to move in a step, which begins now."""
        if step == JOIN:
            return self._partitions // (len(self.running) + 1)
        gone = self.running[0].worker_id if step in (LEAVE, KILL) else ""
        return list(owners.values()).count(gone)


def worst_tick_gaps(paths: Iterable[Path], begins: Sequence[float]) -> list[float]:
    """The longest time, in seconds, for which an open machine got no tick, of the gaps that end in each step."""
    worst = [0.0] * len(begins)
    for path in paths:
        last: dict[str, tuple[str, float]] = {}
        for line in path.read_text().splitlines():
            machine, what, at_s = json.loads(line)
            before, since_s = last.get(machine, (CLOSED, at_s))
            step = sum(begin <= at_s for begin in begins) - 1
            if before != CLOSED and step >= 0:
                worst[step] = max(worst[step], at_s - since_s)
            if machine not in last or before != CLOSED:
                last[machine] = what, at_s
    return worst


def measure(session: Session, run: Run, settings: dict[str, str]) -> dict[str, Any]:
    """Run all steps; returns the figures of each."""
    directory = Path(session.workdir)
    system = System(session.cluster.brokers, directory, TIMERS_PARTITIONS=str(run.partitions), **settings)
    members = Members(system, run.partitions)
    try:
        return _measure(session, system, members, run, directory)
    finally:
        members.end_beside()
        system.close()


def _publication(system: System, run: Run, target: str, timers: int, first_due_s: int, spread_s: int) -> Publication:
    return Publication(
        brokers=system.address,
        topic=system.request_topic,
        target=target,
        timers=timers,
        first_due_s=first_due_s,
        spread_s=spread_s,
        payload_bytes=PAYLOAD_BYTES,
        partitions=run.partitions,
        partitioner="spread",
    )


def _fire_history(session: Session, system: System, run: Run, directory: Path) -> None:
    """Let requests wait, and others fire, before the steps: the log and the snapshots are as after a long time."""
    target, began = system.target(run.partitions), time.monotonic()
    if run.pending:
        later = _publication(system, run, target, run.pending, int(time.time()) + DAY_S, 30 * DAY_S)
        publish_in_process(later, directory, PATIENCE_S)
    for begin in range(0, run.fired, CHUNK):
        count = min(CHUNK, run.fired - begin)
        overdue = _publication(system, run, target, count, int(time.time()) - 30, 20)
        publish_in_process(replace(overdue, payload_bytes=HISTORY_BYTES), directory, PATIENCE_S)
        wait_until(partial(_has_records, system, target, begin + count), "the history has fired", PATIENCE_S)
        session.printer.line(f"  {begin + count:,} of {run.fired:,} have fired after {time.monotonic() - began:.0f} s")
    if run.fired:
        system.wait_past(int(time.time()))
    session.cluster.delete([target])


def _has_records(system: System, topic: str, count: int) -> bool:
    return system.end(topic, committed=True) >= count


@dataclass(frozen=True)
class Step:
    """What was done in a step."""

    name: str
    begin_s: float
    owners: dict[int, str]
    """Partition -> its worker at the end of the step."""
    must_move: int = 0
    took_s: float = 0.0
    restarts: Sequence[tuple[float, Sequence[int]]] = ()
    """When a worker was restarted, and its partitions."""


def _measure(session: Session, system: System, members: Members, run: Run, directory: Path) -> dict[str, Any]:
    with session.printer.doing("starting three workers"):
        for _ in range(3):
            members.add()
    _fire_history(session, system, run, directory)
    spread_s = run.step_s * (len(run.steps) + 1) + LEAD_S
    target, first_due_s = system.target(run.partitions), int(time.time()) + LEAD_S
    publication = _publication(system, run, target, spread_s * run.per_s, first_due_s, spread_s)
    with session.printer.doing("publishing"):
        publish_in_process(publication, directory)
    begin_s, end_s = first_due_s + 3.0, first_due_s + spread_s
    time.sleep(max(0.0, begin_s + run.step_s - time.time()))
    done = [Step(FIRST, begin_s, members.owners())]
    for name in run.steps:
        with session.printer.doing(name):
            done.append(_do(name, members, run.step_s, done[-1].owners))
    if time.time() > end_s:
        session.printer.line(f"the steps took {time.time() - end_s:.0f} s longer than there were timers")
    with session.printer.doing("waiting for the last timers"):
        time.sleep(max(0.0, end_s - time.time()))
        system.wait_past(end_s)
    gaps = worst_tick_gaps([worker.data_dir / FILE for worker in system.workers], [step.begin_s for step in done])
    for worker in members.running:
        worker.send(signal.SIGTERM)
    result = _figures(session, publication, done, end_s, gaps)
    for sentence in _judged(result, float(system.environment["TIMERS_SESSION_TIMEOUT_S"])):
        session.printer.line(sentence)
    return result


def _do(name: str, members: Members, step_s: int, owners: dict[int, str]) -> Step:
    steps: dict[str, Callable[[], Any]] = {
        BESIDE: members.start_beside,
        BESIDE_EACH: members.start_beside_each,
        JOIN: members.add,
        LEAVE: members.stop,
        RESTART: members.restart_all,
        KILL: members.kill,
    }
    must_move, begin_s = members.must_move(name, owners), time.time()
    restarts = steps[name]() or ()
    took_s = time.time() - begin_s
    time.sleep(max(0.0, step_s - took_s))
    members.end_beside()
    return Step(name, begin_s, members.owners(), must_move, took_s, restarts)


def _figures(
    session: Session, publication: Publication, done: Sequence[Step], end_s: float, gaps: Sequence[float]
) -> dict[str, Any]:
    found = read_callbacks(session.cluster, publication, sources=True)
    due_s: Ints = dues(publication)
    fired = judge(found, due_s)
    due_at = due_s[found.numbers]
    lag_ms = found.append_ms - 1000 * due_at
    result: dict[str, Any] = {"lost": fired.lost, "duplicates": fired.duplicates, "early": fired.early}
    before = done[0].owners
    for step, until_s, gap_s in zip(done, [*(each.begin_s for each in done[1:]), end_s], gaps, strict=True):
        now = step.owners
        in_step = (due_at >= int(step.begin_s)) & (due_at < int(until_s))
        stayed = np.isin(found.source_partition, [each for each in now if now[each] == before[each]])
        ends = [*(at_s for at_s, _ in step.restarts[1:]), until_s]
        for (at_s, partitions), end in zip(step.restarts, ends, strict=False):
            stayed &= ~((due_at >= int(at_s)) & (due_at < int(end)) & np.isin(found.source_partition, partitions))
        if not in_step.any():
            session.printer.line(f"{step.name:10} no timer was due: the steps before took too long")
            continue
        lag, of_stayed = lag_ms[in_step], lag_ms[in_step & stayed]
        result[step.name] = {
            "worst_ms": int(lag.max()),
            "p99_ms": int(np.percentile(lag, 99)),
            "p50_ms": int(np.percentile(lag, 50)),
            "p99_not_moved_ms": int(np.percentile(of_stayed, 99)) if len(of_stayed) else None,
            "moved": sum(now[each] != before[each] for each in now),
            "must_move": step.must_move,
            "worst_tick_gap_s": round(gap_s, 2),
            "took_s": round(step.took_s, 1),
        }
        session.printer.line(f"{step.name:10} {json.dumps(result[step.name])}")
        before = now
    return result


def _judged(result: dict[str, Any], session_timeout_s: float) -> Iterable[str]:
    """A sentence for each figure that is asked for."""
    asked_ms = {JOIN: 1000, LEAVE: 2000, RESTART: 2000, KILL: 1000 * (session_timeout_s + 3)}
    yield f"lost {result['lost']}, duplicates {result['duplicates']}, early {result['early']} (0 asked)"
    for name in asked_ms.keys() & result.keys():
        step = result[name]
        yield (
            f"{name}: worst lag {step['worst_ms']} ms (< {asked_ms[name]:.0f} asked), moved {step['moved']} "
            f"({step['must_move']} must move), worst gap between ticks {step['worst_tick_gap_s']} s "
            f"(<= {TICK_GAP_ASKED_S} asked)"
        )
        beside, what = result.get(BESIDE), "a process that starts and does not join"
        if name == RESTART and BESIDE_EACH in result:
            beside, what = result[BESIDE_EACH], "as many processes that start and do not join"
        if beside and step["p99_not_moved_ms"] is not None:
            share = step["p99_not_moved_ms"] / beside["p99_ms"]
            yield f"{name}: p99 of partitions that stayed {share:.2f} of that beside {what}"


def main() -> None:
    """Run the benchmark and print its figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.members", description=__doc__)
    parser.add_argument("--partitions", type=int, default=12, help="of the request topic (12)")
    parser.add_argument("--per-s", type=int, default=2_000, help="timers a second (2000)")
    parser.add_argument("--pending", type=int, default=0, help="timers that wait to the end (0)")
    parser.add_argument("--fired", type=int, default=0, help="timers that have fired before (0)")
    parser.add_argument("--step-s", type=int, default=25, help="seconds of a step: longer than a start (25)")
    parser.add_argument("--steps", default=",".join(STEPS), help=f"in their order ({','.join(STEPS)})")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the workers")
    kafka_version.add_option(parser)
    given = parser.parse_args()
    settings = dict(each.split("=", 1) for each in given.set)
    steps = tuple(given.steps.split(","))
    run = Run(given.partitions, given.per_s, given.pending, given.fired, given.step_s, steps)
    with measuring("members-") as session:
        # Trimming would delete the history from the log.
        found = measure(session, run, {"TIMERS_LOG_KEEP_S": "never", **settings})
        print(json.dumps({"kafka": kafka_version.chosen(), **found}))


if __name__ == "__main__":
    main()
