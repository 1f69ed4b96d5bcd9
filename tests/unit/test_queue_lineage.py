"""Which log a queue has read, and where another one parts from it. No brokers."""

from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka import Message as KafkaMessage

from tests.harness.constants import Constants
from tests.harness.queue_thread import JOBS, MESSAGES, Opened, event
from tests.harness.waiting import wait_until
from timers.core.lineage import Batch, EpochEnd, Lineage
from timers.core.progress import cut_suffix
from timers.errors import QueueError
from timers.queue import Message
from timers.queue.ledger import Ledger, passed
from timers.queue.metadata import MAX_EPOCHS, NO_START, Loaded, Saved, Start, decode, encode
from timers.queue.verification import Verification, epoch_end

SAME = ((2, 0), (4, 100), (5, 250))
READ = Lineage(SAME, Batch(299, 299, 1000, 0), 300)


def record(offset: int, epoch: int = -1, time_ms: int = 1000) -> Any:
    return KafkaMessage(topic="jobs", partition=0, offset=offset, timestamp=(2, time_ms), leader_epoch=epoch)


def truncated(end: int, epoch: int) -> Any:
    """What librdkafka 2.16 says."""
    found = f"broker end offset is {end} (offset leader epoch {epoch})."
    said = (
        f"No epoch found less or equal to offset 300 (leader epoch 5): {found} Reset using configured policy."
        if end < 0
        else f"Partition log truncation detected at offset 300 (leader epoch 5): {found} Reset to INVALID."
    )
    return event(JOBS, KafkaError._AUTO_OFFSET_RESET, said)


def end(at: int) -> Any:
    return event(JOBS, KafkaError._PARTITION_EOF, offset=at)


OUT_OF_RANGE = event(JOBS, KafkaError._AUTO_OFFSET_RESET, "fetch failed: Broker: Offset out of range")


def verification(low: int = 0, high: int = 300) -> Verification:
    made = Verification.of(Loaded(Saved(300, lineage=READ), None, low, high))
    assert made is not None
    return made


@dataclass
class SimLog:
    """A log, as (epoch, first offset) and its end."""

    epochs: list[tuple[int, int]]
    end: int
    low: int = 0

    def epoch(self, offset: int) -> int:
        return max(epoch for epoch, first in self.epochs if first <= offset)

    def end_of(self, epoch: int) -> tuple[int, int]:
        if epoch > self.epochs[-1][0]:
            return -1, -1
        newer = [first for each, first in self.epochs if each > epoch]
        return min([self.end, *newer]), max((each for each, _ in self.epochs if each <= epoch), default=epoch)

    def next(self, checked: Verification) -> Any:
        """What the step of a verification brings."""
        if checked.question is not None:
            return truncated(*self.end_of(checked.question))
        at, _ = checked.position
        if not self.low <= at <= self.end:
            return OUT_OF_RANGE
        return end(at) if at == self.end else record(at, self.epoch(at))


def found(checked: Verification, log: SimLog) -> tuple[int, int]:
    """Where a log parts, and its leader epoch below."""
    while not checked.is_over:
        assert checked.note(log.next(checked))
    assert checked.parted is not None
    return checked.parted


def parted(log: SimLog) -> tuple[int | None, int]:
    """Where a log parts, and after how many steps this is found."""
    checked = verification(log.low, log.end)
    for steps in range(1, 99):
        assert checked.note(log.next(checked))
        if checked.is_over:
            return checked.parted and checked.parted[0], steps
    raise AssertionError("it does not end")


LOGS = [
    ([*SAME], 300, None),
    ([*SAME, (7, 300)], 500, None),
    ([*SAME], 299, 299),
    ([*SAME], 270, 270),
    ([*SAME], 251, 251),
    ([*SAME, (7, 270)], 290, 270),
    ([*SAME, (7, 270)], 300, 270),
    ([*SAME, (7, 270)], 900, 270),
    ([*SAME, (7, 299)], 900, 299),
    ([*SAME[:2], (7, 200)], 900, 200),
    ([*SAME[:2]], 250, 250),
    ([*SAME[:2]], 900, 100),
    ([*SAME[:2], (7, 280)], 900, 250),
    ([*SAME[:2], (7, 280)], 281, 250),
    ([SAME[0], (3, 150), (7, 200)], 400, 100),
    ([(2, 0), (9, 1)], 400, 1),
    ([(2, 0), (9, 1)], 40, 1),
    ([(9, 0)], 400, 0),
    ([(1, 0)], 400, 0),
    ([SAME[0]], 0, 0),
]
"""Leader epochs and end of a log, and where it parts from :data:`READ`."""


