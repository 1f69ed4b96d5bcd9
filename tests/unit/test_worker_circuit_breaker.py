"""Failing targets: how long they are spared, by whom they are tried again, and what the log says."""

from __future__ import annotations

import logging

import pytest

from timers.core.delivery import DeliveryProblem
from timers.worker.sending.circuit_breaker import FIRST_S, LONGEST_S, CircuitBreaker


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_retried_timers_try_first_and_new_ones_follow_when_that_worked(clock: Clock) -> None:
    circuit_breaker = CircuitBreaker(clock)
    circuit_breaker.enter("t", "target-failing", "why")
    assert circuit_breaker.problem("t", retried=True) == DeliveryProblem("target-failing", "why", FIRST_S)
    assert circuit_breaker.problem("other", retried=False) is None
    clock.now += FIRST_S
    assert circuit_breaker.problem("t", retried=True) is None
    assert circuit_breaker.problem("t", retried=False) == DeliveryProblem("target-failing", "why", 0.0)
    circuit_breaker.worked(["t", "other"])
    assert circuit_breaker.problem("t", retried=False) is None
    assert "t" not in circuit_breaker


def test_new_timers_try_too_when_nobody_else_does(clock: Clock) -> None:
    circuit_breaker = CircuitBreaker(clock)
    circuit_breaker.enter("t", "c", "r")
    clock.now += 2 * FIRST_S
    assert circuit_breaker.problem("t", retried=False) is None


def test_each_failure_doubles_the_time_up_to_the_longest(clock: Clock) -> None:
    circuit_breaker = CircuitBreaker(clock)
    spared = []
    for _ in range(7):
        circuit_breaker.enter("t", "c", "r")
        problem = circuit_breaker.problem("t", retried=True)
        assert problem is not None and problem.open_s is not None
        spared.append(problem.open_s)
        clock.now += problem.open_s
    assert spared == [30, 60, 120, 240, 480, LONGEST_S, LONGEST_S]


def test_a_target_may_fail_for_weeks(clock: Clock) -> None:
    circuit_breaker = CircuitBreaker(clock)
    for _ in range(3000):
        circuit_breaker.enter("t", "c", "r")
        clock.now += LONGEST_S
    circuit_breaker.enter("t", "c", "r")
    assert circuit_breaker.problem("t", retried=True) == DeliveryProblem("c", "r", LONGEST_S)


def test_several_machines_word_of_one_failure_counts_once(clock: Clock) -> None:
    circuit_breaker = CircuitBreaker(clock)
    for _ in range(4):
        circuit_breaker.enter("t", "c", "r")
    assert circuit_breaker.problem("t", retried=True) == DeliveryProblem("c", "r", FIRST_S)


def test_what_was_sent_before_the_failure_releases_nobody(clock: Clock) -> None:
    circuit_breaker = CircuitBreaker(clock)
    circuit_breaker.enter("t", "c", "r")
    circuit_breaker.worked(["t"])
    assert "t" in circuit_breaker


def test_the_log_says_once_that_it_fails_and_once_that_it_works(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    circuit_breaker = CircuitBreaker(clock)
    for _ in range(3):
        circuit_breaker.enter("t", "c", "it is full")
        clock.now += LONGEST_S
    for _ in range(2):
        circuit_breaker.worked(["t"])
    assert [record.getMessage() for record in caplog.records] == [
        "target t fails: it is full; its timers wait in the retry topic",
        "target t works again, 1800 s after it failed",
    ]
