"""What tests of damaged logs and stores ask of a worker: which partitions are red and why, and where its stores are."""

import re
from pathlib import Path

from tests.harness.records import Reader
from tests.harness.scrape import health
from tests.harness.waiting import wait_until
from tests.harness.worker import Worker

WAY_ON = re.compile(r"TIMERS_ACCEPT_LOSS=(\S+)")


def red(worker: Worker) -> dict[str, str]:
    """The red partitions, and why."""
    found: dict[str, str] = health(worker.port, "partitions")[1]["red"]
    return found


def red_sentence(worker: Worker, partition: str) -> str:
    """Wait until a partition is red, and say why."""
    found: str = wait_until(lambda: red(worker).get(partition), f"{partition} is red")
    return found


def way_on(worker: Worker, partition: str) -> str:
    """The value of the setting that the sentence of a red partition names."""
    found = WAY_ON.search(red_sentence(worker, partition))
    assert found
    return found[1]


def taken(reader: Reader, count: int) -> list[str]:
    return sorted((record.value or b"").decode() for record in reader.take(count))


def tables(worker: Worker) -> dict[str, Path]:
    """Partition of the request topic -> the largest table file of its store."""
    found: dict[str, Path] = {}
    for table in sorted(worker.data_dir.rglob("request-*/*/*.sst"), key=lambda path: path.stat().st_size):
        found[table.parent.name] = table
    return found
