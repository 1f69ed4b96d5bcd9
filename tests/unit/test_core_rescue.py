"""A log that lost its end: when it is noticed, and what becomes of what only a store holds."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.harness.list_outbox import ListOutbox
from timers.core.keys import encode
from timers.core.limits import Limits
from timers.core.lineage import Batch, Leader, Lineage, Parted, RecordCount, Unknown
from timers.core.loop import Loop
from timers.core.operation import Entry, cancelled
from timers.core.ports import Lost
from timers.core.progress import History, NamedSnapshot, Progress, SettingChange, cut_suffix
from timers.core.rescue import Cut, Held, StoreUse, cut_of, decide_use, held
from timers.core.timer import Fetched, Origin, Row, Tick
from timers.kafka.request_formats import NATIVE, REQUEST_FORMATS
from timers.machines.partition import PartitionSpec
from timers.machines.store.memory import MemoryStore

BY_ID = REQUEST_FORMATS[1].request_format
TICK = Tick(900_000)
LIMITS = Limits(chunk_timers=2, chunk_bytes=1_000_000, max_request_bytes=2000)
LINEAGE = Lineage(((4, 0),), Batch(18, 19, 1000, 7), 20)


def row(offset: int, id: str | None = None, due_s: int = 0) -> Row:
    return offset, "target", "key", b"value", None, None if id is None else Origin(id, due_s, 0)


def stored(*rows: tuple[int, Row], applied: int = 20, entries: dict[bytes, Entry | None] | None = None) -> MemoryStore:
    """A store with rows by due second, up to offset ``applied``."""
    store = MemoryStore()
    for due_s, each in rows:
        store.write({due_s: [each]}, applied, lineage=LINEAGE)
    store.write({}, applied, entries or {}, LINEAGE)
    return store


def rescuing(progress: Progress, store: MemoryStore, spec: PartitionSpec) -> tuple[Loop, ListOutbox]:
    outbox = ListOutbox()
    return Loop(spec.machine(progress, store, outbox)), outbox


@pytest.mark.parametrize(
    ("next_offset", "applied", "answers", "end", "cut"),
    [
        pytest.param(20, 20, (None, None), 20, None, id="the same log"),
        pytest.param(20, 20, (None, None), 15, Cut(15), id="shorter than the progress"),
        pytest.param(10, 20, (None, None), 15, Cut(15, only_in_store=True), id="shorter than the store"),
        pytest.param(20, 20, (Parted(12), Parted(12)), 30, Cut(12), id="grown again"),
        pytest.param(20, 20, (Parted(None), None), 30, Cut(3), id="not known where: the start of the log"),
        pytest.param(10, 20, (None, Parted(15)), 30, Cut(15, only_in_store=True), id="only uncommitted"),
        pytest.param(20, 10, (None, Parted(5)), 30, None, id="an old store is no reason to stop"),
        pytest.param(20, 20, (Unknown(), Unknown()), 30, None, id="compaction removed the batch"),
    ],
)
def test_where_a_log_becomes_another(next_offset: int, applied: int, answers: Any, end: int, cut: Cut | None) -> None:
    assert cut_of(Progress(next_offset), stored(applied=applied), answers, 3, end) == cut


def test_a_store_of_another_history_does_not_stop_its_partition() -> None:
    store = stored(applied=20)
    store.note_history((SettingChange("TIMERS_MAX_REQUEST_BYTES", 0, 5),))
    progress = Progress(10, settings=History([SettingChange("TIMERS_MAX_REQUEST_BYTES", 0, 7)]))
    assert cut_of(progress, store, (None, Parted(5)), 0, 30) is None


def test_a_store_of_a_lost_log_does_not_take_back_what_another_owner_accepted() -> None:
    """The store has accepted 5 to 19 of a log that was lost before a commit. Another owner read the log that took its
    place up to 12, and fired from it."""
    store = stored((950, row(4)), (950, row(7)), (800, row(14)), applied=20)
    progress = Progress(12, (900, 10**9), lineage=LINEAGE)
    after, use = decide_use(progress, store, (None, Parted(5)), 0, 30, lambda before, cut: cut.applied_to(before))
    assert use is StoreUse.RESCUE and after.next_offset == 12 and after.lineage == progress.lineage.before(12)
    assert held(progress, store, Cut(5, only_in_store=True)) == Held(timers=2, cancels=0), "none of its own has fired"
    # The store of the other owner holds this log: its rows are no dead letters.
    own = stored((950, row(7)), applied=12)
    again, use = decide_use(after, own, (None, None), 0, 30, lambda before, cut: cut.applied_to(before))
    assert again == after and use is StoreUse.APPLY


def test_what_a_store_holds_of_the_lost_range_is_counted() -> None:
    entries: dict[bytes, Entry | None] = {
        b"new": (950, 16, 1),
        b"old": (960, 17, 1),
        b"ended": cancelled(18, 1),
        b"before": cancelled(3, 1),
    }
    rows = [(950, row(5)), (950, row(16, "new", 950)), (955, row(15, "old", 955)), (960, row(17, "old", 960))]
    store = stored(*rows, (800, row(14)), (800, row(19)), entries=entries)
    progress = Progress(next_offset=19, fired_through=(900, 10**9))
    # Row 14 has fired; row 19 has not, because its offset is not below next_offset; row 15 was replaced.
    assert held(progress, store, Cut(10)) == Held(timers=3, cancels=1)


def test_lost_timers_and_cancels_become_dead_letters_once_across_crashes() -> None:
    entries: dict[bytes, Entry | None] = {b"a": (950, 15, 1), b"x": cancelled(18, 1)}
    rows = [(950, row(5)), (950, row(15, "a", 950)), (960, row(16)), (970, row(17))]
    store = stored(*rows, entries=entries)
    before = Progress(20, (900, 10**9), lineage=LINEAGE)
    progress = before.shortened(10)
    spec = PartitionSpec(("ids", 0), BY_ID, LIMITS)
    assert progress.rescues_of(store.history, store.applied) == progress.rescues
    seen = []
    for _ in range(10):  # each round is a crash after one transaction
        loop, outbox = rescuing(progress, store, spec)
        loop.add_fetch(Fetched(10, 12, ()))
        loop.add_tick(TICK)
        assert not loop.idle
        try:
            loop.step()
        except Lost:
            assert store.condemned
            break
        finally:
            seen += outbox.rescued
            progress = outbox.progress
        assert not loop.machine.may_accept and store.pending == 4
    assert seen == [(950, 15), (960, 16), (970, 17), (b"x", 18)]
    assert not progress.rescues and progress.next_offset == 10
    assert progress.cuts == ((10, 1),)
    assert not progress.has_same_history(store.history, 20), "the store could be used again"


def test_a_second_loss_before_all_dead_letters_of_the_first_are_written() -> None:
    """Offset 15 is a dead letter already. 5 was lost by the second cut, after 4 had fired."""
    rows = [(950, row(5)), (950, row(15, "a", 950)), (905, row(4)), (960, row(16)), (970, row(2))]
    entries: dict[bytes, Entry | None] = {
        b"a": (950, 15, 1),
        b"b": cancelled(7, 1),
        b"c": cancelled(2, 1),
    }
    store = stored(*rows, entries=entries)
    first = Progress(20, (900, 10**9), lineage=LINEAGE).shortened(10)
    (rescue,) = first.rescues
    begun = replace(first, fired_through=(910, 10**9), rescues=(rescue._replace(through=encode((950, 15))),))
    progress = begun.shortened(3)
    assert progress.witness.cut == 2
    assert held(begun, store, Cut(3)) == Held(timers=2, cancels=1)
    outbox = ListOutbox()
    seen: list[object] = []
    for _ in range(9):
        loop, outbox = rescuing(progress, store, PartitionSpec(("ids", 0), BY_ID, LIMITS))
        loop.add_tick(TICK)
        assert loop.machine.cuts == ()
        with suppress(Lost):
            loop.step()
        seen += outbox.rescued
        progress = outbox.progress
        if not progress.rescues:
            break
    assert seen == [(950, 5), (960, 16), (b"b", 7)]


def test_a_store_is_rescued_from_the_cuts_that_it_does_not_know() -> None:
    twice = Progress(20).shortened(10).shortened(5)
    assert [each.from_offset for each in twice.rescues_of((), 20)] == [10, 5]
    assert [each.from_offset for each in twice.rescues_of((SettingChange("log-cut", 10, 1),), 20)] == [5]
    assert not twice.rescues_of((SettingChange("log-cut", 10, 1),), 5), "it holds nothing of what is lost"
    # Accepted after the first loss: the store with what was lost first would hold another log above it.
    grown = replace(Progress(20).shortened(10), next_offset=30).shortened(25)
    assert [each.from_offset for each in grown.rescues] == [25]
    assert not grown.rescues_of((), 20)
    ended = replace(Progress(20).shortened(10), rescues=()).shortened(5)
    assert not ended.rescues_of((), 20), "another store was rescued after the first loss"


def test_a_store_that_knows_a_cut_which_was_not_committed_is_rescued() -> None:
    """The cut was accepted, the worker ended before its first commit, and the log lost more."""
    progress = Progress(20).shortened(5)
    assert progress.rescues_of((SettingChange("log-cut", 10, 1),), 8)
    assert not progress.rescues_of((SettingChange("log-cut", 5, 1),), 8), "it was written after this cut"


def test_a_machine_goes_on_until_a_store_comes_that_holds_what_is_lost() -> None:
    progress = Progress(20, (900, 10**9), lineage=LINEAGE).shortened(10)
    spec = PartitionSpec(("ids", 0), BY_ID, LIMITS)
    loop, outbox = rescuing(progress, MemoryStore(), spec)  # of a worker whose disk was empty
    loop.add_tick(TICK)
    loop.add_fetch(Fetched(0, 10, ()))
    loop.step()
    loop.add_tick(Tick(2_000_000), 10)
    while not loop.idle:
        loop.step()
    loop.machine.commit_progress(even_if_idle=True)
    assert loop.machine.cuts == ((10, 1),) and outbox.progress.fired_through[0] == 2000
    store = stored(
        (950, row(15)), (890, row(16))
    )  # of the former owner: 15 was pending at the loss, and is overdue now
    loop, outbox = rescuing(outbox.progress, store, spec)
    loop.add_tick(TICK)
    assert loop.machine.cuts == ()
    with pytest.raises(Lost):
        loop.step()
    assert outbox.rescued == [(950, 15)]


def test_sources_above_a_cut_have_its_number() -> None:
    progress = replace(Progress(300).shortened(250), rescues=())
    assert [cut_suffix(progress.cuts, offset) for offset in (249, 250, 999)] == ["", "~1", "~1"]
    again = replace(replace(progress, next_offset=400).shortened(240), rescues=())
    assert [cut_suffix(again.cuts, offset) for offset in (239, 240, 250)] == ["", "~2", "~2"]
    later = replace(replace(progress, next_offset=400).shortened(300), rescues=())
    assert [cut_suffix(later.cuts, offset) for offset in (249, 250, 300)] == ["", "~1", "~2"]


def test_a_batch_of_a_new_leader_is_accepted_after_the_log_was_compared() -> None:
    loop, _ = rescuing(Progress(20, lineage=LINEAGE), stored(), PartitionSpec(("requests", 0), NATIVE, LIMITS))
    loop.add_tick(TICK)
    loop.add_fetch(Fetched(20, 21, (), passed=[(4, Batch(20, 20, 1, 1))]))
    loop.add_fetch(Fetched(21, 22, (), passed=[(6, Batch(21, 21, 1, 1))]))
    loop.step()
    loop.step()
    assert loop.machine.position == 21 and loop.untrusted_leader == Leader(6, 0) and loop.idle
    loop.machine.trust(Leader(6, 0))
    loop.step()
    assert loop.machine.position == 22 and loop.untrusted_leader is None
    assert loop.machine.lineages[0] == Lineage(((4, 0), (6, 21)), Batch(21, 21, 1, 1), 22, RecordCount(20, 22, 0, 22))
    assert loop.machine.progress.lineage == loop.machine.lineages[0]


def test_a_fetch_over_a_new_connection_is_accepted_after_the_log_was_compared() -> None:
    loop, _ = rescuing(Progress(20, lineage=LINEAGE), stored(), PartitionSpec(("requests", 0), NATIVE, LIMITS))
    loop.add_tick(TICK)
    for offset, connection in ((20, 3), (21, 3), (22, 4)):
        loop.add_fetch(
            Fetched(offset, offset + 1, (), passed=[(4, Batch(offset, offset, 1, 1))], connection=connection)
        )
        loop.step()
    assert loop.machine.position == 22 and loop.untrusted_leader == Leader(4, 4)  # the broker may have an old disk


def test_a_new_machine_reads_whatever_epochs_its_log_has() -> None:
    loop, _ = rescuing(Progress(), MemoryStore(), PartitionSpec(("requests", 0), NATIVE, LIMITS))
    loop.add_tick(TICK)
    loop.add_fetch(Fetched(0, 9, (), passed=[(3, Batch(0, 4, 1, 1)), (8, Batch(5, 8, 1, 1))]))
    loop.step()
    assert loop.machine.position == 9


def test_a_cut_drops_the_snapshots_that_hold_what_the_log_has_lost() -> None:
    newest, older = (NamedSnapshot(b"id", number, 0, 1, applied, 1, 1, b"") for number, applied in ((2, 20), (1, 10)))
    progress = Progress(30, snapshot=newest, older_snapshot=older)
    assert progress.shortened(20) == replace(progress.shortened(20), snapshot=newest, older_snapshot=older)
    assert (progress.shortened(19).snapshot, progress.shortened(19).older_snapshot) == (older, None)
    assert (progress.shortened(9).snapshot, progress.shortened(9).older_snapshot) == (None, None)
