"""The phase of the tick scheduler, with simulated clocks, delays and jitter."""

from dataclasses import dataclass, field
from random import Random

import pytest

from timers.core.ticking import TRY_AGAIN_S, Phase, TickPartitions


@dataclass
class SimOscillator:
    """Sends ticks as the oscillator agent does, on a simulated clock."""

    broker_ahead_s: float
    send_s: float = 0.002
    ack_s: float = 0.002
    jitter_s: float = 0.0
    wake_late_s: float = 0.0005
    now_s: float = 1_000.0
    phase: Phase = field(default_factory=Phase)
    random: Random = field(default_factory=lambda: Random(1))

    def tick(self) -> int:
        """Send a tick; return by how many ms it was appended after its second began, negative: before."""
        due_s = self.phase.next_second_at(self.now_s)
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


def test_the_first_tick_is_sent_at_once() -> None:
    assert Phase().next_second_at(123.4) == 123.4
    assert Phase().at(123.4) is None


@pytest.mark.parametrize("broker_ahead_s", [0.0, 0.4, -0.4, 3600.123, -3600.9, 1.7e9, 0.999])
def test_ticks_are_appended_just_after_the_second_begins_for_any_clocks(broker_ahead_s: float) -> None:
    oscillator = SimOscillator(broker_ahead_s + 5_000)
    oscillator.tick()
    assert all(0 <= late_ms <= 8 for late_ms in oscillator.ticks(30))


@pytest.mark.parametrize(("send_s", "ack_s"), [(0.001, 0.019), (0.019, 0.001), (0.01, 0.01)])
def test_unequal_delays_make_ticks_late_by_at_most_these_delays(send_s: float, ack_s: float) -> None:
    oscillator = SimOscillator(5_000.3, send_s, ack_s)
    oscillator.tick()
    assert all(-2 <= late_ms <= 30 for late_ms in oscillator.ticks(30))


def test_jitter_does_not_add_up() -> None:
    oscillator = SimOscillator(5_000.3, jitter_s=0.05)
    oscillator.ticks(3)
    late_ms = oscillator.ticks(300)
    assert min(late_ms) >= -3, "ticks are at most 3 ms early"
    assert max(late_ms) <= 60
    assert sorted(late_ms)[150] <= 35
    assert sum(late < 0 for late in late_ms) <= 5


def test_an_early_tick_is_repeated_at_once() -> None:
    """An append time just before the second begins corrects the phase, and the next tick follows at once."""
    phase = Phase()
    phase.observe(10.0, 10.001, 5_000_000)  # precise: seconds begin at 10.0, 11.0, ...
    sent_s = phase.next_second_at(10.5)
    assert 11.0 <= sent_s <= 11.01
    phase.observe(sent_s, sent_s + 0.004, 5_000_990)  # the broker's clock was slewed by 10 ms
    assert 0 < phase.next_second_at(sent_s + 0.004) - sent_s < 0.02


@pytest.mark.parametrize("step_s", [-3600.0, -0.3, 0.3, 3600.0])
def test_one_tick_corrects_the_phase_after_a_clock_step(step_s: float) -> None:
    oscillator = SimOscillator(5_000.3)
    oscillator.ticks(5)
    oscillator.broker_ahead_s += step_s
    oscillator.ticks(2)  # the first one corrects the phase, the second may follow at once
    assert all(0 <= late_ms <= 8 for late_ms in oscillator.ticks(20))


def test_each_second_has_one_tick() -> None:
    oscillator = SimOscillator(5_000.3, jitter_s=0.003)
    oscillator.ticks(3)
    before_s = int(oscillator.now_s + oscillator.broker_ahead_s)
    assert all(late_ms >= 0 for late_ms in oscillator.ticks(100))
    assert int(oscillator.now_s + oscillator.broker_ahead_s) - before_s == 100


def test_the_phase_follows_a_drift_of_the_clock() -> None:
    """A drift of 100 ppm, 6 ms a minute, is more than that of real clocks."""
    oscillator = SimOscillator(5_000.3, jitter_s=0.004)
    oscillator.ticks(3)
    for _ in range(600):
        oscillator.broker_ahead_s += 0.0001
        assert -8 <= oscillator.tick() <= 25


def test_a_precise_observation_outweighs_imprecise_ones_until_it_is_old() -> None:
    phase = Phase()
    phase.observe(100.0, 100.002, 5_000_001)
    precise_s = phase.offset_s
    assert precise_s is not None
    phase.observe(101.0, 101.500, 5_001_100)  # consistent, but less precise
    assert phase.offset_s == pytest.approx(precise_s, abs=0.0005)
    # A day later the clocks have drifted by 1.5 s; the old observation no longer counts.
    phase.observe(86_500.0, 86_500.002, 91_401_501)
    assert phase.offset_s == pytest.approx(precise_s + 1.5, abs=0.002)


def test_second_at_returns_the_brokers_second() -> None:
    phase = Phase()
    phase.observe(10.0, 10.002, 1_700_000_000_400)
    assert int(phase.at(10.001) or 0) == 1_700_000_000
    assert int(phase.at(10.7) or 0) == 1_700_000_001


# ---- which partitions ticks go to ------------------------------------------------------------------------------------


LEADERS = {0: 1, 1: 2, 2: 1, 3: 3}


def test_ticks_take_turns_over_all_partitions_with_a_leader() -> None:
    assert [TickPartitions().order(second, LEADERS)[0] for second in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert TickPartitions().order(5, {}) == []


def test_the_next_choice_is_a_partition_of_another_broker() -> None:
    assert TickPartitions().order(0, LEADERS) == [0, 1, 3]
    assert TickPartitions().order(2, LEADERS) == [2, 3, 1]


def test_a_broker_that_does_not_answer_comes_last_until_it_answers() -> None:
    partitions = TickPartitions()
    partitions.note_silent(1, 10)
    assert [partitions.order(second, LEADERS) for second in range(3)] == [[1, 3, 0], [1, 3, 2], [3, 1, 2]]
    partitions.note_answer(1)
    assert partitions.order(0, LEADERS) == [0, 1, 3]


def test_if_no_broker_answers_ticks_go_on_taking_turns() -> None:
    partitions = TickPartitions()
    for broker in (1, 2, 3):
        partitions.note_silent(broker, 10)
    assert partitions.order(1, LEADERS) == [1, 2, 3]


def test_a_broker_that_did_not_answer_is_probed_now_and_then() -> None:
    partitions = TickPartitions()
    partitions.note_silent(3, 10)
    assert partitions.probe(LEADERS, 10) is None
    assert partitions.probe(LEADERS, 10 + TRY_AGAIN_S) == 3
    assert partitions.probe(LEADERS, 11 + TRY_AGAIN_S) is None
