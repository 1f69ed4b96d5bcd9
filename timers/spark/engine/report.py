"""Formats one line for each micro-batch of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from timers.spark.engine.query import SENT, STATE


class Reporter:
    """Turns Spark's progress into lines.

    Args:
        buckets: number of buckets. Only a micro-batch with a tick reports all of them.
        request_topic: the topic that the requests are read from.
    """

    def __init__(self, buckets: int, request_topic: str) -> None:
        self._buckets = buckets
        self._source = f"[{request_topic}]"
        self._pending: int | None = None

    def line(self, progress: Mapping[str, Any]) -> str | None:
        """The line for one micro-batch; None if it read nothing.

        The lag is the time from the append of the newest tick to the end of the micro-batch, by the driver's clock.

        Args:
            progress: Spark's progress report, decoded from JSON.
        """
        observed = progress.get("observedMetrics") or {}
        if SENT not in observed or STATE not in observed:
            return None
        sent, state = observed[SENT], observed[STATE]
        if state["buckets"] == self._buckets:
            self._pending = int(state["pending"])
        took_ms = int(progress["durationMs"]["triggerExecution"])
        requests = sum(
            int(source["numInputRows"]) for source in progress["sources"] if self._source in source["description"]
        )
        words = [
            f"micro-batch {progress['batchId']}: {requests:,} requests in ({requests * 1000 // max(1, took_ms):,}/s)",
            f"{int(sent['fired']):,} fired",
            f"{self._pending:,} pending" if self._pending is not None else "",
            f"{int(sent['dead_lettered']):,} dead-lettered" if sent["dead_lettered"] else "",
            f"took {took_ms / 1000:.1f} s",
            self._lag(progress["timestamp"], took_ms, state["tick_ms"]),
        ]
        return ", ".join(word for word in words if word)

    @staticmethod
    def _lag(began_at: str, took_ms: int, tick_ms: int | None) -> str:
        if tick_ms is None:
            return "no tick yet"
        end_ms = datetime.fromisoformat(began_at).timestamp() * 1000 + took_ms
        return f"lag {max(0.0, (end_ms - tick_ms) / 1000):.1f} s"
