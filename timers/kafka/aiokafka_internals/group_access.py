"""Asks the coordinator of a consumer group without joining it.

Before the worker starts: whether the brokers allow this user to join the group. The request is a heartbeat with an
unknown member id. It needs the same right as joining, READ on the group, and changes nothing. librdkafka's
``describe_consumer_groups`` is not used, because it can abort the process when no coordinator answers
(``rd_kafka_enq_once_del_source_return: Assertion``, librdkafka issues 3663 and 4605).
"""

from __future__ import annotations

import asyncio

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
from aiokafka.protocol.admin import DescribeGroupsRequest
from aiokafka.protocol.group import HeartbeatRequest

from timers.config.settings import Settings
from timers.kafka import connection
from timers.kafka.aiokafka_internals.group import DescribedGroup, described

_TRIES = 5
_PAUSE_S = 0.1
"""Pause between tries. A cluster without any group has no coordinator yet, so the check does not wait long."""

_TIMEOUT_S = 10.0

_NO_COORDINATOR_YET = (CoordinatorNotAvailableError, GroupLoadInProgressError, NotCoordinatorForGroupError)


def may_join(settings: Settings) -> bool:
    """Whether the worker may join its group. True also if no broker answers: joining reports that. Blocks."""
    return asyncio.run(_may_join(settings))


async def _may_join(settings: Settings) -> bool:
    client = AIOKafkaClient(**connection.aiokafka(settings))
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await client.bootstrap()
            for _ in range(_TRIES):
                try:
                    return await _send_heartbeat(client, settings.app_id)
                except _NO_COORDINATOR_YET:
                    await asyncio.sleep(_PAUSE_S)
    except GroupAuthorizationFailedError:
        return False
    except (KafkaError, TimeoutError):
        pass  # joining will report the cause
    finally:
        await client.close()
    return True


def describe(settings: Settings) -> DescribedGroup:
    """State and members of the app's group; no members if it does not exist. Blocks while the coordinator moves.

    Raises:
        KafkaError: the coordinator does not answer within ten seconds, or the user may not describe the group.
    """
    return asyncio.run(_describe_while_moving(settings))


async def _describe_while_moving(settings: Settings) -> DescribedGroup:
    failure: KafkaError = KafkaTimeoutError(f"no answer within {_TIMEOUT_S:g} s")
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            while True:
                try:
                    return await _describe(settings)
                except KafkaError as error:
                    failure = error
                    if not error.retriable:
                        raise
                await asyncio.sleep(_PAUSE_S)
    except TimeoutError:
        raise failure from None


async def _describe(settings: Settings) -> DescribedGroup:
    client = AIOKafkaClient(**connection.aiokafka(settings))
    try:
        await client.bootstrap()
        node = await client.coordinator_lookup(CoordinationType.GROUP, settings.app_id)
        request = DescribeGroupsRequest([settings.app_id])
        group = described(await client.send(node, request, group=ConnectionGroup.COORDINATION))
    finally:
        await client.close()
    if group.error_code:
        raise for_code(group.error_code)
    return group


async def _send_heartbeat(client: AIOKafkaClient, group: str) -> bool:
    node = await client.coordinator_lookup(CoordinationType.GROUP, group)
    answer = await client.send(node, HeartbeatRequest(group, 0, "unknown-member"), group=ConnectionGroup.COORDINATION)
    error = for_code(answer.error_code)
    if issubclass(error, (GroupAuthorizationFailedError, *_NO_COORDINATOR_YET)):
        raise error
    return True
