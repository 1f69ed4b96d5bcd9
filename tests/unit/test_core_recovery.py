"""Recovery of a machine: which requests it reads again, and which output it does not repeat."""

from dataclasses import replace

import pytest

from tests.harness.machines import LIMITS, NativeRig
from timers.core.keys import MAX_OFFSET, NOTHING_FIRED
from timers.core.limits import Limits
from timers.core.lineage import Lineage, RecordCount
from timers.core.ports import ReadAgain
from timers.core.progress import MAX_REQUEST_BYTES, Doubt, History, Progress, SettingChange
from timers.core.store_validity import catch_up
from timers.errors import LogMismatch
from timers.kafka.request_formats import NATIVE

# ---- opening and recovery -------------------------------------------------------------------------------------------


def test_recovery_fires_nothing_and_emits_nothing() -> None:
    rig = NativeRig(progress=Progress(next_offset=4, fired_through=(6, 1)))
    rig.ask(6, 6, 6, 3)
    rig.log.append(rig.topic, b"9", None, partition=0)
    rig.observe(100)
    assert rig.machine.recovering
    assert rig.machine.may_accept, "a replay needs no clock, and here there is one"
    rig.machine.accept(rig.fetch(count=2))
    rig.fire()
    assert not rig.machine.commit_progress(even_if_idle=True)
    assert rig.outbox.commits == []
    rig.machine.accept(rig.fetch(count=2))
    assert not rig.machine.recovering
    assert rig.outbox.commits == []
    assert rig.state[2] == [(6, 2)], "what was fired, or was late then, is not pending"
    rig.fire()
    assert rig.outbox.fired == [(6, 2)]


def test_a_fetch_may_span_the_end_of_the_replay() -> None:
    rig = NativeRig(progress=Progress(next_offset=2, fired_through=(6, MAX_OFFSET)))
    rig.ask(5, 7, 5, 8)
    with pytest.raises(ReadAgain) as wait:
        rig.machine.accept(rig.fetch())
    assert wait.value.position == 2, "the new part waits for a tick"
    assert rig.state[1:] == (2, [(7, 1)])
    rig.observe(6)
    rig.machine.accept(rig.fetch())
    assert (rig.outbox.fired, rig.state[2]) == ([(5, 2)], [(7, 1), (8, 3)])


def test_the_next_commit_includes_requests_that_only_the_store_holds() -> None:
    """[I1]: stored requests may fire, so next_offset on opening is above them."""
    rig = NativeRig(now_s=0)
    rig.accept(5)
    rig.accept(6)
    assert rig.outbox.progress.next_offset == 1
    rig.open()
    assert not rig.machine.recovering
    rig.second(6)
    settings, lineage = rig.machine.progress.settings, rig.machine.lineages[0]
    assert rig.outbox.progress == Progress(2, (6, MAX_OFFSET), settings, lineage)
    assert lineage.end == 2


def test_requests_that_another_owner_had_not_read_are_read_again_and_fire_late() -> None:
    """The requests were accepted here without a commit; then another owner committed a later time."""
    rig = NativeRig(now_s=0)
    rig.accept(50)
    rig.accept(5, 60)
    assert rig.outbox.progress.next_offset == 1
    rig.outbox.progress = Progress(1, (10, MAX_OFFSET), rig.outbox.progress.settings)
    rig.open()
    assert rig.state[1:] == (1, [(50, 0)])
    rig.observe(10)
    rig.machine.accept(rig.fetch())
    assert (rig.outbox.fired, rig.state[2]) == ([(5, 1)], [(50, 0), (60, 2)])


def test_an_index_behind_the_progress_of_another_owner_is_rebuilt() -> None:
    """An index holds only the last version of each id, so it cannot go back to an earlier one."""
    rig = NativeRig(now_s=0)
    rig.accept(50)
    rig.accept(5, 60)
    progress = Progress(1, (10, MAX_OFFSET), rig.outbox.progress.settings)
    assert catch_up(rig.store, replace(progress, next_offset=3), indexed=True)
    assert not catch_up(rig.store, replace(progress, next_offset=1, fired_through=(60, MAX_OFFSET)), indexed=True)


