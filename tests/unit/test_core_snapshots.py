"""Snapshots: when one is due, which one is restored, and what is compared before."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from hashlib import sha256

import pytest

from tests.harness.memory_store import MemoryStore, MemoryView
from tests.harness.snapshots import SimSnapshots
from timers.core import store_validity
from timers.core.keys import NOTHING_FIRED
from timers.core.levels import FIRST_LEVEL
from timers.core.ports import Lost, Page
from timers.core.progress import COLD_SEAL, FEATURE_LEVEL, Doubt, History, NamedSnapshot, Progress, SettingChange
from timers.core.snapshots import (
    SNAPSHOT_CHUNK_BYTES,
    Footer,
    Place,
    Unreadable,
    check_footer,
    deletable_before,
    footer_of,
    history_hash,
    is_due,
    progress_from,
    restored,
    to_restore,
    usable,
    with_named,
)
from timers.core.timer import Row

PLACE = Place("cluster", "app", b"topic id", 3, "timer-request")


def named(number: int, applied: int = 40, size: int = 1, rows: int = 3) -> NamedSnapshot:
    return NamedSnapshot(b"id", number, 0, size, applied, 7, rows, b"digest")


def row(offset: int) -> Row:
    return offset, "target", "key", b"value", None, None


def stored(*keys: tuple[int, int], applied: int, progress: Progress) -> MemoryStore:
    store = MemoryStore()
    for due_s, offset in keys:
        store.write({due_s: [row(offset)]}, applied, {b"id": (due_s, offset, 7)})
    store.note_history(progress.settings)
    return store


def restore(
    store: MemoryStore,
    progress: Progress,
    snapshots: SimSnapshots,
    log_start: int = 0,
    *,
    named: bool = True,
    is_fresh: Callable[[MemoryStore], bool] = lambda store: True,
) -> tuple[MemoryStore, dict[int, str]]:
    said: dict[int, str] = {}
    found = restored(
        store,
        progress,
        PLACE,
        log_start,
        snapshots,
        MemoryStore,
        is_fresh,
        lambda _: named,
        lambda each, why: said.update({each.number: str(why)}),
    )
    return found, said


def progress_of(*snapshots: NamedSnapshot, next_offset: int = 50) -> Progress:
    newest, older = (*snapshots, None, None)[:2]
    progress = Progress.first(FIRST_LEVEL).with_setting(COLD_SEAL, 12345)
    return replace(progress, next_offset=next_offset, snapshot=newest, older_snapshot=older)


def test_a_store_is_restored_without_what_has_fired_since() -> None:
    progress = replace(progress_of(named(1, rows=2)), fired_through=(100, 30))
    source = stored((100, 30), (100, 31), applied=40, progress=progress)
    store, said = restore(MemoryStore(), progress, SimSnapshots({1: source}, PLACE))
    assert said == {1: "None"}
    assert (store.applied, store.history) == (40, progress.settings)
    assert [*store.scan((-1, 0), 200)] == [(100, [row(31)])]
    assert store.entries([b"id"]) == source.entries([b"id"])


def test_if_the_newest_cannot_be_read_the_older_one_is_restored() -> None:
    progress = progress_of(named(2), named(1, 30, rows=1))
    store, said = restore(
        MemoryStore(), progress, SimSnapshots({1: stored((100, 5), applied=30, progress=progress)}, PLACE)
    )
    assert said == {2: "out of range", 1: "None"}
    assert store.applied == 30


def test_without_a_snapshot_the_store_stays() -> None:
    store = stored((100, 5), applied=30, progress=Progress())
    assert restore(store, progress_of(named(2)), SimSnapshots({}, PLACE)) == (store, {2: "out of range"})


def test_an_opening_ends_if_another_owner_has_deleted_a_snapshot_that_it_knows() -> None:
    """Its log may begin later, too, so neither the snapshot before it nor the log is read."""
    progress = progress_of(named(2), named(1, 30, rows=1))
    snapshots = SimSnapshots({1: stored((100, 5), applied=30, progress=progress)}, PLACE)
    with pytest.raises(Lost, match="does not name its snapshot at offset 40 any more"):
        restore(MemoryStore(), progress, snapshots, named=False)


def test_a_snapshot_that_breaks_in_the_middle_leaves_the_store_as_it_was() -> None:
    progress = progress_of(named(1, rows=1))
    snapshots = SimSnapshots({1: stored((100, 5), applied=40, progress=progress)}, PLACE)

    def pages(named: NamedSnapshot) -> Iterator[Page]:
        yield [*stored((100, 5), applied=40, progress=progress).view()][:1]
        raise Unreadable("a wrong digest")

    snapshots.pages = pages  # type: ignore[method-assign]
    present = stored((100, 6), applied=10, progress=progress)
    store, said = restore(present, progress, snapshots)
    assert store is present
    assert (store.pending, store.applied, said) == (1, 10, {1: "a wrong digest"})


@pytest.mark.parametrize(("read_through_s", "is_used"), [(None, False), (899, False), (900, True), (1101, False)])
def test_a_snapshot_of_a_compacted_topic_has_the_age_of_its_store(read_through_s: int | None, is_used: bool) -> None:
    progress = progress_of(named(1, rows=1))
    source = stored((100, 5), applied=40, progress=progress)
    source.read_through_s = read_through_s
    age = partial(store_validity.is_fresh, now_s=1000.0, stale_after_s=100)
    store, said = restore(MemoryStore(), progress, SimSnapshots({1: source}, PLACE), is_fresh=age)
    assert (store.applied == 40, said[1] == "None") == (is_used, is_used)


def test_a_newer_store_is_preferred_and_a_doubtful_log_restores_nothing() -> None:
    progress = progress_of(named(2, 40, rows=80), named(1, 30, rows=80))

    def numbers(applied: int, log_start: int = 0) -> list[int]:
        store = MemoryStore()
        store.applied = applied
        return [each.number for each in to_restore(progress, store, log_start)]

    assert numbers(0) == [2, 1]
    assert numbers(25) == [2]
    assert numbers(30) == [], "80 rows take as long as 10 records"
    assert numbers(30, 30) == []
    assert numbers(29, 30) == [2, 1], "the log cannot be read from there"
    assert numbers(25, 31) == [2], "nor from where the older snapshot ends"
    assert to_restore(replace(progress, doubt=Doubt(20, "worker-1")), MemoryStore(), 0) == []


def test_the_log_is_needed_from_the_older_named_snapshot_on() -> None:
    assert deletable_before(progress_of(named(2, 40), named(1, 30))) == 30
    assert deletable_before(progress_of(named(2, 30), named(1, 40))) == 30
    assert deletable_before(progress_of(named(2, 40))) == 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"place": PLACE._replace(partition=4)}, "a snapshot of"),
        ({"applied": 39}, "not the snapshot"),
        ({"digest": b"other"}, "not the snapshot"),
        ({"history_hash": b"other"}, "other settings"),
    ],
)
def test_a_footer_of_another_snapshot_is_refused(change: dict[str, object], why: str) -> None:
    progress = progress_of(named(1, rows=1))
    footer = SimSnapshots({1: stored((100, 5), applied=40, progress=progress)}, PLACE).footer(named(1, rows=1))
    check_footer(footer, named(1, rows=1), PLACE, progress)
    with pytest.raises(Unreadable, match=why):
        check_footer(footer._replace(**change), named(1, rows=1), PLACE, progress)  # type: ignore[arg-type]


def test_a_footer_says_the_settings_but_not_the_seal() -> None:
    progress = progress_of(named(1, rows=1))
    footer = SimSnapshots({1: stored((100, 5), applied=40, progress=progress)}, PLACE).footer(named(1, rows=1))
    assert [each.name for each in footer.history] == [FEATURE_LEVEL]
    later = progress.with_setting(COLD_SEAL, 7)
    check_footer(footer, named(1, rows=1), PLACE, later)


def test_a_snapshot_that_lost_its_end_does_not_become_the_older_one() -> None:
    progress = progress_of(named(2), named(1))
    whole, broken = (with_named(progress, named(3), newest_is_whole=each) for each in (True, False))
    assert (whole.snapshot, whole.older_snapshot) == (named(3), named(2))
    assert (broken.snapshot, broken.older_snapshot) == (named(3), named(1))


def test_a_snapshot_is_due_when_the_log_has_grown_or_little_is_pending() -> None:
    def due(
        progress: Progress,
        pending: int = 1000,
        record_bytes: float = 100,
        *,
        forgotten: int = 0,
        is_behind: bool = False,
        unnamed: int = 0,
    ) -> bool:
        limits = {"factor": 2, "most_records": 10**6}
        return is_due(progress, pending, forgotten, record_bytes, **limits, is_behind=is_behind, unnamed_bytes=unnamed)

    mib = 1024 * 1024
    assert not due(Progress(10**5)) and due(Progress(10**5), record_bytes=17 * mib / 10**5)
    assert due(Progress(10**6 + 1)) and not due(Progress(10**6 + 1), record_bytes=1, is_behind=True)
    large = replace(Progress(1000), snapshot=named(1, 0, 100 * mib // SNAPSHOT_CHUNK_BYTES, 1000))
    assert not due(large, record_bytes=190 * 1024) and due(large, record_bytes=210 * 1024)
    assert not due(large, unnamed=199 * mib) and due(large, unnamed=201 * mib)
    assert not due(large, 500, 0) and due(large, 400, 0)
    assert not due(large, forgotten=3) and due(large, forgotten=5), "it names 7 keys"
    no_rows = replace(large, snapshot=named(1, 0, 100 * mib // SNAPSHOT_CHUNK_BYTES, 0))
    assert not due(no_rows, 0) and due(no_rows, 0, forgotten=100)


def footer(of: NamedSnapshot, progress: Progress, place: Place = PLACE) -> Footer:
    return footer_of(MemoryView(of.applied, of.rows, progress.settings, []), place, (90, 4), of.keys, of.digest)


def test_settings_are_hashed_as_text() -> None:
    history = [SettingChange("hot-s", 0, 5), SettingChange("seal", 7, 2**62), SettingChange("later", 8, 1)]
    assert history_hash(history, 8) == sha256(b"[('hot-s', 0, 5), ('seal', 7, 4611686018427387904)]").digest()
    assert history_hash([], 8) == sha256(b"[]").digest()


def test_the_newest_snapshots_of_a_machine_are_found_without_their_names() -> None:
    known = progress_of(next_offset=50)
    other = PLACE._replace(topic_id=b"another topic with this name")
    at = {number: named(number, 10 * number, size=number) for number in range(1, 8)}
    whole = [(each, footer(each, known)) for each in at.values()] + [(named(9, 30), footer(named(9, 30), known, other))]
    assert [each.number for each, _ in usable(whole, PLACE, known, 25, 100)] == [5, 4, 3]
    assert [each.number for each, _ in usable(whole, PLACE, Progress(), 25, 60)] == [6, 5, 4, 3]


def test_a_machine_without_progress_goes_on_from_a_footer() -> None:
    lost, new = progress_of(next_offset=50), Progress.first(FIRST_LEVEL)
    end = footer(named(1), lost)
    after = progress_from(named(1), end, new)
    assert (after.next_offset, after.fired_through) == (40, (90, 4))
    assert (after.snapshot, after.older_snapshot) == (named(1), None)
    assert not after.knows(COLD_SEAL), "who may read snapshots must not be able to forge copies"
    check_footer(end, named(1), PLACE, after)
    assert progress_from(named(1), end, replace(new, next_offset=70)).next_offset == 70, "the group knows more"


def test_a_progress_that_went_back_keeps_what_it_knows() -> None:
    known = replace(progress_of(next_offset=50), fired_through=(95, 0))
    after = progress_from(named(1), footer(named(1), known), known)
    assert after == replace(known, snapshot=named(1))
    repaired = known.without_time()
    assert progress_from(named(1), footer(named(1), known), repaired).fired_through == NOTHING_FIRED, (
        "its time was wrong"
    )


def test_a_footer_of_other_settings_is_refused_without_a_seal_too() -> None:
    made = replace(progress_of(named(1)), settings=History())
    end = footer(named(1), made)
    check_footer(end, named(1), PLACE, made)
    with pytest.raises(Unreadable, match="other settings"):
        check_footer(end, named(1), PLACE, replace(made, next_offset=0).with_setting("x", 1))
