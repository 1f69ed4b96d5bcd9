"""Failing targets: how long they are spared, by whom they are tried again, and what the log says."""

from __future__ import annotations

import logging

import pytest

from timers.worker.sending.circuit_breaker import FIRST_S, LONGEST_S, Quarantine, Trouble


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_retried_timers_try_first_and_new_ones_follow_when_that_worked(clock: Clock) -> None:
    quarantine = Quarantine(clock)
    quarantine.enter("t", "target-failing", "why")
    assert quarantine.trouble("t", retried=True) == Trouble("target-failing", "why", FIRST_S)
    assert quarantine.trouble("other", retried=False) is None
    clock.now += FIRST_S
    assert quarantine.trouble("t", retried=True) is None
    assert quarantine.trouble("t", retried=False) == Trouble("target-failing", "why", 0.0)
    quarantine.worked(["t", "other"])
    assert quarantine.trouble("t", retried=False) is None
    assert "t" not in quarantine


def test_new_timers_try_too_when_nobody_else_does(clock: Clock) -> None:
    quarantine = Quarantine(clock)
    quarantine.enter("t", "c", "r")
    clock.now += 2 * FIRST_S
    assert quarantine.trouble("t", retried=False) is None


def test_each_failure_doubles_the_time_up_to_the_longest(clock: Clock) -> None:
    quarantine = Quarantine(clock)
    spared = []
    for _ in range(7):
        quarantine.enter("t", "c", "r")
        trouble = quarantine.trouble("t", retried=True)
        assert trouble is not None and trouble.spared_s is not None
        spared.append(trouble.spared_s)
        clock.now += trouble.spared_s
    assert spared == [30, 60, 120, 240, 480, LONGEST_S, LONGEST_S]


def test_a_target_may_fail_for_weeks(clock: Clock) -> None:
    quarantine = Quarantine(clock)
    for _ in range(3000):
        quarantine.enter("t", "c", "r")
        clock.now += LONGEST_S
    quarantine.enter("t", "c", "r")
    assert quarantine.trouble("t", retried=True) == Trouble("c", "r", LONGEST_S)


def test_several_machines_word_of_one_failure_counts_once(clock: Clock) -> None:
    quarantine = Quarantine(clock)
    for _ in range(4):
        quarantine.enter("t", "c", "r")
    assert quarantine.trouble("t", retried=True) == Trouble("c", "r", FIRST_S)


def test_what_was_sent_before_the_failure_releases_nobody(clock: Clock) -> None:
    quarantine = Quarantine(clock)
    quarantine.enter("t", "c", "r")
    quarantine.worked(["t"])
    assert "t" in quarantine


def test_the_log_says_once_that_it_fails_and_once_that_it_works(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    quarantine = Quarantine(clock)
    for _ in range(3):
        quarantine.enter("t", "c", "it is full")
        clock.now += LONGEST_S
    for _ in range(2):
        quarantine.worked(["t"])
    assert [record.getMessage() for record in caplog.records] == [
        "target t fails: it is full; its timers wait in the retry topic",
        "target t works again, 1800 s after it failed",
    ]
