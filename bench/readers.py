"""``python -m bench.readers``: how fast the HTTP API answers with ten million pending timers, and the lag meanwhile.

A worker has many timers that are due in some days, a tenth of them with ids, and fires others at a steady rate. Turns
alternate: no reader asks; one reader asks; ten readers ask, each a second after its last answer; ten ask without a
pause. The timers are published once and kept in ``.timers/bench/readers`` for later runs.
"""

import argparse
import http.client
import json
import random
import shutil
import threading
import time
from collections import Counter, defaultdict
from dataclasses import replace
from urllib.parse import quote

import numpy as np
from confluent_kafka import Producer

from bench import listing, machine
from bench.engine import Engine
from bench.session import RESULTS, RunNames, Session, measuring
from bench.workload import PARTITIONS, PAYLOAD_BYTES, Workload
from tests.harness import kafka_version
from tests.harness.cluster import client_settings
from tests.harness.console_process import ConsoleProcess
from tests.harness.process import ROOT
from tests.harness.publication import Publication, filler
from tests.harness.scrape import get
from tests.harness.waiting import wait_until
from timers.wire import future
from timers.wire.formats import future_by_id

PENDING = 10_000_000
PER_S = 5_000
TURNS = 12
NAME = "readers"
STORED = ROOT / ".timers" / "bench" / NAME

DAY_S = 86_400
AHEAD_S, SPREAD_S = 3 * DAY_S, 30 * DAY_S
"""The stored timers are due in 3 to 33 days: a day has a million seconds with a few timers each."""

IDS_SHARE = 10
"""One in so many timers has an id."""

RARE_SHARE = 10_000
"""One in so many has the rare topic; one in so many ids begins with the rare prefix."""

COMMON, RARE, RARE_PREFIX = "common", "rare", "vip-"
ALONE, ONE, TEN, FLOOD = "alone", "one_reader", "ten_readers", "ten_readers_without_pause"
READERS = 10
PAUSE_S = 1.0
PAGE = 100
FILL_S = 1800.0
IN_FLIGHT = 100_000


