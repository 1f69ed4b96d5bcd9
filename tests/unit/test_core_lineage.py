"""Which log a position belongs to and where another log parts from it; and doubts about a log.

A doubt begins when the topic is compacted, grows meanwhile, and ends when nothing rests on it.
"""

from bisect import bisect_right
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness.constants import Constants
from tests.harness.list_outbox import ListOutbox
from tests.harness.machines import BY_ID, MachineRig, NativeRig
from timers.core import doubts
from timers.core.doubts import Doubts, Leftovers, is_refused
from timers.core.lineage import MAX_EPOCHS, Batch, EpochEnd, Lineage, Parted, ends_early, next_question, parted_inside
from timers.core.operation import Entry, defined, repeated
from timers.core.ports import IndexPage
from timers.core.progress import HOT_HORIZON, Doubt, History, Progress
from timers.errors import DoubtfulLog
from timers.kafka.progress_log import ProgressLog
from timers.machines.store.memory import MemoryStore
from timers.wire import progress as progress_record


def batch(base: int, last: int | None = None, crc: int = 0) -> Batch:
    return Batch(base, base if last is None else last, 1000, crc)


def read(*epochs: tuple[int, int, int]) -> Lineage:
    """A log read from its start: (epoch, first offset, last offset) of each epoch, one batch for each."""
    return Lineage().through([(epoch, batch(first, last)) for epoch, first, last in epochs], epochs[-1][2] + 1)


class Leader:
    """Answers as a broker does (``LeaderEpochFileCache.endOffsetFor``)."""

    def __init__(self, *starts: tuple[int, int], end: int) -> None:
        self.starts, self.end, self.asked = starts, end, 0

    def answer(self, epoch: int) -> EpochEnd:
        self.asked += 1
        known = [each for each, _ in self.starts]
        if not known or epoch > known[-1]:
            return EpochEnd(-1, -1)
        if epoch == known[-1]:
            return EpochEnd(epoch, self.end)
        at = bisect_right(known, epoch)
        return EpochEnd(known[at - 1] if at else epoch, self.starts[at][1])

    def compare(self, lineage: Lineage) -> Parted | None:
        ends: dict[int, EpochEnd] = {}
        while isinstance(found := next_question(lineage, ends), int):
            ends[found] = self.answer(found)
        return found


@pytest.mark.parametrize(
    ("lineage", "leader", "parted"),
    [
        pytest.param(read((5, 0, 299)), Leader((5, 0), end=300), None, id="the same log"),
        pytest.param(read((5, 0, 299)), Leader((5, 0), (7, 400), end=500), None, id="it has grown"),
        pytest.param(read((5, 0, 299)), Leader((5, 0), (7, 300), end=300), None, id="a new leader"),
        pytest.param(read((5, 0, 299)), Leader((5, 0), (7, 250), end=300), Parted(250), id="grown to the position"),
        pytest.param(read((5, 0, 299)), Leader((5, 0), (7, 250), end=900), Parted(250), id="grown past the position"),
        pytest.param(read((5, 0, 299)), Leader((5, 0), end=250), Parted(250), id="shorter"),
        pytest.param(
            read((5, 0, 99), (6, 100, 100)), Leader((5, 0), end=150), Parted(100), id="more of an older epoch"
        ),
        pytest.param(
            read((5, 0, 99), (6, 100, 100)), Leader((5, 0), (7, 150), end=200), Parted(100), id="an epoch between"
        ),
        pytest.param(
            read((3, 0, 9), (6, 10, 19)), Leader((3, 0), (4, 5), (5, 8), end=30), Parted(5), id="other epochs between"
        ),
        pytest.param(read((7, 0, 99)), Leader((9, 0), end=500), Parted(0), id="none of the epochs"),
        pytest.param(read((9, 0, 99)), Leader((7, 0), end=500), None, id="only lower epochs: compare the batch"),
        pytest.param(read((7, 0, 99)), Leader((9, 500), end=600), None, id="the start was deleted by retention"),
        pytest.param(read((7, 0, 99)), Leader(end=600), None, id="a broker that knows no epochs"),
        pytest.param(Lineage(), Leader((9, 0), end=600), None, id="nothing was read"),
    ],
)
def test_where_logs_part(lineage: Lineage, leader: Leader, parted: Parted | None) -> None:
    assert leader.compare(lineage) == parted
    assert leader.asked <= len(lineage.epochs) + 1


