"""An engine in memory between which and the cold tables a test carries records: with a clock that a test moves."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from pyspark.sql import DataFrame, SparkSession

from tests.simulation.kit import SimClock, SimLog, SimWorker
from tests.simulation.kit.log import SimRecord
from timers.core.limits import Limits
from timers.errors import SparkError
from timers.kafka import connection
from timers.kafka.records import Record
from timers.kafka.topic_offsets import Offsets
from timers.process.config.settings import Settings
from timers.spark.cold import DAY_S, ColdTables, cold_sources
from timers.spark.columns import RECORD_SCHEMA
from timers.spark.jobs.promote import KafkaPort, Logs
from timers.wire import future
from timers.wire import headers as h
from timers.wire.formats import future_by_id
from timers.wire.topics import ID_REQUEST

LIMITS = Limits(chunk_timers=100, chunk_bytes=10**6, max_request_bytes=10_000)


class SimEngine:
    """One worker over a simulated log; time passes when told."""

    def __init__(self, now_s: int, horizon_s: int) -> None:
        self.settings = Settings(hot_horizon_s=horizon_s, id_topic=ID_REQUEST)
        self.log = SimLog(SimClock(now_s), partitions=1)
        self.worker = SimWorker("worker", self.log, self.settings, LIMITS)
        self._machines = [(topic, 0) for topic in (self.settings.request_topic, ID_REQUEST)]
        self.restart(horizon_s)

    def restart(self, horizon_s: int, *, lose_disk: bool = False) -> None:
        self.worker.crash()
        if lose_disk:
            self.worker.disk.wipe()
        self.worker.hot_horizon_s = horizon_s
        self.worker.start()
        self.worker.assign(self._machines)
        self.advance_to(self.log.clock.now_s)

    def advance_to(self, second: int) -> None:
        self.log.clock.now_ms = second * 1000
        self.log.append(self.settings.oscillator_topic, b"%d" % second, b"1", partition=0)
        self.worker.poll_ticks()
        self.run()

    def run(self) -> None:
        for machine in self._machines:
            self.worker.settle(machine)

    def ask(self, due_s: int, value: bytes, headers: Sequence[tuple[str, bytes | None]] = ()) -> SimRecord:
        record = future.encode("orders", "key", value)
        sent = self.log.append(self.settings.request_topic, b"%d" % due_s, record, headers, partition=0)
        self.run()
        return sent

    def ask_by_id(self, id: bytes, due_s: int, value: bytes) -> None:
        self.log.append(
            ID_REQUEST, id, future.encode("orders", "key", value), future_by_id.encode_headers(due_s), partition=0
        )
        self.run()

    def cancel(self, id: bytes) -> None:
        self.log.append(ID_REQUEST, id, None, partition=0)
        self.run()

    def on(self, topic: str) -> list[SimRecord]:
        return [record for record in self.log.committed if record.topic == topic]

    @property
    def fired(self) -> list[tuple[bytes | None, str]]:
        """(value, timer-id) of each callback."""
        return [(each.value, (dict(each.headers)[h.TIMER_ID] or b"").decode()) for each in self.on("orders")]


def as_frame(spark: SparkSession, records: Sequence[SimRecord]) -> DataFrame:
    """Records as the Kafka source would give them."""
    rows = [
        (each.topic, each.partition, each.offset, each.timestamp_ms, 1, each.key, each.value, list(each.headers))
        for each in records
    ]
    return spark.createDataFrame(rows, RECORD_SCHEMA)


class FilePort(KafkaPort):
    """Writes copies to a file, since tasks run in other processes; may die when it has, and may refuse some."""

    def __init__(self, path: Path, *, dies: bool, refuses: str) -> None:
        self._path = path
        self._dies = dies
        self._refuses = refuses.encode()

    def write(self, copies: Sequence[Record]) -> None:
        if any(dict(copy.headers)[h.TIMER_PROMOTED] == self._refuses for copy in copies):
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        with self._path.open("a") as file:
            for topic, partition, key, value, headers in copies:
                texts = [(name, _hex(data)) for name, data in headers]
                file.write(json.dumps([topic, partition, _hex(key), _hex(value), texts]) + "\n")
        if self._dies:
            raise RuntimeError("killed after the commit")


class SimLogs(Logs):
    """Carries copies from the promoter to an engine.

    Attributes:
        dies: the promoter, once it has written.
        blind: it does not find what it has written before it died.
        trimmed: what it has written before it died is deleted.
        gone: topics that do not exist any more.
        refuses: source of a request whose copy is refused.
        noted: name of the last batch that may have written, which is kept outside of the tables for seven days; and the
            second at which it was noted.
        notes_nothing, starts_nothing: the group cannot be used, when it notes a batch or begins.
        searches: how often it looked for copies.
        unread: number of cold records that `hold` has not read.
        is_fenced: no task writes.
    """

    def __init__(self, spark: SparkSession, engine: SimEngine, path: Path) -> None:
        super().__init__(spark, engine.settings)
        self._session = spark
        self.engine = engine
        self._path = path
        self._delivered = 0
        self.dies = False
        self.blind = self.trimmed = False
        self.gone: set[str] = set()
        self.refuses = ""
        self.noted = "", 0
        self.notes_nothing, self.searches, self.unread = False, 0, 0
        self.starts_nothing = self.is_fenced = False

    def unheld(self, tables: ColdTables, now_s: int) -> int:
        return self.unread

    def noted_batch(self) -> str:
        name, at_s = self.noted
        return name if self.engine.log.clock.now_s < at_s + 7 * DAY_S else ""

    def note_batch(self, name: str) -> None:
        if self.notes_nothing:
            raise SparkError("the group cannot be used")
        self.noted = name, self.engine.log.clock.now_s

    def ends(self) -> Offsets:
        kept = [topic for topic in cold_sources(self.engine.settings) if topic not in self.gone]
        return {topic: {0: self.engine.log.end(topic, 0)} for topic in kept}

    def take_over(self) -> None:
        if self.starts_nothing:
            raise SparkError("the group cannot be used")
        self.fence()

    def fence(self) -> None:
        self.is_fenced = True

    def copies_since(self, starts: Offsets) -> DataFrame:
        assert self.is_fenced, "a task may write what this does not find"
        self.searches += 1
        found = [
            (dict(record.headers)[h.TIMER_PROMOTED] or b"").decode()
            for topic, places in starts.items()
            for record in self.engine.log.fetch(topic, 0, places[0]).records
            if h.TIMER_PROMOTED in dict(record.headers)
        ]
        self.deleted += len(found) if self.trimmed else 0
        seen = [] if self.blind or self.trimmed else [(each,) for each in found]
        return self._session.createDataFrame(seen, "source string")

    def port(self) -> Callable[[], KafkaPort]:
        self.is_fenced = False
        path, dies, refuses = self._path, self.dies, self.refuses
        return lambda: FilePort(path, dies=dies, refuses=refuses)

    def deliver(self) -> int:
        """Let the engine have what was written."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        for line in lines[self._delivered :]:
            topic, partition, key, value, headers = json.loads(line)
            named: list[tuple[str, Any]] = [(name, _bytes(data)) for name, data in headers]
            self.engine.log.append(topic, _bytes(key), _bytes(value), named, partition)
        count, self._delivered = len(lines) - self._delivered, len(lines)
        self.engine.run()
        return count


def _hex(data: bytes | str | None) -> str | None:
    assert not isinstance(data, str), "headers are bytes"
    return None if data is None else data.hex()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


class Dying(Logs):
    """A promoter that is killed after its first transaction, before it has noted anything."""

    def port(self) -> Callable[[], KafkaPort]:
        return partial(DyingPort, connection.librdkafka(self._settings), self._id)


class DyingPort(KafkaPort):
    def write(self, copies: Sequence[Record]) -> None:
        super().write(copies[: len(copies) // 2])
        raise RuntimeError("killed after the commit")
