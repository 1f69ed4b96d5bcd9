"""One short round of chaos that counts. ``make chaos`` runs long ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import plan
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
