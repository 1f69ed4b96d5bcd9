"""Which time an audit refers to, without Spark and Kafka."""

from collections.abc import Sequence

import pytest

from timers.kafka.topic_offsets import NewestRecord
from timers.spark.jobs import audit

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
LEAP_S = 300


def ask(*looks: dict[int, NewestRecord]) -> tuple[tuple[int, str], int]:
    """The answer if the brokers show this, the last of it again and again; and the number of waits."""
    left, slept = list(looks), list[float]()

    def newest() -> dict[int, NewestRecord]:
        return left.pop(0) if len(left) > 1 else left[0]

    return audit.brokers_now(NOW_MS, newest, LEAP_S, slept.append), len(slept)


def one(*ticks_ms: int | None) -> list[dict[int, NewestRecord]]:
    """What a single broker shows."""
    return [{} if tick_ms is None else {0: NewestRecord(1, NOW_MS + tick_ms)} for tick_ms in ticks_ms]


def two(*ticks_ms: tuple[int, int]) -> list[dict[int, NewestRecord]]:
    """What two brokers show."""
    return [{0: NewestRecord(1, NOW_MS + first), 1: NewestRecord(2, NOW_MS + second)} for first, second in ticks_ms]


@pytest.mark.parametrize(
    ("looks", "expected_ms", "waits"),
    [
        (one(-700), -700, 0),
        (one(100_000, 101_000), 101_000, 1),
        (one(-100_000, -100_000, -99_000), -99_000, 2),
        (one(2 * HOUR_MS), 0, 6),
        (one(-HOUR_MS), 0, 6),
        (one(None), 0, 0),
        (two((-700, HOUR_MS), (300, HOUR_MS + 1000)), -700, 0),
        (two((-9000, HOUR_MS), (-9000, HOUR_MS + 1000), (500, HOUR_MS + 2000)), 500, 2),
        (two((-9000, HOUR_MS)), 0, 6),
        (two((HOUR_MS, HOUR_MS), (HOUR_MS + 1000, HOUR_MS), (HOUR_MS + 1000, HOUR_MS + 2000)), HOUR_MS + 2000, 2),
    ],
    ids=[
        "fresh",
        "the broker is a little ahead",
        "the broker is a little behind",
        "a tick of a clock that leapt",
        "no ticks are written",
        "no ticks at all",
        "one broker is ahead, the other one fresh",
        "one broker is ahead, the other one ticks later",
        "one broker leapt once, and none ticks",
        "two brokers agree that this clock is behind",
    ],
)
def test_an_audit_refers_to_the_brokers_clock_with_which_a_second_one_agrees(
    looks: Sequence[dict[int, NewestRecord]], expected_ms: int, waits: int
) -> None:
    assert ask(*looks) == ((NOW_MS + expected_ms, ""), waits)


def test_the_only_broker_goes_on_an_hour_ahead() -> None:
    """Pending timers are not lost by its clock; overdue ones are lost by both."""
    (as_of_ms, doubt), waits = ask(*one(HOUR_MS, HOUR_MS + 1000))
    assert as_of_ms == NOW_MS and waits == 6
    assert doubt == (
        "no two clocks agree within 300 s: broker 1 shows 2023-11-14T23:13:21Z, this machine shows "
        "2023-11-14T22:13:20Z. Timers are judged by the earliest of them: correct the clock that is wrong, and audit "
        "again"
    )


def test_the_earliest_of_three_clocks_counts_if_none_agree() -> None:
    (as_of_ms, doubt), waits = ask(*two((HOUR_MS, -HOUR_MS), (HOUR_MS + 1000, 1000 - HOUR_MS)))
    assert as_of_ms == NOW_MS + 1000 - HOUR_MS and waits == 20
    assert "broker 1 shows" in doubt and "broker 2 shows" in doubt


def test_a_partition_that_shows_an_older_leap_does_not_hide_the_others() -> None:
    looks = two((-HOUR_MS, 2 * HOUR_MS), (500, 2 * HOUR_MS))
    assert ask(*looks) == ((NOW_MS + 500, ""), 1)
