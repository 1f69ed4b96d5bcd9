"""The chaos checker finds each violation of a promise in made-up callbacks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.chaos.checker import CATCH_UP_S, InjectedFault, Verdict, catch_up_s, verdict
from tests.harness.judge import Callbacks, Ints

FIRST_S = 1_700_000_000
TIMERS = 1_000
DUE_S = FIRST_S + np.arange(TIMERS, dtype=np.int64) // 100
LAG_MS = 30

FAULT = InjectedFault("kill", "worker-0", at_ms=FIRST_S * 1000 + 10, over_ms=FIRST_S * 1000 + 10, held={0: 150, 2: 150})
"""A fault of a worker with partitions 0 and 2 of 4, just after the begin of the first due second."""


def correct_callbacks() -> Callbacks:
    """Callbacks that fired once, 30 ms late; timer ``i`` is on partition ``i % 4``, at offset ``i // 4``."""
    numbers = np.arange(TIMERS, dtype=np.int64)
    return Callbacks(numbers, DUE_S * 1000 + LAG_MS, numbers % 4, numbers // 4)


def repeated(found: Callbacks, places: list[int] | Ints) -> Callbacks:
    """The records at ``places``, in that order."""
    return found.only(places)


def judged(found: Callbacks, injected_faults: list[InjectedFault] | None = None) -> Verdict:
    return verdict(found, DUE_S, [FAULT] if injected_faults is None else injected_faults)


def test_a_correct_round_counts_and_keeps_all_promises() -> None:
    found = judged(correct_callbacks())
    assert found.kept and found.counts
    assert (found.accepted, found.fired.records) == (TIMERS, TIMERS)
    assert (found.fired.lost, found.fired.duplicates, found.fired.early, found.fired.altered) == (0, 0, 0, 0)
    assert found.in_flight == (50,), "the 100 timers of the first second are on four partitions, and it holds two"
    assert (found.worst_lag_ms, found.worst_after_faults_ms, found.overdue) == (LAG_MS, LAG_MS, 0)


def test_a_lost_timer_is_found() -> None:
    found = judged(repeated(correct_callbacks(), np.delete(np.arange(TIMERS), 17)))
    assert found.fired.lost == 1
    assert not found.kept


def test_if_nothing_fired_all_timers_are_lost() -> None:
    found = judged(repeated(correct_callbacks(), []))
    assert found.fired.lost == TIMERS
    assert not found.kept and not found.counts


def test_a_timer_that_fired_twice_is_found() -> None:
    found = judged(repeated(correct_callbacks(), [*range(TIMERS), 17, 17]))
    assert found.fired.duplicates == 2
    assert not found.kept


def test_a_timer_that_fired_a_millisecond_early_is_found() -> None:
    whole = correct_callbacks()
    append_ms = whole.append_ms.copy()
    append_ms[17] = DUE_S[17] * 1000 - 1
    found = judged(replace(whole, append_ms=append_ms))
    assert found.fired.early == 1
    assert not found.kept


def test_a_record_without_a_request_is_found() -> None:
    whole = correct_callbacks()
    numbers = whole.numbers.copy()
    numbers[17] = TIMERS
    found = judged(replace(whole, numbers=numbers))
    assert (found.fired.altered, found.fired.lost) == (1, 1)
    assert not judged(replace(whole, altered=1)).kept


def test_a_timer_that_fires_too_long_after_the_last_fault_is_overdue() -> None:
    over_ms = FIRST_S * 1000 + 20_000
    last = replace(FAULT, over_ms=over_ms)
    whole = correct_callbacks()
    append_ms = whole.append_ms.copy()
    append_ms[17] = over_ms + CATCH_UP_S * 1000
    found = judged(replace(whole, append_ms=append_ms), [last])
    assert found.kept and found.worst_after_faults_ms == CATCH_UP_S * 1000
    append_ms[17] += 1
    late = replace(whole, append_ms=append_ms)
    found = judged(late, [last])
    assert found.overdue == 1 and not found.kept
    assert judged(late, [replace(last, grace_ms=1)]).kept


def test_on_a_slow_machine_timers_may_wait_longer_but_nothing_else_is_forgiven() -> None:
    assert catch_up_s(1.5) == CATCH_UP_S
    limit_s = catch_up_s(15.0)
    assert limit_s == 150
    whole = correct_callbacks()
    append_ms = whole.append_ms.copy()
    append_ms[17] = DUE_S[17] * 1000 + 150_000
    assert verdict(replace(whole, append_ms=append_ms), DUE_S, [], limit_s).kept
    append_ms[17] += 1
    assert verdict(replace(whole, append_ms=append_ms), DUE_S, [], limit_s).overdue == 1
    assert not verdict(repeated(whole, [*range(TIMERS), 17]), DUE_S, [], limit_s).kept
    assert not verdict(repeated(whole, [*range(TIMERS - 1)]), DUE_S, [], limit_s).kept


def test_a_round_does_not_count_if_the_effect_of_a_fault_was_not_seen() -> None:
    found = judged(correct_callbacks(), [FAULT, replace(FAULT, seen=False)])
    assert found.unseen == 1
    assert found.kept and not found.counts


@pytest.mark.parametrize(
    "miss",
    [
        replace(FAULT, at_ms=FIRST_S * 1000 + LAG_MS),
        replace(FAULT, at_ms=FIRST_S * 1000 - 1),
        replace(FAULT, held={}),
        replace(FAULT, held={0: 0, 2: 0}),
    ],
    ids=["all timers had fired", "no timer was due", "it held no partition", "the timers were published later"],
)
def test_a_round_does_not_count_if_a_fault_hit_no_timer_in_flight(miss: InjectedFault) -> None:
    found = judged(correct_callbacks(), [FAULT, miss])
    assert found.in_flight == (50, 0)
    assert found.missed == 1 and not found.counts
    assert judged(correct_callbacks(), [FAULT, replace(miss, delays=False)]).counts
