"""The worker as a Faust app: what is started in which order, and how it ends."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Any

import faust
from faust.types import TP
from faust.worker import Worker
from yarl import URL

from timers.config.settings import Settings
from timers.core.timer import TopicPartition
from timers.errors import TimersError
from timers.kafka import topics
from timers.kafka.topics import Cluster
from timers.request_formats import enabled_formats
from timers.store.memory_limit import RocksMemory
from timers.worker import agents, logs, web
from timers.worker.canary import Canary
from timers.worker.clock import Clock
from timers.worker.consumer.group import Member, Unsettled
from timers.worker.consumer.log_watch import LogWatch
from timers.worker.consumer.transport import BatchConsumer, BatchTransport
from timers.worker.logins import faust_credentials, hide_logins
from timers.worker.machines.pool import Events, Pool
from timers.worker.partition_metrics import Heartbeat
from timers.worker.port import check_port
from timers.worker.queries.answers import Queries
from timers.worker.queries.idle_window import IdleWindow
from timers.worker.queries.pages import QueryPages
from timers.worker.ticks import TickReader

logger = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.005

HEARTBEAT_S = 3.0
"""Kafka's own default. With it a member hears that partitions are dealt anew: however long a session may last."""

METADATA_MAX_AGE_S = 30
"""A request topic that got more partitions is noticed by the group within this time."""

GOODBYE_S = 15
"""Nothing is held when it begins: all machines are closed."""


def say_why(reason: TimersError, settings: Settings) -> None:
    """The worker's last words: one sentence."""
    if settings.log_format == logs.JSON:
        logger.critical("%s", reason)
    else:
        print(f"timers: {reason}", file=sys.__stderr__, flush=True)


class TimersWorker(Worker):
    """Faust's worker, but an error of ours ends it with one sentence and its exit code."""

    def __init__(self, app: TimersApp, *args: Any, **kwargs: Any) -> None:
        app.adopt_port()
        super().__init__(app, *args, **kwargs)

    def on_setup_root_logger(self, logger: logging.Logger, level: int) -> None:
        """Faust has set up its handlers."""
        super().on_setup_root_logger(logger, level)
        logs.set_up(self.app.settings.log_format, lambda: self.app.fatal)

    def on_worker_shutdown(self) -> None:
        """Once it ends, being told so again changes nothing: its exit code says why it ended."""
        super().on_worker_shutdown()
        self.loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def execute_from_commandline(self) -> None:
        """Run until stopped."""
        try:
            super().execute_from_commandline()
        except SystemExit as exit_:
            reason = self.app.fatal or logs.known(exit_.__context__)
            if reason is None:
                raise
            say_why(reason, self.app.settings)
            raise SystemExit(reason.exit_code) from None


