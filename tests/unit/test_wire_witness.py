"""The second witness of a progress: what it says, when it is sent, and which progress is behind it [I8]."""

import pytest

from timers.core.keys import MAX_OFFSET
from timers.core.levels import FIRST_LEVEL
from timers.core.progress import FEATURE_LEVEL, LOG_CUT, WITNESS_S, Progress
from timers.machines.firing.transaction import QUIET_WITNESS_S, WitnessClock
from timers.wire.progress import decode_witness, encode_witness

TOPIC_ID = bytes(range(16))


def test_a_witness_is_read_as_it_was_written() -> None:
    for progress in (Progress(), Progress(7, (900, MAX_OFFSET)), Progress(7).with_setting(FEATURE_LEVEL, 9)):
        assert decode_witness(encode_witness(progress, TOPIC_ID)) == (progress.witness, TOPIC_ID)


@pytest.mark.parametrize("text", [None, "", "lag-tool v2", "timers-progress-1 00", "timers-progress-1 x 1 2 3 4 5 6"])
def test_other_metadata_say_nothing(text: str | None) -> None:
    assert decode_witness(text) is None


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        (Progress(), Progress(1)),
        (Progress(5, (7, 3)), Progress(6, (7, 3))),
        (Progress(5, (7, 3)), Progress(5, (7, 4))),
        (Progress(5), Progress(5).with_setting(FEATURE_LEVEL, FIRST_LEVEL + 1)),
        (Progress(300, (7, 3)), Progress(300, (7, 3)).shortened(150)),
    ],
)
def test_a_progress_that_says_less_is_behind_and_the_larger_values_count(older: Progress, newer: Progress) -> None:
    assert older.is_behind(newer.witness)
    assert not newer.is_behind(older.witness)
    assert not newer.is_behind(newer.witness)
    known = older.at_least(newer.witness)
    assert not known.is_behind(newer.witness) and not known.is_behind(older.witness)
    assert newer.at_least(older.witness) == newer


def test_a_time_that_was_taken_back_is_not_behind() -> None:
    before = Progress(7, (900, 3))
    repaired = before.without_time()
    assert not repaired.is_behind(before.witness)
    assert repaired.at_least(before.witness) == repaired
    later = Progress(8, (10, 7), repaired.settings)
    assert repaired.is_behind(later.witness) and not later.is_behind(repaired.witness)
    assert Progress(8, (9, 7), repaired.settings).is_behind(later.witness)
    assert before.is_behind(later.witness), "the record of the repair was lost"
    assert before.at_least(later.witness) == Progress(8, (900, 3)), "what a wrong clock fired has fired"


def test_a_log_that_was_cut_is_not_behind_what_was_known_before() -> None:
    before = Progress(300, (900, 3)).without_time()
    cut = before.shortened(150)
    assert not cut.is_behind(before.witness) and not cut.is_behind(Progress(300, (900, 3)).witness)
    assert before.at_least(cut.witness).largest(LOG_CUT) == 1


def test_the_group_gets_a_witness_every_few_seconds_however_often_requests_come() -> None:
    clock = WitnessClock()

    def commit(progress: Progress, now_s: float) -> bool:
        is_due = clock.is_due(progress, now_s)
        clock.note(progress)
        if is_due:
            clock.note_tried(now_s, sent=True)
        return is_due

    assert commit(Progress(5), 100), "a new owner tells it with its first commit"
    assert not commit(Progress(5), 100 + WITNESS_S), "nothing has changed"
    assert not commit(Progress(6, (7, 3)), 100 + WITNESS_S - 0.1), "lag tools wait for new offsets, too"
    assert clock.left() is not None
    assert commit(Progress(6, (7, 3)), 100 + WITNESS_S)
    assert clock.left() is None
    assert not commit(Progress(7, (7, 3)), 101 + WITNESS_S)
    assert not clock.is_old(100 + WITNESS_S + QUIET_WITNESS_S - 0.1)
    assert clock.is_old(100 + WITNESS_S + QUIET_WITNESS_S), "before a transaction with callbacks must tell it"
    assert QUIET_WITNESS_S < WITNESS_S


def test_while_the_coordinator_is_away_it_is_tried_every_few_seconds() -> None:
    clock = WitnessClock()
    clock.note(Progress(5))
    clock.note_tried(100, sent=False)
    assert not clock.is_old(100 + QUIET_WITNESS_S - 0.1) and clock.is_old(100 + QUIET_WITNESS_S)
    assert clock.left() is not None


def test_a_machine_that_has_committed_nothing_has_nothing_to_tell() -> None:
    clock = WitnessClock()
    assert not clock.is_old(200) and clock.left() is None
