"""Detects that another worker has taken the ``TIMERS_WORKER_ID`` of this one, from the coordinator's responses.

A static member that joins replaces the member of the same name, and Kafka does not notify the replaced one: its next
heartbeat, which aiokafka sends without the name, gets "unknown member". A member that the group has removed gets the
same. aiokafka would join as a new member, and so take the name back: two workers with one name would take the
partitions from each other every few seconds. So here it joins with its old id, and the response tells the two cases
apart: "fenced instance" if another member has the name, else "unknown member".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiokafka.errors import GroupLoadInProgressError, RebalanceInProgressError, UnknownMemberIdError

from timers.errors import NameTakenError
from timers.kafka.aiokafka_internals.group import HEARTBEAT, JOIN, SYNC

FENCED_INSTANCE_ID = 82
"""Kafka's error code; aiokafka has no name for it."""


class DuplicateMemberWatch:
    """Inspects the coordinator's responses to one member.

    Args:
        name: id of the worker.
        on_taken: called with the error that ends the worker.
    """

    def __init__(self, name: str, on_taken: Callable[[NameTakenError], None]) -> None:
        self._name = name
        self._on_taken = on_taken

    def inspect(self, request: Any, response: Any) -> None:
        """Inspect the response to ``request``, before aiokafka handles it. It may be changed."""
        if not isinstance(request, HEARTBEAT | JOIN | SYNC):
            return
        if isinstance(request, HEARTBEAT) and response.error_code == UnknownMemberIdError.errno:
            response.error_code = RebalanceInProgressError.errno  # aiokafka joins again, and keeps its member id
        elif response.error_code == FENCED_INSTANCE_ID:
            self._on_taken(
                NameTakenError(
                    f"another worker was started with TIMERS_WORKER_ID={self._name}, and has the partitions of this "
                    "one: this worker ends. Give each worker its own id"
                )
            )
            # aiokafka does not know this code. With these it tries again until the worker has ended.
            error = GroupLoadInProgressError if isinstance(request, JOIN) else RebalanceInProgressError
            response.error_code = error.errno
