"""What each failure of a machine means: its pause, its sentence, its log lines."""

import logging

import pytest
from confluent_kafka import KafkaError, KafkaException

from timers.core.ports import Lost
from timers.errors import AccessError, StoreError
from timers.machines.life import BROKERS, STORE, UNFORESEEN
from timers.machines.store.failures import StoreDamaged, StoreWaits
from timers.worker.machines.failures import Failures


def raised(key: str) -> BaseException:
    try:
        dict[str, int]()[key]
    except KeyError as error:
        return error
    raise AssertionError


def test_an_unforeseen_failure_has_one_traceback_and_later_pauses(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures("timer-request/3")
    judged = [failures.judge(raised(f"record {number}")) for number in range(3)]
    assert [pause_s for pause_s, _ in judged] == [0, 1, 2], "the key differs, the place in the code does not"
    reason, sentence = judged[-1][1]
    assert reason == UNFORESEEN
    assert "KeyError('record 2') at " in sentence and "test_worker_failures.py:" in sentence
    assert [bool(record.exc_info) for record in caplog.records] == [True, False, False]
    assert all("timer-request/3" in record.message for record in caplog.records)


def test_an_exception_without_a_place_is_judged_too() -> None:
    failures = Failures("timer-request/0")
    assert [failures.judge(ValueError())[0] for _ in range(2)] == [0, 1]


@pytest.mark.parametrize(
    "error", [Lost("no leader"), KafkaException(KafkaError(KafkaError._TIMED_OUT))], ids=["lost", "librdkafka"]
)
def test_a_broker_that_does_not_answer_is_logged_when_it_begins_and_when_it_lasts(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    failures = Failures("timer-request/0")
    pauses = [failures.judge(error)[0] for _ in range(9)]
    assert pauses[0] == 0 and pauses[1:] == sorted(pauses[1:]) and pauses[-1] == 5
    assert failures.judge(error)[1].reason == BROKERS
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert len(caplog.records) == 2


def test_a_damaged_store_keeps_its_own_pauses() -> None:
    pause_s, waiting = Failures("timer-request/0").judge(StoreDamaged("the store is damaged", 20.0))
    assert (pause_s, waiting.reason) == (20.0, STORE)


def test_a_store_that_is_still_open_here_is_opened_again_after_a_pause() -> None:
    failures = Failures("timer-request/0")
    judged = [failures.judge(StoreWaits("the store is still open in this worker")) for _ in range(2)]
    assert [pause_s > 0 for pause_s, _ in judged] == [False, True]
    assert judged[1][1] == (STORE, "the store is still open in this worker")


@pytest.mark.parametrize("error", [StoreError("the disk is full"), AccessError("no right")], ids=["disk", "right"])
def test_an_error_of_the_whole_worker_ends_it(error: Exception) -> None:
    with pytest.raises(type(error)):
        Failures("timer-request/0").judge(error)
