"""Which ticks count when clocks are wrong, without waiting; and when the tick scheduler sends its ticks."""

from dataclasses import dataclass, field
from random import Random

import pytest

from timers.core.clock_guard import FRESH_S, ClockGuard, Clocks
from timers.core.ticking import TRY_AGAIN_S, Phase, TickPartitions

START_S = 1_700_000_000
LEAP_S = 300
YEAR_S = 365 * 86_400
HOUR_S = 3600


class Machine:
    """A machine with a guard. All arguments are seconds ahead of the right time."""

    def __init__(self, wall_s: float = 0, fired_s: int | None = None, accept_s: int | None = None) -> None:
        self.wall_s = wall_s
        self.boot_s = 5000.0
        self.guard = ClockGuard(LEAP_S, None if accept_s is None else START_S + accept_s)
        self.fired: list[int] | None = [] if fired_s is None else [START_S + fired_s]

    def sleep(self, seconds: float) -> None:
        self.boot_s += seconds

    def tick(self, ahead_s: float = 0, broker: int | None = 1) -> bool:
        """A second later, a broker whose clock is ahead ticks. Returns whether the tick counts."""
        self.sleep(1)
        now_s = START_S + self.boot_s - 5000
        clocks = Clocks(self.boot_s, now_s + self.wall_s)
        return self.guard.counts(round((now_s + ahead_s) * 1000), broker, clocks, self.fired)

    @property
    def held(self) -> list[int | None]:
        return [hold.broker for hold in self.guard.holds(self.boot_s)]


# ---- at the start ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead_s", [-YEAR_S, -LEAP_S - 1, LEAP_S + 1, HOUR_S, YEAR_S])
def test_a_first_tick_with_which_no_clock_agrees_is_held(ahead_s: float) -> None:
    machine = Machine()
    assert not machine.tick(ahead_s)
    assert machine.held == [1]


def test_a_first_tick_with_which_this_machines_clock_agrees_counts_after_any_downtime() -> None:
    assert Machine(fired_s=-30 * 86_400).tick()
    assert Machine().tick(ahead_s=LEAP_S - 1)


def test_a_first_tick_counts_if_it_follows_closely_what_has_fired_although_the_wall_clock_is_wrong() -> None:
    assert Machine(wall_s=5 * HOUR_S, fired_s=-LEAP_S + 1).tick()
    assert not Machine(wall_s=5 * HOUR_S, fired_s=-LEAP_S - 1).tick()
    assert not Machine(wall_s=5 * HOUR_S, fired_s=3).tick(), "before what has fired"
    assert not Machine(wall_s=5 * HOUR_S).tick(), "it is not known what has fired"


@pytest.mark.parametrize("wall_s", [-26 * HOUR_S + 5, 5 * HOUR_S, 26 * HOUR_S - 5])
def test_the_first_tick_of_a_new_app_may_differ_from_the_wall_clock_by_a_time_zone(wall_s: float) -> None:
    machine = Machine(wall_s)
    machine.fired = None
    assert machine.tick()
    assert not machine.tick(HOUR_S), "a leap after it is held"


@pytest.mark.parametrize("wall_s", [-YEAR_S, -26 * HOUR_S - 5, 26 * HOUR_S + 5, YEAR_S])
def test_the_first_tick_of_a_new_app_is_held_if_it_is_more_than_a_time_zone_away(wall_s: float) -> None:
    machine = Machine(wall_s)
    machine.fired = None
    assert not machine.tick()


def test_a_first_tick_must_follow_the_newest_second_that_has_fired() -> None:
    machine = Machine(wall_s=5 * HOUR_S, fired_s=-30 * 86_400)  # no worker owned this partition for a month
    machine.fired = [START_S - 30 * 86_400, START_S]
    assert machine.tick()
    machine = Machine(wall_s=5 * HOUR_S)
    machine.fired = [START_S + YEAR_S, START_S]  # fired by a wrong clock
    assert not machine.tick()


def test_without_a_right_clock_on_this_machine_two_brokers_agree_with_each_other() -> None:
    machine = Machine(wall_s=-5 * HOUR_S)
    assert not machine.tick(broker=1)
    assert not machine.tick(broker=2), "what broker 1 showed before the hold is no second clock"
    assert machine.tick(broker=1)
    assert machine.tick(broker=2)


# ---- leaps ----------------------------------------------------------------------------------------------------------


def test_a_single_tick_a_year_ahead_is_held_and_the_next_ones_count() -> None:
    machine = Machine()
    assert machine.tick()
    assert not machine.tick(YEAR_S)
    assert machine.held == [1]
    assert machine.tick()
    assert machine.held == []


def test_one_tick_may_leap_by_less_than_the_limit() -> None:
    machine = Machine(wall_s=YEAR_S, fired_s=0)
    assert machine.tick()
    assert machine.tick(LEAP_S - 1)
    assert not machine.tick(LEAP_S + 1)


def test_small_leaps_do_not_add_up() -> None:
    machine = Machine(wall_s=YEAR_S, fired_s=0)
    assert machine.tick()
    assert machine.tick(LEAP_S * 0.9)
    assert not machine.tick(LEAP_S * 1.8)


def test_small_leaps_do_not_add_up_beside_a_right_clock() -> None:
    machine = Machine()
    assert machine.tick(LEAP_S * 0.9)
    assert machine.tick(LEAP_S * 1.8)
    assert not machine.tick(LEAP_S * 2.7), "the clock of this machine did not agree with the second one"


