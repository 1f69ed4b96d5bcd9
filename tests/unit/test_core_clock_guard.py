"""Which ticks count, when clocks are wrong: each rule of the guard, without waiting."""

import pytest

from timers.core.clock_guard import FRESH_S, ClockGuard, Clocks

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
