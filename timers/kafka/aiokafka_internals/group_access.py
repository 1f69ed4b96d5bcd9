"""Asks, before the worker starts, whether the brokers allow this user to join its consumer group.

The request is a heartbeat with an unknown member id. It needs the same right as joining, READ on the group, and
changes nothing. librdkafka's ``describe_consumer_groups`` is not used, because it can abort the process when no
coordinator answers (``rd_kafka_enq_once_del_source_return: Assertion``, librdkafka issues 3663 and 4605).
"""

from __future__ import annotations

import asyncio

from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.errors import (
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    GroupLoadInProgressError,
    KafkaError,
    NotCoordinatorForGroupError,
    for_code,
)
from aiokafka.protocol.group import HeartbeatRequest

from timers.config.settings import Settings
from timers.kafka import connection

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


async def _send_heartbeat(client: AIOKafkaClient, group: str) -> bool:
    node = await client.coordinator_lookup(CoordinationType.GROUP, group)
    answer = await client.send(node, HeartbeatRequest(group, 0, "unknown-member"), group=ConnectionGroup.COORDINATION)
    error = for_code(answer.error_code)
    if issubclass(error, (GroupAuthorizationFailedError, *_NO_COORDINATOR_YET)):
        raise error
    return True