@pytest.mark.parametrize(("epochs", "log_end", "parts"), LOGS)
def test_the_offset_is_found_where_a_log_parts(epochs: list[tuple[int, int]], log_end: int, parts: int | None) -> None:
    at, steps = parted(SimLog(epochs, log_end))
    assert at == parts
    assert steps == 1 if parts is None else steps <= 4


@pytest.mark.parametrize(("epochs", "log_end"), [(epochs, log_end) for epochs, log_end, parts in LOGS if parts])
def test_a_log_that_loses_its_end_again_is_another_one(epochs: list[tuple[int, int]], log_end: int) -> None:
    """The epoch below the first loss is known, also if it did not end there: markers are not seen."""
    first = found(verification(0, log_end), SimLog(epochs, log_end))
    saved = Saved(300, ((301, 350),), lineage=READ).cut(*first)
    again = [(epoch, offset) for epoch, offset in epochs if offset < first[0] // 2]
    grown = SimLog([*again, (50, first[0] // 2)], 500)
    second = Verification.of(Loaded(saved, None, 0, grown.end))
    assert second is not None and found(second, grown)[0] <= first[0] // 2
    assert saved.cut(*found(second, grown)).offset <= first[0] // 2, "all that came then is delivered"


def test_a_number_of_an_epoch_that_was_given_twice_is_found_by_the_time() -> None:
    checked, log = verification(high=400), SimLog([*SAME], 400)
    assert checked.note(record(299, 5, 1001)) and not checked.is_over
    while not checked.is_over:
        assert checked.note(log.next(checked))
    assert checked.parted == (250, 4)


def test_of_more_epochs_than_are_kept_the_whole_log_is_delivered_again() -> None:
    epochs = tuple((number, number * 10) for number in range(20, 20 + MAX_EPOCHS))
    lineage = Lineage(epochs, Batch(299, 299, 1000, 0), 300)
    checked, log = Verification(Loaded(Saved(300, lineage=lineage), None, 7, 300)), SimLog([(99, 0)], 300)
    while not checked.is_over:
        assert checked.note(log.next(checked))
    assert checked.parted == (7, -1)


def test_an_end_is_no_sign_while_the_leader_does_not_know_what_is_committed() -> None:
    checked, log = verification(high=300), SimLog([*SAME], 300)
    assert checked.note(end(290)) and checked.question == 5
    assert not checked.note(record(299, 5)) and not checked.note(end(300)), "the question waits for its answer"
    assert checked.note(log.next(checked)) and not checked.is_over
    assert checked.position == (299, -1), "the record is read again"
    assert checked.note(record(299, 5)) and checked.is_over and checked.parted is None
    assert not checked.note(record(300, 5)), "it is over"
    gone = verification(high=400)
    assert gone.note(end(400)) and gone.question == 5


def test_a_log_is_verified_by_its_epochs_if_retention_deleted_the_last_record() -> None:
    assert Verification.of(Loaded(Saved(300), None, 0, 400)) is None, "no epoch is known"
    for log, parts in [(SimLog([*SAME], 400, low=350), None), (SimLog([(4, 100), (7, 200)], 400, low=350), (200, 4))]:
        checked = verification(log.low, log.end)
        assert checked.question == 5 and checked.position[0] < 0
        assert checked.note(log.next(checked)) and checked.is_over and checked.parted == parts
    meanwhile = verification(high=400)
    assert meanwhile.note(OUT_OF_RANGE) and meanwhile.question == 5
    assert meanwhile.note(truncated(*SimLog([*SAME], 400).end_of(5))) and meanwhile.is_over and meanwhile.parted is None


def test_a_broker_without_answers_is_taken_to_agree() -> None:
    whole, shorter = verification(high=400), verification(high=200)
    for checked in (whole, shorter):
        while not checked.is_over:
            assert checked.note(OUT_OF_RANGE)
    assert (whole.parted, shorter.parted) == (None, (0, -1)), "the shorter log is another one"


def test_only_an_event_of_a_truncation_has_the_end_of_an_epoch() -> None:
    assert epoch_end(truncated(150, 4).error().str()) == EpochEnd(4, 150)
    assert epoch_end(truncated(-1, -1).error().str()) == EpochEnd(-1, -1)
    assert epoch_end(OUT_OF_RANGE.error().str()) is None


def test_what_was_passed_above_the_last_record_is_read_again() -> None:
    """Markers above it may be lost, and messages may have their offsets."""
    saved = Saved(90, ((91, 305),), lineage=READ)
    ledger = Ledger(Loaded(saved, None, 0, 400).known, log_end=400)
    assert ledger.read(90, "a") and not ledger.read(299, "b") and ledger.position == 300
    ledger.pass_record(passed(record(300, 6)))
    ledger.pass_holes(310)
    ledger.verify()
    assert ledger.place == (301, 6)
    fresh = Ledger(Saved(5))
    fresh.verify()
    assert fresh.place == (5, -1), "nothing was read"


def test_a_new_leader_epoch_is_followed_after_the_log_was_verified() -> None:
    ledger = Ledger(Saved(300, lineage=READ))
    assert ledger.follows(passed(record(300, 5))) and not ledger.follows(passed(record(200, 6)))
    assert not ledger.follows(passed(record(300, 6)))
    ledger.verify()
    assert ledger.follows(passed(record(300, 6)))
    assert not ledger.follows(passed(record(300, 7))), "each new epoch is verified"
    assert passed(record(3)) == (-1, Batch(3, 3, 1000, 0)), "a broker that tells no epoch"


@pytest.mark.parametrize("time_ms", [-86_400_000, -2, -1, 0, 2**62])
def test_a_log_is_the_same_whatever_time_the_producer_of_its_last_record_gave(time_ms: int) -> None:
    """librdkafka sends times before 1970, and brokers take them: anyone may write one to the topic of a queue."""
    ledger = Ledger(Saved(0))
    ledger.pass_record(passed(record(19, 1, time_ms)))
    saved = decode(encode(Saved(20, lineage=ledger.lineage), "log") or "", "log", 20)
    restored = Verification.of(Loaded(saved, None, 0, 20))
    assert restored is not None and restored.note(record(19, 1, time_ms))
    assert (restored.is_over, restored.parted) == (True, None)


def test_a_last_record_that_cannot_be_read_any_more_is_not_waited_for() -> None:
    """A disk has damaged its batch: only the epochs can be compared."""
    restored = verification()
    assert restored.note(event(JOBS, KafkaError._BAD_COMPRESSION, "Decompression failed", 299))
    assert restored.question == 5
    assert restored.note(truncated(300, 5))
    assert (restored.is_over, restored.parted) == (True, None)


def test_an_epoch_begins_after_the_last_record_before_it() -> None:
    """Markers of the new epoch are not seen. A log that parts at one of them may have messages in their place."""
    ledger = Ledger(Saved(0))
    for each in (record(5, 1), record(15, 1), record(18, 2), record(19, 2), record(19, 2)):
        ledger.pass_record(passed(each))
    assert ledger.lineage == Lineage(((1, 5), (2, 16)), Batch(19, 19, 1000, 0), 20)
    restored = Verification.of(Loaded(Saved(20, lineage=ledger.lineage), None, 0, 20))
    assert restored is not None and restored.note(record(19, 1))
    assert restored.note(truncated(-1, -1)) and restored.note(truncated(20, 1)) and restored.parted == (0, -1)


def test_metadata_have_the_newest_epochs() -> None:
    epochs = tuple((number, number * 10) for number in range(20))
    saved = Saved(300, lineage=READ._replace(epochs=epochs))
    found = decode(encode(saved, "log") or "", "log", 300)
    assert found == saved._replace(lineage=READ._replace(epochs=epochs[-MAX_EPOCHS:]))


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
    assert saved.cut(150, 4) == Saved(
        100,
        ((110, 120), (130, 150)),
        {125: 2},
        Start(140, 150, 4),
        150,
        {140: 1},
        {},
        Lineage(SAME[:2], None, 150),
        ((150, 1),),
    )
    below = saved.below(90)
    assert (below.offset, below.done, below.start, below.suspects_end, below.cuts) == (90, (), NO_START, 90, ())


def test_what_is_known_of_the_log_below_a_cut() -> None:
    """The epoch before the cut may have markers only, which are not seen."""
    saved = Saved(300, lineage=READ)
    assert saved.cut(150, 4).lineage == Lineage(SAME[:2], None, 150)
    assert saved.cut(260, 6).lineage == Lineage((*SAME, (6, 259)), None, 260)
    assert saved.cut(260, -1).lineage == Lineage((), None, 260)
    assert Saved(0).cut(150, 4).lineage == Lineage(((4, 149),), None, 150), "what is read again from 0 on is below it"
    assert saved.cut(300, 5).lineage == saved.cut(310, -1).lineage == READ, "the last record is below the cut"
    lost_again = Verification.of(Loaded(saved.cut(260, 6), None, 0, 400))
    assert lost_again is not None and lost_again.question == 6
    assert lost_again.note(truncated(255, 5)) and lost_again.parted == (255, 5)


def test_sources_carry_the_number_of_the_last_cut_below_them() -> None:
    twice = Saved(170, lineage=READ).cut(150, 4).cut(180, 4)
    assert [cut_suffix(twice.cuts, at) for at in (149, 150, 179, 180, 999)] == ["", "~1", "~1", "~2", "~2"]
    assert [cut_suffix(twice.cut(100, 2).cuts, at) for at in (99, 100, 150, 180)] == ["", "~3", "~3", "~3"]
    assert decode(encode(twice, "log") or "", "log", 150).cuts == twice.cuts
    later = twice._replace(offset=180)
    assert decode(encode(later, "log") or "", "log", 180).cuts == ((180, 2),)


def test_a_record_that_is_read_again_in_another_epoch_is_verified_first() -> None:
    """The log may lose its end after it was loaded, and grow again: the record is another one."""
    ledger = Ledger(Saved(200, lineage=READ))
    assert ledger.follows(passed(record(240, 4))) and ledger.follows(passed(record(299, 5)))
    assert not ledger.follows(passed(record(240, 6)))
    ledger.verify()
    assert ledger.follows(passed(record(240, 6)))
    newest = Ledger(Saved(200, lineage=READ._replace(epochs=SAME[2:])))
    assert newest.follows(passed(record(240, 4))), "older epochs are not kept"


def test_what_cannot_be_compared_is_not_verified() -> None:
    """No question is left, so it would not end: the partition would never be delivered."""
    assert Verification.of(Loaded(Saved(9, lineage=Lineage(((1, 8),))), None, 0, 20)) is None


# ---- commits with copies ---------------------------------------------------------------------------------------------


@pytest.fixture
def copies_at_once(constants: Constants) -> None:
    """Each commit writes copies and checks the logs. Use it before a queue: its first commit sets the next time."""
    constants("timers.queue.member", _COPY_S=0.0)


def test_a_topic_that_was_created_again_ends_the_queue(queue: Opened) -> None:
    queue.call(queue.transport.assigned, [JOBS])
    queue.transport.is_recreated = True
    with pytest.raises(QueueError, match="created again"):
        # Messages may be received before the topics are checked.
        wait_until(lambda: queue.driver.receive(Message, 1, 0.1) is None, "the error")


@pytest.mark.usefixtures("copies_at_once")
def test_an_ordered_queue_says_that_its_order_has_ended(constants: Constants, caplog: pytest.LogCaptureFixture) -> None:
    opened = Opened(ordered=True)
    try:
        opened.transport.added = 2
        wait_until(lambda: "topic jobs has 2 more partitions" in caplog.text, "it")
    finally:
        opened.close()


@pytest.mark.usefixtures("copies_at_once")
def test_messages_that_retention_deletes_before_they_are_done_are_said(
    queue: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    queue.transport.low = 3
    queue.call(queue.transport.assigned, [JOBS])
    queue.receive(MESSAGES)
    wait_until(
        lambda: "jobs/0: messages from 0 on are not done, and retention deleted all below 3" in caplog.text, "it"
    )
    assert queue.transport.deleted == {}


@pytest.mark.usefixtures("copies_at_once")
def test_done_messages_of_the_returns_topic_are_deleted(queue: Opened) -> None:
    returns = ("queue.jobs-returns", 0)
    queue.call(queue.transport.assigned, [returns])
    for message in queue.receive(MESSAGES)[:3]:
        message.ack()
    wait_until(lambda: queue.transport.deleted == {returns: 3}, "the deletion")
