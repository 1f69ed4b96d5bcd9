"""What the console needs of Kafka and of the workers. Tests give it a cluster in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from timers.client.request import TimerRequest
from timers.wire.verdict import VerdictMessage


class WorkerAnswer(NamedTuple):
    """The answer of a worker's page."""

    status: int
    body: dict[str, Any]


class Cluster(Protocol):
    """The brokers and workers of one app. Its methods raise :class:`timers.errors.TimersError`."""

    async def schedule(self, request: TimerRequest) -> str:
        """Write a request. Returns its id or its source when all in-sync replicas have it."""

    async def update(self, request: TimerRequest, timeout_s: float) -> VerdictMessage:
        """Write a request with an id, and wait for the verdict."""

    async def cancel(self, id: str, timeout_s: float) -> VerdictMessage:
        """Write a cancel, and wait for the verdict."""

    async def ask(self, path: str, parameters: Mapping[str, str]) -> WorkerAnswer:
        """The answer of a worker's page."""

    async def record(self, entry: bytes) -> None:
        """Write an entry to the log of changes. Returns when all in-sync replicas have it."""

    async def problems(self) -> list[str]:
        """Why brokers or worker cannot be used now, a sentence each; empty: they can."""
