"""Whether the brokers let us into our consumer group, asked before anything begins.

Asked by a heartbeat of nobody: it needs the same right as joining, READ on the group, and changes nothing. librdkafka's
own question, ``describe_consumer_groups``, is not used: where no coordinator answers it can abort the whole process
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
    NotCoordinatorForGroupError,
    for_code,
)
from aiokafka.protocol.group import HeartbeatRequest

from timers.config.settings import Settings
from timers.kafka import connection

_TRIES = 5
_PAUSE_S = 0.1
"""On a cluster that has never had a group, nobody answers for one yet: not worth a long wait."""

_TIMEOUT_S = 10.0

_NOBODY_YET = (CoordinatorNotAvailableError, GroupLoadInProgressError, NotCoordinatorForGroupError)


def may_join(settings: Settings) -> bool:
    """Whether the brokers allow us to be a member of our group; True also where nobody can say yet. Blocks."""
    return asyncio.run(_may_join(settings))


async def _may_join(settings: Settings) -> bool:
    client = AIOKafkaClient(**connection.aiokafka(settings))
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await client.bootstrap()
            for _ in range(_TRIES):
                try:
                    return await _ask(client, settings.app_id)
                except _NOBODY_YET:
                    await asyncio.sleep(_PAUSE_S)
    except GroupAuthorizationFailedError:
        return False
    except (KafkaError, TimeoutError):
        pass  # joining itself will say what is the matter
    finally:
        await client.close()
    return True


async def _ask(client: AIOKafkaClient, group: str) -> bool:
    node = await client.coordinator_lookup(CoordinationType.GROUP, group)
    answer = await client.send(node, HeartbeatRequest(group, 0, "nobody"), group=ConnectionGroup.COORDINATION)
    error = for_code(answer.error_code)
    if issubclass(error, (GroupAuthorizationFailedError, *_NOBODY_YET)):
        raise error
    return True
