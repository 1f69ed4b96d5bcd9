"""The waiting timers of a bucket of the engine on Spark against the simplest model, a list; and its ticks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="needs the extra 'spark'")

from tests.harness.spark_files import FilePartitions, transactions
from timers.core.clock_guard import ClockGuard, Clocks
from timers.core.levels import FIRST
from timers.core.limits import Limits
from timers.core.lineage import Lineage
from timers.core.reading import ReadSettings
from timers.core.timer import Rejected, RowsByDue, Tick
from timers.errors import CheckpointMismatch, HistoryMismatch
from timers.spark.engine import timer_batches, waiting
from timers.spark.engine.bucket import ANCHORS, FORMAT, Bucket, BucketState
from timers.spark.engine.timer_batches import Arrivals, Group
from timers.spark.engine.waiting import ChunkKey, Filled, Slot, Waiting, slot_of
from timers.wire.checks import MAX_DUE_S

NOW_S = 1_800_000_000
ALL = 2**62
LIMITS = Limits(1000, 10**6, 10**6)

dues = st.one_of(
    st.integers(0, MAX_DUE_S),
    st.integers(NOW_S - 100, NOW_S + 300),
    st.integers(NOW_S, NOW_S + 400 * 86_400),
)


class ChunksInMemory:
    """Timer batches in a dict. A missing one cannot be read, and none can be overwritten."""

    def __init__(self) -> None:
        self.timer_batches: dict[ChunkKey, bytes] = {}
        self.taken = 0

    def take(self, key: ChunkKey) -> bytes:
        self.taken += 1
        return self.timer_batches.pop(key)

    def put(self, key: ChunkKey, timer_batch: bytes) -> None:
        assert key not in self.timer_batches
        self.timer_batches[key] = timer_batch

    @property
    def dues(self) -> Counter[int]:
        return Counter(group.due_s for each in self.timer_batches.values() for group in timer_batches.unpack(each))


def group(due_s: int, size: int = 1) -> Group:
    return Group(due_s, 0, 0, 1, 0, bytes(size))


@given(dues, dues)
def test_a_slot_holds_the_second_and_is_below_the_limit(due_s: int, now_s: int) -> None:
    slot = slot_of(due_s, now_s)
    assert slot.first_s <= due_s <= slot.last_s
    assert 0 <= slot.level <= 6
    if due_s > now_s:
        assert slot.first_s > now_s  # so it is read only when one of its seconds has come


@settings(max_examples=20)
@given(st.integers(NOW_S, NOW_S + 10**6))
def test_timers_of_three_years_fill_few_slots(now_s: int) -> None:
    slots = {slot_of(now_s + ahead, now_s) for ahead in range(1, 3 * 365 * 86_400, 9_771)}
    assert len(slots) <= 5 * 64


steps = st.lists(
    st.tuples(
        st.lists(dues, max_size=6),
        st.integers(0, 40) | st.sampled_from([3600, 86_400, 90 * 86_400]),
        st.sampled_from([1, 3, ALL]),
    ),
    max_size=12,
)


@given(steps, st.integers(0, 10_000))
def test_due_timers_leave_once_in_order_and_the_others_stay(
    steps: list[tuple[list[int], int, int]], phase_s: int
) -> None:
    chunks, slots = ChunksInMemory(), dict[Slot, Filled]()
    model: list[int] = []
    now_s = NOW_S
    for added, seconds, most_bytes in steps:
        held = Waiting(slots, chunks, phase_s)
        held.add(map(group, added), now_s)
        model += added
        now_s += seconds
        found, reached_s = held.take_due(now_s, most_bytes)
        assert reached_s == now_s or (found and reached_s < now_s)
        due = sorted(due_s for due_s in model if due_s <= reached_s)
        assert [each.due_s for each in found] == due
        model = [due_s for due_s in model if due_s > reached_s]
        held.move_ahead(now_s)
        held.store()
        assert held.count == len(model)
        assert chunks.dues == Counter(model)  # the state has exactly the waiting timers


def test_timers_of_a_long_slot_move_before_it_begins() -> None:
    """At the begin of a slot of 4096 s none of its timers has to move: that took seconds for all buckets at once."""
    chunks, slots = ChunksInMemory(), dict[Slot, Filled]()
    begin_s = (NOW_S >> 12 << 12) + 2 * 4096
    for number in range(3000):
        held = Waiting(slots, chunks)
        held.add([group(begin_s + number, 40_000 if number % 100 == 0 else 1)], begin_s - 4096)
        held.store()
    steps = []
    for now_s in range(begin_s - 2048, begin_s):
        taken = chunks.taken
        held = Waiting(slots, chunks)
        held.move_ahead(now_s)
        held.store()
        steps += [chunks.taken - taken] if chunks.taken > taken else []
    assert len(steps) > 100 and max(steps) <= 64
    assert max(slot.level for slot in slots) == 1
    assert chunks.dues.total() == 3000
    found, _ = Waiting(slots, chunks).take_due(begin_s + 1, ALL)
    assert [each.due_s for each in found] == [begin_s, begin_s + 1]


def other_attempt(stored: bytes, number: int) -> bytes:
    """A timer batch that another attempt of the micro-batch has stored under the same key."""
    others = [
        timer_batches.pack([group(NOW_S + 4000, 2)]),
        timer_batches.pack([]),
        timer_batches.pack([group(NOW_S + 4000, 1), group(NOW_S + 4000, 1)]),
        stored[:-1],
        b"\xc0",
    ]
    return others[number]


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("moves_ahead", [False, True])
def test_timers_that_another_attempt_has_stored_are_noticed(number: int, moves_ahead: bool) -> None:
    chunks, slots = ChunksInMemory(), dict[Slot, Filled]()
    for size in (1, 3):
        held = Waiting(slots, chunks)
        held.add([group(NOW_S + 4000, size)], NOW_S)
        held.store()
    (slot,) = slots
    key = ChunkKey(slot, 0)
    chunks.timer_batches[key] = other_attempt(chunks.timer_batches[key], number)
    held = Waiting(slots, chunks)
    with pytest.raises(CheckpointMismatch, match="has other timers in slot"):
        if moves_ahead:
            held.move_ahead(slot.first_s - 1)
        else:
            held.take_due(NOW_S + 4000, ALL)


def test_a_large_slot_is_several_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "CHUNK_BYTES", 100)
    monkeypatch.setattr(waiting, "NEW_BYTES", 300)
    chunks, slots = ChunksInMemory(), dict[Slot, Filled]()
    held = Waiting(slots, chunks)
    held.add([group(NOW_S + 5, 40) for _ in range(14)], NOW_S)
    held.store()
    assert slots[Slot(0, NOW_S + 5)].timers == 14
    assert len(chunks.timer_batches) > 3
    found, _ = Waiting(slots, chunks).take_due(NOW_S + 5, 1)
    assert len(found) == 14
    assert not chunks.timer_batches and not slots


def test_arrivals_are_read_as_they_were_packed() -> None:
    rows: RowsByDue = {100: [(7, "t", "k", b"v" * 600, [("a", None)], None), (9, "t", b"\xff", b"", None, None)]}
    rejected = [Rejected(8, "key-missing", "no key", None, b"x", (("a", None), ("b", b"\xff")))]
    settings = ReadSettings(1000, 3, False)
    arrivals = Arrivals(3, 7, 10, settings, timer_batches.groups(3, rows), rejected)
    again = Arrivals.unpack(arrivals.pack())
    assert again[:4] == (3, 7, 10, settings) and again.rejected == rejected
    ((due_s, partition, first, timers, size, _),) = again.groups
    assert (due_s, partition, first, timers, size > 0) == (100, 3, 7, 2, True)
    assert list(again.groups[0].rows) == [
        (7, "t", "k", b"v" * 600, (("a", None),), None),
        (9, "t", b"\xff", b"", None, None),
    ]


def test_timers_that_are_alike_take_little_room() -> None:
    rows = [(offset, "t", f"k{offset}", b"v" * 100, [("a", None)], None) for offset in range(100)]
    assert len(Group.of(100, 0, rows).data) < 100 * 100 / 4


def test_arrivals_that_wait_are_accepted_although_the_log_has_lost_them(tmp_path: Path) -> None:
    class ShorterLog(FilePartitions):
        def start_of(self, partition: int) -> int:
            return 6

    rows: RowsByDue = {NOW_S + 5: [(3, "t", "a", b"", None, None), (7, "t", "b", b"", None, None)]}
    read = ReadSettings(LIMITS.max_request_bytes, FIRST, rejects_overdue=False)
    arrivals = Arrivals(0, 3, 8, read, timer_batches.groups(0, rows), [])
    state, chunks = BucketState(), ChunksInMemory()
    for arrived, tick in (([arrivals], None), ([], Tick(NOW_S * 1000)), ([], Tick((NOW_S + 5) * 1000))):
        bucket = Bucket("requests", state, chunks, ShorterLog(tmp_path), LIMITS)
        bucket.process(arrived, {0: 8}, tick, {0: Lineage()})
        state = BucketState.decode(state.encode())
    done = transactions(tmp_path / "0.jsonl")
    assert [name for fired, _ in done for _, name, _ in fired] == ["a", "b"]


def test_arrivals_that_wait_are_not_accepted_if_another_log_is_read(tmp_path: Path) -> None:
    rows: RowsByDue = {NOW_S + 5: [(3, "t", "a", b"", None, None)]}
    read = ReadSettings(LIMITS.max_request_bytes, FIRST, rejects_overdue=False)
    arrivals = Arrivals(0, 3, 8, read, timer_batches.groups(0, rows), [])
    state, chunks, lineage = BucketState(), ChunksInMemory(), Lineage(((1, 0), (4, 2)), None, 8)
    Bucket("requests", state, chunks, FilePartitions(tmp_path), LIMITS).process([arrivals], {0: 8}, None, {0: lineage})
    held = state.encode()
    for other in (Lineage(((1, 0), (5, 2)), None, 9), Lineage(((1, 0), (4, 2)), None, 7), Lineage()):
        bucket = Bucket("requests", BucketState.decode(held), chunks, FilePartitions(tmp_path), LIMITS)
        with pytest.raises(CheckpointMismatch, match="the checkpoint has requests of requests/0 that its log has lost"):
            bucket.process([], {0: 9}, Tick(NOW_S * 1000), {0: other})
    state, longer = BucketState.decode(held), Lineage(((1, 0), (4, 2), (6, 8)), None, 9)
    Bucket("requests", state, chunks, FilePartitions(tmp_path), LIMITS).process(
        [], {0: 9}, Tick(NOW_S * 1000), {0: longer}
    )
    assert not state.held
    assert state.known[0].progress.lineage == longer


def test_requests_are_accepted_only_with_the_settings_that_the_progress_has(tmp_path: Path) -> None:
    """Others have accepted them with these, or will read them again with these."""
    now, later = Tick(NOW_S * 1000), Limits(1000, 10**6, 10**5)
    rows: RowsByDue = {NOW_S + 5: [(0, "t", "a", b"", None, None)]}
    read = ReadSettings(LIMITS.max_request_bytes, FIRST, rejects_overdue=False)
    arrivals = Arrivals(0, 0, 1, read, timer_batches.groups(0, rows), [])
    with pytest.raises(HistoryMismatch, match="new requests of requests/0 were decoded with other settings"):
        Bucket("requests", BucketState(), ChunksInMemory(), FilePartitions(tmp_path), later).process(
            [arrivals], {0: 1}, now, {0: Lineage()}
        )
    state, chunks = BucketState(), ChunksInMemory()
    Bucket("requests", state, chunks, FilePartitions(tmp_path), LIMITS).process(
        [arrivals], {0: 1}, None, {0: Lineage()}
    )
    with pytest.raises(
        CheckpointMismatch, match="the checkpoint has requests of requests/0 decoded with other settings"
    ):
        Bucket("requests", state, chunks, FilePartitions(tmp_path), later).process([], {0: 1}, now, {0: Lineage()})


# ---- clocks that are wrong ------------------------------------------------------------------------------------------

LEAP_S = 300
YEAR_S = 365 * 86_400


def counted(
    state: BucketState,
    ahead_s: int,
    *,
    boot_id: str = "a",
    boot_s: float = 0,
    wall_s: float = 0,
    fired_s: int | None = NOW_S - YEAR_S,
    accept_s: int | None = None,
) -> bool:
    """Judge a tick on a machine, as in one micro-batch; times are seconds after NOW_S."""
    guard, clocks = ClockGuard(LEAP_S, accept_s), Clocks(boot_s, NOW_S + wall_s)
    bucket = Bucket("requests", state, ChunksInMemory(), FilePartitions(Path()), LIMITS)
    tick = bucket.counted([(NOW_S + ahead_s) * 1000], guard, clocks, boot_id, fired_s)
    state.tick = tick or state.tick
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
    assert counted(state, 2 * LEAP_S, boot_s=2 * LEAP_S, wall_s=-YEAR_S), "the time has passed"
    assert not counted(state, 4 * LEAP_S, boot_id="b", boot_s=4 * LEAP_S, wall_s=-YEAR_S), "another machine"
    assert counted(state, 3 * LEAP_S, boot_id="b", boot_s=4 * LEAP_S, wall_s=-YEAR_S), "it follows the agreed time"


def test_leaps_on_several_machines_do_not_add_up() -> None:
    """Each is small enough to count on a machine without an anchor."""
    state = BucketState()
    assert counted(state, 0, boot_id="0")
    ahead_s = [
        number * (LEAP_S - 1)
        for number in range(1, 20)
        if counted(state, number * (LEAP_S - 1), boot_id=str(number % 10), boot_s=number, wall_s=number)
    ]
    assert max(ahead_s) < 3 * LEAP_S
    assert counted(state, 30, boot_id="99", boot_s=30, wall_s=30), "a right clock still counts"


def test_an_operators_agreement_lasts_while_time_passes_on_a_machine() -> None:
    """The clocks of all machines are wrong. New machines begin a day after an operator has agreed with the brokers."""
    state, day_s = BucketState(), 86_400
    assert counted(state, 0, wall_s=-YEAR_S, accept_s=NOW_S)
    for now_s in (LEAP_S - 1, LEAP_S + 10, day_s):
        state = BucketState.decode(state.encode())
        assert counted(state, now_s, boot_s=now_s, wall_s=-YEAR_S)
    state = BucketState.decode(state.encode())
    assert not counted(state, day_s + LEAP_S + 10, boot_id="b", boot_s=7, wall_s=-YEAR_S), "a leap"
    assert counted(state, day_s - 3, boot_id="b", boot_s=17, wall_s=-YEAR_S), "a micro-batch reads its tick later"
    assert counted(state, 2 * day_s, boot_id="b", boot_s=day_s + 7, wall_s=-YEAR_S), "time passes there too"
    assert counted(state, 2 * day_s, boot_id="c", boot_s=2 * day_s, wall_s=-YEAR_S)
    assert not counted(BucketState(), day_s, boot_id="b", wall_s=-YEAR_S, accept_s=NOW_S), "not an instant later"


def test_leaps_after_an_operators_agreement_do_not_add_up_on_several_machines() -> None:
    state = BucketState()
    assert counted(state, 0, boot_id="0", wall_s=-YEAR_S, accept_s=NOW_S)
    ahead_s = [0]
    for number in range(1, 40):
        next_s, machine = ahead_s[-1] + LEAP_S - 20, str(number % 10)
        if counted(state, next_s, boot_id=machine, boot_s=number, wall_s=-YEAR_S):
            ahead_s.append(next_s)
        state = BucketState.decode(state.encode())
    assert max(ahead_s) < 2 * LEAP_S


def test_the_agreed_time_follows_a_clock_that_goes_back() -> None:
    """An operator agreed with a wrong time: once second clocks agree with the right one, no machine remembers it."""
    state = BucketState()
    for machine in ("a", "b"):
        assert counted(state, YEAR_S, boot_id=machine, wall_s=0, accept_s=NOW_S + YEAR_S)
    assert counted(state, 10, boot_id="a", boot_s=10, wall_s=10)
    assert counted(state, 11, boot_id="b", boot_s=11, wall_s=11)
    assert not counted(state, YEAR_S + 12, boot_id="c", boot_s=12, wall_s=12)
    assert counted(state, 13, boot_id="c", boot_s=13, wall_s=-YEAR_S)


def test_the_first_tick_of_a_new_app_may_differ_from_the_clock_of_the_machine() -> None:
    assert counted(BucketState(), 0, wall_s=7200, fired_s=None)
    assert not counted(BucketState(), 0, wall_s=2 * 86_400, fired_s=None)
    assert counted(BucketState(), 0, wall_s=7200, fired_s=NOW_S - LEAP_S), "after a lost checkpoint"
    assert not counted(BucketState(), 0, wall_s=7200, fired_s=NOW_S - LEAP_S - 1)


def test_anchors_of_machines_that_are_gone_are_forgotten() -> None:
    state = BucketState()
    for number in range(2 * ANCHORS):
        assert counted(state, number, boot_id=str(number), boot_s=number, wall_s=number)
    state = BucketState.decode(state.encode())
    assert set(state.anchors) == {str(number) for number in range(ANCHORS, 2 * ANCHORS)}
    for number in range(2 * ANCHORS):
        assert counted(state, 2 * ANCHORS, boot_id=f"new {number}", wall_s=-YEAR_S)
    assert len(state.agreed) == ANCHORS


def test_a_state_of_another_format_is_refused() -> None:
    encoded = BucketState().encode()
    assert encoded[1] == FORMAT
    with pytest.raises(CheckpointMismatch, match=f"has format {FORMAT - 1}, not {FORMAT}"):
        BucketState.decode(encoded[:1] + bytes([FORMAT - 1]) + encoded[2:])
