"""The timer system of one test: an app id, topics, targets and workers that no other test uses."""

import itertools
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.harness.cluster import APPEND_TIME, Cluster
from tests.harness.command_line import set_environment
from tests.harness.judge import Callbacks, judge
from tests.harness.records import Publisher, Reader, Record, Request
from tests.harness.waiting import DEADLINE_S, due_in
from tests.harness.worker import QUICK, Worker
from timers.kafka import topics
from timers.process.config.settings import Settings

PARTITIONS = 4

MAX_LAG_MS = 15_000
"""Largest lag of a punctual timer on a machine that is busy with other tests. Benchmarks measure the real lag."""


def _config(named: Mapping[str, str]) -> dict[str, str]:
    """The configuration of a topic, of names with ``_`` for a dot."""
    return {**APPEND_TIME, **{name.replace("_", "."): value for name, value in named.items()}}


def with_ids() -> dict[str, str]:
    """The settings of a system whose timers may have ids: names of topics that no other one has."""
    name = f"by-id-{uuid.uuid4().hex[:8]}"
    return {"TIMERS_ID_TOPIC": name, "TIMERS_VERDICT_TOPIC": f"{name}-verdict"}


class System:
    """The timer system of one test.

    Attributes:
        workers: all workers that :meth:`worker` has made.

    Args:
        address: address of the broker.
        directory: directory of the data and the logs of workers.
        app_id: app id; by default a new one.
        settings: other settings of all its workers.
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
        self.cluster = Cluster(address)
        self.admin = self.cluster.admin
        self.app_id = app_id or f"app-{self._id}"
        self.environment = {
            "TIMERS_BROKERS": address,
            "TIMERS_APP_ID": self.app_id,
            "TIMERS_REQUEST_TOPIC": f"request-{self._id}",
            "TIMERS_OSCILLATOR_TOPIC": f"oscillator-{self._id}",
            "TIMERS_DEAD_LETTER_TOPIC": f"dead-letter-{self._id}",
            "TIMERS_SESSION_TIMEOUT_S": "6",
            "TIMERS_ID_TOPIC": "",  # off: most tests set no timers with an id, and more topics take more time
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

    def use(self, monkeypatch: pytest.MonkeyPatch, **others: str) -> None:
        """Let commands and clients in this process have its settings, and others."""
        set_environment(monkeypatch, self.environment | others)

    # ---- topics -------------------------------------------------------------------------------------------------

    def create_own_topics(self) -> None:
        """Create the topics that a worker creates at its start, so that a test can publish earlier."""
        topics.ensure(self.settings)

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> str:
        """Create a topic; its records have append times unless ``config`` has another type."""
        self.cluster.create(name, partitions, _config(config))
        return name

    def create_anew(self, name: str, partitions: int = 1, **config: str) -> None:
        """Delete a topic if it exists, and create it as :meth:`create_topic`."""
        self.cluster.create_anew(name, partitions, _config(config))

    def target(self, partitions: int = 1, **config: str) -> str:
        """Create a callback topic and return its name."""
        return self.create_topic(f"target-{self._id}-{next(self._numbers)}", partitions, **config)

    def configure(self, topic: str, **config: str) -> None:
        """Change the configuration of a topic."""
        changes = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
        self.admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)

    def delete_topic(self, name: str) -> None:
        self.cluster.delete([name])

    def delete_topics(self) -> None:
        """Delete all topics of the system, so that they use no disk and time of the broker later."""
        self.cluster.delete([name for name in self.cluster.topics() if self._id in name])

    def end(self, topic: str, *, committed: bool = False) -> int:
        """Sum of the end offsets of a topic; with ``committed`` only up to the first open transaction."""
        return self.cluster.end(topic, committed=committed)

    # ---- workers ------------------------------------------------------------------------------------------------

    def worker(self, *, forked: bool = True, quick: bool = False) -> Worker:
        """Make a worker; the test starts it. A fork starts faster than the command of a user does. A quick worker has
        short periods."""
        worker = Worker(self._directory / f"worker-{next(self._numbers)}", self.environment, forked=forked)
        worker.app = QUICK if quick else worker.app
        self.workers.append(worker)
        return worker

    # ---- records ------------------------------------------------------------------------------------------------

    def publisher(self, **options: Any) -> Publisher:
        """Make a producer of requests."""
        return Publisher(self.address, self.request_topic, **options)

    def send(self, *requests: Request) -> Sequence[Request]:
        """Publish requests and wait for the acknowledgements."""
        if self._publisher is None:
            self._publisher = self.publisher()
        return self._publisher.send(requests)

    def reader(self, topic: str, *, append_time: bool = True, committed: bool = True) -> Reader:
        """Make a reader of ``topic``, from its beginning."""
        reader = Reader(self.address, topic, append_time=append_time, committed=committed)
        self._readers.append(reader)
        return reader

    def wait_past(self, due_s: int, deadline_s: float = DEADLINE_S) -> None:
        """Wait until all timers due by ``due_s`` that were requested so far have fired.

        A machine fires in the order of (due second, offset). A request that is written now for the same second fires
        last: this writes one to each partition and waits for the callbacks.
        """
        if self._fence is None:
            self._fence = self.reader(self.target())
        last_requests = [
            Request(self._fence.topic, due_s, partition=partition) for partition in range(self.settings.partitions)
        ]
        self.send(*last_requests)
        fired = self._fence.take(len(last_requests), deadline_s)
        assert {record.timer_id for record in fired} == {fence.source for fence in last_requests}

    def fired(self, requests: Iterable[Request], deadline_s: float = DEADLINE_S) -> dict[str, Record]:
        """Wait until all requests of one target have fired; check that each fired once and not early, and nothing else.

        Args:
            requests: all requests of the target.
            deadline_s: seconds from the last due second on.

        Returns:
            Callbacks by the source of their request.
        """
        by_source = {request.source: request for request in requests}
        (target,) = {request.target for request in by_source.values()}
        reader = Reader(self.address, target)
        last_due_s = max(request.due_s for request in by_source.values())
        records = reader.take(len(by_source), deadline_s + max(0.0, last_due_s - time.time()))
        self.wait_past(last_due_s)
        records += reader.rest()
        reader.close()
        assert_once(records, by_source)
        return {record.timer_id: record for record in records}

    def dead_letters(self) -> Reader:
        """Make a reader of the dead letters, which have timestamps of their producer."""
        return self.reader(self.settings.dead_letter_topic, append_time=False)


def assert_once(records: Sequence[Record], by_source: dict[str, Request]) -> None:
    """Check that each request fired once, with its due second and not early, and that nothing else fired."""
    numbers = {source: number for number, source in enumerate(by_source)}
    ids = [record.timer_id for record in records]
    none = np.empty(0, np.int64)
    found = Callbacks(
        np.array([numbers.get(id, -1) for id in ids], np.int64),
        np.array([record.append_ms for record in records], np.int64),
        none,
        none,
    )
    fired = judge(found, np.array([request.due_s for request in by_source.values()], np.int64))
    assert not fired.lost, f"{fired.lost} lost, such as {sorted(by_source.keys() - set(ids))[:3]}"
    unasked = sorted(set(ids) - by_source.keys())
    assert not fired.altered, f"{fired.altered} fired that should not have, such as {unasked[:3]}"
    assert not fired.duplicates, f"{fired.duplicates} fired twice"
    assert not fired.early, f"{fired.early} are early, such as {min(records, key=lambda record: record.lag_ms)}"
    for record in records:
        assert record.due_s == by_source[record.timer_id].due_s


def timers(target: str, count: int, first_s: int, seconds: int, value: bytes = b"") -> list[Request]:
    """``count`` timers spread evenly over ``seconds`` due seconds, with a key each."""
    return [Request(target, first_s + index % seconds, f"key-{index}", value) for index in range(count)]


def soon(target: str, count: int, **fields: Any) -> list[Request]:
    """``count`` timers with one due second, one to two seconds from now."""
    due_s = due_in(2)
    return [Request(target, due_s, f"key-{index}", b"value-%d" % index, **fields) for index in range(count)]
