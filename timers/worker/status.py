"""The state of a running worker that its health pages and metrics read."""

from __future__ import annotations

from timers.clock import Clock
from timers.config.settings import Settings
from timers.queries.pages import QueryCounts
from timers.worker.agents import TickScheduler
from timers.worker.canary import Canary
from timers.worker.consumer.group_watch import GroupWatch
from timers.worker.consumer.log_watch import LogWatch
from timers.worker.consumer.requests import PartitionConsumer
from timers.worker.machines.pool import Pool
from timers.worker.ticks import TickReader


class WorkerStatus:
    """Status of one worker. Any thread may read it.

    Attributes:
        settings: of the worker.
        pool: its machines.
        query_counts: of its query pages.
        shown_callers: callers that have a label of their own in the metrics.
        shown_topics: callback topics that have one.
        was_ready: whether the worker has been ready since its start.
        tick_scheduler: counts the seconds without a tick of this worker.
        cluster_id: of the brokers. The app sets this and the next five before its web port answers.
        consumer: member of the group, reader of the requests.
        tick_reader: reads the ticks.
        log_watch: watches the topics.
        group_watch: partitions without an owner, and feature levels.
        canary: sends canary timers; None if they are off.
    """

    cluster_id: str
    consumer: PartitionConsumer
    tick_reader: TickReader
    log_watch: LogWatch
    group_watch: GroupWatch

    def __init__(
        self, settings: Settings, pool: Pool, query_counts: QueryCounts, tick_scheduler: TickScheduler, clock: Clock
    ) -> None:
        self.settings = settings
        self.pool = pool
        self.query_counts = query_counts
        self.shown_callers: set[str] = set()
        self.shown_topics: set[str] = set()
        self.was_ready = False
        self.tick_scheduler = tick_scheduler
        self._clock = clock
        self.canary: Canary | None = None

    @property
    def clock_skew_s(self) -> float | None:
        """This worker's clock minus the brokers'; None if that is not known yet."""
        now_s = self.tick_scheduler.broker_now_s()
        return None if now_s is None else self._clock.now_s() - now_s
