"""Measures how long a worker recovers with an empty disk.

``python -m bench.recovery --requests 20000000 --pending 300000``: many requests go through an app, and some of them
wait to the end. Then a worker with an empty disk starts: from the snapshots, and from the whole log. ``--trimmed`` also
says what the log takes on the disks of the brokers when what has fired was deleted from it.
"""

import argparse
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from random import Random
from typing import Any, NamedTuple

from confluent_kafka import Producer

from bench import storm
from bench.session import Session, measuring
from bench.subject import Subject
from bench.workload import PAYLOAD_BYTES, Workload
from tests.harness import kafka_version
from tests.harness.cluster import client_settings
from tests.harness.publication import Publication, publish
from tests.harness.scrape import health
from tests.harness.system import System
from tests.harness.worker import READY, Worker
from timers.cli.broker.embedded import DATA
from timers.core.progress import Progress
from timers.kafka.clients import asking_admin, librdkafka, reader
from timers.kafka.progress_log import read_all
from timers.kafka.records import read
from timers.kafka.topics import existing_topics
from timers.wire import future
from timers.wire.formats import future_by_id, schedule
from timers.wire.headers import TIMER_ID, TIMER_SOURCE
from timers.wire.topics import snapshots

FAR_S = 86_400
"""The timers are due in a day, so that none fires during the run."""
PATIENCE_S = 120.0
LONG_PATIENCE_S = 3_600.0
"""For many millions of requests."""

POLL_S = 2.0
"""So that the questions take no CPU from what is measured."""

MOST_LIVE, MOST_BYTES = 4, 64 * 1024 * 1024
REQUEST_BYTES = 53
"""Of a request in a batch of many, without its payload."""

RECOVERY = Workload("recovery", 1_000_000, 20)


@dataclass(frozen=True)
class RecoveryResult:
    """Figures of a worker that was stopped with ``timers`` pending and started on an empty disk."""

    subject: str
    timers: int
    recovered_s: float
    """From assignment to ready, from its own output."""
    start_to_ready_s: float
    """From the start of the process to ready."""
    cpu_s: float
    """CPU seconds of the new process until ready."""
    peak_mb: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run(session: Session, subject: Subject, workload: Workload = RECOVERY) -> RecoveryResult:
    """Let the subject accept all timers, stop it, wipe its disk, start it, and measure."""
    names = session.names(subject.name)
    session.printer.line(f"  recovery of {workload.timers:,} pending timers from an empty disk: {subject.name}")
    publication = session.publication(names, workload, int(time.time()) + FAR_S, partitioner=subject.partitioner)
    with session.printer.doing(f"starting {subject.name}"):
        running = subject.start(session, names, workload)
    try:
        acceptance = storm.publish(session, subject, names, running, publication, time.time() + PATIENCE_S)
    finally:
        with session.printer.doing(f"stopping {subject.name}"):
            running.stop()
    if acceptance.accepted_at is None:
        raise RuntimeError(f"{subject.name} had not accepted {workload.timers:,} timers after {PATIENCE_S:.0f} s")
    shutil.rmtree(names.data_dir)
    with session.printer.doing(f"starting {subject.name} again with an empty disk"):
        running = subject.start(session, names, workload)
    try:
        started_at = running.processes[0].started_at
        result = RecoveryResult(
            subject=subject.name,
            timers=workload.timers,
            recovered_s=subject.recovered_s(running.processes, workload.timers),
            start_to_ready_s=running.ready_at - started_at,
            cpu_s=running.usage.cpu_s("subject"),
            peak_mb=running.usage.peak_mb("subject"),
        )
    finally:
        running.stop()
    session.clear(names)
    return result


# ---- many requests, of which few wait --------------------------------------------------------------------------------


class Traffic(NamedTuple):
    """What goes through an app before its worker loses its disk."""

    requests: int
    """All of them, also updates and cancels of timers with an id."""
    pending: int
    """Timers that wait to the end."""
    partitions: int
    kind: str
    """One of :data:`TOPICS`."""


TOPICS = {"native": "", "id": "TIMERS_ID_TOPIC", "schedule": "TIMERS_SCHEDULE_TOPICS"}
"""Kind of requests -> the setting that names their topic."""


