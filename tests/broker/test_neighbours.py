"""Several systems share one cluster, with any names and with any clocks of their workers.

The brokers' clock decides: a worker whose own is wrong fires everything on time, and never early.
"""

import re
from collections.abc import Iterator, Sequence

import pytest

from tests.harness.records import Request
from tests.harness.system import MAX_LAG_MS, System, timers
from tests.harness.waiting import due_in

pytestmark = pytest.mark.broker

NEIGHBOURS = {"-x": 0.4, ".x": -0.4, "_x": 3600, "7": -3600}
"""Begin of the app id of each system, and the error of its clock in seconds."""

Sent = dict[str, tuple[System, Sequence[Request]]]


@pytest.fixture(scope="module")
def sent(broker_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sent]:
    """The systems, each with a worker and timers that are due together."""
    systems = {}
    for number, (name, offset_s) in enumerate(NEIGHBOURS.items()):
        # Kafka takes no two topics that differ only in '.' and '_'.
        app_id = f"{name}-neighbour-{number}"
        directory = tmp_path_factory.mktemp("neighbour")
        systems[name] = System(broker_address, directory, app_id, TIMERS_CLOCK_OFFSET=str(offset_s))
    try:
        workers = [system.worker().start() for system in systems.values()]
        for worker in workers:
            worker.ready()
        targets = {name: system.target() for name, system in systems.items()}
        first_s = due_in(3)
        yield {name: (system, system.send(*timers(targets[name], 120, first_s, 3))) for name, system in systems.items()}
    finally:
        for system in systems.values():
            system.close()


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_a_wrong_clock_of_a_worker_has_no_effect(sent: Sent, name: str) -> None:
    system, requests = sent[name]
    fired = system.fired(requests)
    assert all(0 <= record.lag_ms < MAX_LAG_MS for record in fired.values())
    offset_s = NEIGHBOURS[name]
    ticks = system.reader(system.settings.oscillator_topic).rest()
    skews = [int(tick.key or b"") - tick.append_ms / 1000 for tick in ticks]
    # The key is cut to whole seconds, and a loaded machine takes its time between the clock and the broker: not always.
    assert offset_s - 3 < max(skews) <= offset_s, f"the clock was not off as set: {skews}"


def test_systems_on_one_cluster_do_not_disturb_each_other(sent: Sent) -> None:
    for system, requests in sent.values():
        fired = system.fired(requests)
        assert all(re.match(rf"{system.request_topic}/[0-9]+/[0-9]+$", timer_id) for timer_id in fired)
        assert system.dead_letters().rest() == []
