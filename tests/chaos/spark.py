"""``python -m tests.chaos.spark``: kill the engine on Spark, its executors and the broker while timers fire.

The engine runs on a standalone cluster of two workers. ``--changes`` adds what an operator may do in between: delete
the checkpoint, change the number of buckets, and change between workers of `timers` and the engine. ``--ids`` adds as
many timers with ids, some of them updated or cancelled: then each firing must agree with the verdicts, and an audit
must find no fault. All storms are judged alike. Exit codes: 0 all promises kept, 1 not, 2 usage, 130 Ctrl-C.
"""

import argparse
import json
import random
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.chaos.program import one_broker, run_rounds
from tests.chaos.spark_ids import IdTraffic
from tests.harness import kafka_version
from tests.harness.callbacks import check
from tests.harness.printer import Printer
from tests.harness.publication import Publication, dues, start_publisher, wait_published
from tests.harness.spark_cluster import SparkCluster
from tests.harness.spark_job import MICRO_BATCH, SPARK_S, SparkEngine, SparkJob
from tests.harness.system import System
from tests.harness.waiting import wait_until
from timers.cli.broker import EmbeddedBroker

PARTITIONS = 4
PAYLOAD_BYTES = 100
DELAYS_S = (0, 1, 5, 20, 60)
HEAD_START_S = 3
LONGEST_PAUSE_S = 5.0
"""Seconds for which the engine works at most between its recovery and the next kill."""
KILL_S = 45.0
"""Seconds of the storm for each kill. A start of the engine takes 15 to 30 of them."""
FORMER_BUCKETS, BUCKETS = 2, 4
LATEST_S = 300.0
"""All timers must have fired this many seconds after the last due second and the last recovery."""

KILLS = ("driver", "executor", "broker")
CHECKPOINT, BUCKETS_CHANGE, WORKERS = "checkpoint", "buckets", "workers"
CHANGES = (CHECKPOINT, BUCKETS_CHANGE, WORKERS)
"""``checkpoint``: delete it. ``buckets``: from 2 to 4. ``workers``: the storm begins with a worker of `timers`, then
Spark takes over, then a worker, then Spark."""


def plan(chosen: random.Random, kills: int, changes: Sequence[str], kinds: Sequence[str] = KILLS) -> list[str]:
    """The steps of a storm: random kills, and each change once, at a random place among them."""
    steps = [chosen.choice(kinds) for _ in range(kills)]
    for change in changes:
        steps.insert(chosen.randint(0, len(steps)), change)
    return steps


def length_s(steps: Sequence[str]) -> int:
    """Seconds of publishing. The change between workers and Spark has two starts, and one at the begin of the storm."""
    return int((len(steps) + 2 * (WORKERS in steps)) * KILL_S)


