"""Workers that are killed or lose their disks: ``read_committed`` receivers get each callback once."""

import math
import re
import shutil
import time

import pytest

from tests.harness.records import Request
from tests.harness.system import MAX_LAG_MS, PARTITIONS, System, timers
from tests.harness.waiting import done_in_time, due_in
from tests.harness.worker import READY

pytestmark = pytest.mark.broker


def spread(target: str, count: int, first_s: int, seconds: int) -> list[Request]:
    """Timers, spread evenly over the request partitions."""
    requests = timers(target, count, first_s, seconds, b"x" * 100)
    for index, request in enumerate(requests):
        request.partition = index // seconds % PARTITIONS
    return requests


def test_after_a_kill_and_a_restart_each_timer_fires_once(system: System) -> None:
    """Two workers fire; one is killed, starts again, is killed again and loses its disk."""
    target = system.target(partitions=3)
    first, second = system.worker().start(), system.worker().start()
    first.ready()
    second.ready()
    requests = system.send(*spread(target, 20_000, due_in(3), 7))
    reader = system.reader(target)
    seen = len(reader.take(3_000))
    first.kill()
    first.start()
    seen += len(reader.take(5_000))
    first.kill()
    shutil.rmtree(first.data_dir)
    first.start()
    fired = system.fired(requests)
    assert len(fired) == 20_000 > seen
    assert second.running


def test_an_idle_worker_that_lost_its_disk_reads_its_timers_from_the_log(system: System) -> None:
    worker = system.worker().start().ready()

    def attempt(lead_s: int) -> bool:
        target, due_s = system.target(), due_in(lead_s)
        fired_before = system.send(*spread(system.target(), 50, due_in(1), 1))
        waiting = system.send(*spread(target, 2_000, due_s, 2))
        assert len(system.fired(fired_before)) == 50
        worker.kill()
        shutil.rmtree(worker.data_dir)
        worker.start()
        pending = int(worker.wait_for(READY)[2])
        is_in_time = time.time() < due_s
        replayed = sum(int(found) for found in re.findall(r"(\d+) records read again", worker.log))
        assert pending == 2_000 or (not is_in_time and pending < 2_000), "what has fired does not wait any more"
        assert replayed >= 2_000
        assert len(system.fired(waiting)) == 2_000
        return is_in_time

    done_in_time(5 + math.ceil(2 * worker.ready_s), attempt)


def test_other_workers_take_over_from_a_killed_worker(system: System) -> None:
    target = system.target()
    first, second = system.worker().start(), system.worker().start()
    first.ready()
    second.ready()
    requests = system.send(*spread(target, 3_000, due_in(2), 6))
    reader = system.reader(target)
    reader.take(500)
    first.kill()
    fired = system.fired(requests)
    session_ms = system.settings.session_timeout_s * 1000
    assert all(record.lag_ms < session_ms + 2 * MAX_LAG_MS for record in fired.values())
    assert int(re.findall(READY, second.log)[-1][0]) == 2 * PARTITIONS, "it has all partitions of both topics now"
