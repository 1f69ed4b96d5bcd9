"""Stores that are damaged on disk, while the worker is stopped and while it runs: each timer fires once."""

import math
import os
from pathlib import Path

import pytest

from tests.harness.red_partitions import tables
from tests.harness.scrape import scrape
from tests.harness.system import PARTITIONS, System, timers
from tests.harness.waiting import DEADLINE_S, due_in, wait_until

pytestmark = pytest.mark.broker


def flip(table: Path) -> None:
    with table.open("r+b") as file:
        file.seek(table.stat().st_size // 3)
        data = file.read(64)
        file.seek(-len(data), os.SEEK_CUR)
        file.write(bytes(byte ^ 0xFF for byte in data))


@pytest.mark.long
def test_a_store_damaged_while_stopped_and_one_while_running_lose_no_timer(system: System) -> None:
    target = system.target()
    worker = system.worker().start().ready()
    # Later than a stop and a start, also on a busy machine.
    first_s = due_in(8 + math.ceil(5 * worker.ready_s))
    requests = timers(target, 8_000, first_s, 3, os.urandom(500))
    for number, request in enumerate(requests):  # every store has timers: few due seconds are few keys
        request.partition = number % PARTITIONS
    system.send(*requests)
    wait_until(lambda: scrape(worker.port).total("timers_pending") == 8_000, "all are stored")
    worker.stop()
    flip(tables(worker)["0"])
    worker.start().ready()
    flip(tables(worker)["1"])
    assert len(system.fired(requests, 2 * DEADLINE_S)) == 8_000
    worker.wait_for(r"the store in \S*/0 is damaged, unreadable: .*checksum")
    worker.wait_for(r"the store in \S*/1 is damaged, unreadable: .*checksum")
    assert scrape(worker.port).by("timers_stores_condemned_total", "reason")["unreadable"] == 2
