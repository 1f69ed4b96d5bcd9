"""Metrics and health of a relay, over HTTP. Needs the extra ``metrics``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from timers.outbox.relay import UNLIVE_S, UNREADY_S, Relay
from timers.process.clock import Clock
from timers.process.http.metrics_server import MetricsServer
from timers.process.metrics import Entry, Samples, registry


def _counter(name: str) -> Callable[[Relay], Samples]:
    return lambda relay: [((relay.table,), getattr(relay.counters, name))]


def _age_s(relay: Relay) -> Samples:
    oldest_ms = relay.counters.oldest_ms
    return [((relay.table,), 0.0 if oldest_ms is None else max(0.0, Clock().now_s() - oldest_ms / 1000))]


METRICS: tuple[Entry[Relay], ...] = (
    Entry("timers_outbox_sent_total{table}", "Rows whose requests the brokers have acknowledged.", _counter("sent")),
    Entry(
        "timers_outbox_again_total{table}",
        "Rows that were sent a second time, because a relay or a connection had ended before the answer.",
        _counter("again"),
    ),
    Entry(
        "timers_outbox_found_total{table}",
        "Rows that were not sent a second time, because their requests were found in the log.",
        _counter("found"),
    ),
    Entry(
        "timers_outbox_refused{table}",
        "Rows in the table that are not sent; their column reason says why. Counted once a minute.",
        _counter("refused"),
    ),
    Entry(
        "timers_outbox_oldest_age_seconds{table}",
        "Age of the oldest row that waits, since it was written; 0 if none waits. A relay that stands by says 0.",
        _age_s,
    ),
    Entry(
        "timers_outbox_active{table}",
        "1 if this relay sends the rows; 0: another one does, or the database cannot be reached or does not answer for "
        "30 s, or no broker has answered since it began.",
        lambda relay: [((relay.table,), float(relay.counters.is_first and not relay.silence(UNREADY_S)))],
    ),
    Entry(
        "timers_outbox_ready{table}",
        "1 if /health/ready answers 200.",
        lambda relay: [((relay.table,), float(not relay.unready()))],
    ),
)


@contextmanager
def monitor(relay: Relay, port: int, host: str) -> Iterator[int]:
    """Serve ``/metrics``, ``/health/live`` and ``/health/ready`` for a relay inside the block. Yields the port.

    Args:
        port: 0 takes a free one.
        host: address to listen on. The pages need no login: keep them inside your network.

    Raises:
        SettingsError: the port is in use, or the address is not of this machine.
    """
    metrics = registry(METRICS, lambda: relay)
    server = MetricsServer(metrics, lambda: relay.silence(UNLIVE_S), relay.unready, port, host)
    try:
        yield server.port
    finally:
        server.close()