class Storm:
    """A storm of timers, and what is killed and changed in it.

    Args:
        directory: for logs and data.
        seed: chooses what is killed, and when.
        ids: number of further timers, with ids.
    """

    def __init__(
        self, broker: EmbeddedBroker, directory: Path, seed: int, timers: int, printer: Printer, ids: int = 0
    ) -> None:
        self._broker = broker
        self._directory = directory
        self._random = random.Random(seed)
        self._timers = timers
        self._printer = printer
        self._ids = ids
        topics = {"TIMERS_ID_TOPIC": "by-id", "TIMERS_VERDICT_TOPIC": "verdicts"} if ids else {}
        self._system = System(broker.start(), directory, TIMERS_PARTITIONS=str(PARTITIONS), **topics)
        self._cluster = SparkCluster(directory / "cluster", workers=2)
        conf = (
            "spark.driver.host=127.0.0.1",
            "spark.executor.memory=1g",
            "spark.ui.enabled=false",
            "spark.python.authenticate.socketTimeout=60s",  # a busy machine needs longer to start a Python process
        )
        options = [part for each in conf for part in ("--conf", each)]
        environment = self._system.environment
        self._engine = SparkEngine(directory / "engine", environment, *options, master=self._cluster.url)
        self._engine.buckets = FORMER_BUCKETS
        self._worker = self._system.worker()
        self._target = self._system.target(PARTITIONS)
        self._kinds: dict[str, Callable[[], None]] = {
            "driver": self._kill_driver,
            "executor": self._kill_executor,
            "broker": self._kill_broker,
            CHECKPOINT: self._delete_checkpoint,
            BUCKETS_CHANGE: self._change_buckets,
            WORKERS: self._workers_between,
        }

    def run(self, kills: int, changes: Sequence[str], kinds: Sequence[str] = KILLS) -> bool:
        """Publish, kill ``kills`` times, make the changes, and check.

        Returns:
            Whether each timer fired once, and none early.
        """
        steps = plan(self._random, kills, changes, kinds)
        self._printer.line(f"  {', '.join(steps)}")
        begins_with_worker = WORKERS in steps
        with self._printer.doing("starting"):
            first = self._worker if begins_with_worker else self._engine
            first.start().ready()
        pace_s = length_s(steps)
        first_s = int(time.time()) + HEAD_START_S
        publication = Publication(
            brokers=self._system.address,
            topic=self._system.request_topic,
            target=self._target,
            timers=self._timers,
            first_due_s=first_s,
            spread_s=1,
            payload_bytes=PAYLOAD_BYTES,
            partitions=PARTITIONS,
            partitioner="spread",
            pace_s=pace_s,
            delays_s=DELAYS_S,
        )
        publisher = start_publisher(publication, self._directory)
        traffic = None
        if self._ids:
            chosen = random.Random(self._random.random())  # it draws on a thread of its own
            traffic = IdTraffic(self._system, self._system.target(PARTITIONS), self._ids, pace_s, chosen)
            traffic.start()
        if begins_with_worker:
            with self._printer.doing("a worker fires, and Spark takes over"):
                self._spark_takes_over()
        for number, kind in enumerate(steps):
            self._step(number, kind, time.time() - first_s)
        self._printer.line(f"  done: {dict(Counter(steps))}; publishing ends after {pace_s} s")
        with self._printer.doing("publishing"):
            wait_published(publisher, max(0.0, first_s + pace_s - time.time()) + LATEST_S)
        if traffic is not None:
            with self._printer.doing("waiting until all timers with ids have fired"):
                traffic.wait()
        is_kept = self._check(publication)
        if traffic is not None:
            sentence, agree = traffic.judge()
            self._printer.line(f"  {sentence}")
            is_kept &= agree
            with self._printer.doing("auditing"):
                self._audit()
        return is_kept

    def _audit(self) -> None:
        """Let the audit say whether each request has its outcome; it fails if it finds a fault."""
        place = ("--output", str(self._directory / "audit"), "--tables", (self._directory / "tables").as_uri())
        job = SparkJob(self._directory / "auditor", self._system.environment, "audit", "-o", "json", *place)
        said = json.loads(next(line for line in job.run().splitlines() if line.startswith("{")))
        self._printer.line(f"  audit: {said['verdict']}, {said['statuses']}")

    def _step(self, number: int, kind: str, at_s: float) -> None:
        before = self._micro_batches() if kind in ("executor", "broker") else 0  # the others start the engine again
        with self._printer.doing(f"step {number + 1}, at {at_s:.0f} s: {kind}"):
            self._kinds[kind]()
            wait_until(lambda: self._micro_batches() > before, "a micro-batch after the step", SPARK_S)
        time.sleep(self._random.uniform(0, LONGEST_PAUSE_S))

    def _kill_driver(self) -> None:
        self._engine.kill()
        self._engine.start()

    def _end_engine(self) -> None:
        """Kill the engine, or let it stop between two micro-batches."""
        if self._random.random() < 0.5:
            self._engine.kill()
        else:
            self._engine.stop()

    def _delete_checkpoint(self) -> None:
        self._end_engine()
        shutil.rmtree(self._engine.checkpoint)
        self._engine.start()

    def _change_buckets(self) -> None:
        self._end_engine()
        self._engine.buckets = BUCKETS
        self._engine.start().wait_for(f"in {BUCKETS} buckets", SPARK_S)

    def _workers_between(self) -> None:
        self._end_engine()
        self._worker.start().ready()
        self._spark_takes_over()

    def _spark_takes_over(self) -> None:
        """Let the worker fire for some seconds, end it, and start the engine."""
        self._system.wait_past(int(time.time()))  # by timers of its own: those of the storm may all have fired
        time.sleep(self._random.uniform(0, LONGEST_PAUSE_S))
        if self._random.random() < 0.5:
            self._worker.kill()
        else:
            self._worker.stop()
        self._engine.start().ready()

    def _kill_executor(self) -> None:
        executors = wait_until(self._cluster.executors, "an executor of the engine", SPARK_S)
        self._random.choice(executors).kill()

    def _kill_broker(self) -> None:
        self._broker.kill()
        time.sleep(self._random.uniform(0, 3))
        self._broker.start()

    def _micro_batches(self) -> int:
        """Number of micro-batches since the last start."""
        assert self._engine.running, f"the engine ended:\n{self._engine.tail()}"
        return len(re.findall(MICRO_BATCH, self._engine.log))

    def _check(self, publication: Publication) -> bool:
        cluster, last_s = self._system.cluster, int(dues(publication).max())
        give_up_at = max(time.time(), last_s) + LATEST_S
        with self._printer.doing("waiting until all timers have fired"):
            while cluster.end(publication.target, committed=True) < self._timers and time.time() < give_up_at:
                time.sleep(1.0)
            # The end counts the markers of transactions too, so a part of the timers may still be due later.
            while check(cluster, publication).records < self._timers and time.time() < give_up_at:
                time.sleep(5.0)
        with self._printer.doing("stopping the engine"):
            self._engine.stop()
        fired = check(cluster, publication)
        letters = cluster.end(self._system.settings.dead_letter_topic)
        self._printer.line(
            f"  {fired.records:,} fired: {fired.lost} lost, {fired.duplicates} twice, {fired.early} early, "
            f"{fired.altered} altered, {letters} dead letters; the longest lag was {fired.lag_ms.max() / 1000:.0f} s"
        )
        return not (fired.lost or fired.duplicates or fired.early or fired.altered or letters)

    def close(self) -> None:
        """End the engine and the cluster."""
        self._engine.end()
        self._cluster.close()
        self._system.close()


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.spark", description="Kill the engine on Spark, its executors and the broker."
    )
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="of the kills (random)")
    parser.add_argument("--timers", type=int, default=600_000, help="timers in the storm (600000)")
    parser.add_argument(
        "--kills", type=int, default=20, help=f"each lengthens the storm by {KILL_S:.0f} s, as does each change (20)"
    )
    parser.add_argument("--kinds", metavar="KIND,...", default=",".join(KILLS), help=f"of kills ({','.join(KILLS)})")
    parser.add_argument("--ids", type=int, default=0, help="further timers, with ids (0)")
    parser.add_argument("--changes", metavar="KIND,...", default="", help=f"each once: {', '.join(CHANGES)} (none)")
    parser.add_argument("--keep", action="store_true", help="keep logs and data of a good storm too")
    kafka_version.add_option(parser)
    options = parser.parse_args(argv)
    options.changes = [each for each in options.changes.split(",") if each]
    options.kinds = options.kinds.split(",")
    for name, allowed in (("changes", CHANGES), ("kinds", KILLS)):
        if not set(given := getattr(options, name)) <= set(allowed):
            parser.error(f"--{name} {','.join(given)}: choose from {', '.join(allowed)}")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run a storm and return the exit code."""
    options = _arguments(argv)
    return run_rounds("spark", partial(_storm, options), one_broker, keep=options.keep)


def _storm(options: argparse.Namespace, directory: Path, broker: EmbeddedBroker) -> bool:
    printer = Printer()
    printer.line(
        f"seed {options.seed}: {options.timers:,} timers, {options.kills} kills, {len(options.changes)} changes"
    )
    storm = Storm(broker, directory / "storm", options.seed, options.timers, printer, options.ids)
    try:
        return storm.run(options.kills, options.changes, options.kinds)
    finally:
        storm.close()


if __name__ == "__main__":
    sys.exit(main())
