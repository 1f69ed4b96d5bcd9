"""The brokers' clock decides: whatever a worker's own clock shows, timers fire on time and never early."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from harness.patience import due_in
from harness.records import Request
from harness.system import MAX_LAG_MS, System, timers

pytestmark = pytest.mark.broker

OFFSETS_S = [0.4, -0.4, 3600, -3600]


Sent = dict[float, tuple[System, Sequence[Request]]]


@pytest.fixture(scope="module")
def sent(broker_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sent]:
    """A system with one worker for each wrong clock, all running side by side, and timers that are due together."""
    systems = {
        offset_s: System(broker_address, tmp_path_factory.mktemp("skewed"), TIMERS_CLOCK_OFFSET=str(offset_s))
        for offset_s in OFFSETS_S
    }
    try:
        workers = [system.worker().start() for system in systems.values()]
        for worker in workers:
            worker.ready()
        first_s = due_in(3)
        yield {
            offset_s: (system, system.send(*timers(system.target(), 120, first_s, 3)))
            for offset_s, system in systems.items()
        }
    finally:
        for system in systems.values():
            system.close()


@pytest.mark.parametrize("offset_s", OFFSETS_S)
def test_a_wrong_clock_changes_nothing(sent: Sent, offset_s: float) -> None:
    system, requests = sent[offset_s]
    fired = system.fired(requests)
    assert all(0 <= record.lag_ms < MAX_LAG_MS for record in fired.values())
    ticks = system.reader(system.settings.oscillator_topic).rest()
    skews = [int(tick.key or b"") - tick.append_ms / 1000 for tick in ticks]
    assert skews
    # The key is cut to whole seconds, and a loaded machine takes its time between the clock and the broker.
    assert all(offset_s - 3 < skew <= offset_s for skew in skews), f"the clock was not off as set: {skews}"
