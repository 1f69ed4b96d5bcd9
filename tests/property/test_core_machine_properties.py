"""One machine, any order of events: the state is a function of the log, and recovery comes to the same."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.harness.machines import HORIZON_S, NativeRig, RandomRig
from tests.property.events import FETCH, FLOW, TROUBLE, Event, events
from timers.core.keys import OrderKey
from timers.core.limits import Limits
from timers.core.timer import Fetched


class Rig(RandomRig, NativeRig):
    """A machine of timers without ids."""

    def __init__(self, chunk_timers: int = 2, max_bytes: int = 1000) -> None:
        super().__init__(limits=Limits(chunk_timers, 10**9, max_bytes))


SECONDS = st.integers(0, HORIZON_S - 1)
HAPPENS = (
    st.tuples(st.just("request"), SECONDS),
    st.tuples(st.just("request"), SECONDS),
    *(FETCH, FLOW, TROUBLE),
    st.tuples(st.just("tick"), SECONDS),
)
EVENTS = events(*HAPPENS, at_most=40)
WITH_SETTINGS = events(*HAPPENS, st.tuples(st.just("setting"), st.sampled_from([20, 50, 1000])), at_most=40)


def happen(rig: Rig, event: Event) -> None:
    what, number = event
    with rig.opened_again():
        if what == "request":
            rig.ask(number, value=bytes((7 * number) % 60))
        elif what == "tick":
            rig.observe(number)
        elif what == "setting":
            rig.open(limits=replace(rig.spec.limits, max_request_bytes=number))
        else:
            rig.happen(what, number)


def recovered(rig: Rig) -> list[OrderKey]:
    """Returns the pending keys that a machine with an empty store finds in the log."""
    progress = rig.machine.progress
    limits = replace(rig.spec.limits, chunk_timers=1, chunk_bytes=1)
    fresh = NativeRig(limits=limits, topic=rig.topic, progress=progress, log=rig.log)
    if progress.next_offset:
        fresh.machine.accept(rig.fetch(progress.next_offset, from_offset=0))
    assert fresh.outbox.commits == [], "recovery emitted something"
    return fresh.keys


@given(EVENTS, st.integers(1, 4))
def test_live_state_is_what_recovery_finds(events: list[Event], chunk_timers: int) -> None:
    rig = Rig(chunk_timers)
    for event in events:
        happen(rig, event)
        if not rig.machine.recovering:
            assert recovered(rig) == rig.keys


@given(EVENTS, st.integers(1, 4))
def test_every_request_fires_once_in_the_end(events: list[Event], chunk_timers: int) -> None:
    rig = Rig(chunk_timers)
    for event in events:
        happen(rig, event)
    rig.finish()
    asked = [(int(record.key), record.offset) for record in rig.log.fetch(rig.topic, 0, 0).records]
    assert sorted(rig.outbox.fired) == sorted(asked)


@given(st.lists(SECONDS, max_size=15), st.lists(SECONDS, max_size=6), st.data())
def test_either_order_of_arrival_ends_in_the_same_state(due: list[int], ticks: list[int], data: st.DataObject) -> None:
    """Requests in their order, ticks in theirs: however the two interleave, the end is the same."""
    ends = []
    for label in ("one order", "another"):
        rig = Rig()
        rig.observe(0)
        for second in due:
            rig.ask(second)
        steps = data.draw(st.permutations(["fetch"] * len(due) + ["tick"] * len(ticks)), label)
        coming = iter(sorted(ticks))
        for step in steps:
            if step == "fetch":
                rig.read(1)
            else:
                rig.second(next(coming))
        rig.fire()
        rig.machine.commit_progress()
        ends.append((rig.keys, sorted(rig.outbox.fired), rig.machine.progress))
    assert ends[0] == ends[1]


@given(WITH_SETTINGS)
def test_a_replay_decides_by_the_settings_of_then(events: list[Event]) -> None:
    """``TIMERS_MAX_REQUEST_BYTES`` changes between runs, and disks are lost: what was committed is not judged anew."""
    rig = Rig(max_bytes=50)
    decided: dict[int, bool] = {}
    for event in events:
        happen(rig, event)
        if rig.machine.recovering:
            continue
        assert recovered(rig) == rig.keys
        present = {offset: True for _, offset in rig.keys + rig.outbox.fired}
        present |= {offset: False for offset, _ in rig.outbox.rejected}
        assert present.items() >= decided.items(), "a decision was taken back"
        decided = {offset: good for offset, good in present.items() if offset < rig.outbox.progress.next_offset}
    rig.finish()
    outcomes = [offset for _, offset in rig.outbox.fired] + [offset for offset, _ in rig.outbox.rejected]
    assert sorted(outcomes) == [record.offset for record in rig.log.fetch(rig.topic, 0, 0).records]


@given(st.lists(SECONDS, min_size=1, max_size=30), st.integers(1, 5), SECONDS)
def test_firing_is_in_key_order_and_never_ahead(due: list[int], chunk_timers: int, second: int) -> None:
    rig = Rig(chunk_timers)
    rig.observe(0)
    for due_s in due:
        rig.ask(due_s)
    late = sorted((due_s, offset) for offset, due_s in enumerate(due) if due_s == 0)
    rig.fire()
    rig.read()
    rig.second(second)
    expected = sorted((due_s, offset) for offset, due_s in enumerate(due) if due_s <= second)
    assert rig.outbox.fired == expected
    assert set(late) <= set(rig.outbox.fired)


@given(EVENTS)
def test_an_out_of_place_fetch_changes_nothing(events: list[Event]) -> None:
    rig = Rig()
    for event in events:
        happen(rig, event)
    before = (rig.machine.progress, rig.store.applied, rig.keys, len(rig.outbox.commits))
    position = rig.machine.position
    try:
        rig.machine.accept(Fetched(position + 1, position + 3, []))
    except Exception as error:
        assert getattr(error, "position", None) == position
    else:
        raise AssertionError("a gap was not noticed")
    rig.machine.accept(Fetched(0, position, rig.log.fetch(rig.topic, 0, 0, position).records))  # all of it is old news
    assert (rig.machine.progress, rig.store.applied, rig.keys, len(rig.outbox.commits)) == before
