"""``python -m bench.holds``: what a pause, a slow release and targets with very many due timers cost the others.

``pause``: while a target is paused, 1,000,000 of its timers come due, beside another target with 1,000 a second on the
same partitions. Then it is released slowly, and the worker is killed in the middle. ``noisy``: many timers of a target
are due in one second, beside the other target. ``fair``: the same of ten targets.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.session import Session, measuring
from tests.harness import kafka_version
from tests.harness.callbacks import read_callbacks
from tests.harness.judge import Ints, judge
from tests.harness.process import ROOT, clean_environment, python
from tests.harness.publication import Publication, dues, publish_in_process
from tests.harness.scrape import scrape
from tests.harness.system import System
from tests.harness.worker import Worker

PAYLOAD_BYTES = 100
PARTITIONS = 4
PER_S = 1_000
"""Timers of the other target that are due in each second."""
QUIET_S = 20
"""Seconds in which the other target is alone."""
LEAD_S = 45
"""From the begin of publishing to the first due second."""
COMMANDS_S = 30
"""For three commands, of which each is a process that starts: a second each where nothing else runs."""
WINDOW_S = 5
TARGETS = 10
PATIENCE_S = 600.0
POLLS = 4
"""Looks for new callbacks in a second."""


@dataclass
class Bench:
    """One app with a worker."""

    session: Session
    system: System
    worker: Worker

    @classmethod
    def start(cls, session: Session, name: str, root: str, **environment: str) -> Bench:
        environment["TIMERS_PARTITIONS"] = str(PARTITIONS)
        system = System(session.cluster.brokers, session.workdir / name, **environment)
        worker = system.worker(forked=False)
        return cls(session, system, worker.start(**({"PYTHONPATH": root} if root else {})).ready())

    def publication(self, timers: int, first_due_s: int, spread_s: int) -> Publication:
        return Publication(
            brokers=self.system.address,
            topic=self.system.request_topic,
            target=self.system.target(PARTITIONS),
            timers=timers,
            first_due_s=first_due_s,
            spread_s=spread_s,
            payload_bytes=PAYLOAD_BYTES,
            partitions=PARTITIONS,
            partitioner="spread",
        )

    def publish(self, publications: Sequence[Publication]) -> None:
        with self.session.printer.doing("publishing"), ThreadPoolExecutor(len(publications)) as threads:
            list(threads.map(self._publish, publications))

    def _publish(self, publication: Publication) -> None:
        directory = self.session.workdir / publication.target
        directory.mkdir()
        publish_in_process(publication, directory)

    def command(self, *words: str) -> float:
        """Give a command. Returns how many seconds it took."""
        begun = time.monotonic()
        environment = clean_environment(**self.system.environment)
        command = python("timers.cli.main", "targets", *words)
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return time.monotonic() - begun

    def end(self, target: str) -> int:
        return sum(self.system.cluster.ends(target, committed=True).values())

    def cpu_s(self) -> float:
        return scrape(self.worker.port).total("process_cpu_seconds_total")

    def memory_mb(self) -> float:
        pages = int(Path(f"/proc/{self.worker.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def wait_fired(self, publication: Publication) -> None:
        """Wait until the end of a target does not move any more; markers of transactions count too."""
        sleep_until(publication.first_due_s + publication.spread_s)
        ends = [-1, 0]
        with self.session.printer.doing("waiting for the callbacks", lambda: f"{ends[-1]:,}"):
            while ends[-1] < publication.timers or ends[-1] != ends[-3 * POLLS :][0]:
                assert len(ends) < PATIENCE_S * POLLS, f"{publication.target} has {ends[-1]:,}"
                time.sleep(1 / POLLS)
                ends.append(self.end(publication.target))

    def judged(self, publication: Publication) -> tuple[Ints, Ints, dict[str, int]]:
        """Append time in ms and lag in ms of each callback of a target, and what is wrong with them."""
        found = read_callbacks(self.session.cluster, publication)
        fired = judge(found, dues(publication))
        wrong = {"lost": fired.lost, "duplicates": fired.duplicates, "early": fired.early, "altered": fired.altered}
        return found.append_ms, fired.lag_ms, wrong


def sleep_until(second: float) -> None:
    time.sleep(max(0.0, second - time.time()))


def p99(lag_ms: Ints) -> float:
    return float(np.percentile(lag_ms, 99)) if len(lag_ms) else 0.0


def lags_between(due_s: Ints, lag_ms: Ints, first_s: int, end_s: int) -> Ints:
    return lag_ms[(due_s >= first_s) & (due_s < end_s)]


def other_lags(bench: Bench, other: Publication) -> Callable[[int, int], Ints]:
    """Returns a function of two due seconds: the lags of the other target between them."""
    append_ms, lag_ms, wrong = bench.judged(other)
    assert not any(wrong.values()), wrong
    due_s = (append_ms - lag_ms) // 1000
    return lambda first_s, end_s: lags_between(due_s, lag_ms, first_s, end_s)


def pause(session: Session, timers: int, over_s: int, root: str) -> dict[str, Any]:
    """A paused million, its slow release, and a worker that is killed in the middle of it."""
    bench = Bench.start(session, "pause", root)
    time.sleep(10)
    idle = bench.cpu_s()
    time.sleep(20)
    idle = (bench.cpu_s() - idle) / 20
    first_s = int(time.time()) + LEAD_S
    due_s = first_s + QUIET_S + COMMANDS_S
    big = bench.publication(timers, due_s, 1)
    other_s = QUIET_S + COMMANDS_S + 60
    other = bench.publication(PER_S * other_s, first_s, other_s)
    bench.publish([other, big])
    sleep_until(first_s + QUIET_S)
    memory = bench.memory_mb()  # with the same timers, which wait, unpaused
    took = {"pause_s": bench.command("pause", big.target), "resume_nothing_s": bench.command("resume", big.target)}
    took["pause_wait_s"] = bench.command("pause", big.target, "--wait")
    assert time.time() < due_s, "the pause came too late"
    bench.wait_fired(other)
    sent_while_paused = bench.end(big.target)
    lags = other_lags(bench, other)
    paused = bench.cpu_s()
    time.sleep(20)
    paused = (bench.cpu_s() - paused) / 20
    paused_mb = bench.memory_mb()
    took["resume_s"] = bench.command("resume", big.target, "--over", f"{over_s}s")
    resumed_at = time.time()
    sleep_until(resumed_at + over_s / 3)
    bench.worker.kill()
    bench.worker.start().ready()
    bench.wait_fired(big)
    append_ms, _, wrong = bench.judged(big)
    each_s = np.bincount((append_ms - append_ms.min()) // 1000)
    even = each_s[: over_s // 3 - 2]
    return {
        **{name: round(seconds, 2) for name, seconds in took.items()},
        "sent_while_paused": sent_while_paused,
        "p99_quiet_ms": p99(lags(first_s, first_s + QUIET_S)),
        "p99_in_the_second_ms": p99(lags(due_s, due_s + 1)),
        "p99_in_the_minute_ms": p99(lags(due_s, due_s + 60)),
        "cpu_idle": round(idle, 4),
        "cpu_paused": round(paused, 4),
        "memory_mb": round(memory),
        "memory_paused_mb": round(paused_mb),
        "released_in_s": round((append_ms.max() - append_ms.min()) / 1000, 1),
        "even_min_max": [round(float(each / (timers / over_s)), 2) for each in (even.min(), even.max())],
        "by_second": each_s.tolist(),
        **wrong,
    }


def noisy(session: Session, timers: int, targets: int, root: str) -> dict[str, Any]:
    """Targets with very many timers in one second, beside the other one."""
    bench = Bench.start(session, f"noisy-{targets}", root)
    first_s = int(time.time()) + LEAD_S + timers // 100_000
    due_s = first_s + QUIET_S
    big = [bench.publication(timers // targets, due_s, 1) for _ in range(targets)]
    other = bench.publication(PER_S * (QUIET_S + 60), first_s, QUIET_S + 60)
    bench.publish([other, *big])
    assert time.time() < first_s, "publishing took too long"
    bench.wait_fired(other)
    for each in big:
        bench.wait_fired(each)
    lags = other_lags(bench, other)
    found = [bench.judged(each) for each in big]
    wrong = {name: sum(each[2][name] for each in found) for name in found[0][2]}
    ends_ms = [int(append_ms.max()) for append_ms, _, _ in found]
    result: dict[str, Any] = {
        "p99_quiet_ms": p99(lags(first_s, due_s)),
        "p99_in_the_burst_ms": p99(lags(due_s, max(ends_ms) // 1000 + 1)),
        "p99_in_the_minute_ms": p99(lags(due_s, due_s + 60)),
        "worst_ms": float(lags(due_s, due_s + 60).max()),
        "burst_s": round(max(ends_ms) / 1000 - due_s, 2),
        **wrong,
    }
    if targets > 1:
        count = (max(ends_ms) // 1000 - due_s) // WINDOW_S + 1
        places = [(append_ms // 1000 - due_s) // WINDOW_S for append_ms, _, _ in found]
        windows = np.array([np.bincount(each, minlength=count) for each in places])
        result["share_of_each_window"] = (windows / np.maximum(1, windows.sum(axis=0)) * targets).round(2).T.tolist()
    return result


PARTS: dict[str, Callable[[Session, argparse.Namespace], dict[str, Any]]] = {
    "pause": lambda session, options: pause(session, options.timers or 1_000_000, options.over, options.root),
    "noisy": lambda session, options: noisy(session, options.timers or 2_000_000, 1, options.root),
    "fair": lambda session, options: noisy(session, options.timers or 2_000_000, TARGETS, options.root),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.holds", description=__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), metavar="NAME,...", help=f"which ({','.join(PARTS)})")
    parser.add_argument("--timers", type=int, default=0, help="of the large targets (1,000,000; noisy: 2,000,000)")
    parser.add_argument("--over", type=int, default=60, metavar="SECONDS", help="of the slow release (60)")
    parser.add_argument("--root", default="", metavar="DIRECTORY", help="another checkout, whose worker runs")
    kafka_version.add_option(parser)
    options = parser.parse_args()
    with measuring("holds-") as session:
        for part in options.parts.split(","):
            print(part, json.dumps(PARTS[part](session, options)), flush=True)


if __name__ == "__main__":
    main()
