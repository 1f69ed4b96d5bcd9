"""The chaos checker finds what was planted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.harness.checker import Ints, Read
from tests.chaos.checker import CALM_S, InjectedFault, Verdict, verdict

FIRST_S = 1_700_000_000
TIMERS = 1_000
DUE_S = FIRST_S + np.arange(TIMERS, dtype=np.int64) // 100
LAG_MS = 30

STRIKE = InjectedFault(
    "kill", "worker-0", at_ms=FIRST_S * 1000 + 10, over_ms=FIRST_S * 1000 + 10, held={0: 150, 2: 150}
)
"""Just after the first second began: it holds partitions 0 and 2 of 4."""


def sound() -> Read:
    """Every timer fired once, 30 ms late; timer ``i`` on partition ``i % 4``, at offset ``i // 4``."""
    numbers = np.arange(TIMERS, dtype=np.int64)
    return Read(numbers, DUE_S * 1000 + LAG_MS, numbers % 4, numbers // 4)


def repeated(found: Read, places: list[int] | Ints) -> Read:
    """With only the records at ``places``, in that order."""
    return Read(*(column[places] for column in found.columns))


def judged(found: Read, faults_injected: list[InjectedFault] | None = None) -> Verdict:
    return verdict(found, DUE_S, [STRIKE] if faults_injected is None else faults_injected)


def test_a_sound_round_counts_and_keeps_every_promise() -> None:
    found = judged(sound())
    assert found.kept and found.counts
    assert (found.accepted, found.fired.records) == (TIMERS, TIMERS)
    assert (found.fired.lost, found.fired.duplicates, found.fired.early, found.fired.altered) == (0, 0, 0, 0)
    assert found.in_flight == (50,), "of the 100 timers of the first second those on its two partitions"
    assert (found.worst_lag_ms, found.worst_after_ms, found.overdue) == (LAG_MS, LAG_MS, 0)


def test_a_lost_timer_is_found() -> None:
    found = judged(repeated(sound(), np.delete(np.arange(TIMERS), 17)))
    assert found.fired.lost == 1
    assert not found.kept


def test_nothing_fired_at_all_is_all_lost() -> None:
    found = judged(repeated(sound(), []))
    assert found.fired.lost == TIMERS
    assert not found.kept and not found.counts


def test_a_timer_that_fired_twice_is_found() -> None:
    found = judged(repeated(sound(), [*range(TIMERS), 17, 17]))
    assert found.fired.duplicates == 2
    assert not found.kept


def test_a_timer_that_fired_a_millisecond_early_is_found() -> None:
    whole = sound()
    append_ms = whole.append_ms.copy()
    append_ms[17] = DUE_S[17] * 1000 - 1
    found = judged(replace(whole, append_ms=append_ms))
    assert found.fired.early == 1
    assert not found.kept


def test_a_record_that_nobody_asked_for_is_found() -> None:
    whole = sound()
    numbers = whole.numbers.copy()
    numbers[17] = TIMERS
    found = judged(replace(whole, numbers=numbers))
    assert (found.fired.altered, found.fired.lost) == (1, 1)
    assert not judged(replace(whole, altered=1)).kept


def test_what_waits_too_long_after_the_last_fault_is_overdue() -> None:
    over_ms = FIRST_S * 1000 + 20_000
    last = replace(STRIKE, over_ms=over_ms)
    whole = sound()
    append_ms = whole.append_ms.copy()
    append_ms[17] = over_ms + CALM_S * 1000
    found = judged(replace(whole, append_ms=append_ms), [last])
    assert found.kept and found.worst_after_ms == CALM_S * 1000
    append_ms[17] += 1
    found = judged(replace(whole, append_ms=append_ms), [last])
    assert found.overdue == 1 and not found.kept


@pytest.mark.parametrize(
    "miss",
    [
        replace(STRIKE, at_ms=FIRST_S * 1000 + LAG_MS),
        replace(STRIKE, at_ms=FIRST_S * 1000 - 1),
        replace(STRIKE, held={}),
        replace(STRIKE, held={0: 0, 2: 0}),
    ],
    ids=["all were out already", "none were due yet", "it held nothing", "they were published later"],
)
def test_a_fault_that_hit_nothing_in_flight_makes_the_round_not_count(miss: InjectedFault) -> None:
    found = judged(sound(), [STRIKE, miss])
    assert found.in_flight == (50, 0)
    assert not found.counts
