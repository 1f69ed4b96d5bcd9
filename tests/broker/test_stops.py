"""Stopping and starting a worker: timers that were due meanwhile fire at once, and no process is left."""

import contextlib
import math
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.harness.records import Request
from tests.harness.scrape import health
from tests.harness.system import MAX_LAG_MS, PARTITIONS, System, timers
from tests.harness.waiting import DEADLINE_S, done_in_time, due_in, wait_until
from tests.harness.worker import READY
from timers.cli.broker import EmbeddedBroker

pytestmark = pytest.mark.broker


def test_a_stopped_worker_leaves_no_process_and_fires_overdue_timers_at_its_next_start(system: System) -> None:
    worker = system.worker(forked=False).start().ready()
    accepted: list[Request] = []

    def stopped(lead_s: int) -> bool:
        accepted[:] = system.send(*timers(system.target(), 300, due_in(lead_s), 2))
        system.wait_past(1)  # all of them are accepted, because a later request has fired
        worker.stop()
        assert not worker.left_processes
        if time.time() < accepted[0].due_s:
            return True
        worker.start().ready()
        system.fired(accepted)
        return False

    done_in_time(4 + math.ceil(worker.ready_s), stopped)
    unread, due_s = system.target(), accepted[0].due_s
    sent_while_down = system.send(*timers(unread, 100, due_s, 2))
    wait_until(lambda: time.time() > due_s + 2, "the due second passes")
    assert system.reader(accepted[0].target).rest() == []

    started_ms = time.time() * 1000
    worker.start()
    for requests in (accepted, sent_while_down):
        fired = system.fired(requests)
        ready_ms = started_ms + 2 * MAX_LAG_MS + 2000 * worker.ready_s  # a start takes longer on a busy machine
        assert all(started_ms < record.append_ms < ready_ms for record in fired.values())

    give_up_s = time.monotonic() + DEADLINE_S
    while worker.running and time.monotonic() < give_up_s:
        with contextlib.suppress(AssertionError):  # it has just ended
            worker.send(signal.SIGTERM)
        time.sleep(0.002)
    assert worker.exit_code() == 0, "told to end while it was ending"


def test_a_new_worker_takes_partitions_and_each_timer_fires_once(system: System) -> None:
    target = system.target()
    first = system.worker(forked=False).start().ready()
    requests = timers(target, 7_000, due_in(2), 7)
    for index, request in enumerate(requests):
        request.partition = index // 7 % PARTITIONS
    system.send(*requests)
    second = system.worker(forked=False).start()
    partitions = int(second.wait_for(READY)[1])
    assert 0 < partitions < 2 * PARTITIONS
    first.wait_for(rf"deal \d+ of the group .*: {2 * PARTITIONS - partitions} partitions")
    fired = system.fired(requests)
    assert len(fired) == 7_000
    assert all(record.lag_ms < 2 * MAX_LAG_MS for record in fired.values())
    first.send(signal.SIGTERM)
    second.send(signal.SIGINT)
    for worker in (first, second):
        assert worker.exit_code() == 0
        assert not worker.left_processes
        assert "Traceback" not in worker.log


def test_timers_fire_while_the_group_rebalances_and_a_worker_that_waits_for_it_ends_after_the_handover(
    broker_address: str, tmp_path: Path
) -> None:
    """The rebalance waits for a member that is paused, longer than a worker may take to end."""
    system = System(broker_address, tmp_path, TIMERS_SESSION_TIMEOUT_S="300")
    try:
        target = system.target()
        worker, paused = system.worker(quick=True), system.worker()
        worker.start().ready()
        paused.start().ready()
        worker.wait_for(r"deal 2 of the group")

        def owned() -> list[int]:
            names = [name.split("/") for name in health(worker.port, "partitions")[1]["owned"]]
            return [int(partition) for topic, partition in names if topic == system.request_topic]

        # An idle machine notices at its next commit that the other worker has fenced it.
        wait_until(lambda: len(owned()) == PARTITIONS // 2, "it has closed what it handed over")
        paused.send(signal.SIGSTOP)
        joining = system.worker().start()
        wait_until(lambda: health(worker.port, "ready")[0] == 503, "it takes part in a rebalance")
        its, requests = owned(), timers(target, 600, due_in(3), 4)
        for index, request in enumerate(requests):
            request.partition = its[index // 4 % len(its)]
        system.send(*requests)
        fired = system.reader(target).take(len(requests))
        assert {record.timer_id for record in fired} == {request.source for request in requests}
        assert all(0 <= record.lag_ms < MAX_LAG_MS for record in fired)
        assert health(worker.port, "ready")[0] == 503, "the rebalance has not ended"
        worker.send(signal.SIGTERM)
        assert worker.exit_code(2 * DEADLINE_S) == 0
        assert "other workers have taken over 0 of" in worker.log, "it fired for as long as a handover may take"
        assert "ending without leaving the group" not in worker.log
        assert "was not told that this member leaves" not in worker.log
        joining.kill()
    finally:
        system.close()


@pytest.mark.parametrize("is_silent", [False, True], ids=["refused", "silent"])
def test_a_worker_that_has_not_reached_a_broker_ends_at_once(tmp_path: Path, is_silent: bool) -> None:
    """It waits for brokers in threads that do not keep it alive: else it would end after 15 s, by its watchdog."""
    with socket.socket() as nothing:
        nothing.bind(("127.0.0.1", 0))
        if is_silent:
            nothing.listen()
        system = System(f"127.0.0.1:{nothing.getsockname()[1]}", tmp_path)
        worker = system.worker().start()
        worker.wait_for("no broker answers yet")
        worker.send(signal.SIGTERM)
        assert worker.exit_code() == 0
        assert "did not answer" not in worker.log
        system.close()


def test_a_worker_whose_brokers_have_gone_ends_without_a_handover(own_broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Within 5 s; it would wait for 25 s for answers that cannot come. What it had accepted fires at its next start."""
    system = System(own_broker.start(), tmp_path)
    try:
        worker = system.worker(quick=True).start().ready()
        requests = system.send(*timers(system.target(), 40, due_in(3), 1))
        system.wait_past(1)
        own_broker.kill()
        worker.send(signal.SIGTERM)
        assert worker.exit_code() == 0
        assert "no broker can be reached: ending without a handover" in worker.log
        assert "did not answer for 15 s" not in worker.log and "have taken over" not in worker.log
        own_broker.start()
        worker.start()
        assert len(system.fired(requests)) == 40
    finally:
        system.close()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("TIMERS_WEB_PORT", "abc", "TIMERS_WEB_PORT='abc' is not a whole number between 1 and 65535"),
        ("TIMERS_BROKERS", "nowhere", "TIMERS_BROKERS='nowhere' is not host:port"),
    ],
)
def test_a_wrong_setting_stops_the_start_with_a_sentence(system: System, name: str, value: str, said: str) -> None:
    worker = system.worker(forked=False).start(**{name: value})
    assert worker.exit_code() == 2
    assert said in worker.log
    assert "Traceback" not in worker.log
