"""A worker is paused while it fires and wakes up after a takeover: it must not fire."""

import re
import signal

import pytest

from tests.harness.records import Request
from tests.harness.system import PARTITIONS, System, timers
from tests.harness.waiting import due_in, wait_until
from tests.harness.worker import STOPPING, Worker

pytestmark = pytest.mark.broker

COUNT = 60_000


def wake_up(zombie: Worker) -> None:
    """Wake a worker that the group has removed: it joins again as a new member, and gets its share."""
    deals = r"deal \d+ of the group"
    before = len(re.findall(deals, zombie.log))
    zombie.send(signal.SIGCONT)
    wait_until(lambda: len(re.findall(deals, zombie.log)) > before, "it joins again")


def test_a_zombie_is_fenced_and_its_open_transactions_are_never_seen(system: System) -> None:
    """It stops in a transaction while all its partitions fire."""
    target = system.target()
    zombie = system.worker()
    zombie.app = STOPPING
    zombie.start(STOPS="sent", STOPS_AT=target).ready()
    requests: list[Request] = timers(target, COUNT, due_in(6), 3)
    for index, request in enumerate(requests):
        request.partition = index // 3 % PARTITIONS
    system.send(*requests)
    wait_until(lambda: zombie.is_stopped, "it stops in a transaction")
    # Its transaction is open, unless the machine is so busy that the broker has aborted it after 10 s.
    other = system.worker().start()
    # It joins at once and waits for the end of the zombie's session.
    other.wait_for(rf"ready: {2 * PARTITIONS} partitions")
    system.wait_past(max(request.due_s for request in requests))
    wake_up(zombie)
    assert "Traceback" not in zombie.log, zombie.tail()
    assert "clock went back" not in zombie.log
    assert len(system.fired(requests)) == COUNT
    system.reader(target, committed=False).take(COUNT + 1)  # what it had in flight stands in the log, aborted
    assert other.running and zombie.running


@pytest.mark.long
def test_a_zombie_without_an_open_transaction_does_no_harm(system: System) -> None:
    target = system.target()
    zombie = system.worker().start().ready()
    other = system.worker().start().ready()
    zombie.send(signal.SIGSTOP)
    wait_until(lambda: f"ready: {2 * PARTITIONS} partitions" in other.log, "the other takes over")
    requests = system.send(*timers(target, 2_000, due_in(1), 4))
    reader = system.reader(target)
    reader.take(500)
    wake_up(zombie)
    assert len(system.fired(requests)) == 2_000
    assert other.running and zombie.running
