"""One machine, any order of events: the state is a function of the log, and recovery comes to the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.machines import HORIZON_S, MachineRig
from timers.core.keys import OrderKey
from timers.core.machine import Limits, Machine, OutOfPlace
from timers.core.ports import Lost
from timers.core.timer import Fetched, Tick
from timers.store.memory import MemoryStore
from timers.testing import SimClock, SimLedger, SimLog
from timers.wire import future

TOPIC = "timer-request"


@dataclass
class Rig(MachineRig):
    """A machine over a log, which can be opened again."""

    chunk_timers: int = 2
    max_bytes: int = 1000
    log: SimLog = field(default_factory=lambda: SimLog(SimClock(0), partitions=1))
    ledger: SimLedger = field(default_factory=SimLedger)
    store: MemoryStore = field(default_factory=MemoryStore)

    topic = TOPIC

    def __post_init__(self) -> None:
        self._tick = Tick(0)
        self.open()

    def open(self) -> None:
        """As the worker does."""
        progress = self.ledger.progress
        self.store.drop_through(progress.fired_through, progress.next_offset)
        limits = Limits(self.chunk_timers, 10**9, self.max_bytes)
        self.machine = Machine(progress, future.decode, self.store, self.ledger, limits)
        self.machine.observe(self._tick)

    def request(self, due_s: int, size: int = 0) -> None:
        self.log.append(TOPIC, b"%d" % due_s, future.encode("t", "k", bytes(size)), partition=0)

    def tick(self, second: int) -> None:
        self._tick = Tick(second * 1000)
        self.machine.observe(self._tick)

    def keys(self) -> list[OrderKey]:
        return [(due_s, row[0]) for due_s, rows in self.store.scan((-1, 0), 10**12) for row in rows]


Event: TypeAlias = tuple[str, int]
"""("request" | "tick", second) | ("fetch", records) | ("setting", bytes) | (any other, 0)"""

SECONDS = st.integers(0, HORIZON_S - 1)
FLOW = (
    st.tuples(st.just("request"), SECONDS),
    st.tuples(st.just("request"), SECONDS),
    st.tuples(st.just("fetch"), st.integers(1, 6)),
    st.tuples(st.just("tick"), SECONDS),
    st.tuples(st.sampled_from(["chunk", "commit"]), st.just(0)),
)
TROUBLE = st.tuples(st.sampled_from(["lost", "restart", "lose disk"]), st.just(0))


def many(*kinds: st.SearchStrategy[tuple[str, int]]) -> st.SearchStrategy[list[Event]]:
    """Lists long enough for something to happen, which Hypothesis' own are not, and short ones to shrink to."""
    event = st.one_of(*kinds)
    return st.one_of(st.lists(event, min_size=20, max_size=40), st.lists(event, max_size=20))


EVENTS = many(*FLOW, TROUBLE)
WITH_SETTINGS = many(*FLOW, TROUBLE, st.tuples(st.just("setting"), st.sampled_from([20, 50, 1000])))


def happen(rig: Rig, event: Event) -> None:
    what, number = event
    try:
        if what == "request":
            rig.request(number, size=(7 * number) % 60)
        elif what == "fetch":
            rig.fetch(number)
        elif what == "tick":
            rig.tick(number)
        elif what == "chunk":
            rig.machine.fire_chunk()
        elif what == "commit":
            rig.machine.commit_progress(even_if_idle=True)
        elif what == "lost":
            rig.ledger.failing = 1
        elif what == "setting":
            rig.max_bytes = number
            rig.open()
        else:
            if what == "lose disk":
                rig.store = MemoryStore()
            rig.open()
    except Lost:
        rig.open()
    except OutOfPlace:
        pass  # the end of a replay, at a time when nothing new may be accepted


def recovered(rig: Rig) -> list[OrderKey]:
    """Pending keys that a fresh machine finds in the log alone."""
    progress = rig.machine.progress
    fresh = Rig(rig.chunk_timers, rig.max_bytes, rig.log)
    fresh.machine = Machine(progress, future.decode, fresh.store, fresh.ledger, Limits(1, 1, rig.max_bytes))
    fetched = rig.log.fetch(TOPIC, 0, 0, progress.next_offset)
    if progress.next_offset:
        fresh.machine.accept(fetched)
    assert fresh.ledger.commits == [], "recovery emitted something"
    return fresh.keys()


