"""The pages that this project adds to the worker's web port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import starmap
from typing import Any

from timers.kafka.own_topics import NOTE, WARNING
from timers.process.metrics import encoder, registry
from timers.process.past_figures import since
from timers.wire.topics import partition_name
from timers.wire.zones import zone_data_version
from timers.worker import health
from timers.worker.health import WorkerStatus
from timers.worker.metrics import METRICS

UNAVAILABLE = 503


def register(page: Callable[[str], Callable[[Any], Any]], status: WorkerStatus) -> None:
    """Add the pages ``/health/live``, ``ready`` and ``partitions`` (200, or 503 with reasons), ``/figures`` of
    the last day, and ``/metrics``."""
    metrics = registry(METRICS, lambda: status)

    @page("/health/live")
    async def live(web: Any, request: Any) -> Any:
        reasons = health.stuck(status)
        origin = {"app": status.settings.app_id, "cluster": status.cluster_id, "zone_data": zone_data_version()}
        return web.json({"live": not reasons, "reasons": reasons, **origin}, status=UNAVAILABLE if reasons else 200)

    @page("/health/ready")
    async def ready(web: Any, request: Any) -> Any:
        reasons = health.unready(status)
        status.was_ready = status.was_ready or not reasons
        pool = status.pool
        state = {
            "ready": not reasons,
            "reasons": reasons,
            "partitions": len(pool.owned),
            "stopped": {partition_name(*tp): str(why) for tp, why in pool.stopped.items()},
            "pending": sum(runner.machine.pending for runner in pool.owned.values()),
            "tick_age_s": round(status.tick_reader.age_s, 3),
        }
        return web.json(state, status=UNAVAILABLE if reasons else 200)

    @page("/health/partitions")
    async def partitions(web: Any, request: Any) -> Any:
        pool = status.pool
        closed = {partition_name(*tp): why for tp, why in health.red_partitions(status).items()}
        zoneless, lossy, targets = health.zoneless(status), health.lossy(status), status.target_watch.problems
        waiting = {**zoneless, **closed}
        red = {**targets, **lossy, **waiting}
        configs = status.log_watch.cluster.wrong_configs
        said = {each: [wrong.sentence for wrong in configs if wrong.severity == each] for each in (WARNING, NOTE)}
        body = {
            "green": not red,
            "red": red,
            "lossy": sorted((lossy.keys() | targets.keys()) - waiting.keys()),
            "zoneless": sorted(zoneless.keys() - closed.keys()),
            "targets": sorted(targets.keys() - lossy.keys() - waiting.keys()),
            "warnings": said[WARNING] + health.mixed_places(status),
            "notes": said[NOTE],
            "owned": sorted(starmap(partition_name, pool.owned)),
            "firing": health.firing(status),
            "machines": health.machines(status),
            "request_partitions": pool.partitions,
        }
        return web.json(body, status=UNAVAILABLE if red else 200)

    @page("/figures")
    async def figures(web: Any, request: Any) -> Any:
        origin = {"app": status.settings.app_id, "cluster": status.cluster_id}
        kept = status.past_figures
        if kept is None:
            return web.json({"error": "the worker is starting"}, status=UNAVAILABLE)
        return web.bytes(
            kept.page(since(request.query.get("since", "")), origin), headers={"Content-Type": "application/json"}
        )

    @page("/metrics")
    async def scrape(web: Any, request: Any) -> Any:
        encode, content_type = encoder(request.headers.get("Accept", ""))
        # In a thread: the sizes of the stores' files are read, and ticks must not wait for this.
        page = await asyncio.to_thread(encode, metrics)
        return web.bytes(page, headers={"Content-Type": content_type})
