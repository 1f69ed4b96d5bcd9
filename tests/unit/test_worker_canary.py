"""The callbacks of canary timers."""

import pytest

from timers.wire.headers import Header
from timers.wire.topics import source
from timers.worker.canary import _partition_and_due_s

DUE: Header = ("timer-due", b"1700000000")
OTHER = (-1, 0)


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ([("timer-id", source("timer-request", 3, 12).encode()), DUE], (3, 1_700_000_000)),
        ([("timer-id", source("timer-request", 3, 12, ((10, 1),)).encode()), DUE], (3, 1_700_000_000)),
        ([("timer-id", b"timer-request/3/12"), DUE, ("timer-source", b"timer-request-by-id/0/7")], OTHER),
        ([("timer-id", b"order-17"), DUE], OTHER),
        ([("timer-id", b"\xff/3/12"), DUE], OTHER),
        ([("timer-id", b"timer-request/3/12"), ("timer-due", None)], OTHER),
        ([], OTHER),
    ],
    ids=["a timer", "of a log that was cut", "with an id", "any id", "no UTF-8", "not due", "no timer"],
)
def test_a_callback_names_the_partition_of_its_request(headers: list[Header], found: tuple[int, int]) -> None:
    assert _partition_and_due_s(headers) == found
