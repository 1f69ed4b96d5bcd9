"""Which ends of a consumer are failures of a round of chaos for queues. No processes."""

from __future__ import annotations

import signal
from typing import Any, cast

import pytest

from tests.chaos.queues.round import Member

STARTED_AT = 1000.0
NO_BROKER = "timers.errors.QueueError: no broker answers at 127.0.0.1:9: is it running?\n"


class SimProcess:
    """A process that has ended."""

    name = "consumer-1"
    started_at = STARTED_AT

    def __init__(self, code: int, log: str) -> None:
        self._code = code
        self.log = log

    def exit_code(self) -> int:
        return self._code

    def tail(self) -> str:
        return self.log


def failure(code: int, log: str = "opened\n", *, faulty: bool = False, broker_back_at: float = 0.0) -> str:
    """What is said of a consumer that ended, by a fault or by itself."""
    member = Member(cast(Any, SimProcess(code, log)), back_s=1.0 if faulty else None)
    return member.failure(broker_back_at)


@pytest.mark.parametrize("code", [0, -signal.SIGKILL])
def test_a_fault_explains_an_end(code: int) -> None:
    assert failure(code, faulty=True) == ""


@pytest.mark.parametrize("code", [0, 1, -signal.SIGKILL, -signal.SIGTERM])
def test_an_end_without_a_fault_is_a_failure(code: int) -> None:
    assert failure(code, "opened\nits last words") == f"consumer-1 ended with {code}: opened\nits last words"


def test_a_drain_that_ends_with_an_error_is_a_failure() -> None:
    assert failure(1, faulty=True).startswith("consumer-1 ended with 1")


def test_a_consumer_may_be_drained_before_it_handles_signals() -> None:
    assert failure(-signal.SIGTERM, "", faulty=True) == ""


def test_a_consumer_that_was_started_while_the_broker_was_down_may_end() -> None:
    assert failure(1, NO_BROKER, broker_back_at=STARTED_AT + 5) == ""
    assert failure(1, NO_BROKER, faulty=True, broker_back_at=STARTED_AT + 5) == ""


def test_a_consumer_that_finds_no_broker_while_one_runs_is_a_failure() -> None:
    assert failure(1, NO_BROKER, broker_back_at=STARTED_AT - 5).startswith("consumer-1 ended with 1")


def test_a_consumer_that_worked_must_outlive_the_broker() -> None:
    assert failure(1, "opened\nworking\n" + NO_BROKER, broker_back_at=STARTED_AT + 5).startswith("consumer-1 ended")


def test_a_consumer_that_ends_for_another_reason_beside_a_kill_of_the_broker_is_a_failure() -> None:
    assert failure(1, "ValueError\n", broker_back_at=STARTED_AT + 5).startswith("consumer-1 ended with 1")
