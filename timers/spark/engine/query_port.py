"""Answers queries about timers on the driver, by the code of a worker (:mod:`timers.machines.queries`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from aiohttp import ClientSession, web

from timers.core.listing import NoAnswer
from timers.core.machine import Machine
from timers.core.timer import TopicPartition
from timers.kafka.request_formats import enabled_formats
from timers.kafka.topics import Cluster
from timers.machines.queries.answers import Asked, Pace, Queries
from timers.machines.queries.pages import QueryPages
from timers.machines.queries.reading import Turns
from timers.process.clock import Clock
from timers.process.config.settings import Settings
from timers.process.http.open_connections import OpenConnections
from timers.process.http.web_site import LimitedSite, limited
from timers.spark.engine.query import Driver
from timers.spark.engine.questions import Questions, Snapshots
from timers.spark.monitoring import Monitor, register

_T = TypeVar("_T")

PACE = Pace(answer_s=10.0, look_up_s=2.0, slices=50, at_once=True)
"""The present micro-batch, and the one that answers, may take seconds. The stores are read after what is due has fired,
and each answer costs a micro-batch: so more is read at once than in a worker."""

LISTEN_AGAIN_S = 1.0

STOP_S = 1.0
"""How long an engine that ends waits for its answers: no micro-batch follows that could bring one."""

END_S = 10.0
"""Longest time for the end of the port."""


class _OnExecutors(NamedTuple):
    """A machine that is open in tasks only."""

    questions: Questions
    tp: TopicPartition

    def ask(self, question: Callable[[Machine], _T]) -> Future[_T]:
        return self.questions.ask(self.tp, question)


class EngineMachines:
    """All machines of an engine, for which its driver answers: :class:`timers.machines.queries.answers.Machines`."""

    def __init__(self, settings: Settings, cluster: Cluster, driver: Driver) -> None:
        self.formats = enabled_formats(settings)
        self.partitions = {topic: cluster.partitions[topic] for topic in self.formats}
        self.closed: Mapping[TopicPartition, str] = {}
        self.held: Mapping[TopicPartition, str] = {}
        self._in_driver = driver.openings.snapshots
        self._on_executors = {
            (topic, partition): _OnExecutors(driver.questions, (topic, partition))
            for topic, count in self.partitions.items()
            for partition in range(count)
            if topic != settings.retry_topic
        }

    @property
    def runners(self) -> Mapping[TopicPartition, Asked]:
        """Those of the retry topic are there once they have read their log."""
        return {**self._on_executors, **self._in_driver.runners}

    def value_limit(self, partition: TopicPartition) -> int | None:
        return None


async def _no_others() -> Any:
    raise NoAnswer("the engine is opening it")


@contextmanager
def answering(
    settings: Settings, cluster: Cluster, driver: Driver, monitor: Monitor, say: Callable[[str], None]
) -> Iterator[None]:
    """Answer queries as a worker does, on its port, and the console's questions, until the end of the block."""
    machines, submit = EngineMachines(settings, cluster, driver), driver.openings.parts.producers.submit
    pages = QueryPages(lambda: settings, Clock(settings.clock_offset_s).now_s)
    want = Snapshots.want if settings.snapshot_factor else None
    pages.queries = Queries(settings, machines, _no_others, ClientSession, Turns(lambda: None), want, PACE)
    pages.cluster_id = cluster.cluster_id
    connections = OpenConnections("the port of queries")
    application = limited(web.Application(), connections)

    def page(path: str) -> Callable[[Any], Any]:
        return lambda handler: application.router.add_get(path, partial(handler, None))

    pages.register(page)
    origin = {"app": settings.app_id, "cluster": cluster.cluster_id}
    register(page, monitor, origin, machines)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=STOP_S)

    async def serve() -> None:
        await runner.setup()
        site, is_first = LimitedSite(runner, settings.web_bind, settings.web_port, connections), True
        while True:
            try:
                return await site.start()
            except OSError as error:
                # A newer engine on the machine of the former one must run, and worker and engine share their defaults.
                if is_first:
                    at = f"TIMERS_WEB_PORT={settings.web_port} at TIMERS_WEB_BIND={settings.web_bind}"
                    say(f"queries are answered when {at} can be listened on ({error.strerror})")
                is_first = False
            await asyncio.sleep(LISTEN_AGAIN_S)

    async def end() -> None:
        await runner.cleanup()
        await pages.close()

    serving = submit(serve())
    try:
        yield
    finally:
        serving.cancel()
        with suppress(TimeoutError):
            submit(end()).result(END_S)
