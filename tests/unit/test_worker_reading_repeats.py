"""What queries say of timers that repeat: at each moment there is one, with its rule and its real topic."""

from typing import Any

import pytest

from timers.client import Repeat
from timers.core.listing import LIST_START
from timers.core.machine import Machine
from timers.core.timer import DueRows
from timers.machines.queries import reading
from timers.machines.queries.reading import Place
from timers.testing import SimTimers
from timers.wire import query as wire
from timers.wire.query import Query

NOW_S = 1_700_000_000
TOPIC = "timer-request-by-id"
PLACE = Place(TOPIC, 0, moved=False, hidden_topic="canary")
DAY_S = 86_400


def machine_of(sim: SimTimers) -> Machine:
    return next(machine for machine in sim._machines() if machine.find(b"a") is not None)


def listed(sim: SimTimers, query: Query) -> list[dict[str, Any]]:
    return [each.timer for each in reading.page(machine_of(sim), PLACE, query, LIST_START, 10).listed]


@pytest.fixture
def sim() -> SimTimers:
    return SimTimers()


def test_a_timer_that_repeats_is_shown_with_its_rule_and_by_what_conditions_name(sim: SimTimers) -> None:
    sim.schedule("out", "k", b"v", id="a", repeat=Repeat.every(10), headers=[("mine", b"1")])
    for second in (0, 10, 20):
        timer = reading.find_by_id(machine_of(sim), PLACE, "a", with_value=True)
        assert timer is not None
        assert (timer["state"], timer["topic"], timer["key"]) == ("pending", "out", "k")
        assert timer["due"] == timer["nominal"] == NOW_S + second + 10
        assert timer["repeat"] == f"every=10; from={NOW_S}"
        assert wire.version_of(timer) == f"{TOPIC}/0/0" != timer["source"]
        assert timer["headers"] == [["mine", "1"]]
        assert wire.position_of(timer) == (timer["due"], *_place(timer["source"]))
        assert listed(sim, Query(topic="out", prefix="a"))[0]["source"] == timer["source"]
        sim.advance(10)
    assert sim.cancel("a", if_source=f"{TOPIC}/0/0").verdict == "cancelled"


def test_a_waypoint_is_in_the_list_of_its_topic(sim: SimTimers) -> None:
    begin_s = NOW_S + 300 * DAY_S
    sim.schedule("out", "k", b"v", id="a", repeat=Repeat.every(10, from_=begin_s))
    (timer,) = listed(sim, Query(topic="out"))
    assert (timer["topic"], timer["next"], timer["nominal"]) == ("out", begin_s, begin_s)
    assert timer["due"] < begin_s
    assert listed(sim, Query(topic="other")) == []
    counts, _ = reading.count(machine_of(sim), PLACE, Query(by_s=DAY_S), (0, 0))
    assert counts == {(timer["due"] - timer["due"] % DAY_S, "out"): 1}


def test_it_is_pending_while_its_next_occurrence_is_not_read_yet(sim: SimTimers) -> None:
    sim.schedule("out", "k", b"v", id="a", repeat=Repeat.every(10))
    machine = machine_of(sim)
    nothing: list[DueRows] = []
    machine.waiting = lambda *_: iter(nothing)  # type: ignore[method-assign,assignment]
    timer = reading.find_by_id(machine, PLACE, "a", with_value=True)
    assert timer is not None
    assert (timer["state"], wire.version_of(timer), timer["due"]) == ("pending", f"{TOPIC}/0/0", NOW_S + 10)
    assert "topic" not in timer


def test_an_occurrence_that_was_sent_has_fired(sim: SimTimers) -> None:
    sim.schedule("out", "k", b"v", id="a", repeat=Repeat.every(10))
    first = reading.find_by_id(machine_of(sim), PLACE, "a", with_value=False)
    assert first is not None
    offset = _place(first["source"])[2]
    at = offset, NOW_S, {0: ("a", first["due"], 0)}

    def state() -> str | None:
        found = reading.find_sent(machine_of(sim), PLACE, *at)
        return None if found is None else found[1]

    assert state() == "pending"
    sim.advance(10)
    assert state() == "fired"
    sim.schedule("out", "k", b"v", id="a", repeat=Repeat.every(20))
    sim.advance(20)
    assert state() == "replaced"


def _place(source: str) -> tuple[str, int, int]:
    topic, partition, offset = source.split("/")
    return topic, int(partition), int(offset)