def test_a_leap_after_a_sleep_counts() -> None:
    """The clock since boot counts sleep; ticks that did not come are no leap."""
    machine = Machine(wall_s=YEAR_S, fired_s=0)
    assert machine.tick()
    machine.sleep(30 * 86_400)
    assert machine.tick()


@pytest.mark.parametrize("broker", [1, None])
def test_a_held_tick_counts_when_this_machines_clock_agrees(broker: int | None) -> None:
    machine = Machine(wall_s=-HOUR_S, fired_s=0)
    assert machine.tick(-HOUR_S, broker)
    assert not machine.tick(YEAR_S, broker)
    machine.wall_s = YEAR_S
    assert machine.tick(YEAR_S, broker)
    machine.wall_s = 0
    assert machine.tick(YEAR_S, broker), "the anchor has moved"


def test_a_clock_years_ahead_does_not_agree_with_everything() -> None:
    machine = Machine(wall_s=2 * YEAR_S, fired_s=0)
    assert machine.tick()
    assert not machine.tick(YEAR_S)
    assert not machine.tick(3 * YEAR_S, broker=2)
    assert not machine.tick(YEAR_S)


def test_a_held_tick_counts_when_another_broker_agrees_later() -> None:
    machine = Machine(wall_s=-YEAR_S, fired_s=0)
    assert machine.tick(broker=1)
    assert not machine.tick(HOUR_S, broker=1)
    assert not machine.tick(HOUR_S, broker=1), "a broker does not agree with itself"
    assert not machine.tick(HOUR_S, broker=None), "an unknown broker may be the same one"
    assert not machine.tick(HOUR_S + 20, broker=2)
    assert machine.tick(HOUR_S, broker=1)
    assert machine.tick(HOUR_S + 20, broker=2)


def test_what_a_broker_showed_long_ago_is_no_second_clock() -> None:
    machine = Machine(wall_s=-YEAR_S, fired_s=0)
    assert machine.tick(broker=1)
    assert not machine.tick(HOUR_S, broker=1)
    assert not machine.tick(HOUR_S, broker=2)
    machine.sleep(FRESH_S)
    assert not machine.tick(HOUR_S, broker=1)


def test_two_brokers_an_hour_apart_the_right_one_counts() -> None:
    machine = Machine()
    for _ in range(20):
        assert machine.tick(broker=1)
        assert not machine.tick(HOUR_S, broker=2)
        assert machine.held == [2]
    machine.tick(broker=1)
    assert machine.tick(broker=2), "its clock was corrected"
    assert machine.held == []


# ---- slow clocks ----------------------------------------------------------------------------------------------------


def test_a_slow_broker_is_ignored_while_another_one_ticks() -> None:
    machine = Machine()
    assert machine.tick(broker=1)
    assert machine.tick(-2, broker=2), "skew"
    assert not machine.tick(-HOUR_S, broker=2)
    assert not machine.tick(-5, broker=None)
    assert machine.held == []
    assert machine.tick(broker=1)


def test_the_only_clock_may_go_back() -> None:
    """Machines must learn that the time went back [I10]."""
    machine = Machine()
    assert machine.tick(broker=1)
    assert machine.tick(broker=2)
    assert machine.tick(-HOUR_S, broker=2) is False
    machine.sleep(FRESH_S)
    assert machine.tick(-HOUR_S, broker=2)
    assert machine.tick(broker=1), "back to the time that was known"


def test_the_clocks_of_all_brokers_may_go_back() -> None:
    machine = Machine()
    assert machine.tick(broker=1)
    assert machine.tick(broker=2)
    assert not machine.tick(-HOUR_S, broker=1)
    assert machine.tick(-HOUR_S, broker=2)
    assert machine.tick(-HOUR_S, broker=1)


def test_a_held_tick_does_not_let_a_slow_broker_set_the_time_back() -> None:
    machine = Machine()
    assert machine.tick(broker=1)
    assert not machine.tick(YEAR_S, broker=1)
    assert not machine.tick(-HOUR_S, broker=2)


# ---- an operator's word ---------------------------------------------------------------------------------------------


def test_an_operator_accepts_ticks_up_to_an_instant() -> None:
    machine = Machine(wall_s=-HOUR_S, accept_s=0)
    assert not machine.tick(YEAR_S)
    assert machine.tick()
    machine.sleep(YEAR_S)
    assert machine.tick(), "time went on"
    assert not machine.tick(YEAR_S), "it is an instant, not a switch"


def test_the_sentence_names_the_setting_that_accepts_it() -> None:
    machine = Machine(wall_s=-HOUR_S)
    machine.tick()
    (hold,) = machine.guard.holds(machine.boot_s)
    assert "broker 1" in hold.sentence
    assert "2023-11-14T22:13:21Z" in hold.sentence
    assert "2023-11-14T21:13:21Z" in hold.sentence
    assert hold.sentence.endswith("TIMERS_ACCEPT_TIME=2023-11-14T23:13:21Z")


def test_a_hold_ends_when_its_broker_does_not_tick_any_more() -> None:
    machine = Machine()
    machine.tick(YEAR_S)
    machine.sleep(FRESH_S)
    assert machine.held == []


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
