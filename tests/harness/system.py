"""One timer system on the broker: an app id, topics, targets and workers that no other test shares."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.harness.records import CLIENT, Publisher, Reader, Record, Request
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from tests.harness.worker import Worker
from timers.config.settings import Settings
from timers.kafka import topics

PARTITIONS = 4

_MOVING = (KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION)
"""Said where a broker was so busy that its controller took it for dead for a moment."""

MAX_LAG_MS = 5000
"""What is on time, on a machine that does other things too. How fast it really is, the benchmarks say."""


class System:
    """Everything one test needs of Kafka.

    Attributes:
        workers: all that :meth:`worker` has made.

    Args:
        address: of the broker.
        directory: for the data and the logs of workers.
        app_id: by default one that nobody else has.
        settings: further settings of all its workers.
    """

    def __init__(self, address: str, directory: Path, app_id: str = "", **settings: str) -> None:
        self._id = uuid.uuid4().hex[:8]
        self._numbers = itertools.count()
        self._directory = directory / self._id
        self.workers: list[Worker] = []
        self._readers: list[Reader] = []
        self._fence: Reader | None = None
        self._publisher: Publisher | None = None
        self.address = address
        self.admin = AdminClient({**CLIENT, "bootstrap.servers": address})
        self.app_id = app_id or f"app-{self._id}"
        self.environment = {
            "TIMERS_BROKERS": address,
            "TIMERS_APP_ID": self.app_id,
            "TIMERS_REQUEST_TOPIC": f"request-{self._id}",
            "TIMERS_OSCILLATOR_TOPIC": f"oscillator-{self._id}",
            "TIMERS_DEAD_LETTER_TOPIC": f"dead-letter-{self._id}",
            "TIMERS_SESSION_TIMEOUT_S": "6",
            **settings,
        }
        self.settings = Settings.load(self.environment)
        self.request_topic = self.settings.request_topic

    def close(self) -> None:
        """End workers and readers."""
        for worker in self.workers:
            worker.clean_up()
        for reader in self._readers:
            reader.close()

    # ---- topics -------------------------------------------------------------------------------------------------

    def create_own_topics(self) -> None:
        """Make what the worker would make, to publish before the first one runs."""
        topics.ensure(self.settings)

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> str:
        """Make a topic; its records carry the broker's time unless ``config`` says otherwise."""
        named = {"message.timestamp.type": "LogAppendTime", **{key.replace("_", "."): v for key, v in config.items()}}
        self.admin.create_topics([NewTopic(name, partitions, config=named)])[name].result(DEADLINE_S)
        # The controller has it; the brokers may hear of it a little later.
        wait_until(lambda: name in self.admin.list_topics(timeout=DEADLINE_S).topics, f"the brokers list {name}")
        return name

    def target(self, partitions: int = 1, **config: str) -> str:
        """A new callback topic."""
        return self.create_topic(f"target-{self._id}-{next(self._numbers)}", partitions, **config)

    def delete_topic(self, name: str) -> None:
        self.admin.delete_topics([name], operation_timeout=DEADLINE_S)[name].result(DEADLINE_S)

    def delete_topics(self) -> None:
        """Delete all its topics: their bytes would weigh on what comes after."""
        mine = [name for name in self.admin.list_topics(timeout=DEADLINE_S).topics if self._id in name]
        for deleted in self.admin.delete_topics(mine, operation_timeout=DEADLINE_S).values():
            deleted.result(DEADLINE_S)

    def end(self, topic: str, *, committed: bool = False) -> int:
        """Sum of the end offsets of a topic; ``committed``: only up to the first open transaction."""
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

        def look() -> list[int] | None:
            found = self.admin.list_topics(topic, timeout=DEADLINE_S).topics[topic]
            wanted = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in found.partitions}
            told = self.admin.list_offsets(wanted, isolation_level=level).values()
            try:
                return [each.result(DEADLINE_S).offset for each in told]
            except KafkaException as error:
                if error.args[0].code() not in _MOVING:
                    raise
                return None

        return sum(wait_until(look, f"the leaders of {topic} are known"))

    # ---- workers ------------------------------------------------------------------------------------------------

    def worker(self) -> Worker:
        """A new worker, not yet started."""
        worker = Worker(self._directory / f"worker-{next(self._numbers)}", self.environment)
        self.workers.append(worker)
        return worker

    # ---- records ------------------------------------------------------------------------------------------------

    def publisher(self, **options: Any) -> Publisher:
        """A producer of requests."""
        return Publisher(self.address, self.request_topic, **options)

    def send(self, *requests: Request) -> Sequence[Request]:
        """Publish and wait for the broker."""
        if self._publisher is None:
            self._publisher = self.publisher()
        return self._publisher.send(requests)

    def reader(self, topic: str, *, append_time: bool = True, committed: bool = True) -> Reader:
        """A receiver of ``topic``, from its beginning."""
        reader = Reader(self.address, topic, append_time=append_time, committed=committed)
        self._readers.append(reader)
        return reader

    def wait_past(self, due_s: int) -> None:
        """Wait until everything requested so far and due by ``due_s`` has fired.

        A machine fires in the order of (due second, offset): so it has when a request made now for the same second
        fires, on each partition.
        """
        if self._fence is None:
            self._fence = self.reader(self.target())
        fences = [
            Request(self._fence.topic, due_s, partition=partition) for partition in range(self.settings.partitions)
        ]
        self.send(*fences)
        fired = self._fence.take(len(fences))
        assert {record.timer_id for record in fired} == {fence.source for fence in fences}

    def fired(self, requests: Iterable[Request], deadline_s: float = DEADLINE_S) -> dict[str, Record]:
        """Wait until all requests of one target have fired; each exactly once, none early, and nothing else there.

        Args:
            requests: which.
            deadline_s: after the last of them is due.

        Returns:
            Records by the source of their request.
        """
        by_source = {request.source: request for request in requests}
        (target,) = {request.target for request in by_source.values()}
        reader = self.reader(target)
        last_due_s = max(request.due_s for request in by_source.values())
        records = reader.take(len(by_source), deadline_s + max(0.0, last_due_s - time.time()))
        self.wait_past(last_due_s)
        records += reader.rest()
        assert_once(records, by_source)
        return {record.timer_id: record for record in records}

    def dead_letters(self) -> Reader:
        """A receiver of the dead letters. Their topic carries its producer's time."""
        return self.reader(self.settings.dead_letter_topic, append_time=False)


def assert_once(records: Sequence[Record], by_source: dict[str, Request]) -> None:
    """Each request fired exactly once, with its own due second and never before it; and nothing else did."""
    ids = [record.timer_id for record in records]
    lost = by_source.keys() - set(ids)
    assert not lost, f"{len(lost)} lost, such as {sorted(lost)[:3]}"
    strangers = set(ids) - by_source.keys()
    assert not strangers, f"{len(strangers)} fired that should not have, such as {sorted(strangers)[:3]}"
    assert len(ids) == len(by_source), f"{len(ids) - len(by_source)} fired twice"
    for record in records:
        assert record.due_s == by_source[record.timer_id].due_s
        assert record.lag_ms >= 0, f"early: {record}"


def timers(target: str, count: int, first_s: int, seconds: int, value: bytes = b"") -> list[Request]:
    """``count`` timers spread evenly over ``seconds`` due seconds, with a key each."""
    return [Request(target, first_s + index % seconds, f"key-{index}", value) for index in range(count)]


def soon(target: str, count: int, **fields: Any) -> list[Request]:
    """Timers due in a moment, in one second."""
    due_s = due_in(2)
    return [Request(target, due_s, f"key-{index}", b"value-%d" % index, **fields) for index in range(count)]
