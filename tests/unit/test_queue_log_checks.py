"""What a queue finds out about its logs and topics after commits with copies. No brokers."""

from __future__ import annotations

import pytest

from tests.harness.constants import Constants
from tests.harness.queue_thread import JOBS, MESSAGES, Opened
from tests.harness.waiting import wait_until
from timers.errors import QueueError
from timers.queue import Message


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
def test_an_ordered_queue_says_that_added_partitions_end_the_order(
    constants: Constants, caplog: pytest.LogCaptureFixture
) -> None:
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
