"""Moves what is pending of an app into another cluster while it fires, and counts on which side each timer fires.

``python -m bench.moving --timers 1000000``: a tenth of the timers has an id. They are due within ``--seconds``. When a
fifth of this time is over, ``timers export --move`` takes the rest out of the first app, and ``timers import-pending``
sets it in the second one: without ``--yes``, and twice with it. Each timer must fire once, on one side.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from confluent_kafka import Producer

from tests.harness import kafka_version
from tests.harness.cluster import client_settings
from tests.harness.process import ROOT, clean_environment, python
from tests.harness.system import System
from timers.cli.broker import EmbeddedBroker
from timers.kafka.clients import librdkafka, reader
from timers.kafka.records import read
from timers.wire import future
from timers.wire.formats import future_by_id

PARTITIONS = 4
ID_SHARE = 10
"""One timer of so many has an id."""
SENT_A_SECOND = 15_000
"""Timers that are sent before the first one is due."""
LATE_S = 15
"""So long after their seconds, all timers have fired that do."""


def _requests(count: int, first_s: int, seconds: int, target: str) -> Iterator[tuple[bytes, bytes, Any]]:
    """Yields key, value and headers of each request."""
    for number in range(count):
        due_s, value = first_s + number % seconds, future.encode(target, f"key-{number}", b"%d" % number)
        if number % ID_SHARE:
            yield b"%d" % due_s, value, None
        else:
            yield b"id-%d" % number, value, future_by_id.encode_headers(due_s)


def _send(system: System, requests: Iterator[tuple[bytes, bytes, Any]]) -> None:
    producer = Producer({**client_settings(system.address), "linger.ms": 50, "queue.buffering.max.messages": 200_000})
    for number, (key, value, headers) in enumerate(requests):
        while len(producer) > 150_000:
            producer.poll(0.05)
        if headers is None:
            producer.produce(system.request_topic, value, key, number % PARTITIONS)
        else:
            producer.produce(system.settings.id_topic, value, key, headers=headers)
    producer.flush()


def _run(system: System, *words: str) -> None:
    began = time.monotonic()
    environment = clean_environment() | system.environment
    command = python("timers.cli.main", *words)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    print(f"  timers {words[0]}: {time.monotonic() - began:.1f} s, {(done.stdout.splitlines() or [''])[0]}", flush=True)
    if done.returncode:
        raise SystemExit(done.stderr)


def _fired(system: System, target: str, count: int) -> bytearray:
    """How often each timer has fired."""
    fired = bytearray(count)
    with closing(reader(librdkafka(system.settings), enable_partition_eof=True)) as consumer:
        for partition, end in system.cluster.ends(target, committed=True).items():
            for message in read(consumer, target, partition, 0, end, timeout_s=30):
                fired[int(message.value() or b"")] += 1
    return fired


def _sleep_until(epoch_s: float) -> None:
    time.sleep(max(0.0, epoch_s - time.time()))


def move(first: System, second: System, file: Path, count: int, seconds: int) -> tuple[int, int, int, int]:
    """Returns how many timers have fired in each app, how many never, and how many twice."""
    for system in (first, second):
        system.worker(forked=False).start().ready()
    target = first.target(PARTITIONS)
    second.create_topic(target, PARTITIONS)
    first_s = int(time.time()) + 30 + count // SENT_A_SECOND
    _send(first, _requests(count, first_s, seconds, target))
    _sleep_until(first_s + seconds // 5)
    _run(first, "export", str(file), "--move")
    for words in ([], ["--yes"], ["--yes"]):
        _run(second, "import-pending", str(file), *words)
    for system in (first, second):
        _sleep_until(first_s + seconds + LATE_S)
        system.wait_past(int(time.time()))
    both = [_fired(system, target, count) for system in (first, second)]
    sums = [one + other for one, other in zip(*both, strict=True)]
    return sum(both[0]), sum(both[1]), sums.count(0), sum(each > 1 for each in sums)


def main() -> None:
    """Move once, and print what was counted. The exit code is 1 if a timer was lost or fired twice."""
    parser = argparse.ArgumentParser(prog="python -m bench.moving", description=__doc__.splitlines()[0])
    parser.add_argument("--timers", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=300, help="in which they are due (%(default)s)")
    kafka_version.add_option(parser)
    options = parser.parse_args()
    with TemporaryDirectory(dir=ROOT / ".timers", ignore_cleanup_errors=True) as name:
        root = Path(name)
        brokers = [EmbeddedBroker(root / each, 0) for each in ("one", "two")]
        try:
            apps = [
                System(each.start(), root / f"of-{at}", TIMERS_PARTITIONS=str(PARTITIONS), TIMERS_ID_TOPIC=f"ids-{at}")
                for at, each in enumerate(brokers)
            ]
            try:
                one, two, lost, twice = move(apps[0], apps[1], root / "pending", options.timers, options.seconds)
            finally:
                for app in apps:
                    app.close()
        finally:
            for each in brokers:
                each.stop()
    fired = f"fired in the first app {one:,}, in the second one {two:,}; lost {lost:,}, twice {twice:,}"
    print(f"  on Kafka {kafka_version.chosen()}: {fired}")
    sys.exit(bool(lost or twice))


if __name__ == "__main__":
    main()
