"""Requests with a condition, any order of events: a replay decides alike, and no id is set twice [I27]."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.machines import BY_ID, RandomRig
from tests.property.events import FETCH, FLOW, TROUBLE, Event
from timers.core.keys import NOTHING_FIRED, OrderKey
from timers.core.limits import Limits
from timers.core.machine import Machine
from timers.core.only_if import TIME_ID
from timers.core.operation import ABSENT, ALREADY_FIRED, REFUSED, REPLACED, SET, Entry
from timers.machines.store.memory import MemoryStore
from timers.wire import future
from timers.wire.formats import future_by_id

TOPIC = "ids"
RETENTION_S = 4
END_S = 30

IDS = st.sampled_from([b"a", b"b"])
DELAYS = st.integers(-3, 9)
CONDITIONS_OF = st.sampled_from([None, ABSENT, ABSENT, "latest", "latest", "earlier"])
SET_ID = st.tuples(st.just("set"), st.tuples(IDS, DELAYS, CONDITIONS_OF))
EVENT = st.one_of(
    *(SET_ID, SET_ID, SET_ID),
    st.tuples(st.just("cancel"), st.tuples(IDS, st.just(0), st.sampled_from([None, "latest", "earlier"]))),
    *(FETCH, FETCH, FLOW, TROUBLE),
    st.tuples(st.just("time"), st.integers(-2, 5)),
    *[st.tuples(st.just("tick"), st.none())] * 2,
    st.tuples(st.just("retention"), st.sampled_from([1, RETENTION_S, 20])),
)


class Rig(RandomRig):
    """A machine of timers with ids, over random events."""

    def __init__(self) -> None:
        super().__init__(BY_ID, Limits(2, 10**9, 1000), topic=TOPIC, retention_s=RETENTION_S)
        self.log.clock.now_ms = 100_000
        self.observe(100)

    def happen(self, what: str, argument: Any = None) -> None:
        now_s = self.log.clock.now_ms // 1000
        if what in ("set", "cancel"):
            id, delay_s, condition = argument
            self.write(id, None if what == "cancel" else now_s + delay_s, condition)
        elif what == "time":
            self.log.clock.now_ms += 1000 * argument
        elif what == "tick":
            self.observe(now_s)
        elif what == "retention":
            self.open(retention_s=argument)
        else:
            super().happen(what, argument)

    def write(self, id: bytes, due_s: int | None, condition: str | None) -> None:
        sources = [record.source for record in self.log.fetch(TOPIC, 0, 0).records if record.key == id]
        if condition in ("latest", "earlier"):
            condition = (sources or ["ids/0/99"])[-1 if condition == "latest" else 0]
        headers = [] if due_s is None else future_by_id.encode_headers(due_s)
        headers += future_by_id.encode_condition(condition)
        value = None if due_s is None else future.encode("t", "k", b"")
        self.log.append(TOPIC, id, value, headers, partition=0)

    def state(self, machine: Machine, store: MemoryStore) -> tuple[list[OrderKey], dict[bytes, Entry]]:
        """The timers that will fire, and the entries of their ids."""
        waiting = [(due_s, row[0]) for (due_s, _), rows in machine.waiting(NOTHING_FIRED) for row in rows]
        held = {entry[:2]: (id, entry) for id, entry in store.entries_after(TIME_ID, 1000).entries}
        return waiting, dict(held[key] for key in waiting)


@settings(deadline=None)
@given(st.lists(EVENT, max_size=50), st.integers(1, 8))
def test_a_replay_takes_and_refuses_the_same_requests(events: list[Event], piece: int) -> None:
    rig = Rig()
    for event in events:
        with rig.opened_again():
            rig.happen(*event)
        if not rig.machine.recovering:
            assert rig.state(*rig.recovered(piece)) == rig.state(rig.machine, rig.store)


@settings(deadline=None)
@given(st.lists(EVENT, max_size=50))
def test_each_condition_gets_one_verdict_and_no_refused_request_fires(events: list[Event]) -> None:
    rig = Rig()
    for event in events:
        with rig.opened_again():
            rig.happen(*event)
    rig.outbox.failing = 0
    rig.open()
    end_s = max(rig.machine.progress.fired_through[0], rig.tick_ms // 1000, rig.log.clock.now_ms // 1000) + END_S
    rig.log.clock.now_ms = end_s * 1000
    rig.observe(end_s)
    rig.read_all()
    rig.fire()
    verdicts = {verdict.offset: verdict.verdict for verdict in rig.outbox.verdicts}
    assert len(verdicts) == len(rig.outbox.verdicts), "two verdicts on one request"
    records = rig.log.fetch(TOPIC, 0, 0).records
    conditional = {record.offset for record in records if future_by_id.decode_condition(record) is not None}
    assert conditional <= verdicts.keys()
    refused = {offset for offset, verdict in verdicts.items() if verdict in REFUSED}
    assert refused <= conditional
    fired = [offset for _, offset in rig.outbox.fired]
    assert len(fired) == len(set(fired))
    assert not refused & set(fired)
    assert not any(verdicts[offset] == ALREADY_FIRED for offset in conditional), "both versions fire"
    counted = {offset for offset, verdict in verdicts.items() if verdict in (SET, REPLACED)}
    replaced = sum(verdict == REPLACED for verdict in verdicts.values())
    assert len(counted - set(fired)) <= replaced + sum(verdict == "cancelled" for verdict in verdicts.values())


@settings(deadline=None)
@given(st.lists(st.tuples(IDS, st.integers(0, 3), DELAYS, st.sampled_from(["tick", "lose disk", "restart"]))))
def test_a_request_that_is_repeated_becomes_one_timer_until_the_retention_after_its_end(calls: list[Any]) -> None:
    rig = Rig()
    protected_until_s: dict[bytes, int] = {}
    for id, pause_s, delay_s, then in calls:
        rig.log.clock.now_ms += 1000 * pause_s
        now_s = rig.log.clock.now_ms // 1000
        before = len(rig.outbox.verdicts)
        rig.write(id, now_s + delay_s, ABSENT)
        rig.observe(now_s)
        rig.read_all()
        rig.fire()
        [verdict] = rig.outbox.verdicts[before:]
        assert (verdict.verdict == SET) == (now_s >= protected_until_s.get(id, 0))
        if verdict.verdict == SET:
            protected_until_s[id] = max(now_s, now_s + delay_s) + RETENTION_S
        rig.happen(then)
        rig.read_all()
