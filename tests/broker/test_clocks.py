"""Workers whose clocks are wrong by hours: only the brokers' clock decides."""

import pytest

from tests.harness.records import Record
from tests.harness.system import MAX_LAG_MS, PARTITIONS, System, timers
from tests.harness.waiting import due_in

pytestmark = pytest.mark.broker

HOUR_S = 3600


def clock(offset_s: float) -> dict[str, str]:
    return {"TIMERS_CLOCK_OFFSET": str(offset_s)}


def assert_by_the_brokers_time(record: Record) -> None:
    """Check that the tick of each callback is not before its due second and not after its append time."""
    assert record.due_s * 1000 <= int(record.text("timer-fired")) <= record.append_ms


@pytest.mark.long
def test_with_clocks_hours_apart_no_timer_is_early_and_ticks_go_on_after_a_death(system: System) -> None:
    """One clock is right; the other is five hours ahead, and later five hours behind."""
    target = system.target(partitions=2)
    right = system.worker().start().ready()
    wrong = system.worker().start(**clock(5 * HOUR_S)).ready()
    assert "this worker's clock is off by +18000.000 s" in wrong.log
    requests = timers(target, 10_000, due_in(3), 20)
    for index, request in enumerate(requests):
        request.partition = index // 20 % PARTITIONS
    system.send(*requests)
    far = system.send(*timers(system.target(), 100, due_in(2 * HOUR_S), 1))
    reader = system.reader(target)
    reader.take(1_000)
    right.kill()
    reader.take(4_000)  # by the ticks of one that is five hours ahead
    right.start()
    right.ready()
    wrong.kill()
    reader.take(1_000)
    wrong.start(**clock(-5 * HOUR_S)).ready()
    right.kill()
    fired = system.fired(requests)  # the last of them by those of one that is five hours behind
    assert len(fired) == 10_000
    for record in fired.values():
        assert_by_the_brokers_time(record)
    takeover_ms = 1000 * (system.settings.session_timeout_s + max(right.ready_s, wrong.ready_s))
    assert all(record.lag_ms < takeover_ms + 2 * MAX_LAG_MS for record in fired.values())
    assert system.reader(far[0].target).rest() == [], "due in two hours, and a clock was five ahead"
