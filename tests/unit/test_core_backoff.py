"""Pauses after failures, and before a machine that failed is opened again."""

from timers.core.backoff import AFTER_LOST, AFTER_UNFORESEEN, Reopening


def test_the_first_failure_has_no_pause_and_like_failures_have_longer_ones_up_to_a_minute() -> None:
    reopening = Reopening()
    pauses = [reopening.pause_s("KeyError at a.py:1", AFTER_UNFORESEEN, now_s) for now_s in range(10)]
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_failures_of_another_kind_count_by_themselves() -> None:
    reopening = Reopening()
    assert [reopening.pause_s(kind, AFTER_UNFORESEEN, 0) for kind in "aabab"] == [0, 1, 0, 2, 1]


def test_failures_are_forgotten_after_a_long_time_without_one() -> None:
    reopening = Reopening()
    quiet_s = AFTER_UNFORESEEN.forget_s + AFTER_UNFORESEEN.pauses.longest_s
    assert reopening.pause_s("a", AFTER_UNFORESEEN, 0) == 0
    assert reopening.pause_s("a", AFTER_UNFORESEEN, quiet_s) == 1
    assert reopening.pause_s("a", AFTER_UNFORESEEN, 2 * quiet_s + 1) == 0


def test_a_failure_that_comes_back_after_each_long_pause_is_not_forgotten() -> None:
    reopening, now_s = Reopening(), 0.0
    for _ in range(50):
        now_s += 30 + reopening.pause_s("a", AFTER_LOST, now_s)
    assert reopening.pause_s("a", AFTER_LOST, now_s) == AFTER_LOST.pauses.longest_s


def test_many_failures_do_not_overflow() -> None:
    reopening = Reopening()
    assert {reopening.pause_s("a", AFTER_UNFORESEEN, 0) for _ in range(5000)} == {0, 1, 2, 4, 8, 16, 32, 60}
