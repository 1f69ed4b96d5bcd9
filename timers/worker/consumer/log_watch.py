"""Notices when a topic of ours is deleted, or deleted and made anew, under a running worker.

A new log under an old name has its own offsets: a machine that went on as if nothing had happened would skip its first
requests, and fire it all again when the next owner finds the progress of a log that is gone. Kafka's fetch protocol, as
aiokafka speaks it, names topics and not their ids, so every fetch error that a deletion can cause is a suspension, and
until the ids are looked up nothing of that topic is handed to a machine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from mode import Service

from timers.config.settings import Settings
from timers.core.timer import TopicPartition
from timers.errors import AccessError, TopicConfigError
from timers.kafka import topics
from timers.kafka.clients import librdkafka
from timers.kafka.own_topics import own_topics
from timers.kafka.topics import Cluster

logger = logging.getLogger(__name__)

WATCH_S = 10.0
"""Ids are looked up this often without any suspension: not every topic of ours is fetched from."""

GRACE_S = 15.0
"""A topic that was deleted may be about to be made anew, with partitions and settings of somebody's choice. After this
long the worker makes it as it does on its start."""

LOOK_AGAIN_S = 0.5
PAUSE_S = 0.1


class LogWatch(Service):
    """Looks up the ids of the worker's topics.

    Args:
        settings: of the worker.
        cluster: as it was when the worker started.
        renew: told of every change, and of the machines whose logs need not be suspended any longer.
    """

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        renew: Callable[[Cluster, Mapping[TopicPartition, bool]], Awaitable[None]],
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._settings = settings
        self._admin = AdminClient(librdkafka(settings))
        self._cluster = cluster
        self._renew = renew
        self._suspended: dict[TopicPartition, bool] = {}
        self._wanted = asyncio.Event()
        self._missing_since: dict[str, float] = {}

    @property
    def missing(self) -> list[str]:
        """Topics that are gone."""
        return sorted(self._missing_since)

    def look(self) -> None:
        """Look up the topics now."""
        self._wanted.set()

    def is_suspended(self, tp: TopicPartition) -> bool:
        """Whether a machine's topic is yet to be looked up."""
        return tp in self._suspended

    def suspend(self, tp: TopicPartition, out_of_range: bool) -> None:
        """Look up a machine's topic now: fetching from it went wrong in a way that a deletion can cause.

        Args:
            out_of_range: the log does not hold the position that was asked for.
        """
        self._suspended[tp] = out_of_range or self._suspended.get(tp, False)
        self.look()

    @Service.task
    async def _watch(self) -> None:
        while not self.should_stop:
            await self.wait(self._wanted, timeout=LOOK_AGAIN_S if self._missing_since else WATCH_S)
            self._wanted.clear()
            try:
                await self._look_up()
            except (KafkaException, TopicConfigError, AccessError) as error:
                logger.warning("looking up topics failed (%s); trying again", error)
                self.look()
                await self.sleep(LOOK_AGAIN_S)
            await self.sleep(PAUSE_S)  # a partition without a leader is suspended again at once

    async def _look_up(self) -> None:
        suspended = dict(self._suspended)
        found = await asyncio.to_thread(topics.look, self._admin, self._settings)
        if self._note_missing(found):
            await asyncio.to_thread(topics.ensure, self._settings, all_of_them=False)
            found = await asyncio.to_thread(topics.look, self._admin, self._settings)
            self._note_missing(found)
        settled = {tp: lost for tp, lost in suspended.items() if tp[0] in found.topic_ids}
        if found != self._cluster or settled:
            self._cluster = found
            for tp in settled:
                del self._suspended[tp]
            await self._renew(found, settled)

    def _note_missing(self, found: Cluster) -> bool:
        """Returns: whether a topic is missing for so long that it must be made."""
        now = monotonic()
        missing = {each.name: each for each in own_topics(self._settings) if each.name not in found.topic_ids}
        for name in missing.keys() - self._missing_since.keys():
            if missing[name].must_exist:
                logger.error("topic %s is gone; its partitions wait until somebody makes it anew", name)
            else:
                logger.error("topic %s is gone; unless somebody makes it anew it is made in %.0f s", name, GRACE_S)
        self._missing_since = {name: self._missing_since.get(name, now) for name in missing}
        ours = [since for name, since in self._missing_since.items() if not missing[name].must_exist]
        return any(now - since > GRACE_S for since in ours)
