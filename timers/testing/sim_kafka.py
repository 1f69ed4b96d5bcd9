"""Kafka in memory: what :class:`timers.testing.SimTimers` needs of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple

from timers.core.limits import ChunkSize
from timers.core.progress import Progress
from timers.core.timer import Fetched, Origin, Row, TopicPartition
from timers.firing.breaker import DeliveryProblem
from timers.firing.ports import NoAnswer
from timers.wire import dead_letter, topics
from timers.wire import progress as progress_record
from timers.wire.formats import RequestFormat, RequestRecord
from timers.wire.headers import Header

EPOCH_S = 1_700_000_000
"""Default start of simulated time: 14 November 2023, 22:13:20 UTC."""


class SimClock:
    """The brokers' clock.

    Attributes:
        now_ms: epoch milliseconds.
    """

    def __init__(self, now_s: float = EPOCH_S) -> None:
        self.now_ms = round(now_s * 1000)

    @property
    def now_s(self) -> int:
        """The epoch second that has begun."""
        return self.now_ms // 1000


class SimRecord(NamedTuple):
    """One record of partition 0 of a topic."""

    topic: str
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp: int
    """Epoch milliseconds at which it was appended."""
    timestamp_type: int = 1
    """Kafka's: the broker set the timestamp."""


class SimBatch:
    """Implements :class:`timers.firing.ports.Batch`; it is never full.

    Attributes:
        records: (timestamp ms, key, value, headers) of each record.
    """

    def __init__(self) -> None:
        self.records: list[tuple[int, bytes | None, bytes | None, Sequence[Header]]] = []
        self.offsets: list[int | None] = []

    def add(
        self, place: int, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Sequence[Header]
    ) -> bool:
        assert place == len(self.records)
        self.records.append((timestamp_ms, key, value, headers))
        return True


class SimKafka:
    """Topics with one partition each. Each record is visible at once, since only one thread of one worker reads them.

    Implements ``Producer``, ``Topics`` and ``Requests`` of :mod:`timers.firing.ports` for all machines.

    Args:
        formats: request topic -> request format.
        missing: topics that do not exist; all others do.

    Attributes:
        records: all records, in the order in which they were appended.
    """

    throttled_s = 0.0
    write_callbacks = None
    size_alone = staticmethod(dead_letter.size)
    usable: ClassVar[Mapping[str, int]] = {}
    max_message_bytes: ClassVar[Mapping[str, int]] = {}
    own: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, clock: SimClock, formats: Mapping[str, RequestFormat], missing: Collection[str]) -> None:
        self.records: list[SimRecord] = []
        self._clock = clock
        self._formats = formats
        self._missing = missing
        self._logs: defaultdict[str, list[SimRecord]] = defaultdict(list)
        self._chunks: defaultdict[TopicPartition, ChunkSize] = defaultdict(ChunkSize)

    def append(self, topic: str, key: bytes | None, value: bytes | None, headers: Iterable[Header] = ()) -> str:
        """Append a record, and return its ``<topic>/<partition>/<offset>``."""
        log = self._logs[topic]
        record = SimRecord(topic, len(log), key, value, tuple(headers), self._clock.now_ms)
        log.append(record)
        self.records.append(record)
        return topics.source(topic, 0, record.offset)

    def fetch(self, topic: str, from_offset: int) -> Fetched:
        """Return the records from an offset on."""
        records = self._logs[topic][from_offset:]
        return Fetched(from_offset, from_offset + len(records), records)

    def end(self, topic: str) -> int:
        return len(self._logs[topic])

    def progress(self, topic: str, machine: TopicPartition) -> Progress:
        """Return the newest progress of a machine."""
        key = progress_record.encode_key(*machine)
        value = next((each.value for each in reversed(self._logs[topic]) if each.key == key), None)
        return progress_record.decode(value)[0] if value else Progress()

    # ---- sends ----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Do nothing: there is no former owner."""

    def close(self) -> None:
        """Do nothing."""

    def keep_waiting(self) -> bool:
        return True

    def await_quota(self) -> None:
        """Do nothing: no broker throttles."""

    def batch(self, max_bytes: int) -> SimBatch:
        return SimBatch()

    def transact(
        self, batches: Sequence[tuple[str, int, SimBatch]], offsets: Mapping[TopicPartition, tuple[int, str]]
    ) -> bool:
        for topic, _, batch in batches:
            for _, key, value, headers in batch.records:
                self.append(topic, key, value, headers)
        return bool(offsets)

    # ---- answers about topics ---------------------------------------------------------------------------------------

    def route(self, topic: str, *, retried: bool) -> int | DeliveryProblem:
        return DeliveryProblem.unknown(topic) if topic in self._missing else 1

    def wait(self, topics: Collection[str], keep_waiting: Callable[[], bool]) -> None:
        """Do nothing: all answers are there."""

    def refresh(self) -> None:
        """Do nothing: a topic exists or does not, for ever."""

    def chunk(self, machine: TopicPartition) -> ChunkSize:
        return self._chunks[machine]

    def partitions(self, topic: str) -> int:
        return 1

    def available(self, topic: str, partition: int) -> int:
        return partition

    def was_moved(self, topic: str, partition: int) -> bool:
        return False

    def open_circuit(self, topic: str, error: BaseException) -> None:
        """Do nothing: no topic fails."""

    def note_worked(self, topics: Collection[str]) -> None:
        """Do nothing."""

    def note_failed(self, failed: Mapping[str, BaseException]) -> None:
        """Do nothing."""

    def note_silent(self, failure: NoAnswer, *, is_short: bool) -> None:
        """Do nothing."""

    def note_times_refused(self, topic: str) -> None:
        """Do nothing: all times are taken."""

    # ---- requests, read again -----------------------------------------------------------------------------------

    def find(
        self, timers: Iterable[tuple[Row, Origin]], keep_waiting: Callable[[], bool]
    ) -> dict[str, RequestRecord | None]:
        found: dict[str, RequestRecord | None] = {}
        for _, origin in timers:
            place = topics.parse_source(origin.request)
            assert place is not None
            record = self._logs[place[0]][place[2]]
            sent = RequestRecord(record.offset, record.key, record.value, record.headers, record.timestamp)
            found[origin.request] = sent
        return found

    def request_format(self, source: str) -> RequestFormat:
        return self._formats[source.rsplit("/", 2)[0]]
