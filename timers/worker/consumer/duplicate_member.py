"""Detects a second worker with the same ``TIMERS_WORKER_ID`` in the group, from the coordinator's responses.

A static member that joins replaces the member of the same name, and Kafka does not notify the replaced one. It learns
this from the next response: "unknown member" to a heartbeat, which aiokafka sends without the name, or "fenced
instance" to a join or sync request, also to one that was waiting when the other worker joined. aiokafka hides these
responses.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import Any

from aiokafka.errors import NoError, RebalanceInProgressError, UnknownMemberIdError

from timers.kafka.aiokafka_internals.group import MEMBER_REQUESTS, member_id

logger = logging.getLogger(__name__)

FENCED_INSTANCE_ID = 82
"""Kafka's error code; aiokafka has no name for it."""

_STILL_MEMBER = {NoError.errno, RebalanceInProgressError.errno}


class DuplicateMemberWatch:
    """Inspects the coordinator's responses to one member.

    Args:
        name: id of the worker.
        session_timeout_s: the group removes a member that has sent no heartbeat for this long.
        clock: seconds, monotonic.
    """

    def __init__(self, name: str, session_timeout_s: float, clock: Callable[[], float] = monotonic) -> None:
        self._name = name
        self._session_timeout_s = session_timeout_s
        self._clock = clock
        self._member_until_s = float("-inf")

    def inspect(self, request: Any, sent_at: float, response: Any) -> None:
        """Inspect the response to ``request``, before aiokafka handles it.

        Args:
            sent_at: time of the request by the clock. The response may have waited in a buffer while this process was
                paused, so its arrival time is not used.
        """
        if not isinstance(request, MEMBER_REQUESTS):
            return
        error_code = response.error_code
        # Without a member id it has not joined. After the session timeout the group may have removed it.
        was_member = member_id(request) and self._clock() < self._member_until_s
        if error_code in _STILL_MEMBER:
            self._member_until_s = sent_at + self._session_timeout_s
        elif error_code == FENCED_INSTANCE_ID or (error_code == UnknownMemberIdError.errno and was_member):
            logger.error(
                "the group removed this worker while it was running: probably a second one runs with "
                "TIMERS_WORKER_ID=%s, and each takes the partitions from the other; give each its own id",
                self._name,
            )
        if error_code == FENCED_INSTANCE_ID:
            # aiokafka does not know this code and would end the worker; after this code it joins again.
            response.error_code = UnknownMemberIdError.errno
