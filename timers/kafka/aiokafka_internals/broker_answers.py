"""When brokers have answered, and waiting for answers that does not count pauses of this process.

This module relies on:

==========================================================  ==========================================================
``AIOKafkaClient._conns``                                   (broker, group) -> connection
``Sender._coordinators``, ``_coordinator_dead``             the coordinators that it knows, by type; forgets one
``AIOKafkaProducer._txn_manager``, ``_sender``              state of the transaction, the task that sends
==========================================================  ==========================================================
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Iterable
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from aiokafka import AIOKafkaProducer, errors
from aiokafka.client import ConnectionGroup, CoordinationType
from aiokafka.errors import KafkaError
from aiokafka.protocol.coordination import FindCoordinatorRequest

from timers.core.backoff import Pauses
from timers.kafka.aiokafka_internals.requests import NO_TAGS, FeaturesRequest, finalized_features

logger = logging.getLogger(__name__)

AWAKE_S = 0.5
"""Seconds; a running process checks its time-outs more often than this."""

_Task = TypeVar("_Task", bound=asyncio.Future[Any])


async def wait_awake(tasks: Iterable[_Task], seconds: float, return_when: str = asyncio.FIRST_EXCEPTION) -> set[_Task]:
    """Wait for all of ``tasks``, or the first that fails. Returns those that have not ended.

    Only time in which this process was running counts. After a pause all its time-outs end together, before it has
    read any answer: then targets would seem to fail, and a takeover by another worker would be hidden.
    """
    waiting = set(tasks)
    for _ in range(math.ceil(seconds / AWAKE_S) if waiting else 0):
        done, waiting = await asyncio.wait(waiting, timeout=AWAKE_S, return_when=return_when)
        failed = any(task.cancelled() or task.exception() for task in done)
        if not waiting or (failed and return_when == asyncio.FIRST_EXCEPTION):
            break
    return waiting


FRESH_S = 0.5
"""Seconds for which an answer to one producer counts for all: else each machine would ask each broker."""

RECENT_S = 2.0
"""Brokers that no transaction has used for this long are not asked ahead."""

VERSION_S = 30.0
"""Seconds after which a broker is asked again for the version of transactions. The cluster changes it rarely, and old
requests are served meanwhile."""

GROUP_ANSWER_S = 1.0
GROUP_RETRY_S = 10.0
"""Seconds without an answer after which a group's coordinator counts as absent, and seconds until it is asked again."""

REFUSED_OFFSETS = Pauses(GROUP_RETRY_S, 60.0)
"""Before offsets are sent again to a coordinator that answers and did not take the last ones. An attempt may cost a
transaction."""

_NO_COORDINATOR = (
    errors.CoordinatorLoadInProgressError,
    errors.CoordinatorNotAvailableError,
    errors.KafkaConnectionError,
    errors.NodeNotReadyError,
    errors.RequestTimedOutError,
)


TRANSACTION_VERSION = "transaction.version"


class Absent(NamedTuple):
    """Brokers that cannot take records now."""

    refusing: set[int]
    """Ids of brokers that take no connection."""
    silent: set[int]
    """Ids of brokers that did not answer in time."""


