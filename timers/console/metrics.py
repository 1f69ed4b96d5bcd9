"""Metrics of one console, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ConsoleMetrics:
    """Counts and durations of requests by route: never by user, id or topic, of which there is no limit."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "timers_console_requests", "Requests answered.", ("route", "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "timers_console_request_seconds", "Durations of answers.", ("route",), registry=self._registry
        )

    def add(self, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def page(self) -> bytes:
        """All metrics in the format of Prometheus."""
        return generate_latest(self._registry)
