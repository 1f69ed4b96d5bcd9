"""What goes cold, and what a machine makes of what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.harness.machines import ColdLedger
from timers.core.horizon import HOT_HORIZON, SEAL, Horizon, concerns, is_far
from timers.core.index import Index, nothing_is_cold
from timers.core.keys import NEVER
from timers.core.machine import Limits, Machine, catch_up
from timers.core.operation import ALREADY_FIRED, CANCELLED, REPLACED
from timers.core.progress import Progress
from timers.core.timer import Fetched, Row, Tick
from timers.store.memory import MemoryStore
from timers.testing import SimClock, SimLog
from timers.testing.log import SimRecord
from timers.wire import cold, future
from timers.wire import headers as h
from timers.wire.cold import PartitionFormat
from timers.wire.formats import future_by_id
from timers.wire.headers import Header

LIMITS = Limits(chunk_timers=1000, chunk_bytes=10**6, max_request_bytes=40_000)
RETENTION_S = 100


class Ledger(ColdLedger):
    """Remembers under which name each timer fired."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str | None] = []

    def fire(self, due_s: int, rows: Sequence[Row]) -> None:
        super().fire(due_s, rows)
        self.names += [row[5][0] if row[5] is not None else None for row in rows]


class Bench:
    """A machine with a horizon, and by hand what surrounds it."""

    def __init__(self, horizon_s: int = 10, *, indexed: bool = False) -> None:
        self.indexed = indexed
        self.topic = "by-id" if indexed else "requests"
        self.log = SimLog(SimClock(0), partitions=1)
        self.ledger = Ledger()
        self.store = MemoryStore()
        self.seal = 7
        self.tick_s = 0
        self.open(horizon_s)

    def open(self, horizon_s: int) -> None:
        """Open (again) with what was committed and what is on disk."""
        progress = self.ledger.progress
        self.seal += 1
        if not catch_up(self.store, progress, indexed=self.indexed):
            self.store = MemoryStore()
        horizon = None
        if concerns(progress, horizon_s):
            format = PartitionFormat(self.topic, 0)
            horizon = Horizon(format, self.store, horizon_s, self.seal, RETENTION_S, indexed=self.indexed)
        self.index = None
        if self.indexed:
            self.index = Index(self.store, RETENTION_S, horizon.is_cold if horizon else nothing_is_cold)
        decode = future_by_id.decode if self.indexed else future.decode
        self.machine = Machine(progress, decode, self.store, self.ledger, LIMITS, None, self.index, horizon)
        self.tick(self.tick_s)

    def wipe(self, horizon_s: int) -> None:
        """Lose the disk."""
        self.store = MemoryStore()
        self.open(horizon_s)
        self.read()

    def tick(self, second: int) -> None:
        self.tick_s = second
        self.log.clock.now_ms = second * 1000
        self.machine.observe(Tick(second * 1000), self.log.end(self.topic, 0))
        self.read()
        while self.machine.fire_chunk():
            pass
        self.machine.commit_progress(even_if_idle=True)

    def read(self) -> None:
        while self.machine.position < self.log.end(self.topic, 0):
            self.machine.accept(self.log.fetch(self.topic, 0, self.machine.position))

    def ask(self, due_s: int, id: bytes = b"", headers: Sequence[Header] = (), value: bytes = b"v") -> SimRecord:
        record = future.encode("t", "k", value)
        if self.indexed:
            sent = self.append(id, record, [*headers, *future_by_id.encode_headers(due_s)])
        else:
            sent = self.append(b"%d" % due_s, record, headers)
        self.read()
        return sent

    def append(self, key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> SimRecord:
        return self.log.append(self.topic, key, value, headers, partition=0)

    def cancel(self, id: bytes) -> None:
        self.append(id, None, ())
        self.read()

    def promote(self, sent: SimRecord, *, read: bool = True) -> SimRecord:
        told = next(each for each in self.ledger.cold if each.source == sent.source)
        copy = self.append(sent.key, sent.value, cold.encode_promoted(told))
        if read:
            self.read()
        return copy

    @property
    def state(self) -> Any:
        rows = [row for _, group in self.store.scan(NEVER, 10**12) for row in group]
        return rows, sorted(self.store.entries_after(b"", 10**6))

    @property
    def told(self) -> list[str]:
        return [verdict.verdict for verdict in self.ledger.verdicts]


@pytest.mark.parametrize(("due_s", "far"), [(109, False), (110, False), (111, True)])
def test_far_is_further_than_the_horizon_beyond_the_append_second(due_s: int, far: bool) -> None:
    assert is_far(due_s, 100, 10) is far
    assert not is_far(due_s, 100, 0)


def test_what_is_far_goes_cold_in_a_transaction_and_leaves_nothing_here() -> None:
    bench = Bench()
    near, far, other = bench.ask(10), bench.ask(11), bench.ask(12)
    assert bench.ledger.forwarded == [far.offset, other.offset]
    assert [row[0] for row in bench.state[0]] == [near.offset]
    assert bench.ledger.progress.next_offset == other.offset + 1
    told = bench.ledger.cold[0]
    assert (told.source, told.due_s, told.append_ms) == (far.source, 11, far.timestamp_ms)
    assert (bench.machine.counters.accepted, bench.machine.counters.promoted) == (3, 0)


def test_one_batch_holds_near_and_far_of_one_second() -> None:
    """The broker's time is of the record, not of the batch."""
    bench = Bench()
    bench.append(b"15", future.encode("t", "k", b""), ())
    bench.log.clock.now_ms = 6000
    late = bench.append(b"15", future.encode("t", "k", b""), ())
    bench.read()
    assert bench.ledger.forwarded == [0]
    assert [row[0] for row in bench.state[0]] == [late.offset]


def test_a_copy_fires_at_its_second_under_the_first_name() -> None:
    bench = Bench()
    sent = bench.ask(20, headers=[("a", b"1"), ("timer-id", b"copied")])
    bench.tick(15)
    bench.promote(sent)
    (row,) = bench.state[0]
    assert row[1:5] == ("t", "k", b"v", [("a", b"1")])
    assert bench.ledger.fired == []
    bench.tick(20)
    assert (bench.ledger.fired, bench.ledger.names) == ([(20, 1)], [sent.source])


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("when", ["both before", "one before, one after", "both after"])
@pytest.mark.parametrize("disk", ["kept", "lost"])
def test_a_second_copy_changes_nothing(when: str, indexed: bool, disk: str) -> None:
    bench = Bench(indexed=indexed)
    sent = bench.ask(20, b"x")
    bench.tick(15 if when != "both after" else 25)
    bench.promote(sent)
    if disk == "lost":
        bench.wipe(10)
    if when == "one before, one after":
        bench.tick(20)
    bench.promote(sent)
    if disk == "lost":
        bench.wipe(10)
    bench.promote(sent)
    bench.tick(30)
    bench.promote(sent)
    assert [due_s for due_s, _ in bench.ledger.fired] == [20]
    assert bench.machine.pending == 0


def test_a_late_copy_fires_at_once() -> None:
    bench = Bench()
    sent = bench.ask(20)
    bench.tick(30)
    bench.promote(sent, read=True)
    assert bench.ledger.fired == [(20, 1)]
    assert bench.ledger.names == [sent.source]


def test_two_copies_in_one_batch_are_one_timer() -> None:
    bench = Bench()
    sent = bench.ask(20)
    bench.tick(30)
    bench.promote(sent, read=False)
    bench.promote(sent, read=False)
    bench.read()
    assert bench.ledger.fired == [(20, 1)]
    assert (bench.machine.counters.promoted, bench.machine.counters.promoted_duplicates) == (2, 1)


@pytest.mark.parametrize("horizon_s", [0, 5, 1000])
def test_a_replay_decides_by_the_horizon_of_then(horizon_s: int) -> None:
    bench = Bench()
    cold_one, hot = bench.ask(20), bench.ask(8)
    bench.open(horizon_s)
    after = bench.ask(9)
    forwarded = [cold_one.offset, *([after.offset] if horizon_s == 5 else [])]
    assert bench.ledger.forwarded == forwarded
    live = bench.state
    bench.wipe(horizon_s)
    assert bench.state == live
    assert bench.ledger.forwarded == forwarded
    bench.promote(cold_one)
    bench.tick(40)
    assert sorted(bench.ledger.names, key=str) == [None] * (len(bench.ledger.fired) - 1) + [cold_one.source]
    assert hot.offset in {offset for _, offset in bench.ledger.fired}


def test_a_copy_is_remembered_until_no_other_may_come() -> None:
    """By the times in the log alone: however long the second copy waits there to be read, it was written in time."""
    bench = Bench()
    sent = bench.ask(20)
    bench.tick(15)
    bench.promote(sent)
    bench.tick(20 + RETENTION_S)
    copy = bench.append(sent.key, sent.value, cold.encode_promoted(bench.ledger.cold[0]))
    bench.machine.observe(Tick(10**6 * 1000))  # time passes, and it is not read
    while bench.machine.fire_chunk():
        pass
    bench.machine.commit_progress(even_if_idle=True)
    bench.read()
    assert bench.machine.position > copy.offset
    assert len(bench.ledger.fired) == 1
    assert len(bench.state[1]) == 1
    bench.log.clock.now_ms = (20 + RETENTION_S + 1) * 1000
    bench.ask(10**6 + 5)
    bench.machine.observe(Tick(10**6 * 1000 + 1))
    bench.ask(0)
    bench.machine.commit_progress(even_if_idle=True)
    assert bench.state[1] == []


def test_the_seal_is_drawn_once() -> None:
    bench = Bench()
    sent = bench.ask(20)
    first = bench.ledger.progress.setting_at(SEAL, 1, 0)
    bench.open(5)
    bench.ask(30)
    assert bench.ledger.progress.setting_at(SEAL, 10**9, 0) == first
    assert [each.value for each in bench.ledger.progress.settings if each.name == HOT_HORIZON] == [10, 5]
    bench.promote(sent)
    assert bench.ledger.rejected == []


def test_without_a_horizon_nothing_is_noted_and_such_headers_mean_nothing() -> None:
    bench = Bench(horizon_s=0)
    forged = [(h.TIMER_PROMOTED, b"requests/0/0"), (h.TIMER_SEAL, b"0" * 32)]
    bench.ask(5)
    record = bench.append(b"10000", future.encode("t", "k", b""), forged)
    bench.read()
    assert [row[0] for row in bench.state[0]] == [0, record.offset]
    assert {change.name for change in bench.machine.progress.settings}.isdisjoint({HOT_HORIZON, SEAL})
    assert not concerns(Progress(), 0)


@pytest.mark.parametrize("what", ["value", "key", "header", "source", "partition", "itself", "seal", "hidden"])
def test_nobody_else_can_make_a_copy(what: str) -> None:
    bench = Bench()
    sent, other = bench.ask(20, headers=[("a", b"1")]), bench.ask(21)
    told = bench.ledger.cold[0]
    key, value = sent.key, sent.value
    if what == "value":
        value = future.encode("t", "k", b"other")
    elif what == "key":
        key = b"020"
    elif what == "header":
        told = told._replace(headers=[("a", b"2")])
    elif what == "source":
        told = told._replace(source=other.source)
    elif what == "partition":
        told = told._replace(source="requests/1/0")
    elif what == "itself":
        told = told._replace(source="requests/0/2")
    elif what == "seal":
        told = told._replace(seal=b"")
    headers = cold.encode_promoted(told)
    if what == "hidden":
        headers = [(h.TIMER_PROMOTED, b"\xff/0"), (h.TIMER_SEAL, None)]
    bench.append(key, value, headers)
    bench.read()
    assert bench.ledger.rejected == [(2, "promotion-invalid")]
    bench.promote(sent)
    bench.tick(30)
    assert bench.ledger.names == [sent.source]


def test_copied_headers_that_are_not_the_last_two_are_dropped_like_any_of_ours() -> None:
    bench = Bench()
    sent = bench.ask(20)
    headers = [*cold.encode_promoted(bench.ledger.cold[0]), ("b", b"")]
    bench.append(b"5", sent.value, headers)
    bench.read()
    assert [row[4] for row in bench.state[0]] == [[("b", b"")]]


def test_a_request_whose_headers_leave_no_room_stays_hot() -> None:
    bench = Bench()
    bench.ask(20, headers=[("a", bytes(cold.MAX_BESIDES_BYTES))])
    assert (bench.ledger.forwarded, bench.machine.pending) == ([], 1)
    bench.tick(20)
    assert bench.ledger.fired == [(20, 0)]


def test_a_limit_that_came_down_since_does_not_refuse_a_copy() -> None:
    bench = Bench()
    sent = bench.ask(20, value=bytes(39_000))
    bench.machine.progress = bench.machine.progress.with_setting("TIMERS_MAX_REQUEST_BYTES", 100)
    bench.promote(sent)
    assert (bench.ledger.rejected, bench.machine.pending) == ([], 1)


# ---- timers with an id ----------------------------------------------------------------------------------------------


def test_a_cold_timer_can_be_cancelled_and_its_copy_is_nothing() -> None:
    bench = Bench(indexed=True)
    sent = bench.ask(20, b"x")
    bench.cancel(b"x")
    assert bench.told == [CANCELLED]
    bench.tick(15)
    bench.promote(sent)
    bench.tick(30)
    assert bench.ledger.fired == []
    assert bench.machine.counters.promoted_duplicates == 1


def test_a_cold_timer_can_be_replaced_by_a_hot_one_and_by_a_cold_one() -> None:
    bench = Bench(indexed=True)
    first, second = bench.ask(20, b"x"), bench.ask(30, b"x")
    bench.promote(first)
    assert bench.machine.pending == 0
    bench.tick(19)
    bench.promote(second)
    bench.ask(25, b"x")
    assert bench.told == [REPLACED, REPLACED]
    bench.promote(second)
    bench.tick(40)
    assert bench.ledger.fired == [(25, 4)]


def test_overdue_and_not_back_yet_is_not_fired() -> None:
    """Whoever cancels it then is told that it never fires, and it never does."""
    bench = Bench(indexed=True)
    sent, other = bench.ask(20, b"x"), bench.ask(20, b"y")
    bench.tick(50 + RETENTION_S)
    bench.cancel(b"x")
    bench.promote(sent)
    bench.promote(other)
    bench.cancel(b"y")
    assert bench.told == [CANCELLED, ALREADY_FIRED]
    assert bench.ledger.fired == [(20, other.offset + 3)]


def test_a_copy_and_a_change_in_one_batch_count_in_their_order() -> None:
    bench = Bench(indexed=True)
    sent = {id: bench.ask(20, id) for id in (b"x", b"y", b"z")}
    bench.tick(30)
    bench.append(b"x", None, ())
    for each in sent.values():
        bench.promote(each, read=False)
    bench.append(b"y", None, ())
    bench.read()
    assert bench.told == [CANCELLED, ALREADY_FIRED]
    assert bench.ledger.names == ["y", "z"]
    live = bench.state
    bench.wipe(10)
    assert bench.state == live


def test_a_cold_id_is_not_forgotten_while_it_is_away() -> None:
    bench = Bench(indexed=True)
    sent = bench.ask(20, b"x")
    for second in range(30, 1000, 100):
        bench.tick(second)
    assert bench.index is not None
    bench.index.sweep((10**6, 0))
    bench.promote(sent)
    assert bench.ledger.fired == [(20, 1)]
    bench.index.sweep((10**6, 0))
    assert bench.state[1] == []


def test_an_id_whose_headers_leave_no_room_is_hot_in_the_index_too() -> None:
    bench = Bench(indexed=True)
    bench.ask(20, b"x", headers=[("a", bytes(cold.MAX_BESIDES_BYTES))])
    bench.tick(20)
    bench.cancel(b"x")
    assert bench.told == [ALREADY_FIRED]


def test_pieces_cover_a_fetch() -> None:
    """However it is cut, each record is taken once and the ends meet."""
    bench = Bench(indexed=True)
    sent = [bench.ask(20, id) for id in (b"x", b"y")]
    start = bench.machine.position
    for each in (*sent, *sent):
        bench.promote(each, read=False)
        bench.append(each.key, None, ())
    fetched = bench.log.fetch(bench.topic, 0, start)
    horizon = bench.machine._horizon
    assert horizon is not None
    pieces = list(horizon.pieces(fetched.records, fetched.to_offset))
    assert [record.offset for records, _ in pieces for record in records] == [r.offset for r in fetched.records]
    assert pieces[-1][1] == fetched.to_offset
    assert len(pieces) > 2
    bench.machine.accept(Fetched(start, fetched.to_offset, fetched.records))
    assert bench.told == [CANCELLED, CANCELLED, "unknown", "unknown"]