def test_a_lineage_grows_with_the_batches_that_were_passed() -> None:
    passed = [(5, batch(0, 9)), (5, batch(10, 19)), (6, batch(20, 29))]
    assert Lineage().through(passed, 20) == Lineage(((5, 0),), batch(10, 19), 20)
    assert Lineage().through(passed, 25).batch == batch(10, 19)  # the position is inside of the third batch
    whole = Lineage(((5, 0), (6, 20)), batch(20, 29), 30)
    assert Lineage().through(passed, 30) == whole
    assert whole.through(passed, 30) is whole  # read again
    assert Lineage().through(passed[:2], 20).through(passed[1:], 30) == whole
    many = Lineage().through([(epoch, batch(epoch)) for epoch in range(50)], 50)
    assert many.epochs == tuple((epoch, epoch) for epoch in range(50 - MAX_EPOCHS, 50))


def test_what_is_known_below_a_cut() -> None:
    whole = read((5, 0, 99), (6, 100, 199))
    assert whole.before(200) == whole
    assert whole.before(150) == Lineage(((5, 0), (6, 100)), None, 150)
    assert whole.before(100) == Lineage(((5, 0),), None, 100)


@pytest.mark.parametrize(
    ("leader", "first_later", "parted"),
    [
        pytest.param(Leader((4, 0), (6, 150), end=400), None, Parted(150), id="an older epoch ends elsewhere"),
        pytest.param(Leader((4, 0), (6, 200), end=400), 230, Parted(230), id="grown past"),
        pytest.param(Leader((4, 0), (6, 200), end=400), None, Parted(200), id="grown past, by producers' times"),
        pytest.param(Leader((4, 0), (6, 200), end=250), None, Parted(250), id="not grown again"),
        pytest.param(Leader((4, 0), (6, 200), end=250), 230, Parted(230), id="grown again, but shorter"),
        pytest.param(Leader((4, 0), (6, 200), end=250), 90, Parted(200), id="a time below the epoch does not count"),
    ],
)
def test_epoch_numbers_that_were_given_twice(leader: Leader, first_later: int | None, parted: Parted) -> None:
    lineage = read((4, 0, 199), (6, 200, 299))
    ends = {epoch: leader.answer(epoch) for epoch, _ in lineage.epochs}
    assert leader.compare(lineage) == (Parted(250) if leader.end == 250 else None)
    assert ends_early(lineage, ends) == (leader.end == 250)
    assert parted_inside(lineage, {}, first_later) == 4, "it is asked for first"
    assert parted_inside(lineage, ends, first_later) == parted


def test_a_log_that_parts_below_the_first_batch_that_was_read_of_an_epoch() -> None:
    """Compaction had removed the first batches, or the reading began in the middle of the epoch."""
    lineage = read((6, 200, 299))
    for leader in (Leader((6, 100), (8, 150), end=400), Leader((5, 100), (8, 150), end=400)):
        assert leader.compare(lineage) == Parted(150)
        assert parted_inside(lineage, {6: leader.answer(6)}, None) == Parted(150)


@pytest.mark.parametrize("seed", range(300))
def test_two_replicas_part_where_their_records_do(seed: int) -> None:
    """Logs grow, are cut and grow again, always with new epochs: the answer is never above where they part."""
    random = Random(seed)
    log: list[int] = []  # the epoch of each offset
    epoch = 0
    for _ in range(random.randint(1, 6)):
        epoch += random.randint(1, 2)
        log += [epoch] * random.randint(0, 9)
    position = random.randint(0, len(log))
    passed = [(each, batch(offset)) for offset, each in enumerate(log)]
    lineage = Lineage().through(passed, position)
    other = log[: random.randint(0, len(log))]
    for _ in range(random.randint(0, 3)):
        epoch += 1
        other += [epoch] * random.randint(0, 9)
    starts = [(each, other.index(each)) for each in dict.fromkeys(other)]
    common = next((at for at, pair in enumerate(zip(log, other, strict=False)) if pair[0] != pair[1]), None)
    common = min(len(log), len(other)) if common is None else common
    parted = Leader(*starts, end=len(other)).compare(lineage)
    if common >= position:
        assert parted is None
    elif any(each <= other[-1] for each in log[:position]) if other else False:
        assert parted == Parted(common)


NO_IDS: dict[str, Any] = {"newest_entries": lambda: (), "entries_after": lambda id, limit: IndexPage((), None)}


def compacted(rig: MachineRig, now: bool) -> None:
    rig.machine.doubts.note("ada", is_compacted=now)


def committed(rig: MachineRig) -> Doubt | None:
    """The committed doubt, after a commit if there is something to commit."""
    rig.machine.commit_progress()
    progress: Progress = rig.outbox.progress
    return progress.doubt


