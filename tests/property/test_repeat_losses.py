"""Logs of timers that repeat lose their end at random moments: what a rule asks for is sent once all the same [I37]."""

from random import Random

import pytest

from tests.harness.repeats import MENDED_S, Losing
from tests.simulation import edits
from timers.wire import headers as h

PERIODS_S = {"a": 7, "b": 10, "c": 45}


SEEDS = range(40)

BROKEN: dict[str, tuple[str, str]] = {
    "timers that stand still are not looked for": ("self._still is not None and ... and ...", "False"),
    "what had fired before a loss counts as missed": ("progress.fired_before_cut(key_of(chain))", "-1"),
    "the last loss counts": ("min(found, default=-1)", "max(found, default=-1)"),
}
"""Rule -> what the product says, and what it says instead."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_each_second_of_a_rule_is_sent_once_over_losses(seed: int) -> None:
    run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_found(rule: str) -> None:
    with edits.applied([BROKEN[rule]]), pytest.raises(AssertionError):
        for seed in SEEDS:
            run(seed)


def run(seed: int) -> None:
    """All have the catch-up ``all``, and no loss, with the time until it is mended, is longer than 100 occurrences."""
    random = Random(seed)
    sim = Losing()
    for id, period_s in PERIODS_S.items():
        sim.define(id, f"every={period_s}; catch-up=all")
    kept = 1 + max(each.offset for each in sim.log if h.last(each.headers, h.TIMER_FOLLOWS) is None)
    for _ in range(8):
        sim.wait(random.randint(1, 60))
        what = random.choice(["lose", "lose", "restart", "lose disk", "sleep"])
        if what == "lose":
            # If a later loss takes what was appended after the first one, what came due between them may fire again.
            kept = max(kept, len(sim.log) - random.randint(1, 12))
            sim.lose(kept)
        elif what == "sleep":
            sim.sleep(random.randint(1, 200))
        else:
            sim.restart(lose_disk=what == "lose disk")
    sim.wait(2 * MENDED_S)
    sent = [(each.timer_id, int(h.last(each.headers, h.TIMER_NOMINAL) or b"")) for each in sim.fired]
    assert len(sent) == len({*sent})
    for id, period_s in PERIODS_S.items():
        seconds = sorted(nominal_s for each, nominal_s in sent if each == id)
        assert seconds == [*range(seconds[0], seconds[-1] + 1, period_s)], id
        assert seconds[-1] + period_s > sim.clock.now_s
    assert not sim.dead_letters
