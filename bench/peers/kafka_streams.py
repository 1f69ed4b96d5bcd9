"""Kafka Streams build of seed 002: two JVMs, one that ticks and one that joins. Sources in ``kstreams/``."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import ClassVar

from bench.harness.process import Process
from bench.harness.subject import Bench, Names, Subject, Unavailable, environment
from bench.workload import Workload

CLASS_PATH = "target/kstreams-timers-1.0.jar:target/lib/*"
SOURCES = Path(__file__).parent / "kstreams"
ASSIGNED = "to PARTITIONS_ASSIGNED"
LOG_ASSIGNMENTS = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.streams.processor.internals.StreamThread=info"
RUNNING = r"-> RUNNING$"
START_S = 60.0
BUILD_S = 300.0


class KafkaStreams(Subject):
    """``Oscillator`` and ``Futures`` with two stream threads and the library's defaults.

    It needs publishers that hash the key as Java does: request and tick meet only on the same partition.
    """

    name = "kstreams"
    partitioner: ClassVar[str] = "murmur2_random"
    accepts_per_s: ClassVar[int] = 60_000
    head_start_s: ClassVar[float] = 8.0

    def prepare(self, bench: Bench) -> None:
        for tool, what in (("java", "a Java 17 runtime"), ("mvn", "Maven")):
            if shutil.which(tool) is None:
                raise Unavailable(f"no `{tool}` on this machine: install {what} to build it")
        with bench.console.doing("building the Kafka Streams peer (mvn package)"):
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

    def launch(self, bench: Bench, names: Names, workload: Workload) -> tuple[list[Process], float]:
        for topic in (names.request, names.oscillator):
            if not bench.cluster.partitions(topic):
                bench.cluster.create(topic, workload.partitions)
        env = environment(
            BOOTSTRAP_SERVERS=bench.cluster.brokers,
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
            processes.append(Process(main, argv, env, SOURCES, names.directory / f"{main}.log"))
        ready_at, _ = processes[0].wait_for(RUNNING, START_S)
        return processes, ready_at

    def recovered_s(self, processes: list[Process], timers: int) -> float:
        """From the last assignment of a stream thread to RUNNING. What its group waited before does not count."""
        end, _ = processes[0].wait_for(RUNNING, 0)
        return end - max(at for at, line in processes[0].lines if ASSIGNED in line and at <= end)

    def accepted(self, bench: Bench, names: Names) -> int:
        """What its store of requests has written to its changelog. It commits offsets every 30 s only."""
        changelog = f"{names.app_id}-join-other-store-changelog"
        return bench.cluster.end(changelog) if bench.cluster.partitions(changelog) else 0
