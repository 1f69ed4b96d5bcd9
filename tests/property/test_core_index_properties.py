"""Timers with an id, any order of events: the state is a function of the log, and every verdict is true."""

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.harness.machines import BY_ID, HORIZON_S, RandomRig
from tests.property.events import FETCH, FLOW, TROUBLE, Event, events
from timers.core.index import Index, is_over
from timers.core.keys import OrderKey
from timers.core.limits import Limits
from timers.core.machine import Machine
from timers.core.operation import ALREADY_FIRED, CANCELLED, REPLACED, UNKNOWN, Entry
from timers.machines.store.memory import MemoryStore
from timers.wire import future
from timers.wire.formats import future_by_id
from timers.wire.headers import TIMER_AGAIN

TOPIC = "timer-request-by-id"
NEVER_FORGET_S = 10**6

WITHOUT_CONDITIONS = BY_ID._replace(has_conditions=False)
"""Countdowns have the same index."""


class Rig(RandomRig):
    """A machine of timers with ids."""

    def __init__(self, chunk_timers: int = 2, retention_s: int = NEVER_FORGET_S) -> None:
        super().__init__(WITHOUT_CONDITIONS, Limits(chunk_timers, 10**9, 1000), topic=TOPIC, retention_s=retention_s)


def state(machine: Machine, store: MemoryStore, retention_s: int) -> tuple[list[OrderKey], dict[bytes, Entry]]:
    """What counts of a machine's state: keys that may fire, and ids that are remembered."""
    index, fired_through = Index(store, retention_s), machine.progress.fired_through
    keys = [(due_s, row[0]) for due_s, rows in index.alive([*store.scan((-1, 0), 10**12)]) for row in rows]
    entries = dict(store.entries_after(b"", 10**6).entries)
    return keys, {id: entry for id, entry in entries.items() if not is_over(entry, fired_through, retention_s)}


def live(rig: Rig) -> Any:
    return state(rig.machine, rig.store, rig.spec.retention_s)


def recovered(rig: Rig, piece: int = 10**6, *, compact: bool = False) -> Any:
    return state(*rig.recovered(piece, compact=compact), rig.spec.retention_s)


IDS = st.sampled_from([b"a", b"b", b"c"])
SECONDS = st.integers(0, HORIZON_S - 1)
SET = st.tuples(st.just("set"), st.tuples(IDS, SECONDS))
SENT = (
    *(SET, SET, SET),
    st.tuples(st.just("set alone"), SECONDS),
    st.tuples(st.just("cancel"), IDS),
    *(FETCH, FETCH, FLOW),
    st.tuples(st.just("tick"), SECONDS),
)
EVENTS = events(*SENT, TROUBLE | st.just(("bad", None)))


