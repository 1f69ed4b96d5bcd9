"""Markers of kafka-mq-go, any order of events: a message is delivered again exactly if its markers say so."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.harness.list_outbox import ListOutbox
from tests.harness.machines import HORIZON_S, MARKERS, RandomRig
from tests.property.events import FETCH, FLOW, TROUBLE, Event, events
from tests.simulation.edits import applied
from tests.simulation.marker_mutations import MUTATIONS
from timers.core.index import Index
from timers.core.limits import Limits
from timers.core.machine import Machine
from timers.core.ports import NOTHING, Output
from timers.core.timer import Row
from timers.machines.store.memory import MemoryStore
from timers.v1.marker_pb2 import Marker
from timers.wire.formats import marker

TOPIC = "markers"


class MarkerOutbox(ListOutbox):
    """An outbox that keeps the rows, and appends an End marker for each one to the log when it commits, as the delivery
    policy does."""

    def __init__(self, rig: Rig) -> None:
        super().__init__()
        self._rig = rig
        self.redelivered: list[Row] = []

    def commit(self, progress: Any, output: Output = NOTHING) -> None:
        super().commit(progress, output)
        rows = [row for _, rows in output.due for row in rows]
        self.redelivered += rows
        for key, value in marker.end_markers(rows):
            self._rig.log.append(TOPIC, key, value, partition=0)


class Rig(RandomRig):
    """A machine of markers."""

    def __init__(self, chunk_timers: int = 2) -> None:
        super().__init__(
            MARKERS,
            Limits(chunk_timers, 10**9, 1000),
            topic=TOPIC,
            outbox=MarkerOutbox(self),
        )


def state(machine: Machine, store: MemoryStore) -> tuple[list[Any], dict[bytes, Any]]:
    """Rows that may fire, and the index."""
    index = Index(store, 0)
    rows = [(due_s, row) for due_s, rows in index.alive([*store.scan((-1, 0), 10**12)]) for row in rows]
    return rows, dict(store.entries_after(b"", 10**6).entries)


IDS = st.sampled_from(["0/1", "0/2", "1/1"])
AFTER_MS = st.integers(0, 5000)
SENT = (
    st.tuples(st.just("start"), st.tuples(IDS, AFTER_MS)),
    st.tuples(st.just("start"), st.tuples(IDS, AFTER_MS)),
    st.tuples(st.just("keep alive"), st.tuples(IDS, AFTER_MS)),
    st.tuples(st.just("keep alive"), st.tuples(IDS, AFTER_MS)),
    st.tuples(st.just("end"), IDS),
    *(FETCH, FETCH, FLOW),
    st.tuples(st.just("pass"), st.integers(1, 2500)),
    st.tuples(st.just("tick"), st.none()),
)
EVENTS = events(*SENT, TROUBLE | st.just(("bad", None)), at_most=60)


def happen(rig: Rig, event: Event) -> None:
    what, argument = event
    clock = rig.log.clock
    with rig.opened_again():
        if what == "start":
            id, after_ms = argument
            value = marker.encode_start(id, b"queue", b"%d" % rig.log.end(TOPIC, 0), after_ms)
            rig.log.append(TOPIC, b"queue", value, partition=0)
        elif what == "keep alive":
            rig.log.append(TOPIC, b"queue", marker.encode_keep_alive(*argument), partition=0)
        elif what == "end":
            rig.log.append(TOPIC, b"queue", marker.encode_end(argument), partition=0)
        elif what == "bad":
            rig.log.append(TOPIC, None, b"\xff", partition=0)
        elif what == "pass":
            clock.now_ms += argument
        elif what == "tick":
            rig.observe(clock.now_ms / 1000)
        else:
            rig.happen(what, argument)


def finish(rig: Rig) -> None:
    """Let all leases end, and deliver what is left."""
    rig.outbox.failing = 0
    for _ in range(3):  # the End markers of the engine are read too
        rig.log.clock.now_ms += HORIZON_S * 1000
        rig.observe(rig.log.clock.now_ms / 1000)
        rig.read_all()
        rig.fire()
        rig.machine.commit_progress()


def test_a_keep_alive_that_is_readable_after_its_message_was_delivered_again_has_no_effect() -> None:
    rig = Rig()
    rig.observe(0)
    happen(rig, ("start", ("0/1", 2000)))
    rig.read()
    other = rig.log.begin("other", rig.log.new_epoch("other"))
    rig.log.append(TOPIC, None, b"of another producer", partition=0, transaction=other)
    happen(rig, ("keep alive", ("0/1", 60_000)))
    rig.log.clock.now_ms += 5000
    rig.observe(5)
    rig.read()
    rig.fire()
    assert len(rig.outbox.redelivered) == 1
    rig.log.finish(other, commit=False)
    rig.read_all()
    assert state(rig.machine, rig.store) == ([], {}) == state(*rig.recovered(1))
    finish(rig)
    assert len(rig.outbox.redelivered) == 1


def leases_over(rig: Rig) -> dict[bytes, int]:
    """Value of each message whose lease was over before a marker ended it -> the end of its lease, from the log alone.

    An End after the lease may come too late, or in time if no tick came between.
    """
    tracked: dict[str, tuple[int, bytes]] = {}
    over: dict[bytes, int] = {}
    for record in rig.log.fetch(TOPIC, 0, 0).records:
        if record.key is None:
            continue
        read = Marker.FromString(record.value)
        id = f"{read.message_id.partition}/{read.message_id.offset}"
        due_s = -(-(record.timestamp_ms + read.redeliver_after_ms) // 1000)
        due_before_s, value = tracked.get(id, (record.timestamp_ms, b""))
        if id in tracked and due_before_s <= record.timestamp_ms // 1000:
            over[value] = due_before_s
        if read.type == Marker.END:
            tracked.pop(id, None)
        elif read.type == Marker.START:
            tracked[id] = due_s, read.value
        elif id in tracked and value not in over:
            tracked[id] = due_s, value
    assert not tracked, "lost: its lease is over, and no End follows"
    return over


def check(events: list[Event], chunk_timers: int, piece: int) -> None:
    """Run ``events``, and check the state after each one, and at the end what was delivered again."""
    rig = Rig(chunk_timers)
    for event in events:
        happen(rig, event)
        if not rig.machine.recovering:
            assert state(*rig.recovered(piece)) == state(rig.machine, rig.store), "recovery finds another state"
    finish(rig)
    delivered = [(row[3], row[5].due_s) for row in rig.outbox.redelivered if row[5] is not None]
    assert len(dict(delivered)) == len(delivered) == len(rig.outbox.redelivered), "twice"
    assert dict(delivered).items() <= leases_over(rig).items(), "delivered again, though its lease was not over"
    assert all(row[1:3] == (rig.spec.request_format.callback_topic, b"queue") for row in rig.outbox.redelivered)
    assert dict(rig.store.entries_after(b"", 10**6).entries) == {}, "nothing is remembered of messages that have ended"
    assert rig.store.pending == 0


CHUNKS, PIECES = st.integers(1, 4), st.integers(1, 5)


@given(EVENTS, CHUNKS, PIECES)
def test_a_message_is_delivered_again_after_its_lease_and_only_then(
    events: list[Event], chunk_timers: int, piece: int
) -> None:
    check(events, chunk_timers, piece)


IN_THE_INDEX = [rule for rule in MUTATIONS if rule != "no End for a message that is delivered again"]


@pytest.mark.slow
@pytest.mark.parametrize("rule", IN_THE_INDEX)
def test_a_broken_index_is_noticed(rule: str) -> None:
    @settings(database=None, derandomize=True, max_examples=1000, phases=[Phase.generate], report_multiple_bugs=False)
    @given(EVENTS, CHUNKS, PIECES)
    def run(events: list[Event], chunk_timers: int, piece: int) -> None:
        check(events, chunk_timers, piece)

    with pytest.raises(AssertionError), applied(MUTATIONS[rule].changes):
        run()