@settings(deadline=None)
@given(EVENTS, st.integers(1, 4))
def test_live_state_is_what_recovery_finds(events: list[Event], chunk_timers: int) -> None:
    rig = Rig(chunk_timers)
    for event in events:
        happen(rig, event)
        if not rig.machine.recovering:
            assert recovered(rig) == rig.keys()


@settings(deadline=None)
@given(EVENTS, st.integers(1, 4))
def test_every_request_fires_once_in_the_end(events: list[Event], chunk_timers: int) -> None:
    rig = Rig(chunk_timers)
    for event in events:
        happen(rig, event)
    rig.finish()
    asked = [(int(record.key), record.offset) for record in rig.log.fetch(TOPIC, 0, 0).records]
    assert sorted(rig.ledger.fired) == sorted(asked)


@settings(deadline=None)
@given(st.lists(SECONDS, max_size=15), st.lists(SECONDS, max_size=6), st.data())
def test_either_order_of_arrival_ends_in_the_same_state(due: list[int], ticks: list[int], data: st.DataObject) -> None:
    """Requests in their order, ticks in theirs: however the two interleave, the end is the same."""
    ends = []
    for label in ("one order", "another"):
        rig = Rig()
        rig.tick(0)
        for second in due:
            rig.request(second)
        steps = data.draw(st.permutations(["fetch"] * len(due) + ["tick"] * len(ticks)), label)
        coming = iter(sorted(ticks))
        for step in steps:
            if step == "fetch":
                rig.fetch(1)
            else:
                rig.tick(next(coming))
                rig.fire()
        rig.fire()
        rig.machine.commit_progress()
        ends.append((rig.keys(), sorted(rig.ledger.fired), rig.machine.progress))
    assert ends[0] == ends[1]


@settings(deadline=None)
@given(WITH_SETTINGS)
def test_a_replay_decides_by_the_settings_of_then(events: list[Event]) -> None:
    """``TIMERS_MAX_REQUEST_BYTES`` changes between runs, and disks are lost: what was committed is not judged anew."""
    rig = Rig(max_bytes=50)
    decided: dict[int, bool] = {}
    for event in events:
        happen(rig, event)
        if rig.machine.recovering:
            continue
        assert recovered(rig) == rig.keys()
        present = {offset: True for _, offset in rig.keys() + rig.ledger.fired}
        present |= {offset: False for offset, _ in rig.ledger.rejected}
        assert present.items() >= decided.items(), "a decision was taken back"
        decided = {offset: good for offset, good in present.items() if offset < rig.ledger.progress.next_offset}
    rig.finish()
    outcomes = [offset for _, offset in rig.ledger.fired] + [offset for offset, _ in rig.ledger.rejected]
    assert sorted(outcomes) == [record.offset for record in rig.log.fetch(TOPIC, 0, 0).records]


@settings(deadline=None)
@given(st.lists(SECONDS, min_size=1, max_size=30), st.integers(1, 5), SECONDS)
def test_firing_is_in_key_order_and_never_ahead(due: list[int], chunk_timers: int, second: int) -> None:
    rig = Rig(chunk_timers)
    rig.tick(0)
    for due_s in due:
        rig.request(due_s)
    late = sorted((due_s, offset) for offset, due_s in enumerate(due) if due_s == 0)
    rig.fire()
    rig.fetch()
    rig.tick(second)
    rig.fire()
    expected = sorted((due_s, offset) for offset, due_s in enumerate(due) if due_s <= second)
    assert rig.ledger.fired == expected
    assert set(late) <= set(rig.ledger.fired)


@settings(deadline=None)
@given(EVENTS)
def test_an_out_of_place_fetch_changes_nothing(events: list[Event]) -> None:
    rig = Rig()
    for event in events:
        happen(rig, event)
    before = (rig.machine.progress, rig.store.applied, rig.keys(), len(rig.ledger.commits))
    position = rig.machine.position
    try:
        rig.machine.accept(Fetched(position + 1, position + 3, []))
    except Exception as error:
        assert getattr(error, "position", None) == position
    else:
        raise AssertionError("a gap was not noticed")
    rig.machine.accept(Fetched(0, position, rig.log.fetch(TOPIC, 0, 0, position).records))  # all of it is old news
    assert (rig.machine.progress, rig.store.applied, rig.keys(), len(rig.ledger.commits)) == before
