"""Asks the coordinator of a consumer group without joining it.

librdkafka's ``describe_consumer_groups`` is not used, because it can abort the process when no coordinator answers
(``rd_kafka_enq_once_del_source_return: Assertion``, librdkafka issues 3663 and 4605).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic, sleep

from aiokafka.errors import (
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    GroupLoadInProgressError,
    KafkaError,
    NotCoordinatorForGroupError,
)

from timers.errors import TimersError
from timers.kafka.aiokafka_clients import arguments
from timers.kafka.aiokafka_internals import group as groups
from timers.kafka.aiokafka_internals.group import DescribedGroup
from timers.kafka.aiokafka_internals.log_readers import ReadingGroup, log_readers
from timers.process.config.settings import Settings

_START_S = 2.0
"""Time for the answer before a worker starts."""

_TIMEOUT_S = 10.0

POLL_S = 1.0

MARGIN_S = 2.0
"""The coordinator removes a member whose session has timed out within this time."""

_NO_COORDINATOR_YET = (CoordinatorNotAvailableError, GroupLoadInProgressError, NotCoordinatorForGroupError)


def may_join(settings: Settings) -> bool:
    """Whether the worker may join its group. True also if no broker answers: joining reports that. Blocks."""
    try:
        asyncio.run(groups.ask(arguments(settings), settings.app_id, groups.check_right, _START_S))
    except KafkaError as error:  # of all others, joining will report the cause
        return not isinstance(error, GroupAuthorizationFailedError)
    return True


def describe(settings: Settings, group: str = "", timeout_s: float | None = None) -> DescribedGroup:
    """State and members of a group; no members if it does not exist. Blocks while the coordinator moves.

    Args:
        group: its id; empty: that of the app's workers.
        timeout_s: time for the answer; None: ten seconds.

    Raises:
        KafkaError: the coordinator does not answer in time, or the user may not describe the group.
    """
    group = group or settings.app_id
    return asyncio.run(groups.ask(arguments(settings), group, groups.describe, timeout_s or _TIMEOUT_S))


def readers_of(
    settings: Settings, topic: str, partitions: int, timeout_s: float, check: Callable[[], None]
) -> list[ReadingGroup]:
    """The groups that have an offset in a topic, without that of the app's workers and those that need no old requests:
    see :func:`timers.kafka.aiokafka_internals.log_readers.log_readers`. Blocks.

    Args:
        timeout_s: time for each answer.
        check: called before each request; may raise to stop.

    Raises:
        KafkaError: a broker does not answer, or a group moves from one to another.
    """
    client = {**arguments(settings), "request_timeout_ms": int(1000 * timeout_s)}
    return asyncio.run(log_readers(client, topic, partitions, {settings.app_id, *settings.trim_past_groups}, check))


PATIENCE_S = 60.0
"""So long a coordinator that moves is waited for, unless the caller has less time."""


def describe_patiently(
    settings: Settings,
    group: str = "",
    patience_s: float = PATIENCE_S,
    should_stop: Callable[[], bool] = lambda: False,
) -> DescribedGroup:
    """State and members of a group: see :func:`describe`.

    Args:
        patience_s: so long a coordinator that moves is waited for.

    Raises:
        TimersError: they cannot be read.
    """
    deadline = monotonic() + patience_s
    while True:
        try:
            return describe(settings, group, min(_TIMEOUT_S, patience_s))
        except CoordinatorNotAvailableError:  # the cluster has no groups yet
            return DescribedGroup("", [])
        except (KafkaError, TimeoutError) as error:
            if not isinstance(error, _NO_COORDINATOR_YET) or monotonic() > deadline or should_stop():
                name = group or settings.app_id
                raise TimersError(f"the members of the group {name!r} cannot be read ({error!r})") from error
            sleep(POLL_S)


def wait_until_empty(
    settings: Settings,
    group: str,
    on_members: Callable[[int], None],
    should_stop: Callable[[], bool],
    patience_s: float = PATIENCE_S,
) -> DescribedGroup:
    """Wait until a group has no members: one that was killed stays until its session has timed out. Blocks.

    Args:
        on_members: called once, with their number, before the first pause.
        patience_s: see :func:`describe_patiently`.

    Returns:
        The group with the members that are left when all such sessions have timed out.

    Raises:
        TimersError: they cannot be read.
    """
    deadline = monotonic() + settings.session_timeout_s + MARGIN_S
    is_first = True
    while members := (found := describe_patiently(settings, group, patience_s, should_stop)).members:
        if monotonic() > deadline or should_stop():
            break
        if is_first:
            on_members(len(members))
        is_first = False
        sleep(POLL_S)
    return found
