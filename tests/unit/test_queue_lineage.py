"""Which log a queue has read, and where another one parts from it. No brokers."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from confluent_kafka import KafkaError

from timers.core.progress import cut_suffix
from timers.queue.lineage import MAX_EPOCHS, NEW, Last, Lineage, parted_at
from timers.queue.loading import Loaded, Verification
from timers.queue.metadata import Saved
from timers.queue.starts import NOTHING, Start

LAST = Last(299, 5, 1000)
READ = Lineage(LAST, ((2, 0), (4, 100), (5, 250)))


@dataclass
class Record:
    """A record of confluent-kafka; with a code an event."""

    at: int
    epoch: int | None = None
    time_ms: int = 1000
    code: int = 0
    said: str = ""

    def error(self) -> KafkaError | None:
        return KafkaError(self.code, self.said) if self.code else None

    def offset(self) -> int:
        return self.at

    def leader_epoch(self) -> int | None:
        return self.epoch

    def timestamp(self) -> tuple[int, int]:
        return 2, self.time_ms


def truncated(end: int, epoch: int) -> Record:
    """What librdkafka 2.16 says."""
    said = (
        f"Partition log truncation detected at offset 300 (leader epoch 5): broker end offset is {end} (offset leader "
        f"epoch {epoch}). Reset to INVALID.: Local: Partition log truncation detected (broker 1)"
    )
    return Record(-1, code=KafkaError._AUTO_OFFSET_RESET, said=said)


def end(at: int) -> Record:
    return Record(at, code=KafkaError._PARTITION_EOF)


OUT_OF_RANGE = Record(-1, code=KafkaError._AUTO_OFFSET_RESET, said="fetch failed: Broker: Offset out of range")


def verification(low: int = 0, high: int = 300) -> Verification:
    made = Verification.of(Loaded(Saved(300, lineage=READ), None, low, high))
    assert made is not None
    return made


def test_the_last_record_and_the_epochs_before_it_are_kept() -> None:
    lineage = NEW
    for offset, epoch in [(3, 2), (4, 2), (7, 4), (9, 4)]:
        lineage = lineage.through(Last(offset, epoch, offset * 10))
    assert lineage == Lineage(Last(9, 4, 90), ((2, 3), (4, 7)))
    assert lineage.through(Last(7, 4, 70)) is lineage, "it was read again"
    assert [lineage.epoch_before(at) for at in (3, 4, 7, 8, 9, 10, 99)] == [-1, 2, 2, 4, 4, 4, 4]
    for number in range(5, 30):
        lineage = lineage.through(Last(number * 10, number, 0))
    assert len(lineage.epochs) == MAX_EPOCHS and lineage.epochs[-1] == (29, 290)
    assert NEW.through(Last(3, -1, 0)) == Lineage(Last(3, -1, 0)), "a broker without epochs"


@pytest.mark.parametrize(
    ("found", "parts"),
    [
        (LAST, None),
        (Last(299, 6, 1000), 299),
        (Last(300, 6, 1000), 299),
        (Last(299, 4, 1000), 250),
        (Last(299, 3, 1000), 100),
        (Last(299, 1, 1000), 0),
        (Last(299, 5, 1001), 250),
        (Last(299, -1, 0), None),
    ],
    ids=["same", "later epoch", "gone", "older epoch", "older still", "oldest", "epoch given twice", "no epochs"],
)
def test_the_first_record_says_where_the_log_parts(found: Last, parts: int | None) -> None:
    assert READ.parted_by(found) == parts


@dataclass
class SimLog:
    """A log, as (epoch, first offset) and its end. ``answers``: librdkafka asks for the end of an epoch first."""

    epochs: list[tuple[int, int]]
    end: int
    low: int = 0
    answers: bool = False

    def epoch(self, offset: int) -> int:
        return max(epoch for epoch, first in self.epochs if first <= offset)

    def end_of(self, epoch: int) -> tuple[int, int]:
        if epoch > self.epochs[-1][0]:
            return -1, -1
        newer = [first for each, first in self.epochs if each > epoch]
        return min([self.end, *newer]), max((each for each, _ in self.epochs if each <= epoch), default=-1)

    def read(self, position: tuple[int, int]) -> Record:
        at, epoch = position
        answer = self.end_of(epoch)
        if self.answers and epoch >= 0 and answer[0] < at:
            return truncated(*answer)
        if not self.low <= at <= self.end:
            return OUT_OF_RANGE
        return end(at) if at == self.end else Record(at, self.epoch(at))


def parted(log: SimLog) -> tuple[int | None, int]:
    """Where a log parts, and after how many reads this is found."""
    checked = verification(log.low, log.end)
    for reads in range(1, 99):
        assert checked.note(log.read(checked.position))
        assert not checked.is_stale
        if checked.is_over:
            return checked.at, reads
    raise AssertionError("it does not end")


SAME = [(2, 0), (4, 100), (5, 250)]


@pytest.mark.parametrize("answers", [False, True])
@pytest.mark.parametrize(
    ("epochs", "log_end", "parts"),
    [
        (SAME, 300, None),
        ([*SAME, (7, 300)], 500, None),
        (SAME, 299, 299),
        (SAME, 270, 270),
        (SAME, 251, 251),
        ([*SAME, (7, 270)], 290, 270),
        ([*SAME, (7, 270)], 300, 270),
        ([*SAME, (7, 270)], 900, 270),
        ([*SAME, (7, 299)], 900, 299),
        ([*SAME[:2], (7, 200)], 900, 200),
        (SAME[:2], 900, 250),
        ([*SAME[:2], (7, 280)], 900, 250),
        ([*SAME[:2], (7, 280)], 281, 250),
        ([SAME[0], (3, 150), (7, 200)], 400, 100),
        ([(2, 0), (9, 1)], 400, 1),
        ([(2, 0), (9, 1)], 40, 1),
        ([(9, 0)], 400, 0),
        ([(1, 0)], 400, 0),
        (SAME[:1], 0, 0),
    ],
)
def test_the_offset_is_found_at_which_a_log_parts(
    epochs: list[tuple[int, int]], log_end: int, parts: int | None, answers: bool
) -> None:
    at, reads = parted(SimLog(epochs, log_end, answers=answers))
    assert at == parts
    assert reads <= 12, "a read takes some milliseconds"


def test_a_number_of_an_epoch_that_was_given_twice_is_found_by_the_time() -> None:
    checked = verification(high=400)
    assert checked.note(Record(299, 5, 1001)) and (checked.is_over, checked.at) == (True, 250)


def test_of_more_epochs_than_are_kept_the_whole_log_is_delivered_again() -> None:
    epochs = tuple((number, number * 10) for number in range(20, 20 + MAX_EPOCHS))
    loaded = Loaded(Saved(300, lineage=Lineage(Last(299, 27, 1000), epochs)), None, 7, 300)
    checked = Verification.of(loaded)
    assert checked is not None
    while not checked.is_over:
        assert checked.note(Record(checked.position[0], 99))
    assert checked.at == 7


def test_an_end_is_no_sign_while_the_leader_does_not_know_what_is_committed() -> None:
    checked = verification(high=300)
    assert not checked.note(end(290)) and not checked.is_over
    assert checked.note(Record(299, 5)) and checked.at is None
    gone = verification(high=400)
    assert gone.note(end(400)) and gone.position[0] < 299 and not gone.is_over


def test_a_record_that_retention_deleted_cannot_be_verified() -> None:
    assert Verification.of(Loaded(Saved(300, lineage=READ), None, 300, 400)) is None
    assert Verification.of(Loaded(Saved(300), None, 0, 400)) is None
    late = verification(high=400)
    assert late.note(OUT_OF_RANGE) and late.is_stale and not late.is_over
    while_searched = verification(high=200)
    assert while_searched.note(OUT_OF_RANGE) and while_searched.position[0] < 200
    assert while_searched.note(OUT_OF_RANGE) and while_searched.is_stale


def test_only_an_event_of_a_truncation_says_where_a_log_ends() -> None:
    assert parted_at(truncated(150, 4).said) == (150, 4)
    assert parted_at(truncated(-1, -1).said) == (-1, -1)
    assert parted_at(OUT_OF_RANGE.said) is None


def test_above_a_cut_nothing_is_done_or_tried() -> None:
    saved = Saved(
        100,
        ((110, 120), (130, 160), (170, 180)),
        {125: 2, 165: 3},
        Start(140, 170, 4),
        168,
        {140: 1, 168: 1},
        {150: 7},
        READ,
    )
    assert saved.cut(150) == Saved(
        100,
        ((110, 120), (130, 150)),
        {125: 2},
        Start(140, 150, 4),
        150,
        {140: 1},
        {},
        Lineage(None, ((2, 0), (4, 100)), ((150, 1),)),
    )
    below = saved.cut(90)
    assert (below.offset, below.done, below.start, below.suspects_end) == (90, (), NOTHING, 90)


def test_sources_carry_the_number_of_the_last_cut_below_them() -> None:
    once = READ.cut(150)
    twice = once.through(Last(200, 7, 0)).cut(180)
    assert [cut_suffix(twice.cuts, at) for at in (149, 150, 179, 180, 999)] == ["", "~1", "~1", "~2", "~2"]
    assert [cut_suffix(twice.cut(100).cuts, at) for at in (99, 100, 150, 180)] == ["", "~3", "~3", "~3"]
    assert twice.below(170).cuts == twice.cuts and twice.below(180).cuts == ((180, 2),)
