"""Which requests a machine forwards to the cold tier, and how it handles promoted copies."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.harness.machines import BY_ID, ColdOutbox, MachineRig
from tests.simulation.kit.log import SimRecord
from timers.core.horizon import is_far, needs_horizon
from timers.core.keys import NOTHING_FIRED
from timers.core.levels import REPEATS_LEVEL
from timers.core.limits import Limits
from timers.core.operation import ALREADY_FIRED, CANCELLED, REPLACED
from timers.core.ports import NO_OUTPUT, Output
from timers.core.progress import COLD_SEAL, HOT_HORIZON, Progress
from timers.core.timer import Fetched, Tick
from timers.kafka.request_formats import NATIVE
from timers.wire import cold, future
from timers.wire import headers as h
from timers.wire.formats import future_by_id
from timers.wire.headers import Header

LIMITS = Limits(chunk_timers=1000, chunk_bytes=10**6, max_request_bytes=40_000)
RETENTION_S = 100


class NamesOutbox(ColdOutbox):
    """An outbox that also keeps the ``timer-id`` of each firing."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str | None] = []

    def commit(self, progress: Progress, output: Output = NO_OUTPUT) -> None:
        super().commit(progress, output)
        self.names += [row[5][0] if row[5] is not None else None for _, rows in output.due for row in rows]