def _requests_by_id(traffic: Traffic, target: str) -> Iterator[tuple[bytes, bytes | None, Any]]:
    """Yields key, value and headers. Of the timers that do not wait, a quarter is updated and a quarter cancelled."""
    payload, random, left = b"x" * PAYLOAD_BYTES, Random(1), traffic.requests
    value, headers = future.encode(target, "key", payload), future_by_id.encode_headers
    if traffic.kind == "schedule":
        value, headers = payload, partial(schedule.encode_headers, topic=target, key=b"key")
    for number in range(traffic.requests):
        if number < traffic.pending:
            yield b"kept-%d" % number, value, headers(int(time.time()) + FAR_S)
            left -= 1
        elif left > 0:
            id, due, change = b"id-%d" % number, headers(int(time.time()) + 5), random.random()
            yield id, value, due
            if left > 1 and change < 0.5:
                yield (id, value, due) if change < 0.25 else (id, None, [])
                left -= 1
            left -= 1


def _send_by_id(traffic: Traffic, system: System, topic: str, target: str) -> int:
    """Send all. Returns how many timers are to fire."""
    former, to_fire = b"", -traffic.pending
    settings = {"linger.ms": 20, "queue.buffering.max.messages": 400_000, "compression.type": "none"}
    producer = Producer({**client_settings(system.address), **settings})
    for key, value, headers in _requests_by_id(traffic, target):
        while len(producer) > 300_000:
            producer.poll(0.05)
        producer.produce(topic, value, key, headers=headers)
        to_fire += (key != former) - (value is None)
        former = key
    producer.flush()
    return to_fire


def _send_native(traffic: Traffic, system: System, target: str) -> int:
    """Send all. Returns how many timers are to fire."""
    now_s, common = int(time.time()), (system.address, system.request_topic, target)
    for count, first_s in ((traffic.pending, now_s + FAR_S), (traffic.requests - traffic.pending, now_s + 5)):
        publish(Publication(*common, count, first_s, 60, PAYLOAD_BYTES, traffic.partitions, "spread"))
    return traffic.requests - traffic.pending


def _fired(system: System, target: str) -> tuple[int, int]:
    """Number of callbacks, and of requests that they are of. Reads all of the topic."""
    headers: dict[str, Any]
    callbacks, offsets = 0, defaultdict[Any, bytearray](bytearray)
    with closing(reader(librdkafka(system.settings), enable_partition_eof=True)) as consumer:
        for partition, end in system.cluster.ends(target, committed=True).items():
            for message in read(consumer, target, partition, 0, end, timeout_s=PATIENCE_S):
                headers = dict(message.headers() or ())
                log, _, offset = headers.get(TIMER_SOURCE, headers[TIMER_ID]).rpartition(b"/")
                known = offsets[log]
                if int(offset) >= len(known):
                    known.extend(bytes(int(offset) + 1_000_000 - len(known)))
                callbacks, known[int(offset)] = callbacks + 1, 1
    return callbacks, sum(map(sum, offsets.values()))


