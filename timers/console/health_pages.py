"""The handlers of health, metrics and the OpenAPI document."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from timers.console.call import Call, Handler, Reply

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


READY_S = 2.0
"""How long the result of a check of brokers and worker is shown."""

_UNAVAILABLE = 503


def handlers(metrics: ConsoleMetrics, document: dict[str, Any]) -> dict[str, Handler]:
    """Name of a route -> its handler."""

    async def live(call: Call) -> Reply:
        return Reply({"live": True})

    checked: list[tuple[float, list[str]]] = []
    checking = asyncio.Lock()

    async def ready(call: Call) -> Reply:
        async with checking:  # anyone may ask, so the brokers are asked once in two seconds
            if not checked or monotonic() > checked[-1][0] + READY_S:
                problems = await call.console.cluster.problems()  # this may take longer than the result is shown
                checked[:] = [(monotonic(), problems)]
        reasons = checked[-1][1]
        return Reply({"ready": not reasons, "reasons": reasons}, _UNAVAILABLE if reasons else 200)

    async def open_api(call: Call) -> Reply:
        return Reply(document)

    async def show_metrics(call: Call) -> Reply:
        return Reply(metrics.page(), headers={"Content-Type": CONTENT_TYPE})

    return {"live": live, "ready": ready, "openApi": open_api, "metrics": show_metrics}
