"""Detects that a topic of the worker was deleted, created again, or configured otherwise, while the worker runs.

A topic that was created again is configured as at the worker's start. If that is not possible, the worker treats it as
deleted until it is.

A new log under the same name has its own offsets. If the machine continued, it would skip the first requests of the new
log, and its next owner would find the progress of the old log and fire everything again. aiokafka's fetch requests name
topics and not topic ids. So every fetch error that a deletion can cause suspends the partition: its fetches are dropped
until the topic's id was looked up.

The configuration of a topic that exists may be changed at any time. What is wrong is said, and nothing is changed. One
setting is an exception: if the oscillator has no ticks with the broker's time, this time is set again, as at the start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from time import monotonic
from typing import Any

from confluent_kafka import KafkaException
from mode import Service

from timers.core.timer import TopicPartition
from timers.errors import AccessError, TopicConfigError
from timers.kafka import connection, topics
from timers.kafka.clients import asking_admin
from timers.kafka.own_topics import log_new, own_topics, transactions_due
from timers.kafka.topics import Cluster
from timers.process.config.settings import Settings

logger = logging.getLogger(__name__)

WATCH_S = 5.0
"""Seconds between two lookups of topic ids while no partition is suspended. The consumer does not fetch every topic, so
a deletion need not cause a fetch error. Configurations are not read more often than this."""

GRACE_S = 8.0
"""Seconds for which a topic must be missing before the worker creates it: an operator may want to create it with other
settings."""

BLIND_S = 60.0
"""Seconds without an answer about the topics until the worker is not ready: partitions may be suspended."""

FIRST_REFUSED_S, LAST_REFUSED_S = 1.0, 60.0
"""Seconds until the worker tries again to create topics that it could not create, which double after each refusal."""

SHOWN_S = 600.0
"""Seconds for which it is shown that a topic of timers was made anew: longer than an alert waits."""

RETRY_S = 0.5

FIRST_ANSWER_S, LAST_ANSWER_S = 3.0, 30.0
"""Seconds for an answer about the topics, which double after each failure. New partitions wait for it. A request to a
broker that has just died gets none, and the next request goes to another broker."""
PAUSE_S = 0.1


class LogWatch(Service):
    """Looks up the ids of the worker's topics.

    Attributes:
        problems: topic that was created again -> why its configuration makes it unusable, in a sentence.
        refusal: why missing topics could not be created, in a sentence; empty: they were, or none is missing.
        failed: why the topics were not looked up in the last :data:`BLIND_S`, in a sentence; empty: they were.
        suspended: partitions whose topic has yet to be looked up -> whether their position is out of range.

    Args:
        on_checked: called after a change of the topics, and with suspended partitions whose topic was looked up ->
            whether their position is out of range.
    """

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        on_checked: Callable[[Cluster, Mapping[TopicPartition, bool]], Awaitable[None]],
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._settings = settings
        self._reports = connection.ErrorReports(settings)
        self._admin = asking_admin(settings, self._reports)
        self._answer_s = FIRST_ANSWER_S
        self.cluster = cluster
        self._on_checked = on_checked
        self.suspended: dict[TopicPartition, bool] = {}
        self._requested = asyncio.Event()
        self._missing_since: dict[str, float] = {}
        self._checked_ids = dict(cluster.topic_ids)
        self._ids = dict(cluster.topic_ids)
        """Topic -> the id that it had last, also while it is missing."""
        self._made_anew_at: dict[str, float] = {}
        self._configs_read_at = self._transactions_read_at = monotonic()
        self.problems: dict[str, str] = {}
        self.failed = ""
        self.refusal = ""
        self._refused_s = FIRST_REFUSED_S
        self._create_at = 0.0

    @property
    def missing(self) -> list[str]:
        """Topics that were deleted."""
        return sorted(self._missing_since)

    @property
    def made_anew(self) -> dict[str, str]:
        """Topics of timers that were deleted and made anew in the last :data:`SHOWN_S` -> a sentence. Any thread."""
        since = monotonic() - SHOWN_S
        return {
            name: f"topic {name!r} was deleted and made anew: the timers that waited in it are lost, and must be set "
            "again; nothing is to be done here, and this is shown for 10 minutes (docs/operations.md#a-deleted-topic)"
            for name, at in list(self._made_anew_at.items())
            if at > since
        }

    def request_check(self, topic: str) -> None:
        """Look up the topics soon, and check the configuration of ``topic``: it may have been changed."""
        self._checked_ids.pop(topic, None)
        self._requested.set()

    def suspend(self, tp: TopicPartition, out_of_range: bool) -> None:
        """Look up a partition's topic soon, after a fetch error that a deletion can cause: nothing is read until then.

        Args:
            out_of_range: whether the log does not hold the consumer's position.
        """
        self.suspended[tp] = out_of_range or self.suspended.get(tp, False)
        self._requested.set()

    @Service.task
    async def _watch(self) -> None:
        failed, answered_at = "", monotonic()
        while not self.should_stop:
            await self.wait(self._requested, timeout=RETRY_S if self._missing_since or self.problems else WATCH_S)
            self._requested.clear()
            try:
                if await self._look_up():
                    await self._create_missing()
                failed, self.failed, answered_at = "", "", monotonic()
                self._reports.refusal = None
            except KafkaException as error:
                explain = partial(self._reports.user_error, error, "the topics cannot be looked up")
                why = str(await asyncio.to_thread(explain))  # it may ask for a token
                if why != failed:
                    logger.warning("%s; trying until it succeeds", why)
                failed = why
                self.failed = why if monotonic() - answered_at > BLIND_S else ""
                self._answer_s = min(2 * self._answer_s, LAST_ANSWER_S)
                self._requested.set()
                await self.sleep(RETRY_S)
            await self.sleep(PAUSE_S)  # a partition without a leader is suspended again at once, many times

    async def _look_up(self) -> bool:
        """Give the topics as they are to the worker. Returns whether it must create one."""
        suspended = dict(self.suspended)
        cluster = await self._existing()
        self._answer_s = FIRST_ANSWER_S
        must_create = self._note_missing(cluster)
        self._note_made_anew(cluster)
        cluster = await self._without_unusable(cluster)
        self._note_configs(cluster)
        checked = {tp: out_of_range for tp, out_of_range in suspended.items() if tp[0] in cluster.topic_ids}
        if cluster != self.cluster or checked:
            self.cluster = cluster
            for tp in checked:
                del self.suspended[tp]
            await self._on_checked(cluster, checked)
        return must_create

    async def _create_missing(self) -> None:
        """Create missing topics. If that is refused, the other topics go on, and it is tried again after a pause."""
        if monotonic() < self._create_at:
            return
        try:
            asking = self._admin, self._reports
            await asyncio.to_thread(topics.ensure, self._settings, user_topics=False, asking=asking)
        except (TopicConfigError, AccessError) as error:
            if str(error) != self.refusal:  # a missing ACL gives the same error each time
                logger.error("deleted topics cannot be created: %s; trying until it succeeds", error)
            self.refusal = str(error)
            self._create_at = monotonic() + self._refused_s
            if isinstance(error, AccessError):  # else no broker has answered in time, which may end soon
                self._refused_s = min(2 * self._refused_s, LAST_REFUSED_S)
        else:
            self._forget_refusal()
            self._requested.set()

    def _forget_refusal(self) -> None:
        self.refusal, self._refused_s, self._create_at = "", FIRST_REFUSED_S, 0.0

    async def _existing(self) -> Cluster:
        now = monotonic()
        with_configs = now - self._configs_read_at > 0.9 * WATCH_S
        is_due = transactions_due(now - self._transactions_read_at, self.cluster.wrong_configs)
        with_transactions = with_configs and is_due
        look = partial(topics.existing_topics, with_configs=with_configs, with_transactions=with_transactions)
        cluster = await asyncio.to_thread(look, self._admin, self._settings, self.cluster, self._answer_s)
        if with_configs:
            self._configs_read_at = now
        if with_transactions:
            self._transactions_read_at = now
        return cluster

    def _note_configs(self, cluster: Cluster) -> None:
        """Log what is wrong with the configurations, once. What makes a topic unusable was logged before."""
        wrong = [each for each in cluster.wrong_configs if each.topic not in self.problems]
        log_new(wrong, self.cluster.wrong_configs)
        for name in sorted(cluster.unseen - self.cluster.unseen):
            logger.warning(
                "topic %s: the right to Describe or DescribeConfigs is gone, so a change of the topic is not noticed",
                name,
            )

    async def _without_unusable(self, cluster: Cluster) -> Cluster:
        """Check the configuration of new topics. Returns the cluster without those that cannot be used."""
        new = {name for name, topic_id in cluster.topic_ids.items() if self._checked_ids.get(name) != topic_id}
        if not new and not self.problems:
            return cluster
        problems = await asyncio.to_thread(topics.config_problems, self._admin, self._settings, new)
        for name, problem in problems.items():
            if self.problems.get(name) != problem:
                logger.error("%s; until then the topic is not used", problem)
        self.problems = problems
        self._checked_ids.update({name: cluster.topic_ids[name] for name in new - problems.keys()})
        return cluster.without(problems)

    def _note_made_anew(self, cluster: Cluster) -> None:
        """Note topics that have another id than before, also if they were never seen to be missing."""
        keeping = {each.name for each in own_topics(self._settings) if each.needs_all_records}
        for name, topic_id in cluster.topic_ids.items():
            if self._ids.setdefault(name, topic_id) != topic_id:
                self._ids[name] = topic_id
                logger.error("topic %s was deleted and made anew; what it held is lost", name)
                if name in keeping:
                    self._made_anew_at[name] = monotonic()

    def _note_missing(self, cluster: Cluster) -> bool:
        """Note missing topics. Returns whether one has been missing for so long that the worker must create it."""
        now = monotonic()
        missing = {each.name: each for each in own_topics(self._settings) if each.name not in cluster.topic_ids}
        for name in missing.keys() - self._missing_since.keys():
            if missing[name].must_exist:
                logger.error("topic %s was deleted; its partitions wait until it is created again", name)
            else:
                logger.error("topic %s was deleted; unless it is created again, it is created in %.0f s", name, GRACE_S)
        self._missing_since = {name: self._missing_since.get(name, now) for name in missing}
        if not missing:
            self._forget_refusal()
        own = [since for name, since in self._missing_since.items() if not missing[name].must_exist]
        return any(now - since > GRACE_S for since in own)
