"""The time of records for topics whose times producers set."""

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.harness.constants import Constants
from timers.kafka import brokers_time
from timers.kafka.brokers_time import BrokersTime, new_tick_ms

OWN_S = 1_800_000_000.0
HOURS_MS = 2 * 3_600_000


@pytest.fixture(autouse=True)
def quick(constants: Constants) -> None:
    """No test waits for the next tick."""
    constants(brokers_time, _POLL_S=0.0)


def ticking(*ticks_ms: int | None) -> Callable[[], dict[int, int]]:
    """Answers of a topic with one partition; None: it has no tick."""
    return iter([{} if each is None else {0: each} for each in ticks_ms]).__next__


def at(own_off_ms: int) -> int:
    return int(OWN_S * 1000) + own_off_ms


@pytest.mark.parametrize("off_ms", [HOURS_MS, -HOURS_MS])
def test_a_wrong_clock_gets_the_time_of_a_worker_that_ticks(off_ms: int, caplog: pytest.LogCaptureFixture) -> None:
    time = BrokersTime(ticking(at(off_ms - 1000), at(off_ms)), lambda: OWN_S)
    assert [time.record_ms() for _ in range(3)] == [at(off_ms)] * 3
    (said,) = caplog.messages
    assert f"is {-off_ms // 1000:+} s off the brokers'" in said


@pytest.mark.parametrize("ticks_ms", [[at(-59_000)], [at(59_000)], [None], [at(-HOURS_MS)] * 9])
def test_a_clock_that_is_right_or_cannot_be_compared_is_used(ticks_ms: list[int | None], constants: Constants) -> None:
    """An old tick says nothing: no worker runs."""
    constants(brokers_time, _NEXT_TICK_S=0.0)
    assert BrokersTime(ticking(*ticks_ms), lambda: OWN_S).record_ms() == 0


def test_an_old_tick_of_a_partition_that_answers_late_is_not_new(constants: Constants) -> None:
    """No worker runs: else a record would get a time of hours ago, and doctor would say that the clock is wrong."""
    constants(brokers_time, _NEXT_TICK_S=0.0)
    old, older = at(-HOURS_MS), at(-2 * HOURS_MS)
    answers = iter([{0: older}, {0: older, 1: old}, {1: old}, {0: older}])
    assert BrokersTime(answers.__next__, lambda: OWN_S).record_ms() == 0
    seen_ms: dict[int, int] = {}
    for ticks_ms in ({}, {0: older}, {1: old}, {0: older, 1: old}, {1: old}):
        assert new_tick_ms(ticks_ms, seen_ms) is None
    assert new_tick_ms({0: older + 1}, seen_ms) == older + 1


def test_without_an_answer_the_clock_is_used() -> None:
    def refused() -> dict[int, int]:
        raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))

    assert BrokersTime(refused, lambda: OWN_S).record_ms() == 0


def test_a_clock_that_was_corrected_is_used_again(constants: Constants) -> None:
    constants(brokers_time, LOOK_S=0.0)
    own = [OWN_S]
    time = BrokersTime(ticking(at(-HOURS_MS), at(1 - HOURS_MS), at(-HOURS_MS)), lambda: own[0])
    assert time.record_ms() == at(1 - HOURS_MS)
    own[0] -= HOURS_MS / 1000
    assert time.record_ms() == 0


def test_what_is_known_holds_while_there_is_no_other_answer(constants: Constants) -> None:
    """A second thread asks meanwhile, and a look fails: else each would use the wrong clock of this machine."""
    constants(brokers_time, LOOK_S=0.0)
    seen = list[int]()
    answers = iter([at(-HOURS_MS), at(1 - HOURS_MS)])

    def ask() -> dict[int, int]:
        if (found := next(answers, None)) is not None:
            return {0: found}
        seen.append(time._ahead_ms)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    time = BrokersTime(ask, lambda: OWN_S)
    assert time.record_ms() == at(1 - HOURS_MS)
    assert time.record_ms() == at(1 - HOURS_MS)
    assert seen == [1 - HOURS_MS]
