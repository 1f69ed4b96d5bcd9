"""Asks the coordinator of a consumer group without joining it.

Before the worker starts: whether the brokers allow this user to join the group. The request is a heartbeat with an
unknown member id. It needs the same right as joining, READ on the group, and changes nothing. librdkafka's
``describe_consumer_groups`` is not used, because it can abort the process when no coordinator answers
(``rd_kafka_enq_once_del_source_return: Assertion``, librdkafka issues 3663 and 4605).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic, sleep
from typing import Any, TypeAlias, TypeVar

from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.errors import (
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    GroupLoadInProgressError,
    KafkaError,
    KafkaTimeoutError,
    NotCoordinatorForGroupError,
    for_code,
)
from aiokafka.protocol.group import HeartbeatRequest

from timers.errors import TimersError
from timers.kafka.aiokafka_internals import group as groups
from timers.kafka.aiokafka_internals import sessions
from timers.kafka.aiokafka_internals.group import DescribedGroup
from timers.process.config.settings import Settings

_T = TypeVar("_T")

_Send: TypeAlias = Callable[[Any], Awaitable[Any]]
"""Returns the answer to a request."""

_START_S = 2.0
"""Time for the answer before a worker starts."""

_PAUSE_S = 0.1
"""Pause between tries. A cluster without any group has a coordinator soon after the first question."""

_TIMEOUT_S = 10.0

POLL_S = 1.0

MARGIN_S = 2.0
"""The coordinator removes a member whose session has timed out within this time."""

_NO_COORDINATOR_YET = (CoordinatorNotAvailableError, GroupLoadInProgressError, NotCoordinatorForGroupError)


def may_join(settings: Settings) -> bool:
    """Whether the worker may join its group. True also if no broker answers: joining reports that. Blocks."""

    async def check(send: _Send) -> None:
        answer = await send(HeartbeatRequest(settings.app_id, 0, "unknown-member"))
        if answer.error_code:
            raise for_code(answer.error_code)

    try:
        asyncio.run(_ask_while_moving(settings, settings.app_id, check, _START_S))
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
    return asyncio.run(
        _ask_while_moving(settings, group, partial(groups.describe, group=group), timeout_s or _TIMEOUT_S)
    )


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


async def _ask_while_moving(
    settings: Settings, group: str, ask: Callable[[_Send], Awaitable[_T]], timeout_s: float
) -> _T:
    """What ``ask`` returns; it is given what sends to a group's coordinator. A retriable error of it is waited for."""
    failure: KafkaError = KafkaTimeoutError(f"no answer within {timeout_s:g} s")
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    return await _ask(settings, group, ask)
                except KafkaError as error:
                    failure = error
                    if not error.retriable:
                        raise
                await asyncio.sleep(_PAUSE_S)
    except TimeoutError:
        raise failure from None


async def _ask(settings: Settings, group: str, ask: Callable[[_Send], Awaitable[_T]]) -> _T:
    client = AIOKafkaClient(**sessions.arguments(settings))
    try:
        await client.bootstrap()
        node = await client.coordinator_lookup(CoordinationType.GROUP, group)
        return await ask(partial(client.send, node, group=ConnectionGroup.COORDINATION))
    finally:
        await sessions.end_in_time(client.close())