def _wait(is_so: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + LONG_PATIENCE_S
    while not is_so():
        if time.monotonic() > until:
            raise RuntimeError(f"{what}: not within {LONG_PATIENCE_S:.0f} s")
        time.sleep(POLL_S)


class Takeover:
    """One measurement.

    Args:
        settings: of the worker.
    """

    def __init__(self, session: Session, traffic: Traffic, settings: Mapping[str, str]) -> None:
        self._session, self._traffic = session, traffic
        known = {
            "TIMERS_PARTITIONS": str(traffic.partitions),
            "TIMERS_ID_TOPIC": "",
            **{name: f"bench-{traffic.kind}" for name in (TOPICS[traffic.kind],) if name},
            **settings,
        }
        self._system = System(session.cluster.brokers, session.workdir, **known)
        self._topic = known.get(TOPICS[traffic.kind]) or self._system.request_topic
        self._snapshots = snapshots(self._system.app_id, self._topic)

    def run(self, *, trimmed: bool) -> None:
        """Measure, and print.

        Args:
            trimmed: wait until each partition of the log takes no more than :data:`MOST_LIVE` times the bytes of what
                is pending and :data:`MOST_BYTES`. The whole log cannot be read then.
        """
        traffic, say = self._traffic, self._session.printer.line
        worker = self._system.worker(forked=False)
        try:
            if traffic.kind == "schedule":
                self._system.create_topic(self._topic, traffic.partitions, cleanup_policy="compact")
            worker.start().ready()
            began = time.time()
            target = self._system.target(traffic.partitions)
            if traffic.kind == "native":
                to_fire = _send_native(traffic, self._system, target)
            else:
                to_fire = _send_by_id(traffic, self._system, self._topic, target)
            _wait(lambda: self._left(worker) == (0, traffic.pending), "all others have fired")
            fired_at = time.time()
            say(f"  {traffic.requests:,} requests, {traffic.pending:,} pending, after {fired_at - began:.0f} s")
            if trimmed:
                _wait(self._is_trimmed, "what has fired is deleted from the log")
            text = f"{self._bytes(self._topic)}, {time.time() - fired_at:.0f} s after all others had fired"
            say(f"  bytes of the log by partition {text}")
            callbacks, timers = _fired(self._system, target)
            say(f"  {timers:,} of {to_fire:,} timers have fired, {callbacks - timers:,} of them more than once")
            since = [each.next_offset - (each.snapshot.applied if each.snapshot else 0) for each in self._progress()]
            say(f"  offsets after the newest snapshots {since}, bytes of snapshots {self._bytes(self._snapshots)}")
            worker.stop()
            say(f"  with snapshots: {self._again(worker)}")
            if not trimmed:
                self._session.cluster.delete([self._snapshots])
                say(f"  by the whole log: {self._again(worker)}")
        finally:
            self._system.close()

    def _progress(self) -> list[Progress]:
        cluster = existing_topics(asking_admin(self._system.settings), self._system.settings)
        return [each for tp, each in read_all(self._system.settings, cluster).items() if tp[0] == self._topic]

    def _left(self, worker: Worker) -> tuple[int, int]:
        """Requests that are not accepted, and pending timers."""
        ends = self._session.cluster.ends(self._topic, committed=True)
        unread = sum(ends.values()) - sum(each.next_offset for each in self._progress())
        return unread, health(worker.port, "ready")[1]["pending"]

    def _is_trimmed(self) -> bool:
        live = self._traffic.pending * (PAYLOAD_BYTES + REQUEST_BYTES) // self._traffic.partitions
        return max(self._bytes(self._topic)) <= MOST_LIVE * live + MOST_BYTES

    def _bytes(self, topic: str) -> list[int]:
        """Bytes of the segments of each partition on the disk of the broker."""
        folders = (self._session.broker_directory / DATA).glob(f"{topic}-*/")
        return [sum(each.stat().st_size for each in folder.glob("*.log")) for folder in folders]

    @staticmethod
    def _again(worker: Worker) -> dict[str, float]:
        """Start a worker with an empty disk. Returns how long it takes until it is ready, and how many records it reads
        again: all, or those after the snapshots."""
        shutil.rmtree(worker.data_dir)
        worker.start()
        _, pending, assigned_s = worker.wait_for(READY, LONG_PATIENCE_S).groups()
        whole_s = round(time.time() - worker.started_at, 2)
        worker.stop()
        read_again = sum(map(int, re.findall(r" pending, (\d+) records read again", worker.log)))
        seconds = {"start_to_ready_s": whole_s, "assigned_to_ready_s": float(assigned_s)}
        return {"pending": int(pending), "read_again": read_again, **seconds}


def main() -> None:
    """Measure one takeover."""
    parser = argparse.ArgumentParser(prog="python -m bench.recovery", description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=20_000_000, help="all requests (%(default)s)")
    parser.add_argument("--pending", type=int, default=300_000, help="timers that wait to the end (%(default)s)")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument(
        "--kind", choices=TOPICS, default="native", help="of ids and schedules some are updated, some cancelled"
    )
    parser.add_argument(
        "--trimmed", action="store_true", help="delete what has fired from the log (TIMERS_LOG_KEEP_S=0)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="TIMERS_NAME=VALUE", help="a setting of the worker"
    )
    kafka_version.add_option(parser)
    options = parser.parse_args()
    settings = dict(each.split("=", 1) for each in options.set)
    if options.trimmed:
        settings = {"TIMERS_LOG_KEEP_S": "0", **settings}
    traffic = Traffic(options.requests, options.pending, options.partitions, options.kind)
    with measuring("recovery-") as session:
        Takeover(session, traffic, settings).run(trimmed=options.trimmed)


if __name__ == "__main__":
    main()
