"""Short rounds of chaos. ``make chaos`` and ``python -m tests.chaos.console`` run long ones."""

from pathlib import Path

import pytest

from tests.chaos import plan
from tests.chaos.console import round as of_console
from tests.chaos.logs import alarms, freeze
from tests.chaos.logs.cells import choose
from tests.chaos.logs.round import Rounds
from tests.chaos.runner import Round
from tests.harness.printer import Printer
from tests.harness.three_brokers import ThreeBrokers
from timers.cli.broker import EmbeddedBroker

pytestmark = pytest.mark.broker

SEEDS = (4, 5, 6)
"""If a fault of a round hit no timer in flight, the round does not count and the next seed runs."""
TIMERS = 20_000
REPEATING = 200
WORKERS = 3


@pytest.mark.long
def test_chaos_loses_no_timer_and_fires_none_twice_or_early(tmp_path: Path) -> None:
    kinds = (plan.KILL, plan.PAUSE, plan.WIPE, plan.HOLD)
    broker = EmbeddedBroker(tmp_path / "broker", port=0)
    try:
        for seed in SEEDS:
            chosen = plan.make(seed, WORKERS, TIMERS, kinds, plan.SHORT)
            outcome = Round(broker, chosen, TIMERS, tmp_path / f"seed-{seed}", Printer(), REPEATING).run()
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
        outcome = of_console.Round(broker, 1, 12, tmp_path / "round", Printer(), every=3).run()
    finally:
        broker.stop()
    assert outcome.is_passed, f"{outcome}; logs: {tmp_path}"
    assert outcome.kills.keys() == {of_console.CONSOLE, *of_console.OTHERS}
    assert outcome.promised and outcome.hits >= 12


@pytest.mark.long
@pytest.mark.parametrize(
    "cells",
    [
        "*/grown-past/kept",
        "progress/cut/*,retry/cut-marker/kept",
        "request/disk-restored/*",
        "request/election-running/*",
    ],
)
def test_a_log_that_lost_its_end_loses_no_timer_in_silence(tmp_path: Path, cells: str) -> None:
    """``python -m tests.chaos.logs`` has more cells."""
    chosen = choose(cells.split(","))
    rows = [row for rows in Rounds(tmp_path, 1, 3, Printer()).run(chosen) for row in rows]
    assert [str(row.cell) for row in rows] == [str(cell) for cell in chosen]
    assert not [(str(row.cell), row.failure, row.verdict, row.facts.sentence) for row in rows if not row.passed]


@pytest.mark.long
@pytest.mark.parametrize("kind", list(alarms.KINDS))
def test_what_happens_to_healthy_logs_stops_no_partition(tmp_path: Path, kind: str) -> None:
    brokers = ThreeBrokers(tmp_path / "brokers", alarms.PROPERTIES)
    try:
        (found,) = alarms.run(brokers, tmp_path / "rig", [kind], 20, Printer())
        assert found.passed, found
    finally:
        brokers.stop()


@pytest.mark.long
def test_a_frozen_broker_delays_timers_elsewhere_by_seconds_only(tmp_path: Path) -> None:
    """With Kafka's default of 30 s, a transaction that ends at the moment of the freeze may wait as long."""
    brokers = ThreeBrokers(tmp_path / "brokers", freeze.properties(10))
    try:
        figures = freeze.Freeze(brokers, tmp_path / "system", Printer()).run(40.0)
        assert figures.passed, figures
    finally:
        brokers.stop()
