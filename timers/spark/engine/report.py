"""Formats one line for each micro-batch of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from timers.counted import per_second


class Reporter:
    """Turns Spark's progress, and what the buckets did, into lines.

    Args:
        buckets: number of buckets. Only a micro-batch with a tick reports all of them.
        request_topic: the topic that the requests are read from.
    """

    def __init__(self, buckets: int, request_topic: str) -> None:
        self._buckets = buckets
        self._source = f"[{request_topic}]"
        self._pending: dict[int, int] = {}
        self._done: tuple[int, Sequence[Any]] = (-1, ())

    def note(self, number: int, done: Sequence[Any]) -> None:
        """Note what the buckets did in a micro-batch: rows of ``processor.OUTPUT``. It ends after that."""
        self._done = number, done
        self._pending.update({row["bucket"]: row["pending"] for row in done})

    def line(self, progress: Mapping[str, Any]) -> str | None:
        """The line for one micro-batch; None if it read nothing.

        The lag is the time from the append of the newest tick to the end of the micro-batch, by the driver's clock.

        Args:
            progress: Spark's progress report, decoded from JSON.
        """
        number, done = self._done
        if number != progress["batchId"] or not done:
            return None
        took_ms = int(progress["durationMs"]["triggerExecution"])
        requests = sum(
            int(source["numInputRows"]) for source in progress["sources"] if self._source in source["description"]
        )
        fired, dead_lettered, retried = (
            sum(row[name] for row in done) for name in ("fired", "dead_lettered", "retried")
        )
        held = next((f"; {row['held']}" for row in done if row["held"]), "")
        ticks_ms = [row["tick_ms"] for row in done if row["tick_ms"] is not None]
        words = [
            f"micro-batch {number}: {requests:,} requests in ({per_second(requests * 1000 / max(1, took_ms))})",
            f"{fired:,} fired",
            f"{sum(self._pending.values()):,} pending" if len(self._pending) == self._buckets else "",
            f"{dead_lettered:,} dead-lettered" if dead_lettered else "",
            f"{retried:,} to be retried" if retried else "",
            "" if all(row["is_complete"] for row in done) else "more are due",
            f"took {took_ms / 1000:.1f} s",
            self._lag(progress["timestamp"], took_ms, min(ticks_ms, default=None)),
        ]
        return ", ".join(word for word in words if word) + held

    @staticmethod
    def _lag(began_at: str, took_ms: int, tick_ms: int | None) -> str:
        if tick_ms is None:
            return "no tick yet"
        end_ms = datetime.fromisoformat(began_at).timestamp() * 1000 + took_ms
        return f"lag {max(0.0, (end_ms - tick_ms) / 1000):.1f} s"
