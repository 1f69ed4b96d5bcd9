"""Brokers whose clocks are wrong: no timer fires early, due timers fire, and the worker says which ticks are held."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.broker_clock import ahead_by
from tests.harness.brokers import brokers, ended, start
from tests.harness.process import clean_environment
from tests.harness.records import Request
from tests.harness.scrape import health, scrape
from tests.harness.system import PARTITIONS, System
from tests.harness.waiting import due_in, wait_until
from tests.harness.worker import Worker
from timers.cli.broker import EmbeddedBroker

pytestmark = pytest.mark.broker

HOUR_S = 3600
MONTH_S = 30 * 86_400
YEAR_S = 365 * 86_400


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker for one test, not started."""
    (broker,) = brokers(tmp_path, 1)
    with ended(broker):
        yield broker


@pytest.fixture
def systems(tmp_path: Path) -> Iterator[list[System]]:
    """Systems that are closed at the end of the test."""
    systems: list[System] = []
    yield systems
    for system in systems:
        system.close()


def on_all_partitions(target: str, due_s: int) -> list[Request]:
    return [Request(target, due_s, f"key-{partition}", partition=partition) for partition in range(PARTITIONS)]


def assert_they_fire(system: System, requests: list[Request]) -> None:
    """Wait until all requests of one target have fired. Append times may be wrong here, so they are not checked."""
    (target,) = {request.target for request in requests}
    reader = system.reader(target)
    fired = reader.take(len(requests))
    assert sorted(record.timer_id for record in fired) == sorted(request.source for request in requests)
    assert reader.rest() == []


def held(worker: Worker) -> str:
    """Wait until the worker is not ready because ticks of broker 1 are held; returns the sentence.

    A consumer may not know who leads a partition right after the broker has started: then its ticks are "a broker's".
    """

    def sentence() -> str | None:
        status, body = health(worker.port, "ready")
        named = (why for why in body["reasons"] if "ticks of broker 1 are held" in why)
        return next(named, None) if status == 503 else None

    return wait_until(sentence, "ticks are held")


def wait_ready(worker: Worker) -> None:
    wait_until(lambda: health(worker.port, "ready")[0] == 200, "the worker is ready")


@pytest.mark.long
def test_after_a_month_a_broker_a_year_ahead_fires_nothing_early(
    broker: EmbeddedBroker, systems: list[System], tmp_path: Path
) -> None:
    """First a month passes without a worker, for all clocks: no help is needed. Then the broker is a year ahead."""
    system = System(start(broker), tmp_path)
    systems.append(system)
    worker = system.worker().start().ready()
    assert_they_fire(system, list(system.send(*on_all_partitions(system.target(), due_in(2)))))
    worker.stop()
    overdue = system.send(*on_all_partitions(system.target(), due_in(HOUR_S)))
    broker.stop()
    start(broker, ahead_by(MONTH_S, tmp_path))
    worker.start(TIMERS_CLOCK_OFFSET=str(MONTH_S)).ready()
    assert_they_fire(system, list(overdue))

    later = system.send(*on_all_partitions(system.target(), due_in(MONTH_S + 2 * HOUR_S)))
    broker.stop()
    start(broker, ahead_by(MONTH_S + YEAR_S, tmp_path))
    sentence = held(worker)
    assert re.search(r"ticks of broker 1 are held: .* start with TIMERS_ACCEPT_TIME=\S+$", sentence)
    assert "ticks of broker 1 are held" in worker.log
    assert scrape(worker.port).total("timers_brokers_held") >= 1
    broker.stop()
    start(broker, ahead_by(MONTH_S, tmp_path))
    wait_ready(worker)
    assert_they_fire(system, list(system.send(*on_all_partitions(system.target(), due_in(MONTH_S + 2)))))
    assert system.reader(later[0].target).rest() == [], "due in two hours"
    assert worker.running


