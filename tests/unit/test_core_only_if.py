"""Requests with a condition: which count, what their verdict is, and that a replay decides alike [I27]."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import pytest

from tests.harness.constants import Constants
from tests.harness.machines import BY_ID, LIMITS, ColdOutbox, MachineRig
from tests.simulation.kit import SimRecord
from timers.core import only_if
from timers.core.keys import NOTHING_FIRED
from timers.core.levels import FIRST_LEVEL
from timers.core.only_if import TIME_ID
from timers.core.operation import ABSENT, NO_VERSION, cancelled
from timers.core.ports import Lost
from timers.core.progress import VERDICT_RETENTION, Progress
from timers.core.timer import Row
from timers.wire import cold, future
from timers.wire import headers as h
from timers.wire.formats import future_by_id
from timers.wire.headers import Header

RETENTION_S = 10
BASE_S = 1000


class Rig(MachineRig):
    """A machine of timers with an id, at second 1000."""

    def __init__(self, **spec: Any) -> None:
        super().__init__(BY_ID, topic="ids", retention_s=RETENTION_S, outbox=ColdOutbox(), **spec)
        self.at(BASE_S)

    def at(self, second: int) -> None:
        """Let the brokers' clock show a second, without a tick for the machine."""
        self.log.clock.now_ms = second * 1000
        if self.machine.progress.fired_through == NOTHING_FIRED:
            self.observe(second)

    def write(self, id: str, due_s: int | None, condition: str | None = None, more: Sequence[Header] = ()) -> str:
        """Append a request or a cancel. Returns its source."""
        value = None if due_s is None else future.encode("t", "k", b"v")
        headers = [] if due_s is None else future_by_id.encode_headers(due_s)
        headers += [*future_by_id.encode_condition(condition), *more]
        return self.log.append(self.topic, id.encode(), value, headers, partition=0).source

    def ask(self, id: str, due_s: int | None, condition: str | None = None) -> tuple[str, int | None, int | None]:
        """Append and accept a request. Returns its verdict, the due second in it and the version; "" without one."""
        before = len(self.outbox.verdicts)
        self.write(id, due_s, condition)
        self.read_all()
        told = self.outbox.verdicts[before:]
        assert len(told) <= 1
        return told[0][2:5] if told else ("", None, None)

    @property
    def waiting(self) -> list[tuple[int, int]]:
        """(due second, offset) of the timers that will fire."""
        return [(due_s, row[0]) for (due_s, _), rows in self.machine.waiting(NOTHING_FIRED) for row in rows]

    @property
    def recovered(self) -> list[tuple[int, int]]:
        """The same, after the loss of the disk."""
        self.open(wipe=True)
        self.observe(self.tick_ms // 1000)
        self.read_all()
        return self.waiting


@pytest.fixture
def rig() -> Rig:
    return Rig(progress=Progress.first(FIRST_LEVEL))


def test_absent_sets_an_id_once(rig: Rig) -> None:
    assert rig.ask("a", BASE_S + 5, ABSENT) == ("set", None, 0)
    assert rig.ask("a", BASE_S + 6, ABSENT) == ("exists", BASE_S + 5, 0)
    assert rig.waiting == [(BASE_S + 5, 0)] == rig.recovered


def test_absent_in_one_batch_sets_an_id_once(rig: Rig) -> None:
    for due_s in (5, 6, 7):
        rig.write("a", BASE_S + due_s, ABSENT)
    rig.read_all()
    assert [verdict.verdict for verdict in rig.outbox.verdicts] == ["set", "exists", "exists"]
    assert rig.waiting == [(BASE_S + 5, 0)] == rig.recovered


@pytest.mark.parametrize("end", ["fires", "is cancelled"])
def test_an_id_is_not_absent_until_the_retention_after_its_end(rig: Rig, end: str) -> None:
    rig.ask("a", BASE_S + 5)
    if end == "fires":
        rig.tick(BASE_S + 6)
    else:
        rig.at(BASE_S + 5)
        rig.ask("a", None)
    rig.at(BASE_S + 5 + RETENTION_S - 1)
    verdict, due_s, _ = rig.ask("a", BASE_S + 100, ABSENT)
    assert (verdict, due_s) == ("exists", BASE_S + 5 if end == "fires" else None)
    rig.at(BASE_S + 5 + RETENTION_S)
    assert rig.ask("a", BASE_S + 100, ABSENT)[0] == "set"
    assert rig.waiting == rig.recovered == [(BASE_S + 100, 2 if end == "fires" else 3)]


def test_a_change_counts_for_the_version_that_it_was_made_for(rig: Rig) -> None:
    first = rig.write("a", BASE_S + 5)
    assert rig.ask("a", BASE_S + 6, first) == ("replaced", BASE_S + 5, 1)
    assert rig.ask("a", BASE_S + 7, first) == ("changed", BASE_S + 6, 1)
    assert rig.ask("a", None, first) == ("changed", BASE_S + 6, 1)
    assert rig.ask("a", None, "ids/0/1") == ("cancelled", BASE_S + 6, 4)
    assert rig.ask("a", BASE_S + 8, "ids/0/1") == ("changed", None, 4)
    assert rig.waiting == [] == rig.recovered


@pytest.mark.parametrize("named", ["ids/0/7", "ids/1/0", "other/0/0", "ids/0/00"])
def test_a_change_of_another_version_does_not_count(rig: Rig, named: str) -> None:
    rig.ask("a", BASE_S + 5)
    assert rig.ask("a", BASE_S + 6, named) == ("changed", BASE_S + 5, 0)
    assert rig.ask("nothing", BASE_S + 6, named) == ("changed", None, NO_VERSION)
    assert rig.waiting == [(BASE_S + 5, 0)]


def test_a_change_in_the_due_second_is_too_late_whatever_has_fired(rig: Rig) -> None:
    source = rig.write("a", BASE_S + 5)
    rig.read_all()
    rig.at(BASE_S + 5)
    assert rig.ask("a", BASE_S + 50, source) == ("too-late", BASE_S + 5, 0)
    rig.tick(BASE_S + 5)
    assert rig.outbox.fired == [(BASE_S + 5, 0)]
    assert rig.ask("a", None, source) == ("too-late", BASE_S + 5, 0)
    assert rig.recovered == []


def fired_before_it_is_read(rig: Rig, change_to_s: int | None) -> tuple[str, int | None, int | None]:
    """Let a version fire before a change of it is read that was appended in time. Returns the verdict."""
    source = rig.write("a", BASE_S + 5)
    rig.tick(BASE_S + 5)
    rig.at(BASE_S + 4)
    return rig.ask("a", change_to_s, source)


@pytest.mark.parametrize("change_to_s", [BASE_S + 50, BASE_S + 1, None])
def test_a_change_that_is_readable_after_its_version_has_fired_is_too_late(rig: Rig, change_to_s: int | None) -> None:
    assert fired_before_it_is_read(rig, change_to_s) == ("too-late", BASE_S + 5, 0)
    assert rig.machine.committed.late_changes == (1,)
    assert rig.machine.counters.unlisted == 0
    assert rig.outbox.fired == [(BASE_S + 5, 0)]
    assert rig.waiting == [] == rig.recovered
    assert rig.store.entries([b"a"])[b"a"] == (BASE_S + 5, 0, BASE_S)
    rig.at(BASE_S + 4)
    assert rig.ask("a", BASE_S + 60, "ids/0/1") == ("changed", BASE_S + 5, 0), "the refused one is no version"
    assert rig.ask("a", BASE_S + 60) == ("already-fired", BASE_S + 5, None), "without a condition it is a new timer"
    assert rig.machine.committed.late_changes == (1,)


def test_a_late_change_counts_on_a_full_list(constants: Constants, caplog: pytest.LogCaptureFixture, rig: Rig) -> None:
    constants(only_if, MOST_LATE_CHANGES=2)
    sources = [rig.write(id, BASE_S + 5) for id in "abcd"]
    rig.tick(BASE_S + 5)
    rig.at(BASE_S + 4)
    for id, source in zip("abcd", sources, strict=True):
        rig.write(id, BASE_S + 50, source)
    rig.read_all()
    verdicts = [each.verdict for each in rig.outbox.verdicts]
    assert verdicts == ["too-late", "too-late", "already-fired", "already-fired"]
    assert rig.machine.committed.late_changes == (4, 5)
    assert rig.machine.counters.unlisted == 2
    assert len(caplog.records) == 1
    assert "ids/0" in caplog.text
    assert rig.waiting == [(BASE_S + 50, 6), (BASE_S + 50, 7)] == rig.recovered


def test_a_full_list_is_said_again_after_room(constants: Constants, caplog: pytest.LogCaptureFixture, rig: Rig) -> None:
    constants(only_if, MOST_LATE_CHANGES=2)
    sources = iter([rig.write(str(number), BASE_S + 5) for number in range(9)])
    rig.tick(BASE_S + 5)
    rig.at(BASE_S + 4)

    def said_after(changes: int) -> int:
        for source in islice(sources, changes):
            rig.ask(source.rpartition("/")[2], BASE_S + 50, source)
        return len(caplog.records)

    assert [said_after(2), said_after(1), said_after(1)] == [0, 1, 1]
    assert rig.machine.commit_change(lambda progress: progress.with_log_start(10))
    assert rig.machine.committed.late_changes == (10,)
    assert [said_after(1), said_after(1), said_after(1)] == [1, 2, 2]


def test_a_late_change_of_a_late_request_in_its_batch(rig: Rig) -> None:
    rig.tick(BASE_S + 5)
    rig.at(BASE_S + 2)
    rig.write("a", BASE_S + 50, rig.write("a", BASE_S + 3))
    rig.read_all()
    assert rig.outbox.fired == [(BASE_S + 3, 0)]
    assert [each.verdict for each in rig.outbox.verdicts] == ["too-late"]
    assert rig.waiting == [] == rig.recovered


def test_a_late_change_is_listed_until_the_log_begins_above_it(rig: Rig) -> None:
    fired_before_it_is_read(rig, None)
    progress = rig.machine.committed
    assert progress.with_log_start(1) is progress
    assert progress.with_log_start(2).late_changes == ()
    assert progress.shortened(2).late_changes == (1,)
    assert progress.shortened(1).late_changes == (), "the log gives this offset again"
    assert progress.without_end_of_store(1).late_changes == (1,), "only a store has lost it"
    after_a_cut = progress.witness._replace(cut=1)
    assert progress.at_least(after_a_cut).late_changes == (), "it is not known where the cut was"


def test_absent_sets_an_id_once_although_the_requests_are_readable_late(rig: Rig) -> None:
    """As those of POST with an `Idempotency-Key`: the request, and its repetition without an answer."""
    other = rig.log.begin("other", rig.log.new_epoch("other"))
    rig.log.append(rig.topic, b"x", None, [], 0, other)
    for _ in range(2):
        rig.write("a", BASE_S + 5, ABSENT)
    rig.at(BASE_S + 6)
    rig.observe(BASE_S + 6)
    rig.read()
    rig.fire()
    assert rig.outbox.verdicts == [] == rig.outbox.fired
    rig.log.finish(other, commit=False)
    rig.write("a", BASE_S + 5, ABSENT)
    rig.read_all()
    assert [verdict.verdict for verdict in rig.outbox.verdicts] == ["set", "exists", "exists"]
    assert rig.outbox.fired == [(BASE_S + 5, 1)]
    assert rig.waiting == [] == rig.recovered


def test_a_transaction_that_fails_lists_nothing(rig: Rig) -> None:
    source = rig.write("a", BASE_S + 5)
    rig.tick(BASE_S + 5)
    rig.at(BASE_S + 4)
    rig.write("a", BASE_S + 50, source)
    rig.outbox.failing = 1
    with pytest.raises(Lost):
        rig.read_all()
    rig.open()
    rig.observe(BASE_S + 5)
    assert rig.machine.progress.late_changes == ()
    rig.read_all()
    assert rig.machine.committed.late_changes == (1,)
    assert rig.waiting == [] == rig.recovered


def test_a_cancelled_id_is_set_again_by_the_source_of_the_cancel(rig: Rig) -> None:
    rig.ask("a", BASE_S + 5)
    rig.ask("a", None)
    assert rig.ask("a", BASE_S + 6, ABSENT) == ("exists", None, 1)
    assert rig.ask("a", BASE_S + 6, "ids/0/1") == ("set", None, 3)
    assert rig.waiting == [(BASE_S + 6, 3)] == rig.recovered


def test_a_cancel_of_nothing_leaves_the_id_absent(rig: Rig) -> None:
    assert rig.ask("a", None) == ("unknown", None, None)
    assert rig.ask("a", BASE_S + 5, ABSENT)[0] == "set"
    assert rig.store.entries_after(TIME_ID, 10).entries == [(b"a", (BASE_S + 5, 1, BASE_S))]


def test_requests_without_a_condition_are_judged_as_before(rig: Rig) -> None:
    assert rig.ask("a", BASE_S + 5) == ("", None, None)
    assert rig.ask("a", BASE_S + 6) == ("replaced", BASE_S + 5, None)
    assert rig.ask("a", None) == ("cancelled", BASE_S + 6, None)
    assert rig.ask("a", None) == ("unknown", None, None)
    assert rig.ask("a", BASE_S + 7) == ("", None, None)
    rig.tick(BASE_S + 7)
    assert rig.ask("a", None) == ("already-fired", BASE_S + 7, None)


def test_a_request_that_asks_for_a_verdict_gets_one_and_decides_as_without(rig: Rig) -> None:
    """Nothing else changes: [I4] holds although a worker of another version does not know the header."""
    asking = [(h.TIMER_VERDICT, b"")]
    for id in ("asks", "does not"):
        more = asking if id == "asks" else []
        for due_s in (BASE_S + 5, BASE_S + 6, None, BASE_S + 7):
            rig.write(id, due_s, more=more if due_s else ())
    rig.read_all()
    told = [(each.id, each.verdict, each.due_s, each.version) for each in rig.outbox.verdicts]
    assert told == [
        (b"asks", "unknown", None, None),
        (b"asks", "replaced", BASE_S + 5, None),
        (b"asks", "cancelled", BASE_S + 6, None),
        (b"asks", "unknown", None, None),
        (b"does not", "replaced", BASE_S + 5, None),
        (b"does not", "cancelled", BASE_S + 6, None),
    ]
    assert rig.waiting == [(BASE_S + 7, 3), (BASE_S + 7, 7)] == rig.recovered
    rig.tick(BASE_S + 7)
    assert rig.ask("asks", BASE_S + 9)[0] == "already-fired"


def test_a_condition_and_a_wish_for_a_verdict_have_the_verdict_of_the_condition(rig: Rig) -> None:
    for due_s in (5, 6):
        rig.write("a", BASE_S + due_s, ABSENT, [(h.TIMER_VERDICT, b"wanted")])
    rig.read_all()
    assert [each.verdict for each in rig.outbox.verdicts] == ["set", "exists"]


def test_a_refused_request_that_is_late_does_not_fire(rig: Rig) -> None:
    rig.ask("a", BASE_S + 50)
    rig.tick(BASE_S + 5)
    assert rig.ask("a", BASE_S + 1, ABSENT)[0] == "exists"
    assert rig.outbox.fired == []
    assert rig.machine.counters.accepted == 1


def test_a_refused_request_does_not_go_cold_and_a_promoted_one_keeps_its_source() -> None:
    rig = Rig(hot_horizon_s=20)
    source = rig.write("a", BASE_S + 100, ABSENT)
    rig.read_all()
    assert rig.ask("a", BASE_S + 101, ABSENT) == ("exists", BASE_S + 100, 0)
    assert rig.outbox.forwarded == [0]
    record: SimRecord = rig.fetch(from_offset=0).records[0]
    rig.log.append(rig.topic, record.key, record.value, cold.encode_promoted(rig.outbox.cold[0]), partition=0)
    rig.read_all()
    copy_offset = 2
    assert rig.waiting == [(BASE_S + 100, copy_offset)]
    assert rig.store.entries([b"a"])[b"a"] == (BASE_S + 100, copy_offset, BASE_S + 100, 0)
    assert rig.ask("a", BASE_S + 50, f"ids/0/{copy_offset}")[0] == "changed"
    assert rig.ask("a", BASE_S + 10, source) == ("replaced", BASE_S + 100, 4)
    assert rig.waiting == [(BASE_S + 10, 4)] == rig.recovered


def test_time_is_the_latest_append_time_and_does_not_go_back(rig: Rig) -> None:
    rig.ask("a", BASE_S + 1)
    rig.tick(BASE_S + 2)
    rig.at(BASE_S + 1 + RETENTION_S)
    rig.ask("other", BASE_S + 100)
    rig.open()  # the time is in the store
    rig.observe(BASE_S + 2)
    rig.at(BASE_S + 5)
    assert rig.ask("a", BASE_S + 100, ABSENT)[0] == "set"
    assert rig.store.entries([TIME_ID])[TIME_ID] == (BASE_S + 1 + RETENTION_S, 0, 0)
    assert rig.waiting == rig.recovered


def test_entries_are_swept_by_append_times_and_only_after_their_timers_have_fired(rig: Rig) -> None:
    rig.ask("fired", BASE_S + 1)
    rig.ask("cancelled", BASE_S + 90)
    rig.ask("cancelled", None)
    rig.tick(BASE_S + 2)
    rig.ask("late", BASE_S + 3)
    rig.tick(BASE_S + 3)

    def held() -> set[bytes]:
        return {id for id, _ in rig.store.entries_after(TIME_ID, 100).entries}

    rig.machine.commit_progress()
    assert held() == {b"fired", b"cancelled", b"late"}
    rig.at(BASE_S + 1 + RETENTION_S)
    rig.ask("late", BASE_S + 200)
    rig.machine.commit_progress()
    assert held() == {b"late"}, "the others are over"
    rig.at(BASE_S + 200 + RETENTION_S)
    rig.ask("new", BASE_S + 999)
    rig.machine.commit_progress()
    assert held() == {b"late", b"new"}, "it has not fired: the machine is behind"
    assert rig.ask("late", BASE_S + 300, ABSENT) == ("replaced", BASE_S + 200, 6)
    assert rig.waiting == rig.recovered == [(BASE_S + 300, 6), (BASE_S + 999, 5)]


def test_each_version_keeps_the_retention_that_was_set_at_its_offset(rig: Rig) -> None:
    rig.ask("a", BASE_S + 1)
    rig.tick(BASE_S + 2)
    rig.open(retention_s=1000)
    rig.observe(BASE_S + 2)
    rig.ask("b", BASE_S + 3)
    rig.tick(BASE_S + 4)
    rig.at(BASE_S + 1 + RETENTION_S)
    assert rig.ask("a", BASE_S + 99, ABSENT)[0] == "set"
    rig.at(BASE_S + 3 + RETENTION_S)
    assert rig.ask("b", BASE_S + 99, ABSENT)[0] == "exists"
    rig.open(retention_s=1)
    rig.observe(BASE_S + 4)
    assert rig.ask("b", BASE_S + 99, ABSENT)[0] == "exists"
    values = [each.value for each in rig.machine.progress.settings if each.name == VERDICT_RETENTION]
    assert values == [RETENTION_S, 1000, 1]
    assert rig.waiting == rig.recovered


def test_records_with_a_producers_time_do_not_move_the_time(rig: Rig) -> None:
    value, headers = future.encode("t", "k", b"v"), future_by_id.encode_headers(BASE_S + 5)
    rig.log.append(rig.topic, b"a", value, headers, 0, None, 10**12)
    rig.read_all()
    assert rig.ask("b", BASE_S + 5, ABSENT)[0] == "set"
    assert rig.store.entries([TIME_ID])[TIME_ID] == (BASE_S, 0, 0)


def test_a_batch_that_the_brokers_refuse_changes_nothing() -> None:
    """While brokers are slow, a batch is accepted again in parts: time must not have moved before."""
    rig = Rig(limits=LIMITS)
    rig.ask("a", BASE_S + 1)
    rig.tick(BASE_S + 2)
    rig.at(BASE_S + 3)
    rig.write("a", BASE_S + 50, ABSENT)
    rig.at(BASE_S + 50)
    rig.write("b", BASE_S + 60, ABSENT)
    rig.outbox.failing = 1
    with pytest.raises(Exception, match="told to fail"):
        rig.read_all()
    rig.read_all()
    assert [verdict.verdict for verdict in rig.outbox.verdicts] == ["exists", "set"]


def test_find_returns_no_cancelled_or_forgotten_version(rig: Rig) -> None:
    rig.ask("a", BASE_S + 5)
    assert rig.machine.find(b"a") == (BASE_S + 5, 0, BASE_S)
    rig.ask("a", None)
    assert rig.store.entries([b"a"])[b"a"] == cancelled(1, BASE_S)
    assert rig.machine.find(b"a") is None
    rig.ask("b", BASE_S + 1)
    rig.tick(BASE_S + 2)
    assert rig.machine.find(b"b") == (BASE_S + 1, 2, BASE_S)
    rig.at(BASE_S + 1 + RETENTION_S)
    rig.ask("c", BASE_S + 99)
    assert rig.machine.find(b"b") is None


def rows(rig: Rig) -> list[Row]:
    return [row for _, group in rig.machine.waiting(NOTHING_FIRED) for row in group]


def test_a_callback_has_no_condition(rig: Rig) -> None:
    rig.ask("a", BASE_S + 5, ABSENT)
    assert rows(rig)[0][4] is None