# ---- settings, [I4] -------------------------------------------------------------------------------------------------


def test_a_changed_setting_is_committed_with_the_offset_from_which_it_applies() -> None:
    rig = NativeRig(now_s=0)
    rig.accept(5)
    rig.open(limits=Limits(1000, 10**6, max_request_bytes=10))
    rig.observe(0)
    rig.accept(5)
    history = (SettingChange(MAX_REQUEST_BYTES, 0, 100), SettingChange(MAX_REQUEST_BYTES, 1, 10))
    assert rig.outbox.progress.settings == history, "durable, although the batch itself emitted nothing"
    rig.ask(5, value=bytes(20))
    rig.machine.accept(rig.fetch())
    assert rig.outbox.rejected == [(2, "value-too-large")]


def test_a_replay_uses_the_settings_of_the_first_read() -> None:
    settings = History([SettingChange(MAX_REQUEST_BYTES, 0, 100), SettingChange(MAX_REQUEST_BYTES, 1, 10)])
    rig = NativeRig(progress=Progress(2, NOTHING_FIRED, settings))
    rig.ask(5, 5, value=bytes(20))
    rig.machine.accept(rig.fetch())
    assert rig.state[2] == [(5, 0)]


def test_the_limit_of_a_format_counts_from_the_offset_at_which_it_was_first_used() -> None:
    """As that of the retry topic: an older worker has judged its records with the setting."""
    rig = NativeRig(NATIVE._replace(own_max_request_bytes=5000))
    rig.open(request_format=NATIVE)
    rig.observe(0)
    rig.ask(5, value=bytes(200))
    rig.machine.accept(rig.fetch())
    rig.open(request_format=NATIVE._replace(own_max_request_bytes=5000))
    rig.observe(0)
    rig.ask(5, value=bytes(200))
    rig.machine.accept(rig.fetch())
    assert rig.machine.largest_value_limit == 5000
    history = (SettingChange(MAX_REQUEST_BYTES, 0, 100), SettingChange(MAX_REQUEST_BYTES, 1, 5000))
    assert rig.outbox.progress.settings == history
    for wipe in (False, True):
        rig.open(wipe=wipe)
        rig.read_all()
        assert rig.outbox.rejected == [(0, "value-too-large")]
        assert rig.machine.pending == 1


def test_a_stored_timer_that_another_worker_rejected_does_not_fire() -> None:
    """Both workers have a store. The first has accepted uncommitted requests when the second takes over."""
    rig = NativeRig(now_s=10)
    rig.accept(20)
    rig.ask(30)
    rig.ask(31, value=b"x" * 60)
    rig.machine.accept(rig.fetch())
    assert rig.machine.pending == 3
    ours = rig.store

    rig.open(wipe=True, limits=replace(LIMITS, max_request_bytes=50))
    rig.observe(11)
    while rig.machine.position < 3:
        rig.machine.accept(rig.fetch())
    assert rig.outbox.rejected == [(2, "value-too-large")]

    rig.store = ours
    rig.open(limits=LIMITS)
    while rig.machine.recovering:
        rig.machine.accept(rig.fetch())
    assert rig.machine.pending == 2


# ---- a log that has lost records in its middle [I32] ----------------------------------------------------------------


def counted_rig(lost: tuple[int, ...], *, accepted: str = "") -> NativeRig:
    """A machine that has accepted 12 requests, and fired some, and is opened with an empty disk. Its log has lost some
    of them."""
    rig = NativeRig(now_s=0)
    rig.ask(*range(50, 60))
    rig.read(4)
    rig.read()
    rig.accept(1, 70)
    rig.second(55)
    rig.machine.commit_progress()
    rig.log.lose_middle(rig.topic, 0, lost)
    rig.open(wipe=True, accept_loss=accepted)
    return rig


