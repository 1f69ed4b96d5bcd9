"""A planned change of a partition's owner: the new one reads ahead while the old one fires."""

import re
import signal
import time
from pathlib import Path

import pytest

from tests.harness.publication import Publication, publish_in_process
from tests.harness.system import PARTITIONS, System, timers
from tests.harness.waiting import due_in
from tests.harness.worker import READY, Worker
from timers.machines.opener import LEAST_AHEAD

pytestmark = pytest.mark.broker

DAY_S = 86_400


def read_after_the_fence(worker: Worker) -> list[int]:
    """How many records each machine of the request topic read again before it fired."""
    return [int(count) for count in re.findall(r"recovered request-\w+/\d+: \d+ pending, (\d+) records", worker.log)]


def test_a_worker_that_ends_fires_until_others_have_read_ahead_and_gets_its_partitions_back(
    broker_address: str, tmp_path: Path
) -> None:
    system = System(broker_address, tmp_path, TIMERS_SNAPSHOT_FACTOR="0")
    try:
        stays, leaves = system.worker(forked=False).start().ready(), system.worker(forked=False).start()
        leaves.wait_for(READY)
        # A machine that is fenced reads on until its next transaction, and what its store has then is not read ahead.
        stays.wait_for(rf"(?s)(its new owner has taken over.*){{{PARTITIONS}}}")
        count = PARTITIONS * 3 * LEAST_AHEAD
        tomorrow_s = int(time.time()) + DAY_S
        publish_in_process(
            Publication(
                *(broker_address, system.request_topic, system.target(), count, tomorrow_s, 1000, 16, PARTITIONS),
                partitioner="spread",
            ),
            tmp_path,
        )
        target = system.target()
        seconds = 14 + int(4 * stays.ready_s)
        requests = timers(target, seconds * 40, due_in(3), seconds)
        for number, request in enumerate(requests):
            request.partition = number // seconds % PARTITIONS
        system.send(*requests)
        system.wait_past(1)  # all of them are accepted
        leaves.send(signal.SIGTERM)
        assert leaves.exit_code() == 0
        assert re.search(r"other workers have taken over (\d+) of \1 partitions", leaves.log), leaves.tail()
        stays.wait_for(rf"was read ahead: \d{{{len(str(LEAST_AHEAD))},}} records")
        leaves.start()
        leaves.wait_for(READY)
        system.fired(requests)
        for worker in (stays, leaves):
            assert max(read_after_the_fence(worker)) < LEAST_AHEAD, "nothing fired while it read more"
            assert "Traceback" not in worker.log
        assert "was read ahead" not in leaves.log, "its stores were used when it came back"
    finally:
        system.close()
