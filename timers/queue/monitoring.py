"""Metrics and health of one process of a queue, over HTTP. Needs the extra ``metrics``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from timers.kafka import topic_admin
from timers.process.clock import Clock
from timers.process.http.metrics_server import MetricsServer
from timers.process.metrics import Entry, Samples, registry
from timers.queue.inspection import count_delayed
from timers.queue.port import Counters
from timers.queue.queue import Queue
from timers.wire import topics
from timers.wire.dead_letter import QUEUE_CODES

logger = logging.getLogger(__name__)

_DELAYED_EVERY_S = 60.0


@dataclass(frozen=True)
class Reading:
    """What one scrape reads."""

    name: str
    counters: Counters
    delayed: int | None
    is_ready: bool
    strangers: str | None


def _counter(name: str) -> Callable[[Reading], Samples]:
    return lambda reading: [((reading.name,), getattr(reading.counters, name))]


def _age_s(reading: Reading) -> Samples:
    oldest_ms = reading.counters.oldest_ms
    return [((reading.name,), 0.0 if oldest_ms is None else max(0.0, Clock().now_s() - oldest_ms / 1000))]


METRICS: tuple[Entry[Reading], ...] = (
    Entry(
        "timers_queue_depth{queue}",
        "Messages of this process's partitions that are not done, including those that receivers have.",
        _counter("depth"),
    ),
    Entry(
        "timers_queue_delayed{queue}",
        "Timers that will bring a message, retries among them: at most 1,000 to the queue's topic and 1,000 to its "
        "returns topic. Every process shows all of them; while no worker answers, the metric is missing.",
        lambda reading: [] if reading.delayed is None else [((reading.name,), reading.delayed)],
    ),
    Entry(
        "timers_queue_in_flight{queue}",
        "Messages that receivers of this process have.",
        _counter("in_flight"),
    ),
    Entry(
        "timers_queue_hanging{queue}",
        "Handlers that run longer than ten times the lease: their messages are delivered again, or were given up.",
        _counter("hanging"),
    ),
    Entry(
        "timers_queue_oldest_age_seconds{queue}",
        "Age of the oldest message that this process has read and that is not done, since it came to its topic; 0 if "
        "there is none.",
        _age_s,
    ),
    Entry("timers_queue_received_total{queue}", "Deliveries to receivers.", _counter("received")),
    Entry("timers_queue_acked_total{queue}", "Messages acknowledged.", _counter("acked")),
    Entry("timers_queue_retried_total{queue}", "Messages retried.", _counter("retried")),
    Entry(
        "timers_queue_dead_total{queue,code}",
        "Messages that became dead letters, by code.",
        lambda reading: [((reading.name, code), reading.counters.dead[code]) for code in QUEUE_CODES],
    ),
    Entry(
        "timers_queue_leases_lost_total{queue}",
        "Deliveries not settled before their lease was over, or before their partition moved to another process.",
        _counter("leases_lost"),
    ),
    Entry(
        "timers_queue_crashes_total{queue}",
        "Crashes: the process ended while one message ran alone, or the child process of a message ended.",
        _counter("crashes"),
    ),
    Entry(
        "timers_queue_handling_seconds_total{queue}",
        "Sum of the seconds between each delivery and the call that settled it.",
        _counter("handling_s"),
    ),
    Entry(
        "timers_queue_ledger_bytes{queue}",
        "Longest metadata of this process's commits. Brokers take 4,095 bytes.",
        _counter("ledger_bytes"),
    ),
    Entry(
        "timers_queue_partitions{queue}",
        "Partitions of this process, including those of the returns topic.",
        _counter("partitions"),
    ),
    Entry(
        "timers_queue_suspects{queue}",
        "Messages that may have ended a process, and have not run since. They run before all others.",
        _counter("suspects"),
    ),
    Entry(
        "timers_queue_partitions_stopped{queue}",
        "Partitions of this process that it does not read, because messages are lost: an operator must decide.",
        _counter("stopped"),
    ),
    Entry(
        "timers_queue_group_taken{queue}",
        "1 while another program is in the group of the queue: what it commits counts as done. Missing while it is not "
        "known.",
        lambda reading: [] if reading.strangers is None else [((reading.name,), float(bool(reading.strangers)))],
    ),
    Entry(
        "timers_queue_ready{queue}",
        "1 if /health/ready answers 200.",
        lambda reading: [((reading.name,), float(reading.is_ready))],
    ),
)


class Monitor:
    """Serves ``/metrics``, ``/health/live`` and ``/health/ready`` for one queue of this process.

    ::

        with Queue("jobs") as queue, Monitor(queue, port=9100):
            queue.run(handle)

    Args:
        port: 0 takes a free one; see :attr:`port`.
        host: address to listen on. The pages need no login: keep them inside your network.

    Raises:
        SettingsError: the port is in use, or the address is not of this machine.
    """

    def __init__(self, queue: Queue, port: int, host: str = "127.0.0.1") -> None:
        self._queue = queue
        self._delayed: int | None = None
        self._closed = threading.Event()
        metrics = registry(METRICS, self._read)
        self._server = MetricsServer(metrics, queue.stuck, queue.unready, port, host)
        self.port = self._server.port
        threading.Thread(target=self._count_delayed, name="queue-delayed", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop answering."""
        self._closed.set()
        self._server.close()

    def _read(self) -> Reading:
        queue = self._queue
        return Reading(queue.name, queue.counters(), self._delayed, not queue.unready(), queue.driver.strangers)

    def _count_delayed(self) -> None:
        settings = self._queue.settings
        both = [self._queue.topic, topics.queue_returns(topics.queue_group(self._queue.name))]
        cluster_id = ""
        while True:
            try:
                cluster_id = cluster_id or topic_admin.cluster_id(settings)
                self._delayed = count_delayed(settings, both, cluster_id)[0]
            except Exception:
                self._delayed = None
                logger.exception("the delayed messages of queue %s cannot be counted", self._queue.name)
            if self._closed.wait(_DELAYED_EVERY_S):
                return