def read_again(rig: NativeRig, count: int = 5) -> None:
    while rig.machine.recovering:
        rig.machine.accept(rig.fetch(count))


def test_a_log_that_is_whole_is_counted_again() -> None:
    rig = counted_rig(())
    before = rig.outbox.progress.lineage.counted
    assert before == RecordCount(0, 12, 12, 12)
    read_again(rig)
    assert rig.store.lineage.counted == before
    rig.observe(56)
    rig.accept(90)
    assert rig.store.lineage.counted == RecordCount(0, 13, 13, 13)


def test_a_machine_stops_if_its_log_has_lost_records_in_its_middle() -> None:
    rig = counted_rig((3, 4, 9))
    sentence = "requests/0 has lost 3 records between the offsets 0 and 12 since they were accepted"
    with pytest.raises(LogMismatch, match=sentence):
        read_again(rig)
    assert rig.machine.recovering
    rig.open()  # what was read before the last fetch is in the store
    assert rig.machine.position == 10
    with pytest.raises(LogMismatch, match=sentence):
        read_again(rig)
    rig.log.put_back(rig.topic, 0)
    rig.open(wipe=True)
    read_again(rig)
    assert rig.keys == [(due_s, due_s - 50) for due_s in range(56, 60)] + [(70, 11)]


def test_an_accepted_loss_is_named_once_and_counting_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    rig = counted_rig((3, 9), accepted="other/0,requests/0")
    read_again(rig)
    assert "lost 2 records between the offsets 0 and 12" in caplog.text
    rig.observe(56)
    rig.machine.commit_progress()
    assert rig.outbox.progress.lineage.counted is None
    rig.accept(90)
    rig.machine.commit_progress()
    assert rig.outbox.progress.lineage.counted == RecordCount(12, 13, 1, 13)
    rig.open(wipe=True, accept_loss="")
    read_again(rig)
    assert rig.store.lineage.counted == RecordCount(12, 13, 1, 13)
    rig.log.lose_middle(rig.topic, 0, (12,))
    rig.open(wipe=True)
    with pytest.raises(LogMismatch, match="lost 1 record between the offsets 12 and 13"):
        read_again(rig)


def test_an_acceptance_that_was_not_committed_is_not_asked_for_again() -> None:
    rig = counted_rig((3,), accepted="requests/0")
    read_again(rig)
    rig.open(accept_loss="")
    assert rig.machine.progress.lineage.counted is None
    rig.observe(56)
    assert rig.machine.commit_progress()


@pytest.mark.parametrize("stored", [None, RecordCount(0, 7, 7, 7), RecordCount(3, 9, 6, 9)])
def test_counts_of_other_ranges_are_not_compared(stored: RecordCount | None) -> None:
    """The store was written by a version that does not count, or before a loss was accepted."""
    rig = counted_rig(())
    rig.store.note_history(rig.outbox.progress.settings)
    rig.store.write({}, 9, lineage=rig.outbox.progress.lineage._replace(counted=stored))
    rig.log.lose_middle(rig.topic, 0, (10,))
    rig.open()
    read_again(rig)
    assert rig.store.lineage.counted == rig.outbox.progress.lineage.counted


def test_records_that_a_doubtful_log_may_lack_are_not_counted() -> None:
    """[I29]: below the offset at which a whole store ended, it may lack what compaction has taken."""
    progress = Progress(20, lineage=Lineage(counted=RecordCount(4, 20, 16, 20)), doubt=Doubt(15, "w"))
    known = Lineage(counted=RecordCount(4, 15, 11, 15))
    assert progress.without_doubt(known, 15).lineage.counted == RecordCount(15, 20, 5, 20)
    assert progress.without_doubt(Lineage(), 15).lineage.counted is None
    assert progress.without_doubt(Lineage(), 0).lineage.counted == RecordCount(4, 20, 16, 20), "all is read again"
    assert progress.without_doubt().lineage.counted is None
