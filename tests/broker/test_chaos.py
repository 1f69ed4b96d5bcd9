"""Short rounds of chaos. ``make chaos`` and ``python -m tests.chaos.console`` run long ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import plan
from tests.chaos.console import round as of_console
from tests.chaos.runner import Round
from tests.harness.console import Console
from timers.broker import EmbeddedBroker

pytestmark = pytest.mark.broker

SEEDS = (4, 5, 6)
"""If a fault of a round hit no timer in flight, the round does not count and the next seed runs."""
TIMERS = 20_000
WORKERS = 3


@pytest.mark.long
def test_chaos_loses_no_timer_and_fires_none_twice_or_early(tmp_path: Path) -> None:
    kinds = (plan.KILL, plan.PAUSE, plan.WIPE)
    broker = EmbeddedBroker(tmp_path / "broker", port=0)
    try:
        for seed in SEEDS:
            chosen = plan.make(seed, WORKERS, TIMERS, kinds, plan.SHORT)
            outcome = Round(broker, chosen, TIMERS, tmp_path / f"seed-{seed}", Console()).run()
            assert outcome.passed, f"seed {seed}: {outcome.failures} {outcome.verdict}; logs: {tmp_path}"
            if outcome.verdict.counts:
                return
        pytest.fail(f"no round of seeds {SEEDS} hit timers in flight with each of its faults")
    finally:
        broker.stop()


@pytest.mark.long
def test_kills_before_the_answer_lose_no_timer_that_a_client_was_promised(tmp_path: Path) -> None:
    """``python -m tests.chaos.console`` kills more often."""
    broker = EmbeddedBroker(tmp_path / "broker", port=0)
    try:
        outcome = of_console.Round(broker, 1, 12, tmp_path / "round", Console(), every=3).run()
    finally:
        broker.stop()
    assert outcome.is_passed, f"{outcome}; logs: {tmp_path}"
    assert outcome.kills.keys() == {of_console.CONSOLE, *of_console.OTHERS}
    assert outcome.promised and outcome.hits >= 12