class Readers:
    """Ten readers of a console.

    Attributes:
        name: of the first phase in which they ask.
    """

    name = ONE

    def __init__(self, port: int, pending: int) -> None:
        self._port = port
        self._pending = pending
        self._phase = ALONE
        self._ends = False
        self._took_ms: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=[n], daemon=True) for n in range(READERS)]
        for thread in self._threads:
            thread.start()

    def enter(self, phase: str) -> None:
        self._phase = phase

    def close(self) -> None:
        self._ends = True
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        draw = random.Random(number)
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        while not self._ends:
            phase = self._phase
            if phase == ALONE or (phase == ONE and number):
                time.sleep(0.05)
                continue
            for kind, path in self._questions(draw):
                if self._phase != phase:
                    break
                begun = time.monotonic()
                connection.request("GET", path)
                answer = connection.getresponse()
                body = answer.read()
                self._note(phase, kind, answer.status, body, 1000 * (time.monotonic() - begun))
                if phase != FLOOD:
                    time.sleep(PAUSE_S * draw.uniform(0.5, 1.5))

    def _questions(self, draw: random.Random) -> list[tuple[str, str]]:
        from_s = int(time.time()) + AHEAD_S + draw.randrange(SPREAD_S // 2)
        number = draw.randrange(self._pending // IDS_SHARE)
        questions = [
            ("list", f"/v1/timers?limit={PAGE}"),
            ("list from a time", f"/v1/timers?limit={PAGE}&from={from_s}"),
            ("list of a common topic", f"/v1/timers?limit={PAGE}&topic={COMMON}"),
            ("list of a rare topic", f"/v1/timers?limit={PAGE}&topic={RARE}"),
            ("list of a rare prefix", f"/v1/timers?limit={PAGE}&prefix={RARE_PREFIX}"),
            ("search by id", f"/v1/timer?id={quote(id_of(number), safe='')}"),
            ("search of an id that is not there", f"/v1/timer?id=none-{number}"),
            ("counts by hour", f"/v1/pending?by=hour&from={from_s}"),
        ]
        draw.shuffle(questions)
        return questions

    def _note(self, phase: str, kind: str, status: int, body: bytes, took_ms: float) -> None:
        shown = json.loads(body)
        if status == 200 and "timers" in shown and "next" in shown:
            is_whole = shown["next"] is None or len(shown["timers"]) == PAGE
            outcome = "incomplete" if not shown["complete"] else "whole" if is_whole else "searched to"
        else:
            outcome = str(status)
        with self._lock:
            self._took_ms[phase, kind].append(took_ms)
            self._counts[phase, kind, outcome] += 1

    def figures(self, seconds: int) -> dict[str, object]:
        """For each phase and kind of question: how often, the latencies, and the outcomes."""
        phases: dict[str, object] = {}
        for phase in (ONE, TEN, FLOOD):
            kinds: dict[str, object] = {}
            every: list[float] = []
            for (each, kind), took_ms in sorted(self._took_ms.items()):
                if each == phase:
                    outcomes = {o: n for (p, k, o), n in sorted(self._counts.items()) if (p, k) == (phase, kind)}
                    kinds[kind] = {**_quantiles(took_ms), "outcomes": outcomes}
                    every += took_ms
            if every:
                phases[phase] = {"answers_per_s": round(len(every) / seconds, 1), "all": _quantiles(every), **kinds}
        return {"answers_ms": phases}


def _quantiles(took_ms: list[float]) -> dict[str, object]:
    shown = {"p50": np.percentile(took_ms, 50), "p99": np.percentile(took_ms, 99), "max": max(took_ms)}
    return {"answers": len(took_ms), **{name: round(float(value), 1) for name, value in shown.items()}}


def id_of(number: int) -> str:
    """The id of a timer with this number."""
    return f"{RARE_PREFIX if number % RARE_SHARE == 0 else 'order-'}{number * 2_654_435_761 % 2**32:010}"


def _names(workdir_run: int) -> RunNames:
    target = f"target-{NAME}-{workdir_run}"
    topics = (f"timer-request-{NAME}", f"oscillator-{NAME}", target)
    return RunNames(NAME, *topics, f"bench-{NAME}", STORED / "run")


def _fill(session: Session, engine: Engine, names: RunNames, topic: str, pending: int) -> None:
    """Publish the timers that stay."""
    first_due_s = int(time.time()) + AHEAD_S
    rare = pending // RARE_SHARE
    with_ids = pending // IDS_SHARE
    common = Publication(
        brokers=session.cluster.brokers,
        topic=names.request,
        target=COMMON,
        timers=pending - with_ids - rare,
        first_due_s=first_due_s,
        spread_s=SPREAD_S,
        payload_bytes=PAYLOAD_BYTES,
        partitions=PARTITIONS,
        partitioner=engine.partitioner,
    )
    with session.printer.doing("filling the store", lambda: f"{_pending(engine):,} of {pending:,} pending"):
        for publication in (common, replace(common, target=RARE, timers=rare)):
            listing.publish(session, engine, names, publication, FILL_S)
        _publish_with_ids(session.cluster.brokers, topic, with_ids, first_due_s)
        wait_until(lambda: _pending(engine) >= pending, "all timers are stored", FILL_S)


def _publish_with_ids(brokers: str, topic: str, timers: int, first_due_s: int) -> None:
    producer = Producer({**client_settings(brokers), "linger.ms": 50, "partitioner": "murmur2_random"})
    value = future.encode(COMMON, "key", filler(PAYLOAD_BYTES))
    for number in range(timers):
        while len(producer) > IN_FLIGHT:
            producer.poll(0.01)
        headers = future_by_id.encode_headers(first_due_s + number * 7919 % SPREAD_S)
        producer.produce(topic, value, id_of(number).encode(), headers=[*headers])
        producer.poll(0)
    if producer.flush(60):
        raise RuntimeError("not everything was acknowledged")


def _pending(engine: Engine) -> int:
    return int(json.loads(get(engine.port, "/health/ready")[1])["pending"])


def measure(session: Session, pending: int, turns: int, per_s: int, *, only_fill: bool) -> dict[str, object]:
    """Fill the store if it is empty, then fire timers while readers ask."""
    names = _names(int(time.time()))
    names.directory.mkdir(exist_ok=True)
    topic = f"by-id-{NAME}"
    engine = Engine({"TIMERS_ID_TOPIC": topic, "TIMERS_VERDICT_TOPIC": f"verdict-{NAME}"})
    spread_s = turns * listing.TURN_S
    workload = Workload(NAME, spread_s * per_s, spread_s)
    session.cluster.create(names.target, PARTITIONS)
    shutil.rmtree(names.directory / "console", ignore_errors=True)
    with session.printer.doing("starting the worker"):
        running = engine.start(session, names, workload)
    stored = _pending(engine)
    if stored not in (0, pending):
        raise SystemExit(f"bench: {STORED} has {stored:,} timers: delete it, or give --pending {stored}")
    if not stored:
        for target in (COMMON, RARE):
            session.cluster.create(target, PARTITIONS)
        _fill(session, engine, names, topic, pending)
    if only_fill:
        running.stop()
        return {"pending": pending}
    console = ConsoleProcess(
        names.directory / "console",
        {
            "TIMERS_BROKERS": session.cluster.brokers,
            "TIMERS_APP_ID": names.app_id,
            "TIMERS_REQUEST_TOPIC": names.request,
            "TIMERS_OSCILLATOR_TOPIC": names.oscillator,
            "TIMERS_ID_TOPIC": topic,
            "TIMERS_VERDICT_TOPIC": f"verdict-{NAME}",
            "TIMERS_DEAD_LETTER_TOPIC": f"timer-dead-letter-{names.run}",
            "TIMERS_WORKER_URL": f"http://127.0.0.1:{engine.port}",
            "TIMERS_CONSOLE_RATE_PER_S": "100000",
        },
    )
    console.start().wait_for("console: ")
    wait_until(lambda: console.ask("GET", "/v1/health/ready")[0] == 200, "the console is ready")
    load = Readers(console.port, pending)
    soon = Publication(
        brokers=session.cluster.brokers,
        topic=names.request,
        target=names.target,
        timers=workload.timers,
        first_due_s=0,
        spread_s=spread_s,
        payload_bytes=PAYLOAD_BYTES,
        partitions=PARTITIONS,
        partitioner=engine.partitioner,
    )
    phases = (ALONE, ONE, TEN, FLOOD)
    try:
        fired = listing.fire(session, engine, names, running, soon, turns, phases, load)
    finally:
        console.end()
    session.cluster.delete([names.target])
    return {"pending": pending, "fired_per_s": per_s, **fired, **load.figures(turns // len(phases) * listing.TURN_S)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.readers", description="Answers with 10,000,000 pending")
    parser.add_argument("--pending", type=int, default=PENDING, help=f"timers that wait ({PENDING})")
    parser.add_argument("--per-s", type=int, default=PER_S, help=f"timers that fire each second ({PER_S})")
    parser.add_argument("--turns", type=int, default=TURNS, help=f"of 10 s, a multiple of four ({TURNS})")
    parser.add_argument("--fill", action="store_true", help="only publish the timers that wait")
    parser.add_argument(
        "--publish", action="store_true", help="also write bench/results/readers.json, which is tracked"
    )
    kafka_version.add_option(parser)
    options = parser.parse_args()
    with measuring(stored=NAME) as session:
        found = measure(session, options.pending, options.turns, options.per_s, only_fill=options.fill)
    text = json.dumps({"machine": machine.describe(), **found}, indent=1)
    print(text)
    if options.publish:
        (RESULTS / "readers.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
