"""The only module of this package that may use private parts of Faust and mode.

Each class gives public names to the private methods that the worker calls or overrides.
:mod:`timers.worker.library_versions` checks at start that the installed versions are ones this file was written for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar

import faust
from aiohttp.web import BaseSite
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaConnectionError, KafkaError
from faust import tables, worker
from faust.cli import worker as commands
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from faust.web.drivers import aiohttp as web_driver

from timers.open_connections import OpenConnections
from timers.web_site import LimitedSite, limited

logger = logging.getLogger(__name__)

Transport = driver.Transport

RETRY_S = 0.5
"""Pause before a client of aiokafka tries again to connect at the start."""


def connection_options(conf: Any, transport: driver.Transport) -> dict[str, Any]:
    """aiokafka's options for the servers and the credentials of a Faust app."""
    return {
        "bootstrap_servers": driver.server_list(transport.url, transport.default_port),
        **driver.credentials_to_aiokafka_auth(conf.broker_credentials, conf.ssl_context),
    }


def start_patiently(client: Any, name: str, is_stopping: Callable[[], bool]) -> Any:
    """Returns a client of aiokafka whose ``start`` tries again while the brokers take no connection, or cut it.

    The topics were found before, so there are brokers. Faust would end the worker at the first connection that fails.
    """
    start: Callable[[], Awaitable[None]] = client.start

    async def until_it_connects() -> None:
        logged = False
        while not is_stopping():
            try:
                await start()
                return
            except (KafkaConnectionError, OSError) as error:
                if not logged:
                    logged = True
                    logger.warning("%s waits for the brokers (%r)", name, error)
                await asyncio.sleep(RETRY_S)

    client.start = until_it_connects
    return client


def hide_banner() -> None:
    """Keep Faust from printing its table of settings, of which several do not apply, such as the store ``memory:``."""
    commands.worker.on_worker_created = lambda *_: None


class ConsumerThread(driver.AIOKafkaConsumerThread):
    """The thread whose event loop runs aiokafka's consumer."""

    @abstractmethod
    def make_consumer(self, transport: Any) -> AIOKafkaConsumer:
        """The consumer, not started."""

    @property
    def has_consumer(self) -> bool:
        """Whether the thread has started, and made its consumer."""
        return self._consumer is not None

    @property
    def kafka_consumer(self) -> AIOKafkaConsumer:
        """The consumer, once the thread has started."""
        return self._ensure_consumer()

    async def fetch_records(
        self, consumer: AIOKafkaConsumer, partitions: set[TP], timeout_s: float
    ) -> Mapping[TP, list[Any]]:
        """Records that have arrived, by partition; none while the flow is suspended. On the thread's event loop."""
        records: Mapping[TP, list[Any]] = await self._fetch_records(consumer, partitions, timeout=timeout_s)
        return records

    def _create_worker_consumer(self, transport: Any) -> AIOKafkaConsumer:
        consumer = self.make_consumer(transport)
        return start_patiently(consumer, "the consumer of the group", lambda: self.should_stop)

    def _stopped_set(self) -> None:
        """Set the stopped flag. Ignore the RuntimeError of an event loop that is closed after a crash."""
        with contextlib.suppress(RuntimeError):
            super()._stopped_set()


class _NoReadOffsets(dict[Any, Any]):
    """Faust's read offsets, always unknown: Faust would drop records that a machine asked to read again."""

    def __missing__(self, key: Any) -> None:
        return None

    def __setitem__(self, key: Any, value: Any) -> None:
        return None


class Consumer(driver.Consumer):
    """Faust's consumer, with a thread of :attr:`Thread`. It does not track which offsets were read."""

    Thread: ClassVar[type[ConsumerThread]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._read_offset = _NoReadOffsets()

    @property
    def thread(self) -> Any:
        """The consumer's :attr:`Thread`."""
        return self._thread

    def active_partitions(self) -> set[TP]:
        """Assigned partitions that Faust has not paused."""
        partitions: set[TP] = self._get_active_partitions()
        return partitions

    def _new_consumer_thread(self) -> ConsumerThread:
        return self.Thread(self, loop=self.loop, beacon=self.beacon)


class Producer(driver.Producer):
    """Faust's producer, which knows the leaders of partitions."""

    def _new_producer(self) -> Any:
        return start_patiently(super()._new_producer(), "the producer of ticks", lambda: self.should_stop)

    async def learn_leaders(self, topic: str, timeout_s: float) -> None:
        """Ask the brokers for the leaders of a topic's partitions. Without an answer in time, nothing changes."""
        with contextlib.suppress(KafkaError, TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._producer.partitions_for(topic)

    def leaders(self, topic: str) -> dict[int, int]:
        """Partition -> id of its leader, as of the last metadata; without partitions that have no leader."""
        cluster = self._producer.client.cluster
        found = {
            each: cluster.leader_for_partition(TP(topic, each)) for each in cluster.partitions_for_topic(topic) or ()
        }
        return {partition: leader for partition, leader in found.items() if leader is not None and leader >= 0}


class TableManager(tables.TableManager):
    """Faust's tables, of which a worker has none: its start does not wait a second for tables to be registered."""

    async def on_start(self) -> None:
        """Start to follow the assignment."""
        await self._update_channels()
        await self.recovery.start()


class Worker(worker.Worker):
    """Faust's process, which does not wait a second before it closes the event loop of an ended app."""

    async def _sentinel_task(self) -> None:
        return None


class Web(web_driver.Web):
    """Faust's web server, with a limit of its :attr:`connections`."""

    def __init__(self, app: Any, **kwargs: Any) -> None:
        super().__init__(app, **kwargs)
        self.connections = OpenConnections("the worker's web port")
        limited(self.web_app, self.connections)

    def _new_transport_tcp(self) -> BaseSite:
        conf = self.app.conf
        return LimitedSite(self._runner, conf.web_bind, conf.web_port, self.connections, conf.web_ssl_context)


class App(faust.App):
    """Faust's app, with a transport of :attr:`Transport`."""

    Transport: ClassVar[type[driver.Transport]]

    def _new_web(self) -> Web:
        return Web(self)

    def _new_transport(self) -> driver.Transport:
        return self.Transport(self.conf.broker_consumer, self)