def test_a_doubt_grows_with_each_commit_and_once_more_when_the_topic_is_corrected() -> None:
    rig = NativeRig(now_s=0)
    compacted(rig, False)
    rig.accept(50, 60)
    assert committed(rig) is None
    compacted(rig, True)
    assert committed(rig) == Doubt(2, "ada"), "at once"
    rig.accept(70)
    assert committed(rig) == Doubt(3, "ada")
    rig.accept(80)
    compacted(rig, False)
    assert committed(rig) == Doubt(4, "ada")
    rig.accept(90)
    assert committed(rig) == Doubt(4, "ada")


def test_a_doubt_ends_when_the_rows_below_its_offset_have_fired() -> None:
    rig = NativeRig(now_s=0)
    rig.accept(5, 30)
    compacted(rig, True)
    rig.machine.commit_progress()
    compacted(rig, False)
    rig.accept(6, 20)
    for second, left in ((6, True), (20, True), (30, False)):
        rig.second(second)
        assert (committed(rig) is not None) == left, second
        rig.machine.commit_progress(even_if_idle=True)
    assert rig.outbox.progress.doubt is None


def test_a_store_survives_a_crash_while_its_log_is_in_doubt() -> None:
    rig = NativeRig(now_s=0)
    compacted(rig, False)
    rig.accept(5)
    assert not rig.store.protected
    compacted(rig, True)
    assert rig.store.protected, "at once: what is accepted from now on may be compacted"
    rig.machine.commit_progress()
    compacted(rig, False)
    rig.machine.commit_progress()
    assert rig.store.protected, "the log may lack what it has"
    opened = MemoryStore()
    Doubts(opened, rig.outbox.progress)
    assert opened.protected, "also when it is opened again"
    for _ in range(2):
        rig.second(5)
        rig.machine.commit_progress(even_if_idle=True)
    assert not rig.store.protected


def test_a_doubt_of_timers_with_ids_also_waits_until_their_ids_are_forgotten() -> None:
    progress = Progress(settings=History())
    store: Any = SimpleNamespace(waiting=lambda after: iter(()), **NO_IDS)
    with_ids, without, unbounded = (Leftovers(store, Doubt(5, "ada"), each) for each in (60, 0, None))
    assert without.are_gone((100, 0))
    assert [with_ids.are_gone((second, 0)) for second in (100, 159, 160)] == [False, False, True]
    assert not unbounded.are_gone((10**9, 0))
    assert doubts.remembered_s(progress.with_setting(HOT_HORIZON, 60), 60) is None
    assert doubts.remembered_s(progress, 60) == 60


def test_a_search_stays_at_the_first_row_that_is_left_and_is_bounded(constants: Constants) -> None:
    constants(doubts, SEARCHED_ROWS=2)
    rows = {10: 9, 11: 8, 12: 7, 13: 1}
    began = []

    def waiting(after: tuple[int, int]) -> Any:
        began.append(after[0])
        return iter([((due, offset), [(offset,)]) for due, offset in rows.items() if (due, offset) > after])

    store: Any = SimpleNamespace(waiting=waiting, **NO_IDS)
    search = Leftovers(store, Doubt(5, ""), 0)
    assert [search.are_gone((0, 0)) for _ in range(4)] == [False] * 4
    assert began == [-1, 11, 12, 12], "two rows, then one, then it waits for the last"
    del rows[13]
    assert search.are_gone((0, 0))


class JournalStore(MemoryStore):
    """A store whose newest entries are apart, as those of a worker are."""

    def __init__(self) -> None:
        super().__init__()
        self.newest: dict[bytes, Entry] = {}

    def newest_entries(self) -> list[tuple[bytes, Entry]]:
        return list(self.newest.items())

    def entries(self, ids: Any) -> dict[bytes, Entry | None]:
        return super().entries(ids) | {id: self.newest[id] for id in ids if id in self.newest}


def test_a_timer_that_repeats_and_was_set_below_the_offset_keeps_the_doubt(constants: Constants) -> None:
    """A replay needs each record since it was set: an occurrence counts only if the one before it does."""
    constants(doubts, SEARCHED_ROWS=2)
    store, below = JournalStore(), defined(3, 10, b"digest")
    for number in range(5):
        store.write({}, 9, {b"other-%d" % number: (20, number, 10)})
    chain = repeated(30, 40, 20, below, is_last=False)
    store.write({}, 41, {b"other-3x": chain})
    search = Leftovers(store, Doubt(5, ""), 0)
    assert [search.are_gone((100, 0)) for _ in range(6)] == [False] * 6
    store.write({}, 42, {b"other-3x": None})
    store.newest[b"a"] = chain
    assert [search.are_gone((100, 0)) for _ in range(6)] == [False] * 6, "nor if it is among the newest"
    store.newest[b"a"] = defined(50, 40, b"digest")
    assert [search.are_gone((100, 0)) for _ in range(3)][-1], "it was set again"


