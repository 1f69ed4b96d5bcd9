"""Timers that repeat do so as they should in simulated runs: each second of a rule is sent once, or missed once."""

from collections import Counter
from datetime import UTC, datetime

import pytest

from tests.simulation.repeat_rules import SimRule
from tests.simulation.repeat_years import RepeatYears

YEARS = 4


@pytest.mark.slow
def test_no_long_run_with_other_zone_data_and_snapshots_breaks_a_promise() -> None:
    """``python -m tests.simulation.repeat_years`` makes many, which are longer."""
    counts: Counter[str] = Counter()
    for seed in range(YEARS):
        simulator = RepeatYears(seed, steps=12)
        simulator.run()
        counts += simulator.checkers.counts
    assert counts["occurrences"] > 50


@pytest.mark.long
def test_long_runs_break_no_promise() -> None:
    counts: Counter[str] = Counter()
    # Transactions of a release are rolled back; pauses follow each other; a pause begins and ends between two whole
    # checks; there are dead letters while the zone data are other ones; what was held is replaced before a release;
    # thousands of retries are left at the end; the last occurrence is missed, because a pause has held it.
    for seed in (*range(20), 108, 123, 424, 100_097, 100_106, 100_151, 100_169):
        simulator = RepeatYears(seed)
        simulator.run()
        counts += simulator.checkers.counts
    assert counts["occurrences"] > 1_000


def test_the_rules_of_the_simulation_follow_clocks() -> None:
    paris = SimRule.of("cron=30 2 * * *; zone=Europe/Paris", 0)
    seconds = [int(datetime(2026, *day, tzinfo=UTC).timestamp()) for day in ((3, 28, 12), (10, 24, 12))]
    found = [f"{datetime.fromtimestamp(paris.next(second) or 0, UTC):%d %H:%M}" for second in seconds]
    assert found == ["29 01:00", "25 00:30"], "after the gap, and in the first pass"
    after = SimRule.of("every=7; until=115", 100).after(100)
    assert [*after] == [107, 114]
