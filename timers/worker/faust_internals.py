"""The only module of this package that may use private parts of Faust and mode.

Each class gives public names to the private methods that the worker calls or overrides.
:mod:`timers.worker.library_versions` checks at start that the installed versions are ones this file was written for.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Any, ClassVar

import faust
from aiohttp.web import BaseSite
from aiokafka.errors import KafkaError
from faust import app, worker
from faust.cli import worker as commands
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from faust.web.drivers import aiohttp as web_driver

from timers.kafka import aiokafka_clients
from timers.kafka.aiokafka_internals.metadata import start_patiently
from timers.process.http.open_connections import OpenConnections
from timers.process.http.web_site import LimitedSite, limited


def hide_banner() -> None:
    """Keep Faust from printing its table of settings, of which several do not apply, such as the store ``memory:``."""
    commands.worker.on_worker_created = lambda *_: None


class Producer(driver.Producer):
    """Faust's producer, which knows the leaders of partitions."""

    def _new_producer(self) -> Any:
        made = super()._new_producer()
        # Faust would end the worker at the first connection that fails.
        made.start = partial(start_patiently, made.start, "the producer of ticks", lambda: self.should_stop)
        return made

    def _settings_extra(self) -> dict[str, Any]:
        return aiokafka_clients.arguments(self.app.settings)  # in place of Faust's credentials

    async def learn_leaders(self, topic: str, timeout_s: float) -> None:
        """Ask the brokers for the leaders of a topic's partitions. Without an answer in time, nothing changes."""
        with contextlib.suppress(KafkaError, TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._producer.partitions_for(topic)

    async def learn_anew(self, timeout_s: float) -> None:
        """Ask the brokers for the partitions of all topics that this producer has used: some topics have changed.
        Without an answer in time, nothing changes."""
        with contextlib.suppress(KafkaError, TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._producer.client.force_metadata_update()

    def leaders(self, topic: str) -> dict[int, int]:
        """Partition -> id of its leader, as of the last metadata; without partitions that have no leader."""
        cluster = self._producer.client.cluster
        found = {
            each: cluster.leader_for_partition(TP(topic, each)) for each in cluster.partitions_for_topic(topic) or ()
        }
        return {partition: leader for partition, leader in found.items() if leader is not None and leader >= 0}


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


class Transport(driver.Transport):
    """Faust's transport with :class:`Producer`."""

    Producer: ClassVar[type[Producer]] = Producer


class BootStrategy(app.BootStrategy):
    """Starts an app without a consumer of Faust, and without tables."""

    enable_kafka_consumer = False


class App(faust.App):
    """Faust's app, which reads no topic itself: its agents have channels."""

    BootStrategy = BootStrategy

    async def _wait_for_table_recovery_completed(self) -> bool:
        self.flow_control.resume()  # else the channels would wait for an assignment of Faust's consumer
        return False

    def _new_web(self) -> Web:
        return Web(self)

    def _new_transport(self) -> driver.Transport:
        return Transport(self.conf.broker_consumer, self)
