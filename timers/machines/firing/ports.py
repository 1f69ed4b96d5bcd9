"""What the transaction of a machine needs: settings, a producer, and what brokers answer.

The worker and the simulator implement these interfaces. Nothing else of the firing of timers differs between them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, Protocol, TypeAlias

from timers.core.ports import Deleted, Unanswered
from timers.core.timer import Origin, Row, TopicPartition
from timers.machines.firing.breaker import DeliveryProblem
from timers.wire import headers as h
from timers.wire.formats import RequestFormat, RequestRecord


class FiringSettings(Protocol):
    """The settings that decide what happens to due timers, and what is written."""

    @property
    def app_id(self) -> str: ...
    @property
    def request_topic(self) -> str: ...
    @property
    def retry_topic(self) -> str: ...
    @property
    def dead_letter_topic(self) -> str: ...
    @property
    def verdict_topic(self) -> str: ...
    @property
    def cold_topic(self) -> str: ...
    @property
    def progress_topic(self) -> str: ...
    @property
    def canary_topic(self) -> str: ...
    @property
    def marker_topic(self) -> str: ...
    @property
    def message_topic(self) -> str: ...
    @property
    def schedule_topics(self) -> Sequence[str]: ...
    @property
    def own_topics(self) -> Iterable[str]: ...
    @property
    def callback_allow(self) -> Sequence[str]: ...
    @property
    def callback_deny(self) -> Sequence[str]: ...
    @property
    def max_depth(self) -> int: ...
    @property
    def retry_attempts(self) -> int: ...
    @property
    def max_request_bytes(self) -> int: ...


class Batch(Protocol):
    """The records of one partition, in order.

    Attributes:
        offsets: the offset of the request of each record that is a callback, else None.
    """

    offsets: list[int | None]

    @property
    def add(self) -> Callable[..., Any]:
        """Adds a record: (its place in the batch, timestamp ms, key, value, headers). Returns None if it is full."""


FirstRecord: TypeAlias = tuple[int, bytes | None, bytes | None, list[h.Header]]
"""(Timestamp ms, key, value, headers)"""


class Producer(Protocol):
    """Sends the transactions of one machine."""

    @property
    def held_from(self) -> set[int]:
        """As in :class:`timers.core.ports.Outbox`."""

    @property
    def throttled_s(self) -> float:
        """Seconds for which a broker reads nothing of this producer, because of a quota."""

    def open(self) -> None:
        """Fence the previous owner and roll back its open transaction. Blocks."""

    def close(self) -> None:
        """Close the connections."""

    def beat_and_may_wait(self) -> bool:
        """Note that the machine waits. Returns False if it was told to end."""

    def await_quota(self) -> None:
        """Wait while a broker, because of a quota, reads no batches of this machine. Raises Lost if told to stop."""

    def batch(self, max_bytes: int, first: FirstRecord) -> Batch:
        """Return a batch with its first record."""

    @property
    def write_callbacks(self) -> Callable[..., None] | None:
        """Writes the callbacks of many rows into batches, in compiled code; None: :meth:`Batch.add` is faster."""

    def size_alone(self, key: bytes | None, value: bytes | None, headers: list[h.Header]) -> int:
        """Return the bytes of a batch that holds only this record: Kafka compares them with the topic's limit."""

    def transact(
        self, batches: Sequence[tuple[str, int, Any]], offsets: Mapping[TopicPartition, tuple[int, str]]
    ) -> bool:
        """Send batches, commit offsets (with their metadata) of the group, and make all visible.

        Returns:
            Whether the offsets were sent.

        Raises:
            BatchesRefused: brokers refused some records. It was rolled back, and another transaction may follow.
            DeliveryFailed: some topics failed, or a batch is too large for one; the machine must be opened again.
            Unanswered: some batches were not answered; the machine must be opened again.
            Fenced: another worker owns the machine.
            Lost: the outcome is not known; the machine must be opened again.
        """


class Topics(Protocol):
    """What the brokers answer about topics."""

    @property
    def own(self) -> AbstractSet[str]:
        """Topics of the engine that are never targets."""

    @property
    def usable(self) -> Mapping[str, int]:
        """Topic that takes records now -> number of partitions. May be incomplete. The hot path reads only this."""

    @property
    def max_message_bytes(self) -> Mapping[str, int]:
        """Topic that has refused a batch as too large -> largest batch that it takes. May be five minutes old."""

    def limit_now(self, topic: str) -> int | None:
        """Ask for the same of one topic; what was known without an answer. Blocks."""

    def route(self, topic: str, *, retried: bool) -> int | DeliveryProblem | None:
        """The number of partitions of ``topic``; or why nothing can be sent there; or None: no broker has said it yet.

        Args:
            topic: a callback topic that the settings allow.
            retried: whether the timers come from the retry topic.
        """

    def wait(self, topics: Collection[str], may_wait: Callable[[], bool]) -> object:
        """Wait a short time for the answers about topics that :meth:`route` did not know."""

    def refresh(self) -> None:
        """Note that a transaction begins."""

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic of the engine."""

    def available(self, topic: str, partition: int) -> int:
        """Return ``partition`` of a topic of the engine, or another one while it has no leader."""

    def was_moved(self, topic: str, partition: int) -> bool:
        """Return whether :meth:`available` has returned another partition a short time ago."""

    def open_circuit(self, topic: str, error: BaseException) -> None:
        """Send nothing to a topic for some time, because of ``error``."""

    def note_worked(self, topics: Collection[str]) -> None:
        """Note topics that have taken records."""

    def note_failed(self, failed: Mapping[str, BaseException]) -> None:
        """Note topics that did not take their records, and what the brokers said."""

    def note_silent(self, failure: Unanswered, *, few_records: bool) -> None:
        """Note partitions that did not answer a transaction; ``few_records``: it had few records."""

    def note_timestamps_refused(self, topic: str) -> None:
        """Note that ``topic`` refuses the timestamps of callbacks."""


class Requests(Protocol):
    """Reads requests from the log again."""

    def find(
        self, timers: Iterable[tuple[Row, Origin]], may_wait: Callable[[], bool]
    ) -> Mapping[str, RequestRecord | None]:
        """Return source -> request, for timers whose requests are still in the log; None: it cannot be read for now.

        Raises:
            Lost: the brokers do not answer, or ``may_wait`` returned False.
        """

    def read_again(self, sources: Iterable[str], may_wait: Callable[[], bool]) -> Mapping[str, RequestRecord | Deleted]:
        """Return source -> request, or that it is deleted. One that cannot be read now is absent.

        Raises:
            Lost: as :meth:`find`.
        """

    def request_format(self, source: str) -> RequestFormat:
        """Return the format of the request at ``source``."""


class GivenUp(NamedTuple):
    """A timer that becomes a dead letter instead of a callback."""

    row: Row
    origin: Origin
    code: str
    reason: str


class Refusal(NamedTuple):
    """A batch that a broker does not take, because of records in it."""

    topic: str
    error: BaseException
    """What the broker said about the batch."""
    records: list[tuple[int | None, str]]
    """The offset of each bad record's request, or None if it is no callback; and why it is bad, in one sentence."""
