"""The state of a running worker that its health pages and metrics read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from timers.clock import Clock
from timers.config.settings import Settings
from timers.core.clock_guard import Hold
from timers.core.timer import TopicPartition
from timers.errors import LevelTooHigh
from timers.kafka.own_topics import WrongConfig
from timers.partition_metrics import Heartbeat
from timers.worker.agents import TickScheduler
from timers.worker.canary import Canary, Observation
from timers.worker.consumer.group_watch import UnownedPartitions
from timers.worker.consumer.log_watch import LogWatch
from timers.worker.consumer.requests import PartitionConsumer
from timers.worker.levels import LevelWatch
from timers.worker.machines.pool import Pool
from timers.worker.queries.pages import QueryCounts
from timers.worker.ticks import TickReader


class WorkerStatus:
    """Status of one worker. Any thread may read it.

    Attributes:
        settings: of the worker.
        pool: its machines.
        query_counts: of its query pages.
        shown_callers: callers that have a label of their own in the metrics.
        shown_topics: callback topics that have one.
        unowned: partitions without an owner.
        cluster_id: of the brokers; empty before they have answered.
        was_ready: whether the worker has been ready since its start.
        consumer: member of the group, reader of the requests. The app sets this and the next four at its start;
            before, they are None.
        tick_reader: reads the ticks.
        log_watch: watches the topics.
        level_watch: raises feature levels.
        canary: sends canary timers; None if they are off.
    """

    def __init__(
        self, settings: Settings, pool: Pool, query_counts: QueryCounts, tick_scheduler: TickScheduler, clock: Clock
    ) -> None:
        self.settings = settings
        self.pool = pool
        self.query_counts = query_counts
        self.shown_callers: set[str] = set()
        self.shown_topics: set[str] = set()
        self.unowned = UnownedPartitions()
        self.was_ready = False
        self.cluster_id = ""
        self._tick_scheduler = tick_scheduler
        self._clock = clock
        self.consumer: PartitionConsumer | None = None
        self.tick_reader: TickReader | None = None
        self.log_watch: LogWatch | None = None
        self.level_watch: LevelWatch | None = None
        self.canary: Canary | None = None

    @property
    def in_group(self) -> bool:
        """Whether the group's last deal stands; false during a rebalance."""
        return self.consumer is not None and self.consumer.in_group

    @property
    def was_dealt(self) -> bool:
        """Whether the group has dealt partitions to this worker since the start, which may be none."""
        return self.consumer is not None and self.consumer.was_dealt

    @property
    def consumer_heartbeat(self) -> Heartbeat | None:
        """Heartbeat of the consumer's event loop; None before the start."""
        return None if self.consumer is None else self.consumer.heartbeat

    @property
    def watermarks(self) -> Mapping[TopicPartition, tuple[int, int]]:
        """High watermark and last stable offset of each owned partition, as of its last fetch."""
        return {} if self.consumer is None else self.consumer.watermarks()

    @property
    def missing_topics(self) -> list[str]:
        """Topics of the worker that were deleted."""
        return [] if self.log_watch is None else self.log_watch.missing

    @property
    def refusal(self) -> LevelTooHigh | None:
        """Why this worker may own no partitions; None if it may."""
        return None if self.level_watch is None else self.level_watch.refusal

    @property
    def topic_problems(self) -> list[str]:
        """Why topics that were created again cannot be used, a sentence each."""
        return [] if self.log_watch is None else list(self.log_watch.problems.values())

    @property
    def wrong_configs(self) -> Sequence[WrongConfig]:
        """What is wrong with the configuration of the worker's topics, the worst first."""
        return () if self.log_watch is None else self.log_watch.wrong_configs

    @property
    def tick_age_s(self) -> float | None:
        """Seconds since the last counted tick; None before the start."""
        return None if self.tick_reader is None else self.tick_reader.age_s

    @property
    def has_ticked(self) -> bool:
        """Whether a tick was counted since the start."""
        return self.tick_reader is not None and self.tick_reader.has_counted

    @property
    def held_ticks(self) -> list[Hold]:
        """The brokers whose ticks do not count now [I20]."""
        return [] if self.tick_reader is None else self.tick_reader.judge.holds

    @property
    def missed_ticks(self) -> int:
        """Seconds without a tick of this worker."""
        return self._tick_scheduler.missed

    @property
    def broker_now_s(self) -> float | None:
        """The brokers' time; None if it is not known yet."""
        return self._tick_scheduler.broker_now_s()

    @property
    def clock_skew_s(self) -> float | None:
        """This worker's clock minus the brokers'; None if that is not known yet."""
        now_s = self.broker_now_s
        return None if now_s is None else self._clock.now_s() - now_s

    @property
    def canaries(self) -> Mapping[int, Observation]:
        """Request partition -> last callback of its canary timers."""
        return {} if self.canary is None else self.canary.latest
