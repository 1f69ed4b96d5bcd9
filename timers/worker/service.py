"""The worker as a Faust app: makes its parts, starts them in order, and ends the process."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ParamSpec, TypeVar
from urllib.parse import quote

from mode import Service
from yarl import URL

from timers import __version__
from timers.core.printable import printable
from timers.core.timer import TopicPartition
from timers.errors import TimersError
from timers.kafka import aiokafka_clients, group_access, progress_log, topics
from timers.kafka.aiokafka_internals import metadata
from timers.kafka.aiokafka_internals.group import strangers_in
from timers.kafka.other_apps import RUNNING_WITHIN_S, other_apps, sentence_about
from timers.kafka.progress_log import allow_in_new_app
from timers.kafka.topics import Cluster
from timers.machines.machine_parts import IS_COMPILED
from timers.machines.queries.answers import Queries
from timers.machines.queries.pages import QueryPages
from timers.machines.queries.reading import Turns
from timers.machines.snapshot_taker import SNAPSHOT_LOOK_S, SnapshotTaker
from timers.machines.store.memory_limit import UNCOUNTED_FILES, RocksMemory
from timers.process import limits as process_limits
from timers.process.clock import Clock
from timers.process.config.settings import Settings
from timers.process.past_figures import FIGURES_STEP_S, PastFigures
from timers.process.periodic import every
from timers.process.threads import call_in_thread
from timers.wire.topics import engine_id
from timers.worker import faust_internals, health, logs, metrics, ticks, web
from timers.worker.canary import Canary
from timers.worker.consumer.group_watch import GroupWatch
from timers.worker.consumer.log_watch import LogWatch
from timers.worker.consumer.requests import PartitionConsumer
from timers.worker.consumer.target_watch import TargetWatch
from timers.worker.data_dir import make_data_dir, note_cluster
from timers.worker.health import WorkerStatus
from timers.worker.machines.capacity import memory_shortage
from timers.worker.machines.pool import Pool
from timers.worker.port import check_port
from timers.worker.ticks import TickJudge, TickReader

_P = ParamSpec("_P")
_T = TypeVar("_T")

ENGINE_ANSWER_S = 3.0
"""So long a worker that starts asks whether an engine on Spark runs."""

logger = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.005

PRODUCER_TIMEOUT_S = 10.0
"""A tick or a canary timer that no broker takes within this time is dropped. While it waits for a partition without
a leader, aiokafka asks for metadata without a pause."""

LEARN_S = 2.0
"""So long the producer of ticks and canaries asks for topics that have changed."""

HEALTH_S = 1.0

COMPILED = "requests are read, and callbacks written, by compiled code"
NOT_COMPILED = (
    "requests are read, and callbacks written, by Python, which needs more CPU: this worker was installed without a C "
    "compiler, Python's headers or Cython (docs/install.md)"
)

OTHER_APPS_S = 20.0
"""So long after its start a worker looks for other apps: the start itself, and a restart, must not wait for this."""

TRIM_S = 2.0
"""Seconds after which freed memory is given back to the system: glibc keeps the write buffers that RocksDB has flushed,
60 MB in a burst of 2,000,000 timers."""

STOP_TIMEOUT_S = 80.0
"""How long a worker that was told to end may take for all. A handover takes up to 30 s, and machines that close before
and after it 20 s each. Kubernetes kills the worker after 90 s (``deploy/helm``)."""

FIGURES_S = 1.0
"""How long the end waits for a disk that takes the figures of the last minute."""

END_TIMEOUT_S, CUT_OFF_S = 15.0, 0.5
"""How long Faust's clients may take to disconnect at the end, after all machines are closed, and if no broker can be
reached. Then the worker tries for two seconds before: so it ends within five."""


class TimersWorker(faust_internals.Worker):
    """Faust's worker, but a :class:`TimersError` ends it with one sentence and the error's exit code."""

    def __init__(self, app: TimersApp, *args: Any, **kwargs: Any) -> None:
        app.adopt_port()
        super().__init__(app, *args, **kwargs)

    def on_setup_root_logger(self, logger: logging.Logger, level: int) -> None:
        """Set format and filters of the log, after Faust has set up its handlers."""
        super().on_setup_root_logger(logger, level)
        logs.set_up(self.app.settings, lambda: self.app.fatal)

    def on_worker_shutdown(self) -> None:
        """Ignore further SIGTERMs, so that the exit code says why the worker ended."""
        super().on_worker_shutdown()
        self.loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def execute_from_commandline(self) -> None:
        """Run until stopped."""
        try:
            super().execute_from_commandline()
        except SystemExit as exit_:
            reason = self.app.fatal or logs.timers_error_in(exit_.__context__)
            if reason is None:
                raise
            _report_fatal(reason, self.app.settings)
            raise SystemExit(reason.exit_code) from None


def _report_fatal(reason: TimersError, settings: Settings) -> None:
    if settings.log_format == logs.JSON:
        logger.critical("%s", reason)
    else:
        print(f"timers: {printable(str(reason))}", file=sys.__stderr__, flush=True)


class TimersApp(faust_internals.App):
    """Faust app of one worker.

    Attributes:
        settings: of the worker; :meth:`adopt_port` may replace them before the start.
        fatal: why the worker must end, if it must.
    """

    _snapshot_taker: SnapshotTaker | None = None

    def __init__(self, settings: Settings) -> None:
        self._most_files = process_limits.raise_open_files()
        self.settings = settings
        aiokafka_clients.arguments(settings)  # if certificates or key cannot be used, this says so
        self.fatal: TimersError | None = None
        faust_internals.hide_banner()
        metadata.install()
        super().__init__(
            settings.app_id,
            broker=[URL(f"kafka://{address}") for address in settings.brokers.split(",")],
            datadir=_data_dir(settings),
            store="memory://",
            web_port=settings.web_port,
            web_bind=settings.web_bind,
            canonical_url=settings.canonical_url,
            web_router_enabled=False,
            web_tables_enabled=False,
            broker_client_id=settings.worker_id,
            stream_wait_empty=False,
            topic_allow_declare=False,
            topic_disable_leader=True,
            producer_linger=0.0,
            producer_request_timeout=PRODUCER_TIMEOUT_S,
            worker_redirect_stdouts=False,
            Worker=TimersWorker,
        )
        clock = Clock(settings.clock_offset_s)
        self._judge = TickJudge(settings, clock, lambda: self.status.pool.runners)
        self._tick_scheduler, self._ticks, self._batches = ticks.register(
            self, settings, lambda: self.status.pool, clock, self._judge
        )
        self._query_pages = QueryPages(lambda: self.settings, clock.now_s)
        self._query_pages.register(self.page)
        self.status = WorkerStatus(settings, self._query_pages.counts, self._tick_scheduler, clock)
        web.register(self.page, self.status)

    def adopt_port(self) -> None:
        """Use the web port of Faust's command line, and the worker id computed from it. Call it before the start."""
        self.settings = self.status.settings = self.settings.with_web_port(self.conf.web_port)
        self.conf.canonical_url = URL(self.settings.canonical_url)
        self.conf.broker_client_id = self.settings.worker_id
        self.conf.datadir = _data_dir(self.settings)

    async def on_first_start(self) -> None:
        """Create the topics and the parts. The worker joins its group later, so that all of them have an owner."""
        check_port(self.settings)  # `timers worker` has not checked a port from Faust's options
        make_data_dir(self.settings, self.conf.datadir)
        await super().on_first_start()
        if self.settings.clock_offset_s:
            logger.warning("TIMERS_CLOCK_OFFSET: this worker's clock is off by %+.3f s", self.settings.clock_offset_s)
        logger.info("timers %s: worker %s, data in %s", __version__, self.settings.worker_id, self.settings.data_dir)
        logger.info("%s", COMPILED if IS_COMPILED else NOT_COMPILED)
        cluster = await _first_call(topics.ensure, self.settings)
        note_cluster(self.settings, cluster.cluster_id)
        await _first_call(self._wait_for_engine)
        await _first_call(allow_in_new_app, self.settings, cluster.partitions[self.settings.progress_topic])
        _tune_interpreter()
        self._make_parts(cluster)
        names = quote(self.settings.app_id, safe=""), quote(cluster.cluster_id, safe="")
        path = self.conf.datadir.parent / "figures-of-{}-{}.jsonl".format(*names)
        self.status.past_figures = figures = PastFigures(path, self._now_s)
        call_in_thread("timers-past-figures", figures.load)

    def _now_s(self) -> float:
        """The brokers' time; while it is not known, that of this machine."""
        return self._tick_scheduler.broker_now_s() or self.status.clock.now_s()

    def _wait_for_engine(self) -> None:
        """Wait until an engine on Spark of this app has ended. It would be fenced, and might hold the same stores.

        Raises:
            TimersError: it runs.
        """
        app, group = self.settings.app_id, engine_id(self.settings.app_id)
        try:
            left = group_access.wait_until_empty(
                self.settings,
                group,
                lambda _: logger.info("waiting until the engine on Spark of %r has left its group %r", app, group),
                lambda: self.should_stop,
                ENGINE_ANSWER_S,
            )
        # Such as a user without the right, or a broker that starts: apps without Spark must not wait for it.
        except TimersError as error:
            logger.info("it is not known whether an engine on Spark of %r runs: %s", app, error)
            return
        if left.is_taken and not any(each.is_ours for each in left.members):
            logger.error("it is not known whether an engine on Spark of %r runs: %s", app, strangers_in(group, left))
        elif left.members and not self.should_stop:
            raise TimersError(
                f"an engine on Spark of TIMERS_APP_ID={app!r} runs: stop it first, because workers and the engine take "
                "the partitions from each other"
            )

    def _measure_capacity(self, pool: Pool) -> None:
        """Compute how many partitions this process can open, and log a warning if there are more."""
        capacity, settings = pool.capacity, self.settings
        machines, brokers = sum(pool.partitions.values()), pool.parts.cluster.brokers
        connections = self.web.connections.limit
        capacity.measure(self._most_files, process_limits.most_threads(), connections, brokers, machines)
        pool.parts.memory.max_open_files = capacity.tables + UNCOUNTED_FILES
        for sentence in (capacity.shortage(machines), memory_shortage(settings, machines)):
            if sentence:
                logger.warning("%s", sentence)

    def _make_parts(self, cluster: Cluster) -> None:
        settings, now_s = self.settings, self._tick_scheduler.broker_now_s
        memory = RocksMemory(settings.store_memory_bytes)
        self.status.pool = pool = Pool(settings, cluster, memory, self.end, now_s)
        self._measure_capacity(pool)
        service = {"loop": self.loop, "beacon": self.beacon}
        log_watch = LogWatch(settings, cluster, self._renew, **service)
        consumer = PartitionConsumer(settings, pool, self._batches, self.end, log_watch.suspend, **service)
        pool.consumer = consumer
        self._snapshot_taker = taker = SnapshotTaker(
            settings, pool, now_s, partial(self.loop.call_soon_threadsafe, pool.fail)
        )
        self.status.lost_snapshots = lambda: taker.lost
        want = self._snapshot_taker.wanted.add if settings.snapshot_factor else None
        self._query_pages.queries = Queries(
            settings, pool, consumer.members, lambda: self.http_client, Turns(now_s), want
        )
        self._query_pages.cluster_id = self.status.cluster_id = cluster.cluster_id
        self.status.group_watch = GroupWatch(settings, pool, consumer, **service)
        self.status.target_watch = TargetWatch(settings, pool, **service)
        self.status.tick_reader = TickReader(
            settings,
            partial(pool.count, settings.oscillator_topic),
            self._judge,
            self._ticks.put,
            partial(log_watch.request_check, settings.oscillator_topic),
            lambda: progress_log.newest_fired_s(settings, pool.parts.cluster),
            **service,
        )
        self.status.consumer, self.status.log_watch = consumer, log_watch
        if settings.canary_interval_s:
            partitions = partial(pool.count, settings.canary_topic)
            self.status.canary = Canary(settings, partitions, self._publish, self._request_partitions, now_s, **service)

    async def on_started(self) -> None:
        """Join the group, and start to read and write ticks, after Faust has started the agents that receive them."""
        await super().on_started()
        status = self.status
        # A target that was paused while a partition had no worker must not get what is due.
        await self.add_runtime_dependency(status.target_watch)
        await status.target_watch.wait_until_read()
        parts = status.consumer, status.tick_reader, self._tick_scheduler, status.log_watch, status.group_watch
        for part in (*parts, status.canary):
            if part is not None:
                await self.add_runtime_dependency(part)

    @Service.task
    async def _observe_health(self) -> None:
        while not (self.should_stop or self.status.was_ready):
            self.status.was_ready = not health.unready(self.status)  # noted here too, because nothing may read the page
            await self.sleep(HEALTH_S)

    @Service.task
    async def _keep_figures(self) -> None:
        async for _ in every(FIGURES_STEP_S, self):
            # By a clock of this machine that is ahead, points would stand before those that follow.
            if self.status.past_figures is not None and self._tick_scheduler.broker_now_s() is not None:
                try:
                    self.status.past_figures.note(metrics.totals(self.status), metrics.present(self.status))
                except Exception:  # timers fire without them
                    logger.exception("the figures of the last %d s are not kept", FIGURES_STEP_S)

    @Service.task
    async def _name_other_apps(self) -> None:
        """Warn of other apps on the same request topics, when this one has started."""
        await self.sleep(OTHER_APPS_S)
        if self.should_stop:
            return
        topics = [topic for topic in self.status.pool.partitions if topic != self.settings.retry_topic]
        try:
            found = await asyncio.wrap_future(call_in_thread("timers-other-apps", other_apps, self.settings, topics))
        except TimersError as error:
            logger.info("it is not known whether another app reads the request topics: %s", error)
            return
        for app, (shared, newest_ms) in found.items():
            if newest_ms / 1000 > self._now_s() - RUNNING_WITHIN_S:
                logger.warning("%s", sentence_about(app, shared))

    @Service.task
    async def _take_snapshots(self) -> None:
        async for _ in every(SNAPSHOT_LOOK_S, self):
            if self._snapshot_taker is not None and self.settings.snapshot_factor:
                try:
                    await asyncio.to_thread(self._snapshot_taker.look)
                except Exception:  # one that no code expects must not end the worker: timers fire without snapshots
                    logger.exception("snapshots are not taken now; trying again")

    @Service.task
    async def _give_memory_back(self) -> None:
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
        async for _ in every(TRIM_S, self):
            if trim is not None:
                await asyncio.to_thread(trim, 0)

    async def on_stop(self) -> None:
        """Hand the partitions over, and close the machines before their clients."""
        self._end_after_timeout(STOP_TIMEOUT_S, "brokers, a disk or a machine", TimersError.exit_code)
        is_cut_off = False
        async with contextlib.AsyncExitStack() as stack:  # each step is made, even if one before it fails
            stack.push_async_callback(super().on_stop)
            stack.push_async_callback(self._end_figures)
            stack.push_async_callback(self._query_pages.close)
            stack.callback(lambda: self._end_after_timeout(CUT_OFF_S if is_cut_off else END_TIMEOUT_S))
            if self._snapshot_taker is not None:  # the parts were made
                self._snapshot_taker.should_stop = True
                pool, consumer = self.status.pool, self.status.consumer
                stack.push_async_callback(pool.close)
                is_cut_off = not await consumer.reaches_a_broker()
                if is_cut_off:
                    logger.warning("no broker can be reached: ending without a handover")
                    self._end_after_timeout(END_TIMEOUT_S)
                elif self.fatal is None:  # after an error it is started again, and finds its partitions
                    await pool.settle()
                    await consumer.leave()
                    await pool.hand_over(consumer.has_others)

    async def _end_figures(self) -> None:
        if (figures := self.status.past_figures) is not None and (writing := figures.end()) is not None:
            await asyncio.wait([asyncio.wrap_future(writing)], timeout=FIGURES_S)

    def _end_after_timeout(self, timeout_s: float, silent: str = "the brokers", exit_code: int = 0) -> None:
        """End the process after a time: Faust's clients wait forever for brokers that are down, and a machine for a
        disk that stalls.

        Args:
            exit_code: unless an error ends it. 0 if all machines are closed by then, or no broker can be reached.
        """

        def end() -> None:
            logger.warning("%s did not answer for %g s; ending without leaving the group", silent, timeout_s)
            if self.fatal:
                _report_fatal(self.fatal, self.settings)
            logging.shutdown()
            os._exit(self.fatal.exit_code if self.fatal else exit_code)

        watchdog = threading.Timer(timeout_s, end)
        watchdog.daemon = True
        try:
            watchdog.start()
        except RuntimeError as error:  # the process is at its limit of threads: the steps of the end matter more
            logger.warning("this end has no limit of %g s: %s", timeout_s, error)

    def end(self, error: BaseException) -> None:
        """End the worker with this error; only the first one is logged and becomes :attr:`fatal`."""
        if self.fatal is None:
            self.fatal = error if isinstance(error, TimersError) else TimersError(f"internal error: {error!r}")
            logger.critical("%s", self.fatal, exc_info=None if isinstance(error, TimersError) else error)
            task = asyncio.ensure_future(self.crash(self.fatal))
            task.add_done_callback(lambda done: done.exception())

    async def _publish(self, topic: str, partition: int, key: bytes, value: bytes) -> None:
        await self.producer.send_and_wait(topic, key, value, partition, None, None)

    def _request_partitions(self) -> list[int]:
        return [partition for topic, partition in self.status.pool.runners if topic == self.settings.request_topic]

    async def _renew(self, cluster: Cluster, checked: Mapping[TopicPartition, bool]) -> None:
        """Apply a change of the topics, and end the suspension of partitions whose topic was checked."""
        known = self.status.pool.parts.cluster
        try:
            await self.status.pool.renew(cluster, checked)
            if (cluster.topic_ids, cluster.partitions) != (known.topic_ids, known.partitions):
                # Else no canary would reach partitions that were added, for minutes.
                await self.producer.learn_anew(LEARN_S)
            # A partition that was suspended again meanwhile waits for the next check.
            await self.status.consumer.end_suspension(checked.keys() - self.status.log_watch.suspended.keys())
        except Exception as error:
            self.end(error)


async def _first_call(call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """The result of a call to the brokers, for which a worker that is told to end while it starts does not wait: one
    lasts up to 30 s without an answer, and Python ends only after the threads of the loop."""
    return await asyncio.wrap_future(call_in_thread("timers-start", call, *args, **kwargs))


def _data_dir(settings: Settings) -> Any:
    return settings.data_dir / f"worker-{settings.worker_id}" / "faust"


def _tune_interpreter() -> None:
    # The collection before the freeze deletes the admin client that created topics, which a reference cycle with its
    # errors keeps in memory: librdkafka would end the process by an assertion when the brokers stop and start again.
    gc.collect()
    gc.freeze()
    process_limits.collect_garbage_seldom()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
