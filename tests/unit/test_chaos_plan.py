"""One seed always makes the same plan."""

from __future__ import annotations

import pytest

from tests.chaos import plan


def test_the_same_seed_makes_the_same_plan() -> None:
    assert plan.make(7, 4, 1000) == plan.make(7, 4, 1000)
    assert plan.make(7, 4, 1000) != plan.make(8, 4, 1000)


@pytest.mark.parametrize("seed", range(20))
def test_each_kind_of_fault_happens_once_at_a_burst_during_publishing(seed: int) -> None:
    made = plan.make(seed, 4, 1_000_000)
    assert sorted(fault.kind for fault in made.faults) == sorted(plan.KINDS)
    moments = [fault.at_s for fault in made.faults]
    assert moments == sorted(set(moments))
    assert all(moment % plan.BURST_EVERY_S == 0 for moment in moments)
    assert moments[0] > 0 and moments[-1] < made.storm_s
    assert made.clock_offsets_s[0] == 0, "one worker's clock is right"


def test_at_least_two_workers_are_left() -> None:
    with pytest.raises(ValueError, match="3 workers are too few"):
        plan.make(7, 3, 1000)
    assert plan.make(7, 3, 1000, (plan.KILL, plan.PAUSE))
