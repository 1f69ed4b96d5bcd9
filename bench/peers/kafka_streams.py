"""Runs the Kafka Streams peer: one JVM writes ticks, one joins them with requests. Its sources are in ``kstreams/``."""

import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import ClassVar

from bench.session import RunNames, Session
from bench.subject import Subject, Unavailable
from bench.workload import Workload
from tests.harness.process import Process, clean_environment
from tests.harness.waiting import wait_until

CLASS_PATH = "target/kstreams-timers-1.0.jar:target/lib/*"
SOURCES = Path(__file__).parent / "kstreams"
ASSIGNED = "to PARTITIONS_ASSIGNED"
LOG_ASSIGNMENTS = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.streams.processor.internals.StreamThread=info"
RUNNING = r"-> RUNNING$"
START_S = 60.0
BUILD_S = 300.0


class KafkaStreams(Subject):
    """``Oscillator`` and ``Futures`` with two stream threads and the library's defaults.

    Publishers must hash keys as Java does, because the join needs request and tick on one partition.
    """

    name = "kstreams"
    partitioner: ClassVar[str] = "murmur2_random"
    accepts_per_s: ClassVar[int] = 60_000
    head_start_s: ClassVar[float] = 8.0

    def __init__(self) -> None:
        self._recovered_s = 0.0

    def prepare(self, session: Session) -> None:
        for tool, what in (("java", "a Java 17 runtime"), ("mvn", "Maven")):
            if shutil.which(tool) is None:
                raise Unavailable(f"no `{tool}` on this machine: install {what} to build it")
        with session.printer.doing("building the Kafka Streams peer (mvn package)"):
            try:
                built = subprocess.run(
                    ["mvn", "-q", "-B", "package"],
                    cwd=SOURCES,
                    capture_output=True,
                    text=True,
                    timeout=BUILD_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise Unavailable(f"`mvn package` did not end within {BUILD_S:.0f} s") from None
        if built.returncode:
            errors = [line for line in (built.stdout + built.stderr).splitlines() if "ERROR" in line]
            raise Unavailable(f"`mvn package` failed: {' '.join(errors[:1]) or f'exit {built.returncode}'}")

    def launch(self, session: Session, names: RunNames, workload: Workload) -> tuple[list[Process], float]:
        for topic in (names.request, names.oscillator):
            if not session.cluster.partitions(topic):
                session.cluster.create(topic, workload.partitions, {})
        env = clean_environment(
            BOOTSTRAP_SERVERS=session.cluster.brokers,
            OSCILLATOR_TOPIC=names.oscillator,
            TIMER_REQUEST_TOPIC=names.request,
            APPLICATION_ID=names.app_id,
            STATE_DIR=str(names.data_dir),
            STREAM_THREADS="2",
            WINDOW_SIZE_S="3600",
        )
        processes = []
        for main in ("Futures", "Oscillator"):
            argv = ["java", LOG_ASSIGNMENTS, "-cp", CLASS_PATH, f"peers.kstreams.{main}"]
            processes.append(Process(main, argv, env, SOURCES, names.directory / f"{main}.log").start())
        self._wait_until_running(processes[0])
        return processes, time.time()

    def _wait_until_running(self, futures: Process) -> None:
        """Wait for the state RUNNING, and note the time since the last assignment of a stream thread."""
        assigned, assigned_at = 0, futures.started_at

        def look() -> bool:
            nonlocal assigned, assigned_at
            log = futures.log
            if log.count(ASSIGNED) > assigned:
                assigned, assigned_at = log.count(ASSIGNED), time.time()
            return bool(re.search(RUNNING, log, re.MULTILINE)) or not futures.running

        wait_until(look, "the state RUNNING", START_S)
        futures.wait_for(RUNNING, 0)
        self._recovered_s = time.time() - assigned_at

    def recovered_s(self, processes: list[Process], timers: int) -> float:
        """Seconds from the last assignment of a stream thread to RUNNING, without the rebalance before."""
        return self._recovered_s

    def accepted(self, session: Session, names: RunNames) -> int:
        """Number of records in the changelog of its request store, because it commits offsets only every 30 s."""
        return session.cluster.end(f"{names.app_id}-join-other-store-changelog")
