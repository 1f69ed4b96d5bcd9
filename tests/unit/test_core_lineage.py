"""Which log a position belongs to, and where another log parts from it."""

from bisect import bisect_right
from random import Random

import pytest

from timers.core.lineage import MAX_EPOCHS, Batch, EpochEnd, Lineage, Parted, ends_early, next_question, parted_inside


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
