"""The short form of the chaos suite: one round that counts. The long one: ``make chaos``."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.harness.console import Console
from tests.chaos import plan
from tests.chaos.runner import Round
from timers.broker import EmbeddedBroker

pytestmark = pytest.mark.broker

SEEDS = (4, 5, 6)
"""A round in which a fault hit nothing in flight does not count: then the next one."""
TIMERS = 20_000
WORKERS = 3


@pytest.mark.timeout(400)
def test_a_round_of_chaos_loses_nothing_repeats_nothing_and_fires_nothing_early(tmp_path: Path) -> None:
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
