"""``python -m bench.listing``: lag of callbacks while pending timers are listed.

One worker has a million timers that are due tomorrow, and fires other timers at a steady rate. Turns without and with a
client that lists all pending timers alternate. Lags are compared within the run.
"""

import argparse
import json
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from bench import storm
from bench.engine import Engine
from bench.session import RunNames, Session, measuring
from bench.subject import Running
from bench.workload import Workload
from tests.harness import kafka_version
from tests.harness.publication import Publication, publish_in_process

PENDING = 1_000_000
PER_S = 5_000
TURN_S = 10
"""Length of a turn, without or with listing. The first second of each turn does not count."""
TURNS = 6
DAY_S = 86_400
PAGE = 1000
PUBLISH_S = 120.0


class Load(Protocol):
    """A client that asks the worker in some phases.

    Attributes:
        name: of the phase in which it asks, in the results.
    """

    name: str

    def enter(self, phase: str) -> None:
        """Begin a phase; it does not ask in the phase ``alone``."""

    def figures(self, seconds: int) -> dict[str, object]:
        """What it measured in so many seconds."""

    def close(self) -> None:
        """End what it has started."""


class Lister:
    """Lists all pending timers again and again while ``on`` is set."""

    name = "listing"
    path = f"timers?limit={PAGE}"

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/{self.path}"
        self.on = threading.Event()
        self.pages = self.timers = self.rounds = 0
        self.longest_s = self.spent_s = 0.0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        cursor = ""
        while True:
            self.on.wait()
            begun = time.monotonic()
            with urllib.request.urlopen(f"{self._url}{cursor}", timeout=60) as answer:
                page = answer.read()
            took_s = time.monotonic() - begun
            self.spent_s += took_s
            self.longest_s = max(self.longest_s, took_s)
            self.pages += 1
            self.timers += self.timers_of(page)
            # The page is not parsed as JSON, because the worker needs the CPU of this machine too.
            found = re.search(rb'"next": ?"([^"]+)"', page)
            cursor = f"&cursor={found[1].decode()}" if found else ""
            self.rounds += not found

    def enter(self, phase: str) -> None:
        self.on.set() if phase == self.name else self.on.clear()

    def figures(self, seconds: int) -> dict[str, object]:
        return {
            "pages_per_s": round(self.pages / seconds, 1),
            "timers_listed_per_s": round(self.timers / seconds),
            "page_mean_ms": round(1000 * self.spent_s / max(1, self.pages), 1),
            "page_longest_ms": round(1000 * self.longest_s, 1),
            "rounds": self.rounds,
        }

    def close(self) -> None:
        pass

    @staticmethod
    def timers_of(page: bytes) -> int:
        """How many timers a page shows."""
        return page.count(b'"due_at"')


class Counting(Lister):
    """Counts all pending timers by hour."""

    name = "counting"
    path = "timers/counts?by=3600"

    @staticmethod
    def timers_of(page: bytes) -> int:
        return sum(map(int, re.findall(rb'"timers": ?(\d+)}', page)))


def counting(session: Session, engine: Engine, names: RunNames) -> Load:
    """The load of ``--counts``."""
    return Counting(engine.port)


def lister(session: Session, engine: Engine, names: RunNames) -> Load:
    """The load of this benchmark."""
    return Lister(engine.port)


