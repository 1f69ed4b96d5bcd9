"""What a process of a queue does with a commit that is lost, foreign, or of messages that are gone. No brokers."""

import logging
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.harness.queue_state import opened
from timers.errors import QueueError
from timers.queue.ledger import Ledger
from timers.queue.metadata import Commit, Saved, encode
from timers.queue.port import Stored
from timers.queue.settling import NewPartitions, Settler

JOBS = ("jobs", 0)
LOG = "this-log"
SAVED = Saved(5, ((7, 9),))


class SimLog:
    """A partition whose log has the offsets from ``low`` to before ``high``."""

    def __init__(self, commit: Commit | None, copy: Commit | None = None, low: int = 0, high: int = 20) -> None:
        self.stored = Stored({JOBS: commit}, {} if copy is None else {JOBS: copy}, {JOBS: (low, high)}, {"jobs": LOG})
        self.low, self.high = low, high


def commit(saved: Saved = SAVED, log: str = LOG) -> Commit:
    return Commit(saved.offset, encode(saved, log) or "")


def loaded(log: SimLog, *, accept_loss: bool = False) -> Ledger:
    """The ledger of a partition that was loaded. What is said is in the log of this test."""
    settler = Settler("queue.jobs", 0.0)
    new = NewPartitions(settler, replace(opened().terms, accept_loss=["jobs/0"] if accept_loss else False))
    new.add([JOBS])
    steps = new.work()
    with suppress(StopIteration):
        command = next(steps)
        while True:
            if command.name == "complain":
                logging.getLogger(__name__).error(*command.arguments)
            command = steps.send(log.stored if command.name == "load" else None)
    return settler.ledgers[JOBS]


def delivered(ledger: Ledger, log: SimLog) -> list[int]:
    """Offsets of the messages that are not done."""
    return [offset for offset in range(log.low, log.high) if ledger.read(offset, None)]


def test_a_commit_is_continued(caplog: pytest.LogCaptureFixture) -> None:
    log = SimLog(commit())
    assert delivered(loaded(log), log) == [5, 6, *range(9, 20)]
    assert caplog.text == ""


def test_a_new_queue_begins_with_the_first_message(caplog: pytest.LogCaptureFixture) -> None:
    log = SimLog(None, low=3)
    assert delivered(loaded(log), log) == list(range(3, 20))
    assert caplog.text == ""


def test_an_offset_that_expired_is_taken_from_its_copy(caplog: pytest.LogCaptureFixture) -> None:
    log = SimLog(None, commit())
    assert delivered(loaded(log), log) == [5, 6, *range(9, 20)]
    assert "the group has no offset" in caplog.text


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ("", "empty"),
        ("an application's own", "not written by a queue"),
        (commit(Saved(9)).metadata, "written for log this-log at 9"),
    ],
    ids=["lost", "foreign", "moved by a tool"],
)
def test_metadata_of_another_offset_are_said(metadata: str, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    log = SimLog(Commit(4, metadata))
    assert delivered(loaded(log), log) == list(range(4, 20))
    assert reason in caplog.text and "Messages below 4 count as done" in caplog.text


@pytest.mark.parametrize("is_copy", [False, True])
def test_a_topic_that_was_made_anew_begins_with_message_one(is_copy: bool, caplog: pytest.LogCaptureFixture) -> None:
    former = commit(log="a-former-log")
    log = SimLog(None, former) if is_copy else SimLog(former)
    assert delivered(loaded(log), log) == list(range(20))
    assert "the topic was deleted and created again" in caplog.text


@pytest.mark.parametrize(
    ("low", "high", "first"), [(6, 20, 6), (0, 4, 0), (0, 8, 0)], ids=["deleted", "cut", "cut above what is open"]
)
def test_messages_that_are_gone_end_a_queue_of_one_partition_unless_that_is_accepted(
    low: int, high: int, first: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = SimLog(commit(), low=low, high=high)
    with pytest.raises(QueueError, match=r"messages from 5 on are not done.* run --accept-loss jobs/0`"):
        loaded(log)
    assert caplog.text == ""
    assert delivered(loaded(log, accept_loss=True), log)[0] == first
    assert f"the messages from 5 on are not done, and the log has {low} to {high}" in caplog.text


def test_messages_that_are_gone_and_were_done_are_no_loss() -> None:
    log = SimLog(commit(Saved(5)), low=5)
    assert delivered(loaded(log), log) == list(range(5, 20))


@pytest.mark.parametrize("text", ["q1.this-log.5......", "q2.this-log.5.......", "q4.unknown"])
def test_metadata_of_another_version_ends_the_queue(text: str) -> None:
    with pytest.raises(QueueError, match="open the queue with the version of timers that wrote it"):
        loaded(SimLog(Commit(5, text)))
