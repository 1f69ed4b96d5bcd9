"""The circuit breaker: for how long a circuit is open, and which timers try the topic again."""

import pytest

from tests.harness.clock import SimClock
from timers.machines.firing.breaker import FIRST_OPEN_S, LONGEST_OPEN_S, CircuitBreaker, DeliveryProblem


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


def test_retried_timers_are_tried_before_new_ones(clock: SimClock) -> None:
    circuit_breaker = CircuitBreaker(clock)
    circuit_breaker.open("t", "target-failing", "why")
    assert circuit_breaker.problem("t", retried=True) == DeliveryProblem("target-failing", "why", FIRST_OPEN_S)
    assert circuit_breaker.problem("other", retried=False) is None
    clock.now_s += FIRST_OPEN_S
    assert circuit_breaker.problem("t", retried=True) is None
    assert circuit_breaker.problem("t", retried=False) == DeliveryProblem("target-failing", "why", 0.0)
    circuit_breaker.worked(["t", "other"])
    assert circuit_breaker.problem("t", retried=False) is None
    assert "t" not in circuit_breaker


def test_new_timers_are_tried_if_no_retried_one_comes(clock: SimClock) -> None:
    circuit_breaker = CircuitBreaker(clock)
    circuit_breaker.open("t", "c", "r")
    clock.now_s += 2 * FIRST_OPEN_S
    assert circuit_breaker.problem("t", retried=False) is None


def test_each_failure_doubles_the_open_time_up_to_a_limit(clock: SimClock) -> None:
    circuit_breaker = CircuitBreaker(clock)
    open_times_s = []
    for _ in range(7):
        circuit_breaker.open("t", "c", "r")
        problem = circuit_breaker.problem("t", retried=True)
        assert problem is not None and problem.open_s is not None
        open_times_s.append(problem.open_s)
        clock.now_s += problem.open_s
    assert open_times_s == [30, 60, 120, 240, 480, LONGEST_OPEN_S, LONGEST_OPEN_S]


def test_a_target_may_fail_for_weeks(clock: SimClock) -> None:
    circuit_breaker = CircuitBreaker(clock)
    for _ in range(3000):
        circuit_breaker.open("t", "c", "r")
        clock.now_s += LONGEST_OPEN_S
    circuit_breaker.open("t", "c", "r")
    assert circuit_breaker.problem("t", retried=True) == DeliveryProblem("c", "r", LONGEST_OPEN_S)


def test_one_failure_reported_by_several_machines_counts_once(clock: SimClock) -> None:
    circuit_breaker = CircuitBreaker(clock)
    for _ in range(4):
        circuit_breaker.open("t", "c", "r")
    assert circuit_breaker.problem("t", retried=True) == DeliveryProblem("c", "r", FIRST_OPEN_S)


def test_success_of_records_sent_before_the_failure_does_not_close_the_circuit(clock: SimClock) -> None:
    circuit_breaker = CircuitBreaker(clock)
    circuit_breaker.open("t", "c", "r")
    circuit_breaker.worked(["t"])
    assert "t" in circuit_breaker


def test_the_first_failure_and_the_recovery_are_told_once(clock: SimClock) -> None:
    circuit_breaker = CircuitBreaker(clock)
    told = []
    for _ in range(3):
        told.append(circuit_breaker.open("t", "c", "it is full"))
        clock.now_s += LONGEST_OPEN_S
    assert told == [True, False, False]
    assert circuit_breaker.worked(["t", "other"]) == {"t": 3 * LONGEST_OPEN_S}
    assert circuit_breaker.worked(["t"]) == {}
    assert circuit_breaker.open("t", "c", "r")
    assert (circuit_breaker.drop("t"), circuit_breaker.drop("t")) == (True, False)


def test_circuits_of_another_process_are_used_as_they_are(clock: SimClock) -> None:
    driver, task = CircuitBreaker(clock), CircuitBreaker(clock)
    driver.open("t", "target-failing", "why")
    driver.open("u", "topic-denied", "no")
    clock.now_s += 1
    task.merge(driver.circuits())
    assert task.circuits() == driver.circuits()
    assert task.problem("t", retried=False) == driver.problem("t", retried=False)
    clock.now_s += FIRST_OPEN_S
    task.open("t", "target-failing", "again")
    driver.merge(task.circuits())
    assert driver.problem("t", retried=True) == DeliveryProblem("target-failing", "again", 2 * FIRST_OPEN_S)
    assert driver.problem("u", retried=True) is None


def test_a_topic_that_nothing_tries_again_does_not_count_as_failing_for_ever(clock: SimClock) -> None:
    """It counts while retries may come, and for at most 30 minutes; timers of its next failure wait as before."""
    circuit_breaker = CircuitBreaker(clock)
    for _ in range(10):
        circuit_breaker.open("old", "c", "r")
        assert circuit_breaker.failing == 1, "each retry comes in time"
        clock.now_s += LONGEST_OPEN_S
    circuit_breaker.open("new", "c", "r")
    clock.now_s += 1_800 - LONGEST_OPEN_S - 1
    circuit_breaker.open("new", "c", "r")
    assert (circuit_breaker.failing, circuit_breaker.count) == (2, 2)
    clock.now_s += 1
    assert (circuit_breaker.failing, circuit_breaker.count) == (1, 2)
    circuit_breaker.open("old", "c", "r")
    problem = circuit_breaker.problem("old", retried=True)
    assert problem is not None and problem.open_s == LONGEST_OPEN_S
    assert circuit_breaker.failing == 2
