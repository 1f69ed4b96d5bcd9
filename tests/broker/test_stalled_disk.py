"""A disk that stalls under one store delays the timers of no other partition."""

import math
import time

import pytest

from tests.harness.disk import StallingDisk, may_stall
from tests.harness.scrape import scrape
from tests.harness.system import System, timers
from tests.harness.waiting import DEADLINE_S, due_in, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.long]

STALL_S = 15.0
SECONDS = 30


# A list, not a skip: where nothing may be mounted this test does not exist. tests/unit/test_store_damage.py shows there
# that a write touches no file.
@pytest.mark.parametrize("disk_at", [StallingDisk] if may_stall() else [])
def test_a_stall_under_one_store_delays_no_other_partition(system: System, disk_at: type[StallingDisk]) -> None:
    target = system.target()
    worker = system.worker().start().ready()
    worker.stop()
    (store,) = worker.data_dir.glob(f"*/*/{system.request_topic}/0")
    disk = disk_at(store)
    try:
        worker.start().ready()
        first_s = due_in(3 + math.ceil(worker.ready_s))
        requests = timers(target, 12_000, first_s, SECONDS)
        for number, request in enumerate(requests):
            request.partition = number // SECONDS % 2
        system.send(*requests)
        wait_until(lambda: scrape(worker.port).total("timers_pending") == len(requests), "all are stored")
        time.sleep(max(0.0, first_s + 3 - time.time()))
        with disk.stalled():
            late = timers(target, 2_000, first_s + SECONDS - 4, 4)
            for number, request in enumerate(late):
                request.partition = number // 4 % 2
            system.send(*late)
            time.sleep(STALL_S)
        fired = system.fired([*requests, *late], 2 * DEADLINE_S)
    finally:
        worker.stop()
        disk.close()
    lags = [0.0, 0.0]
    for request in (*requests, *late):
        assert request.partition is not None
        lags[request.partition] = max(lags[request.partition], fired[request.source].lag_ms / 1000)
    assert lags[1] < STALL_S / 3, f"longest lags: {lags[0]:.1f} s on the stalled disk, {lags[1]:.1f} s elsewhere"
    assert "is damaged" not in worker.log
