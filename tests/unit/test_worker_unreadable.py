"""A batch that cannot be read makes its partition red with a sentence, until an operator passes over it."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness.machines import NativeRig
from timers.core.levels import FIRST
from timers.core.machine import Machine
from timers.core.progress import MAX_PASSED_OVER, PASSED_OVER, History, Progress, SettingChange
from timers.core.timer import TopicPartition
from timers.errors import SettingsError
from timers.kafka.accepted_loss import is_accepted
from timers.kafka.aiokafka_internals.batch_pieces import UnreadableBatch
from timers.machines.life import ReadAhead
from timers.process.config.settings import Settings
from timers.worker.machines.unreadable import Unreadable

TP = ("timer-request", 0)


class Pool:
    """What :class:`Unreadable` asks of a pool, with one machine."""

    def __init__(self, progress: Progress, accept_loss: str = "", *, has_ids: bool = False) -> None:
        self.rig = NativeRig(progress=progress)
        self.rig.observe(0)
        self.accept_loss = accept_loss
        self.formats = {TP[0]: SimpleNamespace(has_ids=has_ids)}
        self.runners = {TP: SimpleNamespace(machine=self.rig.machine, ask=self.ask, reads_ahead=False)}
        self.failed: list[tuple[TopicPartition, Exception]] = []

    def fail(self, tp: TopicPartition, error: Exception) -> None:
        self.failed.append((tp, error))

    def ask(self, question: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        machine: Machine = self.rig.machine
        answer.set_result(question(machine))
        return answer


def batch(from_offset: int = 0, end_offset: int = 10) -> UnreadableBatch:
    error = UnreadableBatch(
        f"timer-request/0: the record batch with the offsets {from_offset} to ... cannot be read: x"
    )
    error.from_offset, error.end_offset, error.raw = from_offset, end_offset, b"raw"
    return error


def noted(pool: Any, error: UnreadableBatch) -> str:
    """The sentence of the partition; empty: it is not red."""
    unreadable = Unreadable(pool.accept_loss, pool.formats, pool.runners.get, pool.fail)
    unreadable.note(TP, error)
    return unreadable.sentences.get(TP, "")


@pytest.mark.parametrize("has_ids", [False, True])
def test_the_sentence_says_what_waits_and_what_to_do(has_ids: bool) -> None:
    pool = Pool(Progress.first(FIRST), "other/3", has_ids=has_ids)
    waits = "its timers wait, because a cancel" if has_ids else "timers that were accepted before it fire on"
    sentence = noted(pool, batch())
    assert sentence.startswith("timer-request/0: the record batch with the offsets 0 to ")
    assert waits in sentence
    assert "start once with TIMERS_ACCEPT_LOSS=other/3,timer-request/0:0-9 (docs/operations.md#a-batch-" in sentence
    assert pool.rig.outbox.rejected == []


def test_what_is_accepted_is_passed_over() -> None:
    pool = Pool(Progress.first(FIRST), "timer-request/0:0-99")
    assert noted(pool, batch()) == ""
    assert pool.rig.outbox.rejected == [(0, "batch-unreadable")]
    assert pool.rig.machine.progress.settings.passed_over == ((0, 10),)


def test_the_partition_is_red_until_the_passing_over_is_committed() -> None:
    """Also in a replay, in which the machine may wait for a tick."""
    pool: Any = Pool(Progress.first(FIRST), "timer-request/0:0-99")
    pool.rig.accept(5, 6)
    pool.rig.machine.commit_progress()
    pool.runners[TP].machine = pool.rig.open(wipe=True)
    unreadable = Unreadable(pool.accept_loss, pool.formats, pool.runners.get, pool.fail)
    unreadable.note(TP, batch())
    assert not unreadable.sentences and not pool.rig.outbox.rejected
    unreadable.note(TP, batch())
    assert "It is passed over, as TIMERS_ACCEPT_LOSS says, once" in unreadable.sentences[TP]
    pool.rig.observe(1)
    unreadable.note(TP, batch())
    assert pool.rig.outbox.rejected == [(0, "batch-unreadable")]
    assert pool.rig.machine.progress.settings.passed_over == ((0, 10),)
    unreadable.forget(TP)
    assert not unreadable.sentences


def test_a_machine_that_is_read_ahead_is_opened_with_a_fence() -> None:
    """It gets no ticks, so it could never commit that the batch is passed over."""
    pool = Pool(Progress.first(FIRST), "timer-request/0:0-99")
    pool.runners[TP].reads_ahead = True
    assert noted(pool, batch()) == ""
    [(tp, error)] = pool.failed
    assert tp == TP and isinstance(error, ReadAhead)
    assert pool.rig.outbox.rejected == []


def test_in_a_replay_the_sentence_says_that_no_timer_fires() -> None:
    pool: Any = Pool(Progress.first(FIRST))
    pool.rig.accept(5, 6)
    pool.rig.machine.commit_progress()
    pool.runners[TP].machine = pool.rig.open(wipe=True)
    assert "its timers wait, because this batch was accepted before" in noted(pool, batch())


def test_no_range_is_offered_if_the_end_is_not_known() -> None:
    pool = Pool(Progress.first(FIRST), "timer-request/0:0-99")
    sentence = noted(pool, batch(5, 5))
    assert "Where this batch ends is not known" in sentence and "TIMERS_ACCEPT_LOSS" not in sentence
    assert pool.rig.outbox.rejected == []


def test_a_history_has_a_limit() -> None:
    ranges = [SettingChange(PASSED_OVER, 10 * number, 10 * number + 1) for number in range(MAX_PASSED_OVER)]
    history = History([*Progress.first(FIRST).settings, *ranges])
    pool = Pool(Progress(settings=history), "timer-request/0:0-9999")
    assert f"{MAX_PASSED_OVER} batches of this partition are passed over, and no more can be" in noted(
        pool, batch(5000, 5010)
    )
    assert pool.rig.outbox.rejected == []


def test_a_partition_that_is_read_on_is_green() -> None:
    pool: Any = Pool(Progress.first(FIRST))
    unreadable = Unreadable(pool.accept_loss, pool.formats, pool.runners.get, pool.fail)
    unreadable.note(TP, batch())
    assert unreadable.sentences.keys() == {TP}
    unreadable.forget(TP)
    assert not unreadable.sentences
    pool.runners.clear()
    unreadable.note(TP, batch())
    assert not unreadable.sentences, "the partition is closed"


@pytest.mark.parametrize(
    "accept_loss, accepted",
    [
        ("timer-request/0:10-19", True),
        ("a/1,timer-request/0:0-100,b/2:snapshot", True),
        ("timer-request/0", False),
        ("timer-request/0:snapshot", False),
        ("timer-request/0:10-18", False),
        ("timer-request/0:11-19", False),
        ("timer-request/1:10-19", False),
        ("x-timer-request/0:10-19", False),
        ("", False),
    ],
)
def test_the_setting_names_a_range(accept_loss: str, accepted: bool) -> None:
    assert Settings.load({"TIMERS_ACCEPT_LOSS": accept_loss}).accept_loss == accept_loss
    assert is_accepted(accept_loss, TP, batch(10, 20)) is accepted


def test_other_characters_are_refused() -> None:
    with pytest.raises(SettingsError, match="TIMERS_ACCEPT_LOSS"):
        Settings.load({"TIMERS_ACCEPT_LOSS": "timer-request/0 10"})
