"""What the console needs of Kafka and of the workers. Tests give it a cluster in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from timers.client.fired import CallbackRecord
from timers.client.request import TimerRequest
from timers.console.callback_lags import CallbackLags
from timers.console.history import History
from timers.console.letter_box import FoundLetters, Ranges, RetryResult
from timers.console.queue_reading import FoundQueues
from timers.core.timer import TopicPartition
from timers.dead_letters.letters import LetterFilter, QueueTopics
from timers.queue.inspection import QueueStats
from timers.wire.verdict import VerdictMessage


class WorkerAnswer(NamedTuple):
    """The answer of a worker's page."""

    status: int
    body: dict[str, Any]


class FoundWorker(NamedTuple):
    """A member of the app's group."""

    id: str
    url: str
    """Address of its web port; empty if it sent none."""
    partitions: list[TopicPartition]
    may_be_asked: bool
    """Whether the operator trusts its address."""


class Follower(Protocol):
    """Reads callback topics as their records arrive.

    Attributes:
        positions: for each topic, the next offset of each partition.
    """

    positions: list[list[int]]

    async def next(self, timeout_s: float) -> tuple[list[CallbackRecord], int]:
        """What has arrived, and how many records were dropped before; empty after ``timeout_s`` without a record."""

    async def close(self) -> None:
        """Stop reading."""


class Cluster(Protocol):
    """The brokers and workers of one app. Its methods raise :class:`timers.errors.TimersError`."""

    async def schedule(self, request: TimerRequest) -> str:
        """Write a request. Returns its id or its source when all in-sync replicas have it."""

    async def update(
        self,
        request: TimerRequest,
        timeout_s: float,
        condition: str | None = None,
        request_hash: bytes | None = None,
    ) -> VerdictMessage:
        """Write a request with an id, and wait for the verdict.

        Args:
            condition: ``absent``, or the source of the version that it was made for; None: none.
            request_hash: of the header ``timer-request-hash``; None: it has none.
        """

    async def cancel(self, id: str, timeout_s: float, condition: str | None = None) -> VerdictMessage:
        """Write a cancel, and wait for the verdict."""

    async def request_hash(self, source: str) -> bytes | None:
        """The header ``timer-request-hash`` of a request; None if it has none, or the log no longer has it."""

    async def ask(self, path: str, parameters: Mapping[str, str]) -> WorkerAnswer:
        """The answer of a worker's page."""

    async def workers(self) -> list[FoundWorker]:
        """The members of the app's group."""

    async def worker_page(self, url: str, path: str) -> tuple[int, bytes]:
        """Status and body of a page of the worker at ``url``."""

    async def check_worker(self, url: str) -> None:
        """Check that a worker of this app and of the brokers' cluster answers at ``url``.

        Raises:
            QueryError: another worker or program does, or none.
            Problem: no broker answers.
        """

    async def letters(self, letter_filter: LetterFilter, limit: int, ends: Mapping[int, int] | None) -> FoundLetters:
        """A page of dead letters, the newest first, and which of them were retried.

        Args:
            ends: of the page before.
        """

    async def retry(self, letter_filter: LetterFilter, ranges: Ranges | None, *, only_look: bool) -> RetryResult:
        """Publish the requests of dead letters again, or say what that would do.

        Args:
            ranges: ``rest`` of the step before.
        """

    async def history(self, id: str, timer: dict[str, Any] | None) -> History:
        """What the topics say about a timer that a worker has described, or with None about an id that none knows."""

    async def stored_request(self, id: str, source: str) -> TimerRequest | None:
        """The request of a timer with an id, as its topic has it; None if the topic no longer has it."""

    async def times(self, sources: Sequence[str]) -> dict[str, int]:
        """Source of a request -> the epoch second of its record; without those that the topics no longer have."""

    async def lags(self, topic: str, limit: int) -> CallbackLags:
        """How late the newest callbacks of a topic were."""

    async def queues(self) -> FoundQueues:
        """The state of all queues."""

    async def queue(self, name: str, topic: str | None) -> QueueStats:
        """The state of one queue."""

    async def queue_topics(self, name: str) -> QueueTopics:
        """How dead letters name a queue."""

    async def follow(self, topics: Sequence[str], positions: Sequence[Sequence[int]] | None) -> Follower:
        """A reader that begins at these positions, or with what comes from now on."""

    async def record(self, entry: bytes) -> None:
        """Write an entry to the log of changes. Returns when all in-sync replicas have it."""

    async def problems(self) -> list[str]:
        """Why brokers or worker cannot be used now, a sentence each; empty: they can."""
