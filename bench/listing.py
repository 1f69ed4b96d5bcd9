"""``python -m bench.listing``: lag of callbacks while pending timers are listed.

One worker has a million timers that are due tomorrow, and fires other timers at a steady rate. Turns without and with a
client that lists all pending timers alternate. Lags are compared within the run.
"""

from __future__ import annotations

import argparse
import json
import re
import threading
import time
import urllib.request
from dataclasses import replace

import numpy as np

from bench import storm
from bench.engine import Engine
from bench.session import RunNames, Session, measuring
from bench.workload import Workload
from tests.harness.publication import Publication, publish_in_process

PENDING = 1_000_000
PER_S = 5_000
TURN_S = 10
"""Length of a turn, without or with listing. The first second of each turn does not count."""
TURNS = 6
DAY_S = 86_400
PAGE = 1000


class Lister:
    """Lists all pending timers again and again while ``on`` is set."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/timers?limit={PAGE}"
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
            self.timers += page.count(b'"due_at"')
            # The page is not parsed as JSON, because the worker needs the CPU of this machine too.
            found = re.search(rb'"next": ?"([^"]+)"', page)
            cursor = f"&cursor={found[1].decode()}" if found else ""
            self.rounds += not found


def measure(session: Session, pending: int, turns: int, per_s: int) -> dict[str, object]:
    engine = Engine()
    names = session.names(engine.name)
    spread_s = turns * TURN_S
    workload = Workload("listing", spread_s * per_s, spread_s)
    session.cluster.create(names.target, workload.partitions)
    running = engine.start(session, names, workload)
    lister = Lister(engine.port)
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
    _publish(session, engine, names, tomorrow)
    lead_s = 20 + 4 * workload.timers / engine.accepts_per_s
    soon = replace(tomorrow, timers=workload.timers, first_due_s=int(time.time() + lead_s) + 1, spread_s=spread_s)
    _publish(session, engine, names, soon)
    if time.time() > soon.first_due_s:
        raise RuntimeError("not all timers were accepted before the first was due")
    turn_ends = []
    for turn in range(turns):
        time.sleep(max(0.0, soon.first_due_s + turn * TURN_S - time.time()))
        lister.on.set() if turn % 2 else lister.on.clear()
        turn_ends.append(time.time())
    time.sleep(max(0.0, soon.first_due_s + spread_s - time.time()))
    lister.on.clear()
    fired = storm.wait_for_end(session, running, soon)
    running.stop()
    second_of_turn = fired.due_index % TURN_S
    during_listing = (fired.due_index // TURN_S) % 2 == 1
    result: dict[str, object] = {
        "pending": pending,
        "fired_per_s": per_s,
        "lost": fired.lost,
        "duplicates": fired.duplicates,
        "early": fired.early,
        "pages_per_s": round(lister.pages / (turns // 2 * TURN_S), 1),
        "timers_listed_per_s": round(lister.timers / (turns // 2 * TURN_S)),
        "page_mean_ms": round(1000 * lister.spent_s / max(1, lister.pages), 1),
        "page_longest_ms": round(1000 * lister.longest_s, 1),
        "rounds": lister.rounds,
    }
    for name, chosen in (("alone", ~during_listing), ("listing", during_listing)):
        lag = fired.lag_ms[chosen & (second_of_turn > 0)]
        result[f"{name}_lag_ms"] = {
            "p50": float(np.percentile(lag, 50)),
            "p99": float(np.percentile(lag, 99)),
            "max": float(lag.max()),
        }
        result[f"{name}_worker_cpu"] = round(
            sum(running.usage.cpu_s("subject", since, since + TURN_S) for since in turn_ends[name == "listing" :: 2])
            / (turns // 2 * TURN_S),
            3,
        )
    return result


def _publish(session: Session, engine: Engine, names: RunNames, publication: Publication) -> None:
    before = engine.accepted(session, names)
    publish_in_process(publication, names.directory)
    while engine.accepted(session, names) < before + publication.timers:
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.listing", description=__doc__.splitlines()[0].split("`` ")[-1]
    )
    parser.add_argument("--pending", type=int, default=PENDING, help=f"timers that wait for tomorrow ({PENDING})")
    parser.add_argument("--per-s", type=int, default=PER_S, help=f"timers that fire each second ({PER_S})")
    parser.add_argument("--turns", type=int, default=TURNS, help=f"of {TURN_S} s each, an even number ({TURNS})")
    options = parser.parse_args()
    with measuring("listing-") as session:
        print(json.dumps(measure(session, options.pending, options.turns, options.per_s), indent=1))


if __name__ == "__main__":
    main()