@pytest.mark.long
def test_a_time_that_an_operator_accepted_wrongly_is_taken_back(
    broker: EmbeddedBroker, systems: list[System], tmp_path: Path
) -> None:
    """The disk of the worker is lost, too: nothing fires again, and new timers fire by the right clock."""
    system = System(start(broker, ahead_by(YEAR_S, tmp_path)), tmp_path)
    systems.append(system)
    worker = system.worker().start().ready()
    early = system.send(*on_all_partitions(system.target(), due_in(HOUR_S)))
    setting = held(worker).rpartition(" ")[2]
    worker.stop()
    worker.start(**dict([setting.split("=")]))
    assert_they_fire(system, list(early))
    broker.stop()
    start(broker)
    waits = r"clock went back: new requests wait until it shows 2\d{3}-\S+Z, the last second that has fired"
    wait_until(lambda: re.search(waits, str(health(worker.port, "ready")[1]["reasons"])), "new requests wait")
    later = system.send(*on_all_partitions(system.target(), due_in(HOUR_S)))
    assert timers_clock(system, "--repair").stderr.count("stop all workers first") == 1
    worker.stop()
    assert "s ahead" in timers_clock(system).stdout
    # The group forgets a static member after the session timeout.
    repaired = wait_until(lambda: timers_clock(system, "--repair").stdout, "the time is taken back")
    assert repaired.count("was taken back") >= PARTITIONS
    assert re.search(r"^0 partitions are ahead", timers_clock(system, "--repair").stderr, re.MULTILINE)
    system.worker().start().ready()
    assert_they_fire(system, list(system.send(*on_all_partitions(system.target(), due_in(2)))))
    assert system.reader(later[0].target).rest() == [], "due in an hour"
    assert len(system.reader(early[0].target).rest()) == PARTITIONS, "nothing fired again"


def timers_clock(system: System, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "timers.cli.main", "clock", *options]
    return subprocess.run(command, env=clean_environment(**system.environment), capture_output=True, text=True)


@pytest.mark.long
def test_of_two_brokers_an_hour_apart_the_one_counts_that_agrees_with_the_workers_clock(
    systems: list[System], tmp_path: Path
) -> None:
    right, wrong = brokers(tmp_path, 2)
    with ended(right, wrong):
        system = System(start(right), tmp_path)
        systems.append(system)
        start(wrong, ahead_by(HOUR_S, tmp_path))
        worker = system.worker().start().ready()
        wait_ready(worker)
        wait_until(lambda: scrape(worker.port).total("timers_brokers_held"), "one broker is held")
        soon = system.send(*on_all_partitions(system.target(), due_in(2)))
        later = system.send(*on_all_partitions(system.target(), due_in(HOUR_S // 2)))
        assert_they_fire(system, list(soon))
        assert time.time() < soon[0].due_s + HOUR_S // 4
        assert health(worker.port, "ready")[0] == 200, "one broker counts"
        assert system.reader(later[0].target).rest() == [], "due in half an hour"


def test_an_operator_accepts_the_brokers_time(system: System) -> None:
    """The worker's clock is wrong by a year, there is one broker, and nothing has fired yet: no second clock agrees."""
    worker = system.worker().start(TIMERS_CLOCK_OFFSET=str(-YEAR_S)).ready()
    requests = system.send(*on_all_partitions(system.target(), due_in(0)))
    sentence = held(worker)
    assert system.reader(requests[0].target).rest() == []
    worker.stop()
    name, _, value = sentence.rpartition(" ")[2].partition("=")
    worker.start(**{"TIMERS_CLOCK_OFFSET": str(-YEAR_S), name: value}).ready()
    assert_they_fire(system, list(requests))
    worker.kill()
    worker.start(TIMERS_CLOCK_OFFSET=str(-YEAR_S)).ready()  # the time follows what has fired
    assert_they_fire(system, list(system.send(*on_all_partitions(system.target(), due_in(2)))))


def test_of_two_new_workers_one_right_clock_is_enough(system: System) -> None:
    """Nothing has fired yet: the one with the wrong clock follows what the other one fires."""
    wrong = system.worker().start(TIMERS_CLOCK_OFFSET=str(2 * HOUR_S))
    right = system.worker().start()
    for worker in (wrong, right):
        worker.ready()
        wait_ready(worker)
    assert_they_fire(system, list(system.send(*on_all_partitions(system.target(), due_in(2)))))
