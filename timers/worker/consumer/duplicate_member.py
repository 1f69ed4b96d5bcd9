"""Whether a second worker of our name is in the group: its coordinator says so, and aiokafka keeps that to itself.

Whoever joins as a static member replaces the one of the same name, without a word to it. That one learns it from the
next answer that it gets: to a heartbeat, which aiokafka sends without the name, "unknown member"; to joining or
syncing, also if it waits for the answer when the other one comes, "fenced instance".
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import Any

from aiokafka.errors import NoError, RebalanceInProgressError, UnknownMemberIdError
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest

logger = logging.getLogger(__name__)

FENCED_INSTANCE_ID = 82
"""Kafka's code; aiokafka has no name for it."""

_AS_MEMBER = (HeartbeatRequest, JoinGroupRequest, SyncGroupRequest)

_STILL_MEMBER = {NoError.errno, RebalanceInProgressError.errno}


class DuplicateMemberWatch:
    """Looks at what the coordinator answers to one member.

    Args:
        name: of this worker.
        session_timeout_s: the group forgets a member that it has not heard of for so long.
        clock: seconds, monotonic.
    """

    def __init__(self, name: str, session_timeout_s: float, clock: Callable[[], float] = monotonic) -> None:
        self._name = name
        self._session_timeout_s = session_timeout_s
        self._clock = clock
        self._heard_at = float("-inf")

    def look(self, request: Any, sent_at: float, response: Any) -> None:
        """Look at the answer to ``request``, before aiokafka does.

        Args:
            sent_at: by the clock, taken before: since then the answer may have waited for us, as in a pause.
        """
        if not isinstance(request, _AS_MEMBER):
            return
        error_code = response.error_code
        # Of a member that was silent for too long nothing can be said, nor of one that has yet to join.
        known = request._member_id and self._clock() - self._heard_at < self._session_timeout_s
        if error_code in _STILL_MEMBER:
            self._heard_at = sent_at
        elif error_code == FENCED_INSTANCE_ID or (error_code == UnknownMemberIdError.errno and known):
            logger.error(
                "the group forgot this worker while it was there: most likely a second one runs with "
                "TIMERS_WORKER_ID=%s, and they take the partitions from each other; give each its own",
                self._name,
            )
        if error_code == FENCED_INSTANCE_ID:
            # aiokafka would end the worker with an error that nobody knows; an unknown member joins anew.
            response.error_code = UnknownMemberIdError.errno
