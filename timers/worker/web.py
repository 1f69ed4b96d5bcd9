"""What the worker's web port answers beside Faust's own pages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from prometheus_client.exposition import choose_encoder

from timers.worker import health
from timers.worker.metrics import exposition

if TYPE_CHECKING:
    from timers.worker.service import TimersApp

UNAVAILABLE = 503


def register(app: TimersApp) -> None:
    """Add the pages: ``/health/live`` and ``/health/ready`` (200, or 503 with reasons), ``/metrics``, and
    those of :mod:`timers.worker.queries.pages`."""
    registry = exposition.registry(app)
    app.query_pages.register()

    @app.page("/health/live")
    async def live(web: Any, request: Any) -> Any:
        reasons = health.stuck(app)
        return web.json({"live": not reasons, "reasons": reasons}, status=UNAVAILABLE if reasons else 200)

    @app.page("/health/ready")
    async def ready(web: Any, request: Any) -> Any:
        reasons = health.unready(app)
        state = {
            "ready": not reasons,
            "reasons": reasons,
            "partitions": len(app.pool.runners),
            "stopped": {f"{topic}/{partition}": str(why) for (topic, partition), why in app.pool.stopped.items()},
            "pending": sum(runner.machine.pending for runner in app.pool.runners.values()),
            "tick_age_s": None if app.tick_reader is None else round(app.tick_reader.age_s, 3),
        }
        return web.json(state, status=UNAVAILABLE if reasons else 200)

    @app.page("/metrics")
    async def scrape(web: Any, request: Any) -> Any:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        # Not on the event loop: ticks need not wait for the sizes of files.
        page = await asyncio.to_thread(encode, registry)
        return web.bytes(page, headers={"Content-Type": content_type})
