"""A request is submitted again while the producer's queue is full."""

from __future__ import annotations

import pytest

from timers.client.clients import Submission
from timers.errors import PublishError


class Queue:
    """A producer's queue that is full for some calls."""

    def __init__(self, full: int) -> None:
        self.full = full

    def submit(self) -> str:
        if self.full:
            self.full -= 1
            raise BufferError
        return "submitted"


def test_a_request_is_submitted_again_until_the_queue_has_room() -> None:
    submission = Submission(Queue(full=2).submit, timeout_s=60)
    assert [submission.is_done() for _ in range(3)] == [False, False, True]
    assert submission.result == "submitted"


def test_a_queue_that_stays_full_is_an_error() -> None:
    submission = Submission(Queue(full=1).submit, timeout_s=-1)
    with pytest.raises(PublishError, match="the producer's queue stayed full for -1 s"):
        submission.is_done()