class TimersApp(faust.App):
    """Faust app of one worker.

    Attributes:
        pool: the machines of the partitions assigned to this worker.
        fatal: why the worker must end, if it must.
        callers: names that metrics show.
    """

    pool: Pool
    tick_scheduler: agents.TickScheduler
    query_pages: QueryPages

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.fatal: TimersError | None = None
        self.callers: set[str] = set()
        hide_logins()
        formats = enabled_formats(settings)
        self.pool = Pool(formats, RocksMemory(settings.store_memory_mb * 1024 * 1024))
        self.ticks: Any = None
        self.tick_reader: TickReader | None = None
        self.log_watch: LogWatch | None = None
        self.canary: Canary | None = None
        super().__init__(
            settings.app_id,
            broker=[URL(f"kafka://{address}") for address in settings.brokers.split(",")],
            broker_credentials=faust_credentials(settings),
            datadir=settings.data_dir / f"worker-{settings.worker_id}" / "faust",
            store="memory://",
            web_port=settings.web_port,
            web_bind=settings.web_bind,
            canonical_url=settings.canonical_url,
            web_router_enabled=False,
            web_tables_enabled=False,
            broker_client_id=settings.worker_id,
            consumer_group_instance_id=settings.worker_id,
            broker_session_timeout=float(settings.session_timeout_s),
            broker_heartbeat_interval=min(HEARTBEAT_S, settings.session_timeout_s / 3),
            broker_request_timeout=float(max(90, settings.session_timeout_s + 30)),
            stream_buffer_maxsize=16,
            stream_recovery_delay=0.0,
            consumer_metadata_max_age_ms=METADATA_MAX_AGE_S * 1000,
            stream_wait_empty=False,
            topic_allow_declare=False,
            topic_disable_leader=True,
            producer_linger=0.0,
            worker_redirect_stdouts=False,
            Worker=TimersWorker,
        )
        self.clock = Clock(settings.clock_offset_s)
        self.queries: Queries | None = None
        self.query_pages = QueryPages(self)
        self.tick_scheduler = agents.register(self, settings, self.pool, self.clock, formats)
        web.register(self)
        self.on_partitions_revoked.connect(self._close_machines)

    def _new_transport(self) -> BatchTransport:
        return BatchTransport(self.conf.broker_consumer, self)

    def adopt_port(self) -> None:
        """The command line may have chosen another port, and with it another worker: before anybody looks."""
        self.settings = self.settings.on_port(self.conf.web_port)
        self.conf.canonical_url = URL(self.settings.canonical_url)
        self.conf.consumer_group_instance_id = self.conf.broker_client_id = self.settings.worker_id
        self.conf.datadir = self.settings.data_dir / f"worker-{self.settings.worker_id}" / "faust"

    async def on_first_start(self) -> None:
        """Topics come before the group: one that appears later would be assigned to nobody."""
        check_port(self.settings)  # the command line may have chosen another one, or be Faust's own
        # Callbacks lie there as they are: for nobody else on this machine. One that exists is left as it was set up.
        self.conf.datadir.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.conf.datadir.mkdir(exist_ok=True)
        await super().on_first_start()
        if self.settings.clock_offset_s:
            logger.warning("TIMERS_CLOCK_OFFSET: this worker's clock is off by %+.3f s", self.settings.clock_offset_s)
        cluster = await asyncio.to_thread(topics.ensure, self.settings)
        # Batches are short-lived and many: the collector's default walks them again and again for nothing. Now it takes
        # the admin client of a moment ago, which errors that it met keep in a cycle: left to live, librdkafka ends the
        # process by an assertion when the brokers go away and come back.
        gc.collect()
        gc.freeze()
        gc.set_threshold(100_000, 50, 50)
        # Event loops share the interpreter with computing machines: let them in sooner than after 5 ms.
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self.pool.bind(
            self.settings, cluster, Events(self._set_paused, self._rewind, self._owns, self.end), self.broker_now_s
        )
        self.queries = Queries(
            self.settings, self.pool, self._members, lambda: self.http_client, IdleWindow(self.broker_now_s)
        )
        self.log_watch = LogWatch(self.settings, cluster, self._renew, loop=self.loop, beacon=self.beacon)
        self.tick_reader = TickReader(
            self.settings,
            cluster.partitions[self.settings.oscillator_topic],
            self.ticks.put,
            self.log_watch.look,
            loop=self.loop,
            beacon=self.beacon,
        )
        if self.settings.canary_interval_s:
            self.canary = Canary(
                self.settings,
                cluster.partitions[self.settings.canary_topic],
                self._publish,
                self._request_partitions,
                self.broker_now_s,
                loop=self.loop,
                beacon=self.beacon,
            )

    async def on_started(self) -> None:
        """Start time once everything that needs it is there."""
        await super().on_started()
        assert self.tick_reader is not None and self.log_watch is not None
        await self.add_runtime_dependency(self.tick_reader)
        await self.add_runtime_dependency(self.tick_scheduler)
        await self.add_runtime_dependency(self.log_watch)
        if self.canary is not None:
            await self.add_runtime_dependency(self.canary)

    async def on_stop(self) -> None:
        """Faust sends no revoked signal when it stops."""
        await self.pool.close()
        if self.queries is not None:
            await self.queries.close()
        self._stop_even_without_brokers()
        await super().on_stop()

    def broker_now_s(self) -> float | None:
        """The brokers' time by this worker's own ticks, within a round trip; None if none has been delivered yet.

        From any thread. For measuring only: it never decides when a timer fires.
        """
        return self.tick_scheduler.phase.at(monotonic())

    def _stop_even_without_brokers(self) -> None:
        """Faust's consumer and producer say goodbye to the brokers, and would wait for ever if these are gone."""

        def end() -> None:
            logger.warning("the brokers did not answer for %d s; ending without their goodbye", GOODBYE_S)
            if self.fatal:
                say_why(self.fatal, self.settings)
            logging.shutdown()
            os._exit(self.fatal.exit_code if self.fatal else 0)

        watchdog = threading.Timer(GOODBYE_S, end)
        watchdog.daemon = True
        watchdog.start()

    @property
    def in_group(self) -> bool:
        """Whether partitions are assigned, not about to be."""
        return self._consumer is not None and self._consumer.flow_active

    @property
    def consumer_heartbeat(self) -> Heartbeat | None:
        """Of the thread that fetches requests; None before it was started."""
        return None if self._consumer is None else self._batch_consumer.heartbeat

    def watermarks(self) -> dict[TopicPartition, tuple[int, int]]:
        """High watermark and last stable offset of each owned partition, as of its last fetch."""
        return {} if self._consumer is None else self._batch_consumer.watermarks()

    def end(self, error: BaseException) -> None:
        """End the worker: it must not go on. Said once, in one sentence."""
        if self.fatal is None:
            self.fatal = error if isinstance(error, TimersError) else TimersError(f"internal error: {error!r}")
            logger.critical("%s", self.fatal, exc_info=None if isinstance(error, TimersError) else error)
            task = asyncio.ensure_future(self.crash(self.fatal))
            task.add_done_callback(lambda done: done.exception())

    @property
    def _batch_consumer(self) -> BatchConsumer:
        consumer = self.consumer
        assert isinstance(consumer, BatchConsumer)
        return consumer

    async def _members(self) -> dict[TopicPartition, Member]:
        if self._consumer is None:
            raise Unsettled("this worker has not joined its group yet")
        return await self._batch_consumer.members()

    async def _publish(self, topic: str, partition: int, key: bytes, value: bytes) -> None:
        await self.producer.send_and_wait(topic, key, value, partition, None, None)

    def _request_partitions(self) -> list[int]:
        return [partition for topic, partition in self.pool.runners if topic == self.settings.request_topic]

    def _set_paused(self, tp: TopicPartition, high: bool) -> None:
        self._batch_consumer.set_paused(tp, high)

    def _rewind(self, tp: TopicPartition, position: int) -> None:
        self.add_future(self._batch_consumer.rewind(tp, position))

    def suspend(self, tp: TopicPartition, out_of_range: bool) -> None:
        """Look whether a machine's topic is still the one it was; until then it gets nothing."""
        if self.log_watch is not None:
            self.log_watch.suspend(tp, out_of_range)

    async def _renew(self, cluster: Cluster, suspended: Mapping[TopicPartition, bool]) -> None:
        try:
            await self.pool.renew(cluster, suspended)
            assert self.tick_reader is not None and self.log_watch is not None
            self.tick_reader.read_from(cluster.partitions.get(self.settings.oscillator_topic, 0))
            if self.canary is not None:
                self.canary.read_from(cluster.partitions.get(self.settings.canary_topic, 0))
            await self._batch_consumer.resume(tp for tp in suspended if not self.log_watch.is_suspended(tp))
        except Exception as error:
            self.end(error)

    async def _owns(self, tp: TopicPartition) -> bool | None:
        return await self._batch_consumer.owns(tp)

    async def _close_machines(self, sender: Any, revoked: Iterable[TP], **kwargs: Any) -> None:
        await self.pool.revoke([(tp.topic, tp.partition) for tp in revoked])
