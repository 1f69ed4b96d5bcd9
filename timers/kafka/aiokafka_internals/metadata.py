"""Lets aiokafka's clients ask for metadata without creating topics, and not wait for a broker that does not answer.

Unless a metadata request says otherwise, brokers with ``auto.create.topics.enable=true`` create each topic that it
names, with their default configuration. A deleted topic of the worker would come back at once, for example with the
producers' times. aiokafka has no option for this.

aiokafka asks one broker after the other, in random order, and waits for each as long as for any request: 5 to 90 s. For
the coordinator of a group or of a transactional id it asks one broker only. If one of three brokers is frozen, a third
of the questions wait so long: new leaders are not known, and a member without a coordinator sends no heartbeats.
So the next broker is asked, too, after :data:`NEXT_AFTER_S`, and the first answer counts. All clients of the process
ask a silent broker last for :data:`SILENT_S`, also a new client that knows no broker yet.

This module relies on:

==========================================================  ==========================================================
``aiokafka.client.MetadataRequest``                         looked up by that name for each request; its argument
                                                            ``allow_auto_topic_creation``
``AIOKafkaClient._metadata_update(cluster, topics)``        called for each update; returns whether a broker answered
``AIOKafkaClient.coordinator_lookup(type, key)``            called for each lookup; returns the id of the coordinator
``AIOKafkaClient.hosts``                                    property; where a new client tries to connect, in order
``AIOKafkaClient._conns``                                   has an entry ``_BOOTSTRAP`` until the brokers are known
``AIOKafkaClient._get_conn(broker)``                        a connection; None if the broker takes none
``ClusterMetadata.update_metadata``, ``failed_update``      use an answer, or note that there is none
==========================================================  ==========================================================
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from time import monotonic
from typing import Any

from aiokafka import client
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import collect_hosts
from aiokafka.errors import KafkaConnectionError, KafkaError, NodeNotReadyError, for_code
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.metadata import MetadataRequest

from timers.core.backoff import Pauses

logger = logging.getLogger(__name__)

NEXT_AFTER_S = 0.5
"""A broker without an answer after this time is slow or frozen; another one is asked, too."""

SILENT_S = 30.0

PAUSES = Pauses(0.2, 1.0)
"""Before a client tries again to connect at its start."""

_silent_until: dict[tuple[str, int], float] = {}
"""Host and port of a broker that was silent -> seconds of the monotonic clock. Threads share it."""

_BOOTSTRAP = ("bootstrap", ConnectionGroup.DEFAULT)


def install() -> None:
    """Let all aiokafka clients of this process ask so. May be called again."""
    client.MetadataRequest = partial(MetadataRequest, allow_auto_topic_creation=False)
    AIOKafkaClient._metadata_update = update
    AIOKafkaClient.coordinator_lookup = look_up_coordinator
    AIOKafkaClient.hosts = property(hosts)


async def start_patiently(start: Callable[[], Awaitable[None]], name: str, is_stopping: Callable[[], bool]) -> bool:
    """Start a client, again and again while the brokers take no connection or cut it: topics were found before, so
    there are brokers. Returns False if it was told to stop before they answered."""
    failures = 0
    while not is_stopping():
        try:
            await start()
            return True
        except (KafkaError, OSError) as error:
            if not (isinstance(error, OSError | KafkaConnectionError) or error.retriable):
                raise
            failures += 1
            if failures == 1:
                logger.warning("%s waits for the brokers (%r)", name, error)
        await asyncio.sleep(PAUSES.after(failures))
    return False


def hosts(self: Any) -> list[Any]:
    """Return (host, port, family) of the brokers to which a new client may connect, silent ones last."""
    return sorted(collect_hosts(self._bootstrap_servers), key=lambda each: _is_silent(each[:2]))


def _is_silent(address: tuple[str, int]) -> bool:
    return _silent_until.get(address, -math.inf) > monotonic()


async def update(self: Any, cluster: Any, topics: Collection[str]) -> bool:
    """Ask brokers for the metadata of ``topics``, none for all, until one answers. Returns whether one did."""
    metadata = await _first_answer(self, client.MetadataRequest(list(topics) if topics else None))
    if metadata is None:
        cluster.failed_update(None)
        return False
    if not metadata.brokers:  # the topic is being created
        return False
    cluster.update_metadata(metadata)
    if _BOOTSTRAP in self._conns and self.cluster.brokers():
        self._conns.pop(_BOOTSTRAP).close()
    return True


async def look_up_coordinator(self: Any, kind: int, key: str) -> int:
    """Return the id of the broker that coordinates a group, or a transactional id.

    Raises:
        NodeNotReadyError: no broker answers.
        KafkaError: there is no coordinator now, or it may not be asked for.
    """
    answer = await _first_answer(self, FindCoordinatorRequest(key, kind))
    if answer is None:
        raise NodeNotReadyError(f"no broker tells the coordinator of {key}")
    if answer.error_code:
        raise for_code(answer.error_code)()
    found: int = answer.coordinator_id
    return found


async def _first_answer(self: Any, request: Any) -> Any:
    """The first answer of a broker; None if none answers."""
    addresses = {broker.nodeId: (broker.host, broker.port) for broker in self.cluster.brokers()}
    brokers: list[Any] = [*addresses]
    if _BOOTSTRAP in self._conns:
        brokers.append(_BOOTSTRAP[0])
    random.shuffle(brokers)
    brokers.sort(key=lambda broker: _is_silent(addresses.get(broker, ("", 0))), reverse=True)

    async def ask(broker: Any) -> Any:
        connection = await self._get_conn(broker)
        try:
            return None if connection is None else await connection.send(request)
        except (KafkaError, TimeoutError):
            return None

    asking: dict[asyncio.Task[Any], Any] = {}
    try:
        while brokers or asking:
            if brokers:
                broker = brokers.pop()
                asking[asyncio.create_task(ask(broker))] = broker
            wait_s = NEXT_AFTER_S if brokers else None
            done, _ = await asyncio.wait(asking, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                _silent_until.update(
                    {addresses[each]: monotonic() + SILENT_S for each in asking.values() if each in addresses}
                )
            for task in done:
                _silent_until.pop(addresses.get(asking.pop(task), ("", 0)), None)
                if task.result() is not None:
                    return task.result()
        return None
    finally:
        for task in asking:
            task.cancel()
