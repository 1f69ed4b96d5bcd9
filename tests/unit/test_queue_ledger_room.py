"""A partition is read on although its metadata is nearly full."""

from __future__ import annotations

import pytest

from timers.queue import metadata
from timers.queue.metadata import layout, run_size


@pytest.mark.parametrize("left", range(4))
def test_a_partition_without_open_messages_is_read_on(left: int) -> None:
    """``left`` characters are free, and all messages that were read are done: only reading makes room."""
    ahead = [(110, 120)]
    parts = [(run_size(10, 10), 20)]
    room = layout(parts).characters + left
    assert metadata.read_limit([], 100, ahead, room) > 100
