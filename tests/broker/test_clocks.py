"""The brokers' clock decides: whatever a worker's own clock shows, timers fire on time and never early."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.patience import due_in
from harness.system import MAX_LAG_MS, System, timers

pytestmark = pytest.mark.broker

OFFSETS_S = [0.4, -0.4, 3600, -3600]


@pytest.fixture(scope="module")
def skewed(broker_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[float, System]]:
    """A system with one worker for each wrong clock, all running side by side."""
    systems = {
        offset_s: System(broker_address, tmp_path_factory.mktemp("skewed"), TIMERS_CLOCK_OFFSET=str(offset_s))
        for offset_s in OFFSETS_S
    }
    try:
        workers = [system.worker().start() for system in systems.values()]
        for worker in workers:
            worker.ready()
        yield systems
    finally:
        for system in systems.values():
            system.close()


@pytest.mark.parametrize("offset_s", OFFSETS_S)
def test_a_wrong_clock_changes_nothing(skewed: dict[float, System], offset_s: float) -> None:
    system = skewed[offset_s]
    target = system.target()
    fired = system.fired(system.send(*timers(target, 120, due_in(2), 3)))
    assert all(0 <= record.lag_ms < MAX_LAG_MS for record in fired.values())
    ticks = system.reader(system.settings.oscillator_topic).rest()
    skews = [int(tick.key or b"") - tick.append_ms / 1000 for tick in ticks]
    assert skews
    # The key is cut to whole seconds, and a loaded machine takes its time between the clock and the broker.
    assert all(offset_s - 3 < skew <= offset_s for skew in skews), f"the clock was not off as set: {skews}"
