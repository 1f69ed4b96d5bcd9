"""What the worker's web port answers beside Faust's own pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timers.worker.service import TimersApp

UNAVAILABLE = 503


def register(app: TimersApp) -> None:
    """Add the health pages.

    ``/health/live``: the event loop runs. ``/health/ready``: every assigned partition is recovered and time passes.
    """

    @app.page("/health/live")
    async def live(web: Any, request: Any) -> Any:
        return web.json({"live": True})

    @app.page("/health/ready")
    async def ready(web: Any, request: Any) -> Any:
        state = {
            "ready": app.ready,
            "partitions": len(app.pool.runners),
            "recovered": app.pool.recovered,
            "pending": sum(runner.machine.pending for runner in app.pool.runners.values()),
            "tick_age_s": None if app.tick_reader is None else round(app.tick_reader.age_s, 3),
        }
        return web.json(state, status=200 if app.ready else UNAVAILABLE)
