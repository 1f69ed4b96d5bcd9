"""Which lost timers an audit cannot judge, and which requests it does not see: without Spark and Kafka."""

from dataclasses import replace

import pytest

from timers.core.fired import PAUSE, Hold, Holds, Moment
from timers.core.keys import MAX_OFFSET
from timers.core.progress import Progress
from timers.spark.audit import gaps
from timers.spark.audit.gaps import (
    HELD,
    MOVED,
    NO_LETTERS,
    NO_TOPIC,
    OPEN_TRANSACTION,
    RECORDS_DELETED,
    Gap,
    Gaps,
    Scope,
    Span,
    Timer,
)
from timers.wire.key_partition import partitions_of

DUE = 1_700_000_000
KEY = b"order-1"
(MINE,) = partitions_of([KEY], 4)
OTHER = (MINE + 1) % 4
BEFORE, AFTER, NOW = DUE * 1000, DUE * 1000 + 1, (DUE + 1000) * 1000


def timer(
    *,
    topic: str | None = "orders",
    key: bytes | None = KEY,
    offset: int = 6,
    moved: bool = False,
    record_key: bytes | None = b"%d" % DUE,
    due_s: int | None = DUE,
    accepted_ms: int = BEFORE - 5000,
    cold: bool = False,
) -> Timer:
    return Timer("requests", topic, key, offset, moved, record_key, 3, due_s, accepted_ms, cold)


def gaps_of(
    callbacks: dict[int, Gap] | None = None, letters: dict[int, Gap] | None = None, retries: Gap | None = None
) -> Gaps:
    return Gaps({"orders": (4, callbacks or {}), "dead": (2, letters or {})}, "dead", retries, NOW)


def test_a_timer_is_lost_if_all_records_are_visible() -> None:
    assert gaps_of().why(timer()) is None


@pytest.mark.parametrize(
    ("partition", "until_ms", "why"),
    [(MINE, AFTER, RECORDS_DELETED), (MINE, BEFORE, None), (OTHER, NOW, None)],
    ids=["deleted since", "deleted before", "deleted in another partition"],
)
def test_deleted_callbacks_count_by_partition_and_age(partition: int, until_ms: int, why: str | None) -> None:
    assert gaps_of({partition: Gap(until_ms, RECORDS_DELETED)}).why(timer()) == why


@pytest.mark.parametrize("cold", [False, True])
def test_a_timer_that_is_held_is_not_lost(cold: bool) -> None:
    begun = Moment(6, (DUE - 9, MAX_OFFSET), 0)
    hold = Hold("orders", PAUSE, 1, begun, DUE - 9)
    progress = Progress(20, (DUE, MAX_OFFSET)).with_holds(Holds([hold]))
    known = replace(gaps_of(), progress={("requests", 3): progress, ("retries", 0): progress}, retry_topic="retries")
    assert known.is_held(timer(cold=cold))
    assert known.why(timer(moved=True)) == HELD
    assert not known.is_held(timer(due_s=DUE + 1)), "its second has not begun for the machine: it is late"
    assert not known.is_held(timer(topic="other"))
    assert not known.is_held(timer(due_s=DUE - 9, offset=5)), "it was due before the pause"
    assert not gaps_of().is_held(timer())


def test_a_late_request_cannot_have_fired_before_it_was_accepted() -> None:
    gone = gaps_of({MINE: Gap(AFTER, RECORDS_DELETED)})
    assert gone.why(timer(accepted_ms=AFTER - 1)) == RECORDS_DELETED
    assert gone.why(timer(accepted_ms=AFTER)) is None


def test_a_callback_without_a_key_goes_to_the_partition_of_its_offset() -> None:
    gone = gaps_of({2: Gap(NOW, RECORDS_DELETED)})
    assert gone.why(timer(key=None, offset=6)) == RECORDS_DELETED
    assert gone.why(timer(key=None, offset=7)) is None
    assert gone.why(timer(key=None, offset=7, moved=True)) == RECORDS_DELETED, (
        "its offset on the retry topic is not known"
    )


def test_dead_letters_may_be_gone_too() -> None:
    (partition,) = partitions_of([b"%d" % DUE], 2)
    assert gaps_of(letters={partition: Gap(NOW, RECORDS_DELETED)}).why(timer()) == NO_LETTERS
    assert gaps_of(letters={1 - partition: Gap(NOW, RECORDS_DELETED)}).why(timer()) is None
    rejected = timer(topic=None, key=None, due_s=None, record_key=None)
    assert gaps_of(letters={1: Gap(rejected.accepted_ms + 1, RECORDS_DELETED)}).why(rejected) == NO_LETTERS
    assert gaps_of(letters={1: Gap(rejected.accepted_ms, RECORDS_DELETED)}).why(rejected) is None


def test_topics_that_do_not_exist_show_nothing() -> None:
    assert gaps_of().why(timer(topic="nowhere")) == NO_TOPIC
    without_letters = Gaps({"orders": (4, {})}, "dead", None, NOW)
    assert without_letters.why(timer()) == NO_LETTERS


def test_what_was_moved_to_another_app_is_not_called_lost() -> None:
    moved = replace(gaps_of(), moved={("requests", 3): 7, ("requests", 2): 99})
    assert moved.why(timer(offset=6)) == MOVED
    assert moved.why(timer(offset=7)) is None, "it was requested after the move"


def test_a_timer_may_have_been_put_off_in_an_open_transaction() -> None:
    assert gaps_of(retries=Gap(NOW, OPEN_TRANSACTION)).why(timer()) == OPEN_TRANSACTION


def test_requests_that_do_not_exist_any_more_are_named_only_in_scope() -> None:
    def codes(scope: Scope, start: int, log_start: int) -> list[str]:
        span = Span({"requests": {0: start}}, {"requests": {0: 90}}, {"requests": {0: 90}})
        found = gaps.deleted_requests(scope, span, {"requests": {0: log_start}}, ["requests"])
        return [each.code for each in found]

    assert codes(Scope(), 0, 0) == []
    assert codes(Scope(), 10, 10) == [RECORDS_DELETED]
    assert codes(Scope(from_ms=5), 11, 10) == [], "a record before the scope is left"
    assert codes(Scope(ranges={"requests": {0: range(10, 20)}}), 10, 10) == []
    assert codes(Scope(ranges={"requests": {0: range(9, 20)}}), 10, 10) == [RECORDS_DELETED]


def test_requests_behind_an_open_transaction_are_named_only_in_scope() -> None:
    def codes(scope: Scope, scope_end: int, high: int) -> list[str]:
        span = Span({"requests": {0: 0}}, {"requests": {0: 90}}, {"requests": {0: scope_end}})
        return [each.code for each in gaps.open_requests(scope, span, {"requests": {0: high}})]

    assert codes(Scope(), 90, 90) == []
    assert codes(Scope(), 90, 93) == [OPEN_TRANSACTION]
    assert codes(Scope(to_ms=5), 80, 93) == []
    assert codes(Scope(ranges={"requests": {0: range(90)}}), 90, 93) == []
    assert codes(Scope(ranges={"requests": {0: range(91)}}), 90, 93) == [OPEN_TRANSACTION]