class BrokerAnswers:
    """When brokers answered last. The producers of a worker share it, on their event loop.

    A partition whose leader is gone must not become part of a transaction: without this leader neither a commit nor a
    rollback ends, and the machine cannot begin another transaction. Metadata are not enough: the cluster notices a dead
    or frozen broker only after seconds (``broker.session.timeout.ms``) [I25].
    """

    def __init__(self) -> None:
        self._answered_at: dict[int, float] = {}
        self._pings: dict[int, asyncio.Task[None]] = {}
        self._used: dict[int, tuple[AIOKafkaProducer, float]] = {}
        self._group_from = 0.0
        self._refused_offsets, self._refused_at = 0, -math.inf
        """How often in a row the group's coordinator did not take offsets, and when it did not last."""
        self._features = -1, 0
        """Epoch of the features of the cluster, and ``transaction.version``."""
        self._features_at: float | None = None
        """None: no producer has asked. With TIMERS_TRANSACTION_VERSION=1 none does."""

    @property
    def transaction_version(self) -> int:
        """The version of transactions that the cluster has finalized, 1 or 2, by the newest answer."""
        return min(2, max(1, self._features[1]))

    def doubt_version(self) -> None:
        """Let the next answer about :attr:`transaction_version` count, whatever its epoch: a broker lacks a request of
        version 2. A cluster that was made anew counts epochs from the beginning."""
        self._features = -2, self._features[1]

    async def ask_version(self, producer: AIOKafkaProducer, broker: int) -> None:
        """Ask a broker for :attr:`transaction_version`. Brokers learn of a change one after another: an answer with an
        older epoch of the features does not count.

        Raises:
            KafkaError: it does not answer.
        """
        try:
            answer = await producer.client.send(broker, FeaturesRequest("timers", "1", NO_TAGS))
            epoch, levels = finalized_features(answer)
        except NotImplementedError:  # a broker before Kafka 2.4
            epoch, levels = -1, {}
        self._features_at = monotonic()
        self._features = max(self._features, (epoch, levels.get(TRANSACTION_VERSION, 0)))

    async def absent(self, producer: AIOKafkaProducer, brokers: Collection[int], seconds: float) -> Absent:
        """Of some brokers, those that do not answer within ``seconds``."""
        self._used.update(dict.fromkeys(brokers, (producer, monotonic())))
        unsure = (broker for broker in brokers if not (self._is_fresh(broker) and _is_connected(producer, broker)))
        asking = {asyncio.create_task(self._ask(producer, broker)): broker for broker in unsure}
        if not asking:
            return Absent(set(), set())
        try:
            late = await wait_awake(asking, seconds, asyncio.ALL_COMPLETED)
            failed = {broker: task.exception() for task, broker in asking.items() if task not in late}
            timed_out = {broker for broker, error in failed.items() if isinstance(error, errors.RequestTimedOutError)}
            refusing = {broker for broker, error in failed.items() if isinstance(error, KafkaError)} - timed_out
            return Absent(refusing, timed_out | {asking[task] for task in late})
        finally:
            for task in asking:
                task.cancel()

    async def _ask(self, producer: AIOKafkaProducer, broker: int) -> None:
        if not await producer.client.ready(broker):  # a broker that has died since its last answer shows it at once
            raise errors.NodeNotReadyError(broker)
        of_another = self._pings.get(broker)
        if of_another is not None and not of_another.done():
            with suppress(KafkaError):  # only the other producer's connection may have failed
                await asyncio.shield(of_another)
        if not self._is_fresh(broker):
            await asyncio.shield(self._start_ping(producer, broker))

    def ask_ahead(self) -> None:
        """Ask the brokers of the last transactions, so that those of the next tick need not wait for the answers."""
        for broker, (producer, used_at) in self._used.items():
            asked = self._pings.get(broker)
            is_asked = asked is not None and not asked.done()
            if monotonic() < used_at + RECENT_S and _is_connected(producer, broker) and not is_asked:
                self._start_ping(producer, broker)

    def _start_ping(self, producer: AIOKafkaProducer, broker: int) -> asyncio.Task[None]:
        self._pings[broker] = asyncio.create_task(self._ping(producer, broker))
        return self._pings[broker]

    def note(self, brokers: Iterable[int]) -> None:
        """Note that brokers have answered other requests just now: a busy worker then need not ask them."""
        self._answered_at.update(dict.fromkeys(brokers, monotonic()))

    def _is_fresh(self, broker: int) -> bool:
        return monotonic() <= self._answered_at.get(broker, -math.inf) + FRESH_S

    async def _ping(self, producer: AIOKafkaProducer, broker: int) -> None:
        if self._features_at is not None and monotonic() > self._features_at + VERSION_S:
            await self.ask_version(producer, broker)
        else:
            name = producer._txn_manager.transactional_id  # what the broker answers does not count
            await producer.client.send(broker, FindCoordinatorRequest(name, CoordinationType.TRANSACTION))
        self.note([broker])

    async def has_coordinator(self, producer: AIOKafkaProducer, group: str) -> bool:
        """Whether offsets may be sent to the coordinator of a consumer group: it answers, and took the last ones. If
        not, it is tried again later."""
        if monotonic() < self._group_from:
            return False
        was_absent = self._group_from > 0
        if was_absent:
            self._group_from = monotonic() + GROUP_RETRY_S  # the other machines do not wait for this attempt
        answers, broker = False, producer._sender._coordinators.get(CoordinationType.GROUP)
        with suppress(TimeoutError, *_NO_COORDINATOR):
            if broker is None:
                lookup = producer.client.coordinator_lookup(CoordinationType.GROUP, group)
                broker = await asyncio.wait_for(lookup, GROUP_ANSWER_S)
            answers = not any(await self.absent(producer, [broker], GROUP_ANSWER_S))
        if not answers:
            producer._sender._coordinator_dead(CoordinationType.GROUP)
        if self._refused_offsets:  # it answers, but refused offsets: note_offsets() decides
            return answers
        if answers == was_absent:
            _say(group, "answers again" if answers else f"does not answer: {_NOT_UPDATED}")
        self._group_from = 0.0 if answers else monotonic() + GROUP_RETRY_S
        return answers

    @property
    def doubts_group(self) -> bool:
        """Whether the group's coordinator did not take the last offsets."""
        return self._refused_offsets > 0

    def note_offsets(self, group: str, began_s: float, error: BaseException | None = None) -> None:
        """Note whether the coordinator of a consumer group took offsets. One that answers may take none for minutes: it
        loads its partition of the offsets topic, or this has too few replicas in sync. Then transactions go without.

        Args:
            began_s: when the transaction began, on the monotonic clock.
            error: why it did not take them.
        """
        if error is None:
            if self._refused_offsets:
                _say(group, "takes offsets again")
                self._refused_offsets, self._group_from = 0, 0.0
        elif began_s > self._refused_at:  # else the attempt began before the last refusal: both count as one
            if not self._refused_offsets:
                _say(group, f"takes no offsets ({error!r}): {_NOT_UPDATED}")
            self._refused_offsets, self._refused_at = self._refused_offsets + 1, monotonic()
            self._group_from = self._refused_at + REFUSED_OFFSETS.after(self._refused_offsets)


_NOT_UPDATED = "its offsets, a copy for lag tools, are not updated"


def _say(group: str, what: str) -> None:
    logger.warning("the coordinator of the group %r %s", group, what)


def _is_connected(producer: AIOKafkaProducer, broker: int) -> bool:
    connection = producer.client._conns.get((broker, ConnectionGroup.DEFAULT))
    return connection is not None and connection.connected()
