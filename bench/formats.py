"""``python -m bench.formats``: rates and CPU time of timers of other request formats, compared with native timers.

A backlog is due when the worker starts. A burst is accepted earlier and due in one second. All runs use one broker;
each run has new topics. All callbacks are counted. CPU time is that of the worker only.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from confluent_kafka import Producer

from bench.engine import Engine
from bench.session import RunNames, Session, measuring
from bench.workload import Workload
from tests.harness import kafka_version
from tests.harness.callbacks import check
from tests.harness.cluster import client_settings
from tests.harness.publication import ID, Publication, dues, filler, key
from timers.wire import future
from timers.wire import headers as h
from timers.wire.formats import future_by_id, schedule

BACKLOG = Workload("backlog", 200_000, 60)
BURST = Workload("burst", 150_000, 1)
BURST_LEAD_S = 10
PUBLISHES_PER_S = 25_000
"""A low estimate of the rate of the publisher."""
PATIENCE_S = 120.0
STABLE_S = 2.0
IN_FLIGHT = 100_000

Request = tuple[bytes, bytes, list[h.Header]]
"""(key, value, headers) of a request."""


class FormatCase(NamedTuple):
    """A request format, its topic, and a function that encodes its requests."""

    name: str
    topic: Callable[[RunNames], str]
    settings: Callable[[str], dict[str, str]]
    request: Callable[[str, bytes, int, bytes, bytes], Request]
    """(target, id, due second, callback key, value) -> request."""
    config: dict[str, str]


def _native(target: str, id: bytes, due_s: int, callback_key: bytes, value: bytes) -> Request:
    return b"%d" % due_s, future.encode(target, callback_key.decode(), value), []


def _by_id(target: str, id: bytes, due_s: int, callback_key: bytes, value: bytes) -> Request:
    return id, future.encode(target, callback_key.decode(), value), future_by_id.encode_headers(due_s)


def _schedule(target: str, id: bytes, due_s: int, callback_key: bytes, value: bytes) -> Request:
    return id, value, schedule.encode_headers(due_s, target, callback_key)


FORMAT_CASES = (
    FormatCase("future", lambda names: names.request, lambda topic: {}, _native, {}),
    FormatCase(
        "future-by-id",
        lambda names: f"by-id-{names.run}",
        lambda topic: {"TIMERS_ID_TOPIC": topic, "TIMERS_VERDICT_TOPIC": f"verdict-{topic}"},
        _by_id,
        {},
    ),
    FormatCase(
        "schedule",
        lambda names: f"schedules-{names.run}",
        lambda topic: {"TIMERS_SCHEDULE_TOPICS": topic},
        _schedule,
        {"cleanup.policy": "compact"},
    ),
)


class Figures(NamedTuple):
    """Figures of one request format with one workload."""

    request_format: str
    workload: str
    timers: int
    per_s: float
    """From the first callback to the last."""
    from_start_per_s: float
    """Rate until the last callback: of a backlog from the ready worker on, of a burst from its due second on."""
    cpu_us: float
    """CPU time of the worker for each timer: of a backlog in total, of a burst from its due second on."""
    lost: int
    duplicates: int
    early: int


def _publish(brokers: str, topic: str, case: FormatCase, publication: Publication) -> None:
    """Publish all timers. The partition depends on the id; native timers are spread evenly."""
    settings = {
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": 20,
        "partitioner": "murmur2_random",
        "queue.buffering.max.messages": 2 * IN_FLIGHT,
    }
    producer = Producer({**client_settings(brokers), **settings})
    random_ids, fill = random.Random(1), filler(publication.payload_bytes)
    is_native = case.name == "future"
    for number, due_s in enumerate(dues(publication).tolist()):
        id = b"%032x" % random_ids.getrandbits(128)
        request = case.request(publication.target, id, due_s, key(number), ID.pack(number) + fill)
        partition = number % publication.partitions if is_native else -1
        while len(producer) > IN_FLIGHT:
            producer.poll(0.01)
        producer.produce(topic, request[1], request[0], partition, headers=[*request[2]])
        producer.poll(0)
    if producer.flush(60):
        raise RuntimeError("not everything was acknowledged")


def measure(session: Session, case: FormatCase, workload: Workload) -> Figures:
    """Measure one request format with one workload."""
    names = session.names(case.name)
    topic = case.topic(names)
    backlog = workload.spread_s > 1
    engine = Engine(case.settings(topic))
    session.cluster.create(names.target, workload.partitions)
    session.cluster.create(topic, workload.partitions, case.config)
    publication = Publication(
        brokers=session.cluster.brokers,
        topic=topic,
        target=names.target,
        timers=workload.timers,
        first_due_s=int(time.time()) - workload.spread_s,
        spread_s=workload.spread_s,
        payload_bytes=workload.payload_bytes,
        partitions=workload.partitions,
        partitioner="",
    )
    if backlog:
        _publish(session.cluster.brokers, topic, case, publication)
        running = engine.start(session, names, workload)
        since = running.ready_at
    else:
        running = engine.start(session, names, workload)
        since = int(time.time()) + BURST_LEAD_S + workload.timers // PUBLISHES_PER_S
        publication = replace(publication, first_due_s=since)
        _publish(session.cluster.brokers, topic, case, publication)
        if time.time() > since - 1:
            raise RuntimeError("the burst was due before it was published")
    try:
        _wait(session, names.target, workload.timers, since)
        fired = check(session.cluster, publication)
    finally:
        running.stop()
    last_s = fired.last_ms / 1000
    cpu_s = running.usage.cpu_s("subject", None if backlog else since, last_s + 0.5)
    session.clear(names)
    return Figures(
        case.name,
        workload.name,
        workload.timers,
        per_s=round(workload.timers / max(0.001, last_s - fired.first_ms / 1000)),
        from_start_per_s=round(workload.timers / max(0.001, last_s - since)),
        cpu_us=round(1e6 * cpu_s / workload.timers, 2),
        lost=fired.lost,
        duplicates=fired.duplicates,
        early=fired.early,
    )


def _wait(session: Session, target: str, timers: int, since: float) -> None:
    """Wait until all callbacks are written, and no more follow."""
    seen, changed = 0, time.time()
    while not (seen >= timers and time.time() - changed > STABLE_S):
        if time.time() > max(since, changed) + PATIENCE_S:
            return  # the missing callbacks count as lost
        written = session.cluster.end(target)
        if written != seen:
            seen, changed = written, time.time()
        time.sleep(0.1)


def _run(session: Session, options: argparse.Namespace) -> Iterator[Figures]:
    for workload in (BACKLOG, BURST):
        if options.workload in (None, workload.name):
            workload_run = replace(workload, timers=options.timers) if options.timers else workload
            for _ in range(options.repeat):
                for case in FORMAT_CASES:
                    if options.request_format is None or case.name in options.request_format:
                        figures = measure(session, case, workload_run)
                        session.printer.line(json.dumps(figures._asdict()))
                        yield figures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.formats", description=__doc__.split(":")[1])
    parser.add_argument("--workload", choices=(BACKLOG.name, BURST.name), help="only this one")
    parser.add_argument(
        "--request-format", action="append", choices=[one.name for one in FORMAT_CASES], help="only this one"
    )
    parser.add_argument("--timers", type=int, help=f"({BACKLOG.timers}, {BURST.timers})")
    parser.add_argument("--repeat", type=int, default=1, help="the median counts (1)")
    kafka_version.add_option(parser)
    options = parser.parse_args()
    with measuring("formats-") as session:
        measure(session, FORMAT_CASES[0], BACKLOG)  # a warm-up for the Java compiler of the broker
        found = list(_run(session, options))
    for workload in (BACKLOG, BURST):
        by_format = {
            one.name: np.median(np.array([f[3:6] for f in found if f[:2] == (one.name, workload.name)]), axis=0)
            for one in FORMAT_CASES
            if any(f[:2] == (one.name, workload.name) for f in found)
        }
        for name, figures in by_format.items():
            rates = by_format.get("future", figures)
            print(
                f"{workload.name:8} {name:13} {figures[0]:8,.0f}/s ({figures[0] / rates[0]:.2f})  "
                f"from its start {figures[1]:8,.0f}/s ({figures[1] / rates[1]:.2f})  CPU {figures[2]:6.2f} us",
                flush=True,
            )
    return int(any(f.lost or f.duplicates or f.early for f in found))


if __name__ == "__main__":
    sys.exit(main())
