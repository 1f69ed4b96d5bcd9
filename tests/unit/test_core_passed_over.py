"""Records that are passed over are in no replay, and have one dead letter, whatever fails in between."""

import hashlib

import pytest

from tests.harness.machines import NativeRig
from timers.core.passed_over import pass_over
from timers.core.ports import Lost
from timers.core.progress import PASSED_OVER, History, Progress, SettingChange
from timers.core.timer import Fetched, Rejected
from timers.wire import dead_letter
from timers.wire import progress as progress_record

LETTER = Rejected(2, dead_letter.BATCH_UNREADABLE, "why", None, b"the batch", [])


def test_a_replay_leaves_out_what_was_passed_over_also_if_it_can_be_read_now() -> None:
    rig = NativeRig(now_s=0)
    rig.accept(5, 6)
    assert pass_over(rig.machine, LETTER, 4)
    rig.ask(5, 6)  # offsets 2 and 3: another version of the worker reads them
    rig.accept(7)
    assert rig.state[1:] == (5, [(5, 0), (6, 1), (7, 4)])
    rig.machine.commit_progress()
    rig.open(wipe=True)
    rig.machine.accept(rig.fetch())
    assert rig.state[1:] == (5, [(5, 0), (6, 1), (7, 4)])
    assert rig.outbox.rejected == [(2, "batch-unreadable")]


def test_a_batch_that_was_damaged_after_it_was_accepted_is_passed_over_in_the_replay() -> None:
    rig = NativeRig(now_s=0)
    rig.accept(5, 6, 7, 8, 9)
    rig.second(5)
    before = rig.outbox.progress
    rig.open(wipe=True)
    rig.machine.accept(rig.fetch(2))
    assert rig.machine.recovering and not pass_over(rig.machine, LETTER, 4), "there is no tick yet"
    rig.observe(5)
    assert not rig.machine.commit_change(Progress.without_time), "other changes wait for the end of the replay"
    for _ in range(2):
        assert pass_over(rig.machine, LETTER, 4)
    assert rig.outbox.rejected == [(2, "batch-unreadable")]
    assert (rig.outbox.progress.next_offset, rig.outbox.progress.fired_through) == (5, before.fired_through)
    rig.machine.accept(Fetched(2, 4, []))
    rig.machine.accept(rig.fetch())
    assert not rig.machine.recovering
    assert rig.keys == [(6, 1), (9, 4)]
    for wipe in (False, True):
        rig.open(wipe=wipe)
        rig.observe(5)
        rig.read_all()
        assert rig.keys[-2:] == [(6, 1), (9, 4)]
    rig.second(9)
    assert rig.outbox.rejected == [(2, "batch-unreadable")]


def test_range_and_dead_letter_are_in_one_transaction() -> None:
    rig = NativeRig()
    assert not pass_over(rig.machine, LETTER, 4), "there is no tick yet"
    rig.observe(0)
    rig.accept(5, 6)
    rig.outbox.failing = 1
    with pytest.raises(Lost):
        pass_over(rig.machine, LETTER, 4)
    assert not rig.outbox.progress.settings.passed_over and not rig.outbox.rejected
    rig.open()
    rig.observe(0)
    for _ in range(2):  # the second time nothing is left to do
        assert pass_over(rig.machine, LETTER, 4)
    assert rig.outbox.progress.settings.passed_over == ((2, 4),)
    assert rig.outbox.rejected == [(2, "batch-unreadable")]
    assert progress_record.decode(progress_record.encode(rig.outbox.progress, b"id"))[0] == rig.outbox.progress


def test_a_range_covers_what_is_in_it() -> None:
    history = History([SettingChange(PASSED_OVER, 10, 20), SettingChange(PASSED_OVER, 30, 40)])
    covered = {(10, 20), (12, 15), (30, 31), (10, 10), (19, 19)}
    for asked in [*covered, (9, 20), (20, 20), (9, 9), (10, 21), (10, 40), (20, 30)]:
        assert history.passes_over(*asked) is (asked in covered), asked
    assert not History().passes_over(0, 1)
    records = [Rejected(offset, "", "", None, None, []) for offset in (5, 10, 19, 20, 29, 39, 40)]
    assert [each.offset for each in history.left_of(records)] == [5, 20, 29, 40]


@pytest.mark.parametrize("end, kept", [(40, ((10, 20),)), (20, ((10, 20),)), (19, ()), (5, ())])
def test_a_cut_log_has_other_records_where_some_were_passed_over(end: int, kept: tuple[tuple[int, int], ...]) -> None:
    progress = Progress(50, settings=History([SettingChange(PASSED_OVER, 10, 20)]))
    assert progress.shortened(end).settings.passed_over == kept


def test_a_dead_letter_has_as_much_of_the_batch_as_fits() -> None:
    whole = dead_letter.encode(LETTER, "t/0/2", 200_000)
    assert whole.value == b"the batch"
    raw = bytes(range(256)) * 1000
    cut = dead_letter.encode(LETTER._replace(value=raw), "t/0/2", 200_000)
    assert cut.value == raw[: 200_000 - dead_letter.OVERHEAD_BYTES]
    decoded = dead_letter.decode(cut.headers)
    assert decoded is not None
    assert (decoded.value_bytes, decoded.value_sha256) == (len(raw), hashlib.sha256(raw).hexdigest())
    assert dead_letter.size(None, cut.value, cut.headers) <= 200_000
