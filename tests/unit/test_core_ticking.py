"""The oscillator's idea of the broker's clock, in a world whose clocks, delays and jitter we choose."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

from timers.core.ticking import Phase


@dataclass
class World:
    """Sends ticks as the oscillator does; returns by how many ms each was appended after its turn (early: negative)."""

    broker_ahead_s: float
    send_s: float = 0.002
    ack_s: float = 0.002
    jitter_s: float = 0.0
    wake_late_s: float = 0.0005
    now_s: float = 1_000.0
    phase: Phase = field(default_factory=Phase)
    random: Random = field(default_factory=lambda: Random(1))

    def tick(self) -> int:
        due_s = self.phase.next_turn(self.now_s)
        assert due_s >= self.now_s
        sent_s = due_s + self.wake_late_s
        append_s = sent_s + self.send_s + self.random.uniform(0, self.jitter_s)
        append_ms = int((append_s + self.broker_ahead_s) * 1000)
        self.now_s = append_s + self.ack_s + self.random.uniform(0, self.jitter_s)
        self.phase.observe(sent_s, self.now_s, append_ms)
        into_second_ms = append_ms % 1000
        return into_second_ms - 1000 if into_second_ms > 900 else into_second_ms

    def ticks(self, count: int) -> list[int]:
        return [self.tick() for _ in range(count)]


def test_the_first_tick_goes_at_once() -> None:
    assert Phase().next_turn(123.4) == 123.4
    assert Phase().second_at(123.4) is None


@pytest.mark.parametrize("broker_ahead_s", [0.0, 0.4, -0.4, 3600.123, -3600.9, 1.7e9, 0.999])
def test_ticks_land_just_after_the_turn_whatever_the_clocks_say(broker_ahead_s: float) -> None:
    world = World(broker_ahead_s + 5_000)
    world.tick()
    assert all(0 <= late_ms <= 8 for late_ms in world.ticks(30))


@pytest.mark.parametrize(("send_s", "ack_s"), [(0.001, 0.019), (0.019, 0.001), (0.01, 0.01)])
def test_an_uneven_way_costs_no_more_than_the_way_itself(send_s: float, ack_s: float) -> None:
    world = World(5_000.3, send_s, ack_s)
    world.tick()
    assert all(-2 <= late_ms <= 30 for late_ms in world.ticks(30))


def test_jitter_does_not_add_up() -> None:
    world = World(5_000.3, jitter_s=0.05)
    world.ticks(3)
    late_ms = world.ticks(300)
    assert min(late_ms) >= -3, "a tick just before the turn proves nothing and costs a way"
    assert max(late_ms) <= 60
    assert sorted(late_ms)[150] <= 35
    assert sum(late < 0 for late in late_ms) <= 5


def test_an_early_tick_is_followed_at_once_by_one_that_counts() -> None:
    """Whatever was believed: an append time just before the turn moves the belief, and the next tick follows it."""
    phase = Phase()
    phase.observe(10.0, 10.001, 5_000_000)  # very sure: the second turns at 10.0, 11.0, ...
    sent_s = phase.next_turn(10.5)
    assert 11.0 <= sent_s <= 11.01
    phase.observe(sent_s, sent_s + 0.004, 5_000_990)  # the broker's clock was slewed by 10 ms
    assert 0 < phase.next_turn(sent_s + 0.004) - sent_s < 0.02


@pytest.mark.parametrize("step_s", [-3600.0, -0.3, 0.3, 3600.0])
def test_a_step_of_the_brokers_clock_is_noticed_by_one_tick(step_s: float) -> None:
    world = World(5_000.3)
    world.ticks(5)
    world.broker_ahead_s += step_s
    world.ticks(2)  # one finds out, and the next may follow at once
    assert all(0 <= late_ms <= 8 for late_ms in world.ticks(20))


def test_one_tick_for_every_second() -> None:
    world = World(5_000.3, jitter_s=0.003)
    world.ticks(3)
    before_s = int(world.now_s + world.broker_ahead_s)
    assert all(late_ms >= 0 for late_ms in world.ticks(100))
    assert int(world.now_s + world.broker_ahead_s) - before_s == 100


def test_drift_is_followed() -> None:
    """100 ppm is more than a quartz is off: 6 ms a minute."""
    world = World(5_000.3, jitter_s=0.004)
    world.ticks(3)
    for _ in range(600):
        world.broker_ahead_s += 0.0001
        assert -8 <= world.tick() <= 25


def test_what_a_fast_way_has_told_is_not_lost_on_slow_ones_but_ages() -> None:
    phase = Phase()
    phase.observe(100.0, 100.002, 5_000_001)
    sure = phase.offset_s
    assert sure is not None
    phase.observe(101.0, 101.500, 5_001_100)  # fits, and says less
    assert phase.offset_s == pytest.approx(sure, abs=0.0005)
    # A day later the clocks have drifted by a second and a half, which is now believed at once.
    phase.observe(86_500.0, 86_500.002, 91_401_501)
    assert phase.offset_s == pytest.approx(sure + 1.5, abs=0.002)


def test_second_at_is_the_brokers_second() -> None:
    phase = Phase()
    phase.observe(10.0, 10.002, 1_700_000_000_400)
    assert phase.second_at(10.001) == 1_700_000_000
    assert phase.second_at(10.7) == 1_700_000_001
