"""A bucket of the engine on Spark against the simplest model: a list of timers, and what is due leaves it."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="needs the extra 'spark'")

from timers.core.clock_guard import ClockGuard, Clocks
from timers.core.ticking import CLOCK_STEP_BACK_S
from timers.core.timer import Tick
from timers.spark.engine import timer_batches
from timers.spark.engine.bucket import Bucket, BucketState, ChunkKey, Filled
from timers.spark.engine.timer_batches import AT_ONCE
from timers.spark.engine.wheel import Slot, slot_of
from timers.wire.checks import MAX_DUE_S
from timers.wire.dead_letter import DeadLetter

NOW_S = 1_800_000_000

dues = st.one_of(
    st.integers(0, MAX_DUE_S),
    st.integers(NOW_S - 100, NOW_S + 300),
    st.integers(NOW_S, NOW_S + 400 * 86_400),
)


class ChunksInMemory:
    """Timer batches in a dict; nothing is read that is not there, nor written over."""

    def __init__(self) -> None:
        self.timer_batches: dict[ChunkKey, bytes] = {}

    def take(self, key: ChunkKey) -> bytes:
        return self.timer_batches.pop(key)

    def put(self, key: ChunkKey, timer_batch: bytes) -> None:
        assert key not in self.timer_batches
        self.timer_batches[key] = timer_batch


@given(dues, dues)
def test_a_slot_holds_the_second_and_is_below_the_limit(due_s: int, now_s: int) -> None:
    slot = slot_of(due_s, now_s)
    assert slot.first_s <= due_s <= slot.last_s
    assert 0 <= slot.level <= 6
    if due_s > now_s:
        assert slot.first_s > now_s  # so it is looked at only when one of its seconds has come


@settings(max_examples=20)
@given(st.integers(NOW_S, NOW_S + 10**6))
def test_timers_of_three_years_fill_few_slots(now_s: int) -> None:
    slots = {slot_of(now_s + ahead, now_s) for ahead in range(1, 3 * 365 * 86_400, 9_771)}
    assert len(slots) <= 5 * 64


steps = st.lists(
    st.tuples(
        st.lists(st.lists(dues, max_size=6), max_size=3),
        st.none() | st.integers(-5, 40) | st.sampled_from([3600, 86_400, 90 * 86_400, -10, -100]),
    ),
    max_size=12,
)


@given(steps)
def test_what_is_due_leaves_once_and_the_rest_stays(steps: list[tuple[list[list[int]], int | None]]) -> None:
    chunks, state = ChunksInMemory(), BucketState()
    waiting: list[tuple[int, bytes]] = []
    known: int | None = None
    clock_s, number = NOW_S, 0
    for arriving, step in steps:
        sent = []
        for group in arriving:
            items = []
            for due_s in group:
                number += 1
                items.append((due_s, 1, b"%d" % number))
                waiting.append((due_s, b"%d" % number))
            sent.append(timer_batches.pack(items))
        tick = None
        if step is not None:
            clock_s += step
            tick = Tick(clock_s * 1000)
            if known is None or clock_s > known or clock_s < known - CLOCK_STEP_BACK_S:
                known = clock_s
        state = BucketState.decode(state.encode())  # as it is between two micro-batches
        bucket = Bucket(state, chunks)
        out = [
            (due_s, payload)
            for timer_batch in bucket.process(sent, tick)
            for due_s, _, payload in timer_batches.unpack(timer_batch)
        ]
        due = [timer for timer in waiting if known is not None and timer[0] <= known]
        waiting = [timer for timer in waiting if timer not in due]
        assert sorted(out) == sorted(due)
        assert bucket.state.pending == len(waiting)
        assert (bucket.state.tick and bucket.state.tick.second) == known
        # The state holds exactly what waits, under the keys that the memory knows.
        stored = [
            (due_s, payload)
            for timer_batch in chunks.timer_batches.values()
            for due_s, _, payload in timer_batches.unpack(timer_batch)
        ]
        assert sorted(stored) == sorted(waiting)
        filled = bucket.state.slots.items()
        assert {ChunkKey(slot, n) for slot, each in filled for n in range(each.chunks)} == chunks.timer_batches.keys()


def test_dead_letters_go_out_before_any_tick() -> None:
    letter = timer_batches.letters([DeadLetter(None, b"x", [("a", None)])])
    bucket = Bucket(BucketState(), ChunksInMemory())
    ((due_s, timers, payload),) = (
        item
        for timer_batch in bucket.process([timer_batches.pack([letter])], None)
        for item in timer_batches.unpack(timer_batch)
    )
    assert (due_s, timers) == (AT_ONCE, 0)
    (sent,) = timer_batches.letters_of(payload)
    assert (sent.key, sent.value, tuple(sent.headers)) == (None, b"x", (("a", None),))
    assert bucket.state.pending == 0


def test_a_large_slot_is_several_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timers.spark.engine.bucket.CHUNK_BYTES", 100)
    chunks, state = ChunksInMemory(), BucketState(Tick(NOW_S * 1000))
    for _ in range(2):
        items = [(NOW_S + 5, 1, bytes(40)) for _ in range(7)]
        assert list(Bucket(state, chunks).process([timer_batches.pack(items)], None)) == []
    slot = Slot(0, NOW_S + 5)
    assert state.slots[slot] == (6, 14)
    assert {key.number for key in chunks.timer_batches} == set(range(6))
    fired = list(Bucket(state, chunks).process([], Tick((NOW_S + 5) * 1000)))
    assert sum(len(timer_batches.unpack(timer_batch)) for timer_batch in fired) == 14
    assert not chunks.timer_batches and not state.slots


# ---- clocks that are wrong ------------------------------------------------------------------------------------------

LEAP_S = 300
YEAR_S = 365 * 86_400


def counted(state: BucketState, ahead_s: int, *, boot_id: str = "a", boot_s: float = 0, wall_s: float = 0) -> bool:
    """Judge a tick on a machine, as in one micro-batch; times are seconds after NOW_S."""
    guard, clocks = ClockGuard(LEAP_S), Clocks(boot_s, NOW_S + wall_s)
    tick = Bucket(state, ChunksInMemory()).counted([(NOW_S + ahead_s) * 1000], guard, clocks, boot_id)
    return tick is not None


def test_a_tick_a_year_ahead_is_held_until_the_machines_clock_agrees() -> None:
    state = BucketState()
    assert not counted(state, YEAR_S)
    assert counted(state, 0)
    state = BucketState.decode(state.encode())
    assert not counted(state, YEAR_S, boot_s=1)
    assert counted(state, 2, boot_s=2)
    assert counted(state, YEAR_S, boot_s=3, wall_s=YEAR_S)


def test_the_anchor_is_used_on_its_own_machine_only() -> None:
    state = BucketState()
    assert counted(state, 0)
    state = BucketState.decode(state.encode())
    state.tick = Tick(NOW_S * 1000)
    assert counted(state, 2 * LEAP_S, boot_s=2 * LEAP_S, wall_s=-YEAR_S), "the time has passed"
    assert not counted(state, 2 * LEAP_S, boot_id="b", boot_s=2 * LEAP_S, wall_s=-YEAR_S), "another machine"
    assert counted(state, LEAP_S, boot_id="b", boot_s=9, wall_s=-YEAR_S), "it follows the newest tick"


def test_a_state_of_the_version_before_has_no_anchor() -> None:
    tick_ms, slots, _ = msgpack.unpackb(BucketState(Tick(NOW_S * 1000), {Slot(0, 7): Filled(1, 2)}).encode())[1:]
    state = BucketState.decode(msgpack.packb((2, tick_ms, slots)))
    assert state == BucketState(Tick(NOW_S * 1000), {Slot(0, 7): Filled(1, 2)})
