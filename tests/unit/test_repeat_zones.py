"""A worker that does not know the zones of some timers that repeat says so, and is red for these only [I37]."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness.repeats import TOPIC, Losing
from timers.core.counters import MAX_ZONES, OTHER_ZONES, Counters
from timers.core.progress import Progress
from timers.worker import health

PLACE = TOPIC, 0


def zoneless(sim: Losing) -> dict[str, str]:
    machine = sim._loops[PLACE].machine
    pool = SimpleNamespace(
        runners={PLACE: SimpleNamespace(machine=machine), ("timer-request", 0): None},
        partition_metrics={
            PLACE: SimpleNamespace(counters=machine.counters),
            ("timer-request", 0): SimpleNamespace(counters=Counters()),
        },
    )
    status: Any = SimpleNamespace(pool=pool)
    return health.zoneless(status)


def test_timers_whose_zone_is_not_known_are_red_and_all_others_fire(caplog: pytest.LogCaptureFixture) -> None:
    sim = Losing()
    for number in range(3):
        sim.define(f"lost-{number}", "cron=* * * * *; zone=Nowhere/City")
    sim.define("other", "cron=* * * * *; zone=Europe/Paris")
    assert {each.timer_id for each in sim.advance(600)} == {"other"}
    assert len([line for line in caplog.messages if "the zone 'Nowhere/City' wait" in line]) == 1
    assert sim._loops[PLACE].machine.counters.zone_unknown == pytest.approx(30, abs=6)
    assert list(zoneless(sim)) == [f"{TOPIC}/0"]
    assert "does not know the zone of 3 repeating timers ('Nowhere/City')" in zoneless(sim)[f"{TOPIC}/0"]
    for number in range(3):
        sim.define(f"lost-{number}", "cron=* * * * *; zone=Europe/Paris")
    sim.advance(240)
    assert zoneless(sim) == {}


def test_a_hostile_client_does_not_fill_the_memory() -> None:
    counters = Counters()
    for number in range(3 * MAX_ZONES):
        counters.transaction.lacking[f"Nowhere/{number}"] = 1
        counters.count_committed(Progress(fired_through=(600, 0)))
    assert len(counters.lacking) == MAX_ZONES + 1
    assert counters.lacking[OTHER_ZONES] == (10, 2 * MAX_ZONES, 0)
    assert counters.zone_unknown == 3 * MAX_ZONES