def happen(rig: Rig, event: Event) -> None:
    what, argument = event
    with rig.opened_again():
        if what == "set":
            id, due_s = argument
            value = future.encode("t", "k", b"%d" % rig.log.end(TOPIC, 0))
            rig.log.append(TOPIC, id, value, future_by_id.encode_headers(due_s), partition=0)
        elif what == "set alone":  # a timer without an id
            end = rig.log.end(TOPIC, 0)
            over_s = min(argument, rig.log.clock.now_ms // 1000)
            sent = [*future_by_id.encode_headers(over_s), (TIMER_AGAIN, b"")]
            rig.log.append(TOPIC, b"alone-%d" % end, future.encode("t", "k", b"%d" % end), sent, partition=0)
        elif what == "cancel":
            rig.log.append(TOPIC, argument, None, partition=0)
        elif what == "bad":
            rig.log.append(TOPIC, b"bad", b"no due", partition=0)
        elif what == "tick":
            rig.log.clock.now_ms = argument * 1000
            rig.observe(argument)
        else:
            rig.happen(what, argument)


@given(EVENTS, st.integers(1, 4), st.sampled_from([2, NEVER_FORGET_S]), st.integers(1, 5))
def test_live_state_is_what_recovery_has(events: list[Event], chunk_timers: int, retention_s: int, piece: int) -> None:
    rig = Rig(chunk_timers, retention_s)
    for event in events:
        happen(rig, event)
        if not rig.machine.recovering:
            assert recovered(rig) == recovered(rig, piece, compact=True) == live(rig)


@given(EVENTS, st.integers(1, 4))
def test_each_version_fires_once_or_was_replaced_or_cancelled(events: list[Event], chunk_timers: int) -> None:
    """And the verdicts say which: worked out from the log alone, but for what had fired by then."""
    rig = Rig(chunk_timers)
    for event in events:
        happen(rig, event)
    rig.finish()
    assert max(Counter(rig.outbox.fired).values(), default=1) == 1
    assert max(Counter(verdict.offset for verdict in rig.outbox.verdicts).values(), default=1) == 1
    fired = {offset: due_s for due_s, offset in rig.outbox.fired}
    verdicts = {verdict.offset: (verdict.id, verdict.verdict, verdict.due_s) for verdict in rig.outbox.verdicts}
    now: dict[bytes, tuple[int, int] | None] = {}  # id -> (offset, due second) of its present version
    pending: dict[int, int] = {}
    expected: dict[int, tuple[bytes, str, int | None]] = {}
    for record in rig.log.fetch(TOPIC, 0, 0).records:
        if record.value == b"no due":
            continue
        if TIMER_AGAIN in dict(record.headers):
            pending[record.offset] = int(dict(record.headers)["timer-due"] or b"")
            continue
        id, cancel, before = record.key, record.value is None, now.get(record.key)
        if before is not None:
            said = ALREADY_FIRED if before[0] in fired else CANCELLED if cancel else REPLACED
            expected[record.offset] = (id, said, before[1])
            pending.pop(before[0])
        elif cancel:
            expected[record.offset] = (id, UNKNOWN, None)
        now[id] = None
        if not cancel:
            due_s = int(dict(record.headers)["timer-due"])
            now[id] = record.offset, due_s
            pending[record.offset] = due_s
    assert verdicts == expected
    # Timers that were neither replaced nor cancelled have fired. The others fired only if their verdict says so.
    replaced = {before for before in fired if before not in pending}
    assert {offset: due_s for offset, due_s in fired.items() if offset not in replaced} == pending


@given(st.lists(st.one_of(*SENT), max_size=30), st.integers(1, 3), st.data())
def test_what_came_first_is_heard_before_it_fires(events: list[Event], chunk_timers: int, data: st.DataObject) -> None:
    """However late the machine reads it."""
    rig = Rig(chunk_timers)
    held: list[tuple[int, int]] = []  # (second, end of the log when its tick came)
    for event in events:
        if event[0] in ("fetch", "chunk", "commit"):
            continue
        happen(rig, event)
        held.append((rig.tick_ms // 1000, rig.log.end(TOPIC, 0))) if event[0] == "tick" else None
        for _ in range(data.draw(st.integers(0, 3))):
            before = rig.machine.progress.fired_through
            rig.machine.fire_chunk()
            after = rig.machine.progress.fired_through
            if after > before:
                ends = [end for second, end in [(0, 0), *held] if second >= after[0]]
                assert rig.machine.position >= min(ends), "a second fired before all was read that came in time"
            rig.read(data.draw(st.integers(0, 2)))


@given(EVENTS)
def test_what_is_over_is_swept_in_the_end(events: list[Event]) -> None:
    rig = Rig(retention_s=3)
    for event in events:
        happen(rig, event)
    rig.finish()
    for _ in range(3):
        rig.second(rig.tick_ms // 1000 + 10)
        rig.machine.commit_progress(even_if_idle=True)
    assert rig.store.entries_after(b"", 10).entries == []
    assert rig.store.pending == 0
