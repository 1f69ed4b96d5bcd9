"""The handlers of health, metrics and the OpenAPI document."""

from __future__ import annotations

from typing import Any

from timers.console.call import Call, Handler, Reply
from timers.console.metrics import CONTENT_TYPE, ConsoleMetrics

_UNAVAILABLE = 503


def handlers(metrics: ConsoleMetrics, document: dict[str, Any]) -> dict[str, Handler]:
    """Name of a route -> its handler."""

    async def live(call: Call) -> Reply:
        return Reply({"live": True})

    async def ready(call: Call) -> Reply:
        reasons = await call.console.cluster.problems()
        return Reply({"ready": not reasons, "reasons": reasons}, _UNAVAILABLE if reasons else 200)

    async def open_api(call: Call) -> Reply:
        return Reply(document)

    async def show_metrics(call: Call) -> Reply:
        return Reply(metrics.page(), headers={"Content-Type": CONTENT_TYPE})

    return {"live": live, "ready": ready, "openApi": open_api, "metrics": show_metrics}