@pytest.mark.parametrize(
    ("doubt", "applied", "is_compacted", "refused"),
    [
        (None, 0, False, False),
        (None, 99, True, True),
        (None, 100, True, False),
        (Doubt(80, "ada"), 79, False, True),
        (Doubt(80, "ada"), 80, False, False),
        (Doubt(80, ""), 80, False, False),
        (Doubt(80, "ada"), 80, True, True),
        (Doubt(80, "bob"), 100, False, True),
        (Doubt(80, "bob"), 100, True, True),
    ],
)
def test_a_machine_whose_store_is_not_whole_is_refused(
    doubt: Doubt | None, applied: int, is_compacted: bool, refused: bool
) -> None:
    progress = Progress(100, doubt=doubt)
    assert is_refused(progress, applied, "ada", is_compacted=is_compacted) == refused


def test_a_refusal_is_committed_once_and_keeps_the_known_worker() -> None:
    outbox = ListOutbox()
    doubts.commit_refusal(outbox, Progress(100))
    assert outbox.progress.doubt == Doubt(100, "")
    doubts.commit_refusal(outbox, outbox.progress)
    doubts.commit_refusal(outbox, Progress(120, doubt=Doubt(100, "ada")))
    assert [progress.doubt for _, _, progress in outbox.commits] == [Doubt(100, ""), Doubt(120, "ada")]


def test_a_log_that_lost_its_end_keeps_its_doubt_for_what_is_left() -> None:
    assert Progress(100, doubt=Doubt(80, "ada")).shortened(50).doubt == Doubt(50, "ada")
    assert Progress(100, doubt=Doubt(30, "ada")).shortened(50).doubt == Doubt(30, "ada")


@pytest.mark.parametrize("accepted", [False, True])
def test_the_sentence_names_the_worker_and_the_way_out(accepted: bool) -> None:
    log: Any = ProgressLog.__new__(ProgressLog)
    log._settings = SimpleNamespace(accept_loss="t/3" if accepted else "", worker_id="ada")
    progress = Progress(100, doubt=Doubt(80, "ada"))
    whole = replace(progress, doubt=None) if accepted else progress
    assert log.check_doubt(("t", 3), progress, 80, None) == whole, "an acceptance also ends a doubt of a whole store"
    if accepted:
        assert log.check_doubt(("t", 3), progress, 0, None) == replace(progress, doubt=None)
        return
    with pytest.raises(DoubtfulLog, match=r"^t/3 must be read from offset 0.*worker ada is whole.*ACCEPT_LOSS=t/3$"):
        log.check_doubt(("t", 3), progress, 0, None)
    with pytest.raises(DoubtfulLog, match=r"is compacted.*the worker that owned it before.*run this command"):
        log.check_doubt(("t", 3), Progress(100), 0, "run this command")


@pytest.mark.parametrize(("compacted", "was", "before"), [(None, "was", 80), ("run this command", "is", 100)])
@pytest.mark.parametrize("accepted", [False, True])
def test_a_store_that_read_far_enough_under_another_owner_is_refused_with_a_sentence_of_its_own(
    compacted: str | None, was: str, before: int, accepted: bool
) -> None:
    log: Any = ProgressLog.__new__(ProgressLog)
    log._settings = SimpleNamespace(accept_loss="t/3" if accepted else "", worker_id="ada")
    progress = Progress(100, doubt=Doubt(80, "bob"))
    if accepted:
        assert log.check_doubt(("t", 3), progress, 100, compacted).doubt is None
        return
    sentence = (
        f"^t/3: its topic {was} compacted, and the store here may have read its log after that, while another worker "
        f"owned it: it may lack requests below offset {before}. The store of worker bob is whole: start it with its "
        "disk.*ACCEPT_LOSS=t/3"
    )
    with pytest.raises(DoubtfulLog, match=sentence):
        log.check_doubt(("t", 3), progress, 100, compacted)


def test_progress_records_keep_the_doubt() -> None:
    progress = Progress(100, doubt=Doubt(80, "ada"))
    assert progress_record.decode(progress_record.encode(progress, b"id"))[0] == progress


def test_an_index_of_conditions_remembers_by_its_longest_retention() -> None:
    rig = MachineRig(BY_ID)
    assert rig.machine._index is not None and rig.machine._index.id_retention_s == 86_400
