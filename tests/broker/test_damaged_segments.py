"""A disk of the brokers damages a batch of requests after workers have accepted it.

Who has a store fires on. A worker whose store is lost or damaged too reads the log again: its partition is red with the
way on. After that each timer outside of the batch is pending once, and the batch has one dead letter, also if another
replica shows it as it was.
"""

import os
import shutil
from pathlib import Path

import pytest

from tests.harness.records import Request
from tests.harness.red_partitions import red, tables, taken, way_on
from tests.harness.scrape import health
from tests.harness.system import System, timers
from tests.harness.waiting import due_in, wait_until
from tests.harness.worker import Worker
from timers.cli.broker import EmbeddedBroker
from timers.cli.broker.embedded import DATA

pytestmark = [pytest.mark.broker, pytest.mark.long]

OTHERS = 2_000
"""Enough that the store has a table file."""


def change(segment: Path, value: bytes) -> None:
    """Change the case of a value, so that the checksum of its batch is wrong, or right again."""
    at = segment.read_bytes().index(value)
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(value.swapcase())


def wait_pending(worker: Worker, count: int) -> None:
    wait_until(lambda: health(worker.port, "ready")[1]["pending"] == count, f"{count} timers are pending")


def test_a_batch_that_a_disk_has_damaged_is_passed_over_in_each_replay(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path / "broker", 0)
    system = System(broker.start(), tmp_path, TIMERS_PARTITIONS="1")
    try:
        worker = system.worker().start().ready()
        target, topic, due_s = system.target(), system.request_topic, due_in(3600)
        callbacks, letters = system.reader(target), system.dead_letters()
        for value, second in ((b"fires", due_in(0)), (b"damaged", due_s)):  # each in a batch of its own
            system.send(Request(target, second, "", value, partition=0))
        system.send(*timers(target, OTHERS, due_s, 3, os.urandom(500)))
        assert taken(callbacks, 1) == ["fires"]
        wait_pending(worker, OTHERS + 1)
        worker.stop()
        broker.stop()
        (segment,) = (broker.directory / DATA / f"{topic}-0").glob("*.log")
        change(segment, b"damaged")
        broker.start()

        worker.start().ready()
        wait_pending(worker, OTHERS + 1)
        assert not red(worker), "its store has all of them"
        worker.stop()
        table = tables(worker)["0"]
        table.write_bytes(table.read_bytes()[:-64] + bytes(64))  # its footer, which is read first
        worker.start()
        worker.wait_for(r"the store in \S*/0 is damaged, unreadable")
        accepted = way_on(worker, f"{topic}/0")
        assert accepted == f"{topic}/0:1-1"
        worker.stop()
        worker.start(TIMERS_ACCEPT_LOSS=accepted).ready()
        (letter,) = letters.take(1)
        assert (letter.text("timer-error"), letter.text("timer-source")) == ("batch-unreadable", f"{topic}/0/1")
        assert letter.value is not None and b"DAMAGED" in letter.value
        wait_pending(worker, OTHERS)
        wait_until(lambda: not red(worker), "it is green")
        worker.stop()

        change(segment, b"DAMAGED")
        shutil.rmtree(worker.data_dir)
        worker.start().ready()
        system.send(Request(target, due_in(0), "", b"after", partition=0))
        assert taken(callbacks, 1) == ["after"]
        wait_pending(worker, OTHERS)
        assert not red(worker) and not letters.rest() and not callbacks.rest()
    finally:
        system.close()
        broker.stop()