def measure(
    session: Session,
    pending: int,
    turns: int,
    per_s: int,
    load_of: Callable[[Session, Engine, RunNames], Load] = lister,
) -> dict[str, object]:
    """Fire timers in turns without and with a load, while ``pending`` others wait."""
    engine = Engine()
    names = session.names(engine.name)
    spread_s = turns * TURN_S
    workload = Workload("listing", spread_s * per_s, spread_s)
    session.cluster.create(names.target, workload.partitions)
    running = engine.start(session, names, workload)
    load = load_of(session, engine, names)
    tomorrow = Publication(
        brokers=session.cluster.brokers,
        topic=names.request,
        target=names.target,
        timers=pending,
        first_due_s=int(time.time()) + DAY_S,
        spread_s=DAY_S,
        payload_bytes=workload.payload_bytes,
        partitions=workload.partitions,
        partitioner=engine.partitioner,
    )
    publish(session, engine, names, tomorrow)
    soon = replace(tomorrow, timers=workload.timers, spread_s=spread_s)
    result = fire(session, engine, names, running, soon, turns, ("alone", load.name), load)
    return {"pending": pending, "fired_per_s": per_s, **result, **load.figures(turns // 2 * TURN_S)}


def fire(
    session: Session,
    engine: Engine,
    names: RunNames,
    running: Running,
    publication: Publication,
    turns: int,
    phases: Sequence[str],
    load: Load,
) -> dict[str, object]:
    """Fire timers while the phases of a load take turns: their lags, and the worker's share of a processor.

    Args:
        publication: of the timers, whose first due second is chosen here.
        turns: of :data:`TURN_S` seconds each, a multiple of the number of phases.
    """
    lead_s = 20 + 4 * publication.timers / engine.accepts_per_s
    soon = replace(publication, first_due_s=int(time.time() + lead_s) + 1)
    publish(session, engine, names, soon)
    if time.time() > soon.first_due_s:
        raise RuntimeError("not all timers were accepted before the first was due")
    turn_ends = []
    for turn in range(turns):
        time.sleep(max(0.0, soon.first_due_s + turn * TURN_S - time.time()))
        load.enter(phases[turn % len(phases)])
        turn_ends.append(time.time())
    time.sleep(max(0.0, soon.first_due_s + soon.spread_s - time.time()))
    load.enter(phases[0])
    fired = storm.wait_for_end(session, running, soon)
    load.close()
    running.stop()
    second_of_turn = fired.due_index % TURN_S
    phase_index = (fired.due_index // TURN_S) % len(phases)
    result: dict[str, object] = {"lost": fired.lost, "duplicates": fired.duplicates, "early": fired.early}
    for index, name in enumerate(phases):
        lag = fired.lag_ms[(phase_index == index) & (second_of_turn > 0)]
        result[f"{name}_lag_ms"] = {
            "p50": float(np.percentile(lag, 50)),
            "p99": float(np.percentile(lag, 99)),
            "max": float(lag.max()),
        }
        result[f"{name}_worker_cpu"] = round(
            sum(running.usage.cpu_s("subject", since, since + TURN_S) for since in turn_ends[index :: len(phases)])
            / (turns // len(phases) * TURN_S),
            3,
        )
    return result


def publish(
    session: Session, engine: Engine, names: RunNames, publication: Publication, deadline_s: float = PUBLISH_S
) -> None:
    """Publish timers, and wait until they are accepted."""
    before = engine.accepted(session, names)
    publish_in_process(publication, names.directory, deadline_s)
    while engine.accepted(session, names) < before + publication.timers:
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.listing", description=__doc__.splitlines()[0].split("`` ")[-1]
    )
    parser.add_argument("--pending", type=int, default=PENDING, help=f"timers that wait for tomorrow ({PENDING})")
    parser.add_argument("--per-s", type=int, default=PER_S, help=f"timers that fire each second ({PER_S})")
    parser.add_argument("--turns", type=int, default=TURNS, help=f"of {TURN_S} s each, an even number ({TURNS})")
    parser.add_argument("--counts", action="store_true", help="count the timers by hour instead of listing them")
    kafka_version.add_option(parser)
    options = parser.parse_args()
    with measuring("listing-") as session:
        load_of = counting if options.counts else lister
        found = measure(session, options.pending, options.turns, options.per_s, load_of)
        print(json.dumps({"kafka": kafka_version.chosen(), **found}, indent=1))


if __name__ == "__main__":
    main()