class ColdRig(MachineRig):
    """A machine with a horizon."""

    def __init__(self, horizon_s: int = 10, *, indexed: bool = False) -> None:
        self.indexed = indexed
        super().__init__(
            BY_ID if indexed else NATIVE, LIMITS, outbox=NamesOutbox(), hot_horizon_s=horizon_s, retention_s=RETENTION_S
        )
        self.tick(0)

    def reopen(self, horizon_s: int, *, wipe: bool = False) -> None:
        """Open the machine with another horizon, with ``wipe`` on an empty disk."""
        self.open(wipe=wipe, hot_horizon_s=horizon_s, new_seal_key=self.spec.new_seal_key + 1)
        self.tick(self.tick_ms // 1000)

    def ask(self, due_s: int, id: bytes = b"", headers: Sequence[Header] = (), value: bytes = b"v") -> SimRecord:
        record = future.encode("t", "k", value)
        if self.indexed:
            sent = self.append(id, record, [*headers, *future_by_id.encode_headers(due_s)])
        else:
            sent = self.append(b"%d" % due_s, record, headers)
        self.read_all()
        return sent

    def append(self, key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> SimRecord:
        return self.log.append(self.topic, key, value, headers, partition=0)

    def cancel(self, id: bytes) -> None:
        self.append(id, None, ())
        self.read_all()

    def promote(self, sent: SimRecord, *, read: bool = True) -> SimRecord:
        decoded = next(each for each in self.outbox.cold if each.source == sent.source)
        copy = self.append(sent.key, sent.value, cold.encode_promoted(decoded))
        if read:
            self.read_all()
        return copy

    @property
    def state(self) -> Any:
        rows = [row for _, group in self.store.scan(NOTHING_FIRED, 10**12) for row in group]
        return rows, sorted(self.store.entries_after(b"", 10**6).entries)

    @property
    def verdicts(self) -> list[str]:
        return [verdict.verdict for verdict in self.outbox.verdicts]


@pytest.mark.parametrize(("due_s", "far"), [(109, False), (110, False), (111, True)])
def test_far_means_later_than_the_horizon_after_the_append_second(due_s: int, far: bool) -> None:
    assert is_far(due_s, 100, 10) is far
    assert not is_far(due_s, 100, 0)


def test_far_requests_are_forwarded_in_a_transaction_and_not_stored() -> None:
    rig = ColdRig()
    near, far, other = rig.ask(10), rig.ask(11), rig.ask(12)
    assert rig.outbox.forwarded == [far.offset, other.offset]
    assert [row[0] for row in rig.state[0]] == [near.offset]
    assert rig.outbox.progress.next_offset == other.offset + 1
    decoded = rig.outbox.cold[0]
    assert (decoded.source, decoded.due_s, decoded.append_ms) == (far.source, 11, far.timestamp_ms)
    assert (rig.machine.counters.accepted, rig.machine.counters.promoted) == (3, 0)


def test_far_depends_on_the_append_time_of_each_record() -> None:
    rig = ColdRig()
    rig.append(b"15", future.encode("t", "k", b""), ())
    rig.log.clock.now_ms = 6000
    late = rig.append(b"15", future.encode("t", "k", b""), ())
    rig.read_all()
    assert rig.outbox.forwarded == [0]
    assert [row[0] for row in rig.state[0]] == [late.offset]


def test_a_copy_fires_at_its_due_second_with_the_source_of_the_request() -> None:
    rig = ColdRig()
    sent = rig.ask(20, headers=[("a", b"1"), ("timer-id", b"copied")])
    rig.tick(15)
    rig.promote(sent)
    (row,) = rig.state[0]
    assert row[1:5] == ("t", "k", b"v", [("a", b"1")])
    assert rig.outbox.fired == []
    rig.tick(20)
    assert (rig.outbox.fired, rig.outbox.names) == ([(20, 1)], [sent.source])


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("when", ["both before", "one before, one after", "both after"])
@pytest.mark.parametrize("disk", ["kept", "lost"])
def test_a_second_copy_changes_nothing(when: str, indexed: bool, disk: str) -> None:
    rig = ColdRig(indexed=indexed)
    sent = rig.ask(20, b"x")
    rig.tick(15 if when != "both after" else 25)
    rig.promote(sent)
    if disk == "lost":
        rig.reopen(10, wipe=True)
    if when == "one before, one after":
        rig.tick(20)
    rig.promote(sent)
    if disk == "lost":
        rig.reopen(10, wipe=True)
    rig.promote(sent)
    rig.tick(30)
    rig.promote(sent)
    assert [due_s for due_s, _ in rig.outbox.fired] == [20]
    assert rig.machine.pending == 0


@pytest.mark.parametrize("indexed", [False, True])
def test_a_copy_is_read_at_the_level_of_its_request(indexed: bool) -> None:
    """Below it, a callback gets the headers of a schema registry. The machine is raised while the timer is cold."""
    rig = ColdRig(indexed=indexed)
    schema_id = "__value_schema_id", b"7"
    before = rig.ask(20, b"x", [schema_id])
    rig.machine.raise_level(REPEATS_LEVEL)
    after = rig.ask(20, b"y", [schema_id])
    rig.tick(15)
    rig.promote(before)
    rig.promote(after)
    assert [row[4] for row in rig.state[0]] == [[schema_id], None]


def test_a_late_copy_fires_at_once() -> None:
    rig = ColdRig()
    sent = rig.ask(20)
    rig.tick(30)
    rig.promote(sent, read=True)
    assert rig.outbox.fired == [(20, 1)]
    assert rig.outbox.names == [sent.source]


def test_two_copies_in_one_batch_are_one_timer() -> None:
    rig = ColdRig()
    sent = rig.ask(20)
    rig.tick(30)
    rig.promote(sent, read=False)
    rig.promote(sent, read=False)
    rig.read_all()
    assert rig.outbox.fired == [(20, 1)]
    assert (rig.machine.counters.promoted, rig.machine.counters.promoted_duplicates) == (2, 1)


@pytest.mark.parametrize("horizon_s", [0, 5, 1000])
def test_a_replay_uses_the_horizon_of_the_first_read(horizon_s: int) -> None:
    rig = ColdRig()
    cold_request, hot = rig.ask(20), rig.ask(8)
    rig.reopen(horizon_s)
    after = rig.ask(9)
    forwarded = [cold_request.offset, *([after.offset] if horizon_s == 5 else [])]
    assert rig.outbox.forwarded == forwarded
    live = rig.state
    rig.reopen(horizon_s, wipe=True)
    assert rig.state == live
    assert rig.outbox.forwarded == forwarded
    rig.promote(cold_request)
    rig.tick(40)
    assert sorted(rig.outbox.names, key=str) == [None] * (len(rig.outbox.fired) - 1) + [cold_request.source]
    assert hot.offset in {offset for _, offset in rig.outbox.fired}


def test_a_copy_is_remembered_until_no_other_copy_can_be_written() -> None:
    """Append times decide: a second copy that was written in time may be read much later."""
    rig = ColdRig()
    sent = rig.ask(20)
    rig.tick(15)
    rig.promote(sent)
    rig.tick(20 + RETENTION_S)
    copy = rig.append(sent.key, sent.value, cold.encode_promoted(rig.outbox.cold[0]))
    rig.machine.observe(Tick(10**6 * 1000))  # time passes, and it is not read
    while rig.machine.fire_chunk():
        pass
    rig.machine.commit_progress(even_if_idle=True)
    rig.read_all()
    assert rig.machine.position > copy.offset
    assert len(rig.outbox.fired) == 1
    assert len(rig.state[1]) == 1
    rig.log.clock.now_ms = (20 + RETENTION_S + 1) * 1000
    rig.ask(10**6 + 5)
    rig.machine.observe(Tick(10**6 * 1000 + 1))
    rig.ask(0)
    rig.machine.commit_progress(even_if_idle=True)
    assert rig.state[1] == []


def test_the_seal_key_is_chosen_once() -> None:
    rig = ColdRig()
    sent = rig.ask(20)
    first = rig.outbox.progress.setting_at(COLD_SEAL, 1, 0)
    rig.reopen(5)
    rig.ask(30)
    assert rig.outbox.progress.setting_at(COLD_SEAL, 10**9, 0) == first
    assert [each.value for each in rig.outbox.progress.settings if each.name == HOT_HORIZON] == [10, 5]
    rig.promote(sent)
    assert rig.outbox.rejected == []


def test_without_a_horizon_headers_of_copies_have_no_effect() -> None:
    rig = ColdRig(horizon_s=0)
    forged = [(h.TIMER_PROMOTED, b"requests/0/0"), (h.TIMER_SEAL, b"0" * 32)]
    rig.ask(5)
    record = rig.append(b"10000", future.encode("t", "k", b""), forged)
    rig.read_all()
    assert [row[0] for row in rig.state[0]] == [0, record.offset]
    assert {change.name for change in rig.machine.progress.settings}.isdisjoint({HOT_HORIZON, COLD_SEAL})
    assert not needs_horizon(Progress(), 0)


@pytest.mark.parametrize("what", ["value", "key", "header", "source", "partition", "itself", "seal", "hidden"])
def test_forged_copies_are_rejected(what: str) -> None:
    rig = ColdRig()
    sent, other = rig.ask(20, headers=[("a", b"1")]), rig.ask(21)
    decoded = rig.outbox.cold[0]
    key, value = sent.key, sent.value
    if what == "value":
        value = future.encode("t", "k", b"other")
    elif what == "key":
        key = b"020"
    elif what == "header":
        decoded = decoded._replace(headers=[("a", b"2")])
    elif what == "source":
        decoded = decoded._replace(source=other.source)
    elif what == "partition":
        decoded = decoded._replace(source="requests/1/0")
    elif what == "itself":
        decoded = decoded._replace(source="requests/0/2")
    elif what == "seal":
        decoded = decoded._replace(seal=b"")
    headers = cold.encode_promoted(decoded)
    if what == "hidden":
        headers = [(h.TIMER_PROMOTED, b"\xff/0"), (h.TIMER_SEAL, None)]
    rig.append(key, value, headers)
    rig.read_all()
    assert rig.outbox.rejected == [(2, "promotion-invalid")]
    rig.promote(sent)
    rig.tick(30)
    assert rig.outbox.names == [sent.source]


def test_copy_headers_that_are_not_the_last_two_are_dropped() -> None:
    rig = ColdRig()
    sent = rig.ask(20)
    headers = [*cold.encode_promoted(rig.outbox.cold[0]), ("b", b"")]
    rig.append(b"5", sent.value, headers)
    rig.read_all()
    assert [row[4] for row in rig.state[0]] == [[("b", b"")]]


def test_a_request_with_too_large_headers_stays_hot() -> None:
    rig = ColdRig()
    rig.ask(20, headers=[("a", bytes(cold.MAX_KEY_AND_HEADERS_BYTES))])
    assert (rig.outbox.forwarded, rig.machine.pending) == ([], 1)
    rig.tick(20)
    assert rig.outbox.fired == [(20, 0)]


def test_a_lowered_limit_does_not_reject_a_copy() -> None:
    rig = ColdRig()
    sent = rig.ask(20, value=bytes(39_000))
    rig.machine.progress = rig.machine.progress.with_setting("TIMERS_MAX_REQUEST_BYTES", 100)
    rig.promote(sent)
    assert (rig.outbox.rejected, rig.machine.pending) == ([], 1)


# ---- timers with an id ----------------------------------------------------------------------------------------------


def test_the_copy_of_a_cancelled_cold_timer_is_ignored() -> None:
    rig = ColdRig(indexed=True)
    sent = rig.ask(20, b"x")
    rig.cancel(b"x")
    assert rig.verdicts == [CANCELLED]
    rig.tick(15)
    rig.promote(sent)
    rig.tick(30)
    assert rig.outbox.fired == []
    assert rig.machine.counters.promoted_duplicates == 1


def test_a_cold_timer_can_be_replaced_by_a_hot_one_and_by_a_cold_one() -> None:
    rig = ColdRig(indexed=True)
    first, second = rig.ask(20, b"x"), rig.ask(30, b"x")
    rig.promote(first)
    assert rig.machine.pending == 0
    rig.tick(19)
    rig.promote(second)
    rig.ask(25, b"x")
    assert rig.verdicts == [REPLACED, REPLACED]
    rig.promote(second)
    rig.tick(40)
    assert rig.outbox.fired == [(25, 4)]


def test_an_overdue_cold_timer_without_a_copy_can_be_cancelled() -> None:
    rig = ColdRig(indexed=True)
    sent, other = rig.ask(20, b"x"), rig.ask(20, b"y")
    rig.tick(50 + RETENTION_S)
    rig.cancel(b"x")
    rig.promote(sent)
    rig.promote(other)
    rig.cancel(b"y")
    assert rig.verdicts == [CANCELLED, ALREADY_FIRED]
    assert rig.outbox.fired == [(20, other.offset + 3)]


def test_copies_and_changes_in_one_batch_take_effect_in_their_order() -> None:
    rig = ColdRig(indexed=True)
    sent = {id: rig.ask(20, id) for id in (b"x", b"y", b"z")}
    rig.tick(30)
    rig.append(b"x", None, ())
    for each in sent.values():
        rig.promote(each, read=False)
    rig.append(b"y", None, ())
    rig.read_all()
    assert rig.verdicts == [CANCELLED, ALREADY_FIRED]
    assert rig.outbox.names == ["y", "z"]
    live = rig.state
    rig.reopen(10, wipe=True)
    assert rig.state == live


def test_the_index_keeps_an_id_while_its_timer_is_cold() -> None:
    rig = ColdRig(indexed=True)
    sent = rig.ask(20, b"x")
    for second in range(30, 1000, 100):
        rig.tick(second)
    rig.cancel(b"other")  # time goes by append times
    rig.tick(931)
    rig.promote(sent)
    assert rig.outbox.fired == [(20, 2)]
    rig.tick(931 + RETENTION_S)
    rig.cancel(b"other")
    rig.tick(932 + RETENTION_S)
    assert rig.state[1] == []


def test_a_timer_with_an_id_and_too_large_headers_is_hot_in_the_index() -> None:
    rig = ColdRig(indexed=True)
    rig.ask(20, b"x", headers=[("a", bytes(cold.MAX_KEY_AND_HEADERS_BYTES))])
    rig.tick(20)
    rig.cancel(b"x")
    assert rig.verdicts == [ALREADY_FIRED]


def test_pieces_contain_each_record_of_a_fetch_once() -> None:
    """The pieces contain each record once, in order, without gaps."""
    rig = ColdRig(indexed=True)
    sent = [rig.ask(20, id) for id in (b"x", b"y")]
    start = rig.machine.position
    for each in (*sent, *sent):
        rig.promote(each, read=False)
        rig.append(each.key, None, ())
    fetched = rig.log.fetch(rig.topic, 0, start)
    assert rig.machine._horizon is not None
    pieces = list(rig.machine._horizon.pieces(fetched.records, fetched.to_offset))
    assert [record.offset for records, _ in pieces for record in records] == [r.offset for r in fetched.records]
    assert pieces[-1][1] == fetched.to_offset
    assert len(pieces) > 2
    rig.machine.accept(Fetched(start, fetched.to_offset, fetched.records))
    assert rig.verdicts == [CANCELLED, CANCELLED, "unknown", "unknown"]
