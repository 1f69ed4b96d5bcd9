"""The handlers of queues."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from timers.console.call import Call, Reply, handles
from timers.console.problems import Problem
from timers.errors import QueueError
from timers.wire.printable import quoted


@handles("listQueues")
async def list_queues(call: Call) -> Reply:
    found = await call.console.cluster.queues()
    visible = [stats for stats in found.stats if call.user.may_use_topic(stats.topic)]
    # The reasons name topics, so a user who may not see all topics sees none of them.
    missing = found.missing if call.user.topics is None else {}
    return Reply(
        {
            "queues": [_without_partitions(asdict(stats)) for stats in visible],
            "missing": [{"queue": name, "reason": why} for name, why in missing.items()],
        }
    )


@handles("getQueue")
async def get_queue(call: Call) -> Reply:
    name = call.parameters["name"]
    try:
        stats = await call.console.cluster.queue(name, call.parameters.get("topic"))
    except QueueError as error:
        raise Problem("not-found", str(error)) from None
    if not call.user.may_use_topic(stats.topic):
        raise Problem("topic-forbidden", f"you may not see the queue {quoted(name)}")
    return Reply(asdict(stats))


def _without_partitions(stats: dict[str, Any]) -> dict[str, Any]:
    del stats["partitions"]
    return stats
