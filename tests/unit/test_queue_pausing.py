"""When the thread of a queue pauses partitions. No brokers."""

import pytest

from tests.harness.constants import Constants
from tests.harness.queue_thread import JOBS, MESSAGES, OTHER, Opened
from tests.harness.waiting import wait_until
from timers.queue import Message


def test_partitions_are_not_paused_while_receivers_take_messages(constants: Constants, queue: Opened) -> None:
    constants("timers.queue.member", MAX_READY=1000)
    constants("timers.queue.member", MAX_PAUSED=2000)
    constants("timers.queue.driver", _BATCH=100)
    queue.transport.messages = 20_000
    queue.call(queue.transport.assigned, [JOBS, OTHER])
    received = 0
    while received < 40_000:
        messages = queue.driver.receive(Message, 500, 60)
        assert messages, "no message came"
        received += len(messages)
        for message in messages:
            message.ack()
    assert queue.transport.pauses == 0


def test_partitions_are_paused_while_receivers_take_nothing(constants: Constants, queue: Opened) -> None:
    constants("timers.queue.member", MAX_READY=10)
    constants("timers.queue.member", MAX_PAUSED=20)
    constants("timers.queue.driver", _BATCH=3)
    queue.transport.messages = 300
    queue.call(queue.transport.assigned, [JOBS, OTHER])
    wait_until(lambda: queue.transport.paused == {JOBS, OTHER}, "the pause")
    assert queue.driver.counters().ready < 40
    assert len(queue.receive(600)) == 600
    assert queue.transport.paused == set()


@pytest.mark.parametrize("ordered", [False, True])
def test_a_partition_of_large_messages_is_paused_until_they_are_done(constants: Constants, *, ordered: bool) -> None:
    """In an ordered queue they wait for the first one of their key, and no receiver can take them."""
    constants("timers.queue.member", MAX_OPEN_BYTES=1_000_000)
    queue = Opened(ordered=ordered)
    try:
        queue.transport.sizes[OTHER] = 200_000
        queue.call(queue.transport.assigned, [JOBS, OTHER])
        wait_until(lambda: queue.transport.paused == {OTHER}, "the pause")
        done = 0
        while done < 2 * MESSAGES:
            for message in queue.receive(1):
                message.ack()
                done += 1
        wait_until(lambda: queue.transport.paused == set(), "the end of the pause")
    finally:
        queue.close()
