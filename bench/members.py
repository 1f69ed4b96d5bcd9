"""``python -m bench.members``: lag of callbacks while workers join, leave, restart and are killed.

Three workers fire timers at a steady rate. Then a fourth one joins; one is stopped with SIGTERM for good; all are
restarted one after the other, each when the one before is ready; one is killed for good. The figures of a step are of
the timers that were due between its begin and that of the next step.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka.admin import AdminClient

from bench.session import Session, measuring
from tests.harness.callbacks import read_callbacks
from tests.harness.cluster import client_settings
from tests.harness.judge import Ints, judge
from tests.harness.publication import Publication, dues, publish_in_process
from tests.harness.scrape import health
from tests.harness.system import System
from tests.harness.waiting import wait_until
from tests.harness.worker import Worker

PARTITIONS = 12
PAYLOAD_BYTES = 100
STEP_S = 25
"""Seconds between two steps: longer than the session timeout and a start."""
STEPS = ("no change", "join", "SIGTERM for good", "rolling restart", "kill -9 for good")
SPREAD_S = 170
LEAD_S = 25


class Members:
    """The workers of the run, and which partitions they have."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._admin = AdminClient(client_settings(system.address))
        self.running: list[Worker] = []

    def add(self) -> None:
        """Start a worker, and wait until it is ready."""
        worker = self._system.worker(forked=False).start()
        self.running.append(worker)
        self._wait_ready(worker)

    def stop(self) -> None:
        """Stop a worker for good."""
        self.running.pop(0).stop()

    def kill(self) -> None:
        """Kill a worker for good."""
        self.running.pop(0).kill()

    def restart_all(self) -> None:
        """Restart one worker after the other, as a rolling update does."""
        for worker in self.running:
            worker.stop()
            worker.start()
            self._wait_ready(worker)

    @staticmethod
    def _wait_ready(worker: Worker) -> None:
        def is_ready() -> bool:
            try:
                return health(worker.port, "ready")[0] == 200
            except OSError:
                return False

        wait_until(is_ready, "the worker is ready", 60)

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
            return found if len(found) == PARTITIONS and told.state.name == "STABLE" else None

        return wait_until(look, "each partition has an owner", 60)


def measure(session: Session, per_s: int, settings: dict[str, str]) -> dict[str, Any]:
    """Run all steps; returns the figures of each."""
    directory = Path(session.workdir)
    system = System(session.cluster.brokers, directory, TIMERS_PARTITIONS=str(PARTITIONS), **settings)
    try:
        return _measure(session, system, per_s, directory)
    finally:
        system.close()


def _measure(session: Session, system: System, per_s: int, directory: Path) -> dict[str, Any]:
    target = system.target(PARTITIONS)
    members = Members(system)
    with session.console.doing("starting three workers"):
        for _ in range(3):
            members.add()
    publication = Publication(
        brokers=system.address,
        topic=system.request_topic,
        target=target,
        timers=SPREAD_S * per_s,
        first_due_s=int(time.time()) + LEAD_S,
        spread_s=SPREAD_S,
        payload_bytes=PAYLOAD_BYTES,
        partitions=PARTITIONS,
        partitioner="spread",
    )
    with session.console.doing("publishing"):
        publish_in_process(publication, directory)
    begins, moved, took = [publication.first_due_s + 3.0], [0], [0.0]
    time.sleep(max(0.0, begins[0] + STEP_S - time.time()))
    steps: list[Callable[[], None]] = [members.add, members.stop, members.restart_all, members.kill]
    for name, step in zip(STEPS[1:], steps, strict=True):
        before = members.owners()
        begins.append(time.time())
        with session.console.doing(name):
            step()
            took.append(time.time() - begins[-1])
            time.sleep(max(0.0, begins[-1] + STEP_S - time.time()))
        after = members.owners()
        moved.append(sum(before[each] != after[each] for each in before))
    end_s = publication.first_due_s + SPREAD_S
    if time.time() > end_s:
        session.console.line(f"the steps took {time.time() - end_s:.0f} s longer than there were timers")
    with session.console.doing("waiting for the last timers"):
        time.sleep(max(0.0, end_s - time.time()))
        system.wait_past(end_s)
    for worker in members.running:
        worker.send(signal.SIGTERM)
    found = read_callbacks(session.cluster, publication)
    due_s: Ints = dues(publication)
    fired = judge(found, due_s)
    due_at = due_s[found.numbers]
    lag_ms = found.append_ms - 1000 * due_at
    result: dict[str, Any] = {"lost": fired.lost, "duplicates": fired.duplicates, "early": fired.early}
    for index, name in enumerate(STEPS):
        until_s = begins[index + 1] if index + 1 < len(begins) else end_s
        lag = lag_ms[(due_at >= int(begins[index])) & (due_at < int(until_s))]
        if not len(lag):
            session.console.line(f"{name:20} no timer was due: the steps before took too long")
            continue
        result[name] = {
            "worst_ms": int(lag.max()),
            "p99_ms": int(np.percentile(lag, 99)),
            "p50_ms": int(np.percentile(lag, 50)),
            "moved": moved[index],
            "took_s": round(took[index], 1),
        }
        session.console.line(f"{name:20} {json.dumps(result[name])}")
    session.console.line(json.dumps({key: result[key] for key in ("lost", "duplicates", "early")}))
    return result


def main() -> None:
    """Run the benchmark and print its figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.members", description=__doc__)
    parser.add_argument("--per-s", type=int, default=2_000, help="timers a second")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the workers")
    given = parser.parse_args()
    settings = dict(each.split("=", 1) for each in given.set)
    with measuring("members-") as session:
        print(json.dumps(measure(session, given.per_s, {"TIMERS_SESSION_TIMEOUT_S": "10", **settings})))


if __name__ == "__main__":
    main()
