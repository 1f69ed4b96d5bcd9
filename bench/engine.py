"""The worker of this project as a subject."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from confluent_kafka import Consumer, TopicPartition

from bench.session import RunNames, Session
from bench.subject import Subject
from bench.workload import Workload
from tests.harness.cluster import client_settings
from tests.harness.process import ROOT, Process, clean_environment
from tests.harness.worker import READY, worker_command
from timers.cli.broker.embedded import free_port
from timers.v1.progress_pb2 import Progress
from timers.wire.progress import encode_key

START_S = 60.0
MAX_RECORDS = 10_000
"""Progress records of one call; more are read with the next one."""


class Engine(Subject):
    """``faust -A timers.app worker`` with its defaults, except for ``settings``.

    Args:
        settings: ``TIMERS_*`` variables.
        root: checkout whose worker runs.
        name: name in results.
        app: module of its Faust app.
    """

    accepts_per_s: ClassVar[int] = 100_000

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        root: Path = ROOT,
        name: str = "timers",
        app: str = "timers.app",
    ) -> None:
        self.name = name
        self._app = app
        self._settings = settings or {}
        self._root = root
        self.port = 0
        self._progress: Consumer | None = None
        self._next_offsets: dict[bytes, int] = {}

    def launch(self, session: Session, names: RunNames, workload: Workload) -> tuple[list[Process], float]:
        self.port = free_port()
        env = clean_environment(
            TIMERS_BROKERS=session.cluster.brokers,
            TIMERS_APP_ID=names.app_id,
            TIMERS_WORKER_ID=names.run,
            TIMERS_DATA_DIR=str(names.data_dir),
            TIMERS_WEB_PORT=str(self.port),
            TIMERS_PARTITIONS=str(workload.partitions),
            TIMERS_REQUEST_TOPIC=names.request,
            TIMERS_OSCILLATOR_TOPIC=names.oscillator,
            TIMERS_DEAD_LETTER_TOPIC=f"timer-dead-letter-{names.run}",
            **{"TIMERS_ID_TOPIC": "", **self._settings},  # off, as in all results before it was on by default
            PYTHONPATH=str(self._root),
        )
        process = Process(
            "timers worker", worker_command(self.port, app=self._app), env, self._root, names.directory / "worker.log"
        ).start()
        process.wait_for(READY, START_S)
        return [process], time.time()

    def accepted(self, session: Session, names: RunNames) -> int:
        """Sum of the offsets up to which the machines have accepted, as their progress says: the group's offsets are a
        copy that is some seconds old."""
        if self._progress is None:
            topic = f"{names.app_id}-progress"
            self._progress = Consumer(
                {**client_settings(session.cluster.brokers), "group.id": "bench-progress", "enable.auto.commit": False}
            )
            self._progress.assign([TopicPartition(topic, each, 0) for each in session.cluster.partitions(topic)])
            partitions = session.cluster.partitions(names.request)
            self._next_offsets = {encode_key(names.request, partition): 0 for partition in partitions}
        for message in self._progress.consume(MAX_RECORDS, 0.0):
            key = message.key() or b""
            if key in self._next_offsets:
                self._next_offsets[key] = Progress.FromString(message.value() or b"").next_offset
        return sum(self._next_offsets.values())

    def end_counting(self) -> None:
        if self._progress is not None:
            self._progress.close()
            self._progress = None

    def recovered_s(self, processes: list[Process], timers: int) -> float:
        ready = processes[0].wait_for(READY, 0)
        if int(ready[2]) != timers:
            raise RuntimeError(f"{timers:,} timers were pending, but it wrote: {ready[0]}")
        return float(ready[3])
