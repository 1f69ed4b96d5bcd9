"""``python -m bench.repeats``: what timers that repeat cost, and what they cost the others.

``nine``: very many of them are due in one second, beside other timers on the same worker, and some that are due a
second later are cancelled while they fire. ``steady``: occurrences at a steady rate, and as many single timers with
ids.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bench.holds import PARTITIONS, Bench, lags_between, other_lags, p99, sleep_until
from bench.session import Session, measuring
from tests.harness import kafka_version
from tests.harness.records import Headers, Publisher, Record
from timers.wire import headers as h
from timers.wire.formats import future_by_id

ID_TOPIC = "by-id"
PER_S = 2_000
"""Single timers that are due in each second."""
QUIET_S = 20
AFTER_S = 60
LEAD_S = 30
EVERY_S = 60
STEADY_S = 60
CANCELS = 200
PATIENCE_S = 300.0
PAYLOAD = b"x" * 100


def publish(bench: Bench, requests: Sequence[tuple[bytes, bytes | None, Headers]]) -> None:
    """Write records to the topic of timers with ids."""
    publisher = Publisher(bench.system.address, ID_TOPIC)
    with bench.session.printer.doing(f"publishing {len(requests):,} requests with ids"):
        for number, (id, value, headers) in enumerate(requests):
            publisher.producer.produce(ID_TOPIC, value, id, headers=[*headers])
            if not number % 10_000:
                publisher.flush()  # the client holds 100,000
        publisher.flush()


def repeating(target: str, rule: str) -> Headers:
    return [(h.TIMER_TOPIC, target.encode()), (h.TIMER_REPEAT, rule.encode())]


def single(target: str, due_s: int) -> Headers:
    return [(h.TIMER_TOPIC, target.encode()), *future_by_id.encode_headers(due_s)]


def lags_of(records: Sequence[Record]) -> tuple[Any, Any]:
    """Due seconds and lags in ms."""
    return np.array([each.due_s for each in records]), np.array([each.lag_ms for each in records])


def nine(session: Session, timers: int, root: str) -> dict[str, Any]:
    """Very many in one second, and cancels while they fire."""
    bench = Bench.start(session, "nine", root, TIMERS_ID_TOPIC=ID_TOPIC)
    target, later = bench.system.target(PARTITIONS), bench.system.target(PARTITIONS)
    first_s = int(time.time()) + LEAD_S + timers // 10_000
    due_s = first_s + QUIET_S
    other = bench.publication(PER_S * (QUIET_S + AFTER_S), first_s, QUIET_S + AFTER_S)
    readers = bench.system.reader(target), bench.system.reader(later)
    publish(
        bench, [(b"nine-%d" % each, PAYLOAD, repeating(target, f"every=86400; from={due_s}")) for each in range(timers)]
    )
    ids = [b"later-%d" % each for each in range(CANCELS)]
    publish(
        bench, [(id, PAYLOAD, repeating(later, f"every=86400; from={due_s + 1 + n % 3}")) for n, id in enumerate(ids)]
    )
    bench.publish([other])
    assert time.time() < first_s, "publishing took too long"
    sleep_until(due_s + 0.02)
    cancels = Publisher(bench.system.address, ID_TOPIC)
    acknowledged: dict[bytes, float] = {}
    for id in ids:

        def note(error: object, _: object, id: bytes = id) -> None:
            assert error is None
            acknowledged[id] = time.time()

        cancels.producer.produce(ID_TOPIC, None, id, on_delivery=note)
    cancels.flush()
    in_time = {id.decode() for n, id in enumerate(ids) if acknowledged[id] < due_s + 1 + n % 3}
    bench.wait_fired(other)
    lags = other_lags(bench, other)
    records = readers[0].take(timers, PATIENCE_S)
    fired = Counter(each.timer_id for each in records)
    wrong = [each.timer_id for each in readers[1].rest() if each.timer_id in in_time]
    _, own_ms = lags_of(records)
    return {
        "p99_quiet_ms": p99(lags(first_s, due_s)),
        "p99_in_ten_seconds_ms": p99(lags(due_s, due_s + 10)),
        "p99_in_the_minute_ms": p99(lags(due_s, due_s + 60)),
        "burst_s": round(float(own_ms.max()) / 1000, 2),
        "fired": len(fired),
        "twice": sum(number > 1 for number in fired.values()),
        "cancelled_in_time": len(in_time),
        "and_sent": len(wrong),
    }


def steady(session: Session, timers: int, root: str) -> dict[str, Any]:
    """A steady rate of occurrences, and the same rate of single timers with ids."""
    bench = Bench.start(session, "steady", root, TIMERS_ID_TOPIC=ID_TOPIC)
    target, plain = bench.system.target(PARTITIONS), bench.system.target(PARTITIONS)
    readers = bench.system.reader(target), bench.system.reader(plain)
    a_second = timers // EVERY_S
    first_s = int(time.time()) + LEAD_S + timers // 5_000
    rows = [(b"single-%d" % n, PAYLOAD, single(plain, first_s + n % STEADY_S)) for n in range(a_second * STEADY_S)]
    publish(bench, rows)
    assert time.time() < first_s, "publishing took too long"
    sleep_until(first_s)
    single_cpu = bench.cpu_s()
    sleep_until(first_s + STEADY_S)
    single_cpu = bench.cpu_s() - single_cpu
    records = readers[1].take(len(rows), PATIENCE_S)
    _, single_ms = lags_of(records)
    first_s = int(time.time()) + LEAD_S + timers // 5_000
    rules = [f"every={EVERY_S}; from={first_s + n % EVERY_S}; until={first_s + 4 * EVERY_S}" for n in range(timers)]
    publish(bench, [(b"every-%d" % n, PAYLOAD, repeating(target, rule)) for n, rule in enumerate(rules)])
    assert time.time() < first_s, "publishing took too long"
    sleep_until(first_s + EVERY_S)  # so that each firing follows another one; and what it appends is not the last one
    end = bench.end(ID_TOPIC)
    cpu = bench.cpu_s()
    bytes_before = log_bytes(bench)
    sleep_until(first_s + EVERY_S + STEADY_S)
    cpu = bench.cpu_s() - cpu
    end, grown = bench.end(ID_TOPIC) - end, log_bytes(bench) - bytes_before
    sleep_until(first_s + 3 * EVERY_S + 2)
    records = [*readers[0].take(a_second * 2 * EVERY_S, PATIENCE_S), *readers[0].rest()]
    due_s, lag_ms = lags_of(records)
    seen = Counter((each.timer_id, each.due_s) for each in records)
    return {
        "a_second": a_second,
        "p99_single_ms": p99(single_ms),
        "p99_ms": p99(lags_between(due_s, lag_ms, first_s + EVERY_S, first_s + 2 * EVERY_S)),
        "cpu_single": round(single_cpu / STEADY_S, 3),
        "cpu": round(cpu / STEADY_S, 3),
        "log_bytes_a_firing": round(grown / max(1, end)),
        "callbacks": len(records),
        "twice": sum(number > 1 for number in seen.values()),
    }


def log_bytes(bench: Bench) -> int:
    """Size of the segments of the topic of timers with ids."""
    return sum(each.stat().st_size for each in bench.session.workdir.rglob(f"{ID_TOPIC}-*/*.log"))


PARTS: dict[str, Callable[[Session, argparse.Namespace], dict[str, Any]]] = {
    "nine": lambda session, options: nine(session, options.timers or 100_000, options.root),
    "steady": lambda session, options: steady(session, options.timers or 1_000_000, options.root),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.repeats", description=__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), metavar="NAME,...", help=f"which ({','.join(PARTS)})")
    parser.add_argument("--timers", type=int, default=0, help="that repeat (nine: 100,000; steady: 1,000,000)")
    parser.add_argument("--root", default="", metavar="DIRECTORY", help="another checkout, whose worker runs")
    kafka_version.add_option(parser)
    options = parser.parse_args()
    with measuring("repeats-") as session:
        for part in options.parts.split(","):
            print(part, json.dumps(PARTS[part](session, options)), flush=True)


if __name__ == "__main__":
    main()
