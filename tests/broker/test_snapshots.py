"""A worker without a disk restores snapshots, and reads what came after them only."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.harness.system import System, timers
from tests.harness.waiting import due_in, wait_until
from tests.harness.worker import READY, Worker

pytestmark = pytest.mark.broker

FIRED = 100_000
PENDING = 3_000
RECORDS = 10_000
"""A snapshot is due after so many records of a partition."""
PARTITIONS = 2


def covered(worker: Worker) -> dict[str, int]:
    """Partition -> offset of its newest snapshot, by the worker's log."""
    return {name: int(at) for name, at in re.findall(r"(\S+): a snapshot of \d+ pending at offset (\d+)", worker.log)}


def test_a_new_worker_reads_the_snapshot_and_not_all_that_ever_fired(broker_address: str, tmp_path: Path) -> None:
    system = System(
        broker_address,
        tmp_path,
        TIMERS_PARTITIONS=str(PARTITIONS),
        TIMERS_SNAPSHOT_RECORDS=str(RECORDS),
    )
    try:
        worker = system.worker().start().ready()
        target = system.target()
        wait_s = 45 + int(3 * worker.ready_s)
        waiting = timers(target, PENDING, due_in(wait_s), 3)
        fired = timers(system.target(partitions=2), FIRED, due_in(2), 10)
        for index, request in enumerate([*waiting, *fired]):
            request.partition = index % PARTITIONS
        waiting, fired = list(system.send(*waiting)), list(system.send(*fired))
        assert len(system.fired(fired, deadline_s=60)) == FIRED
        least = (FIRED + PENDING) // PARTITIONS - RECORDS
        wait_until(
            lambda: len(found := covered(worker)) >= PARTITIONS and min(found.values()) >= least,
            "snapshots near the ends of both logs",
        )
        worker.stop()
        shutil.rmtree(worker.data_dir)
        # What the snapshots replace may be gone.
        begins = {int(name.rsplit("/", 1)[1]): at for name, at in covered(worker).items()}
        system.cluster.delete_records(system.request_topic, begins)
        worker.start()
        pending = int(worker.wait_for(READY)[2])
        replayed = sum(int(found) for found in re.findall(r"(\d+) records read again", worker.log))
        assert worker.log.count("restored ") == PARTITIONS
        assert pending == PENDING
        assert replayed <= PARTITIONS * RECORDS + 100, "the log before the snapshots is not read"
        assert len(system.fired(waiting)) == PENDING
    finally:
        system.close()
