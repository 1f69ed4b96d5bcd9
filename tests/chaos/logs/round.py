"""Runs cells side by side on one broker or three: the steps of all cells that share the brokers go together."""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import groupby
from operator import methodcaller
from pathlib import Path
from typing import Any

from confluent_kafka import ElectionType, KafkaException, TopicPartition

from tests.chaos.logs import broker_disk
from tests.chaos.logs.cells import (
    DISK_RESTORED,
    ELECTION_DOWN,
    ELECTION_NEW_OWNER,
    ELECTION_RUNNING,
    GROWN_RUNNING,
    RESTORED,
    Cell,
)
from tests.chaos.logs.judge import Facts, Verdict, judge
from tests.chaos.logs.queue_trial import trial_of
from tests.chaos.logs.trial import ALIVE, FOLLOWER, LEADER, Trial
from tests.harness.printer import Printer
from tests.harness.three_brokers import CONSUMER_OFFSETS, ONE_COORDINATOR, TRANSACTION_STATE, ThreeBrokers
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.cli.broker import EmbeddedBroker

PROPERTIES = {
    # Compaction is looked for every 15 s by default, for which a cell would wait.
    "log.cleaner.backoff.ms": "500",
    # It is stopped, never killed: that a busy machine lets it wait for some seconds is no reason to fence it.
    "broker.session.timeout.ms": "30000",
}

COORDINATORS = {
    **ONE_COORDINATOR,
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
BEFORE_ELECTION_S = 5.0
"""Seconds for which timers are published to the leader alone; for progress more, see :data:`LOST_PROGRESS_S`."""
LOST_PROGRESS_S = 12.0
AFTER_ELECTION_S = 5.0


@dataclass(frozen=True)
class Row:
    """One line of the final table."""

    cell: Cell
    facts: Facts
    verdict: Verdict
    failure: str
    """Why the cell could not be run to its end."""

    @property
    def passed(self) -> bool:
        return not self.failure and self.verdict.passed


class Rounds:
    """Runs cells in rounds, each with one fault and brokers of its own.

    Args:
        directory: for brokers and workers.
        seed: of all cells.
        at_once: cells in a round.
    """

    def __init__(self, directory: Path, seed: int, at_once: int, printer: Printer) -> None:
        self._directory, self._seed, self._at_once, self._printer = directory, seed, at_once, printer

    def run(self, cells: Sequence[Cell]) -> Iterator[list[Row]]:
        """Run the cells; yield the rows of each round."""
        number = 0
        for _, same in groupby(cells, lambda cell: cell.fault):
            group = list(same)
            for low in range(0, len(group), self._at_once):
                number += 1
                yield self._round(self._directory / f"round-{number}", group[low : low + self._at_once])

    def _round(self, directory: Path, cells: list[Cell]) -> list[Row]:
        trials = [trial_of(cell)(cell, directory / str(cell).replace("/", "-"), self._seed) for cell in cells]
        fault, began = cells[0].fault, time.monotonic()
        self._printer.line(f"{fault}: {', '.join(f'{cell.topic}/{cell.store}' for cell in cells)}")
        one = _Election if cells[0].on_three_brokers else _OneBroker
        steps = one(directory / "brokers", trials, fault, self._printer)
        try:
            steps.run()
        finally:
            for trial in trials:
                trial.close()
            steps.stop()
        rows = [Row(trial.cell, trial.facts, judge(trial.facts), trial.failure) for trial in trials]
        self._printer.line(f"  took {time.monotonic() - began:.0f} s; {sum(not row.passed for row in rows)} failed")
        if all(row.passed for row in rows):
            shutil.rmtree(directory, ignore_errors=True)
        return rows


class _Steps:
    """The steps that all rounds have."""

    def __init__(self, trials: list[Trial], printer: Printer) -> None:
        self._trials, self._printer = trials, printer

    def _all(self, what: str, step: Callable[[Trial], object]) -> None:
        """Do a step of all cells side by side. A cell whose step fails does no further one."""

        def one(trial: Trial) -> None:
            try:
                step(trial)
            except (AssertionError, KafkaException, OSError) as error:
                trial.failure = f"{what}: {error}"
                self._printer.line(f"    {trial.cell}: {trial.failure[:300]}")

        with self._printer.doing(what), ThreadPoolExecutor(len(self._trials)) as threads:
            list(threads.map(one, self._going))

    @property
    def _going(self) -> list[Trial]:
        """The cells whose steps have not failed."""
        return [trial for trial in self._trials if not trial.failure]

    def _accept(self) -> None:
        """The steps after the partitions are red, or not."""
        self._all("accepting the loss", methodcaller("accept"))
        self._all("starting again without the acceptance", methodcaller("start_again"))
        self._all("sending dead letters again", methodcaller("send_letters_again"))
        self._all("reading the callbacks", methodcaller("finish"))


class _OneBroker(_Steps):
    """A round on one broker, which is stopped while its files change."""

    def __init__(self, directory: Path, trials: list[Trial], fault: str, printer: Printer) -> None:
        super().__init__(trials, printer)
        self._broker = EmbeddedBroker(directory, 0, PROPERTIES)
        self._copy = directory / "copy"
        self._fault = fault

    def stop(self) -> None:
        self._broker.stop()

    def run(self) -> None:
        broker = self._broker
        address = broker.start()
        self._all("starting workers", lambda trial: trial.prepare(address, None))
        self._all("publishing what stays", methodcaller("publish_first"))
        if self._fault in RESTORED:
            self._while_down("copying", self._copy_files)
        self._all("publishing what gets lost", methodcaller("publish_lost"))
        is_running = self._fault == GROWN_RUNNING
        if is_running:
            self._all("noting the ends of the logs", methodcaller("note_end"))
        else:
            self._all("stopping workers", methodcaller("stop_worker"))
        self._while_down("changing the broker's files", self._change_files)
        self._all("writing new records", methodcaller("grow"))
        if not is_running:
            self._all("starting workers", methodcaller("start_worker"))
        self._all("waiting for red partitions", methodcaller("watch"))
        self._accept()

    def _while_down(self, what: str, change: Callable[[], None]) -> None:
        with self._printer.doing(what):
            self._broker.stop()
            change()
            self._broker.start()

    def _copy_files(self) -> None:
        if self._fault == DISK_RESTORED:
            broker_disk.copy(broker_disk.disk(self._broker), self._copy)
        for trial in self._going:
            trial.copy(self._broker)

    def _change_files(self) -> None:
        if self._fault == DISK_RESTORED:
            broker_disk.put_back(self._copy, broker_disk.disk(self._broker))
        for trial in self._going:
            trial.damage(self._broker)


class _Election(_Steps):
    """A round on three brokers. The log has a leader and a follower; the follower is down, the leader dies, and the
    follower, which lacks the end, becomes the leader."""

    def __init__(self, directory: Path, trials: list[Trial], fault: str, printer: Printer) -> None:
        super().__init__(trials, printer)
        self._brokers = ThreeBrokers(directory, COORDINATORS)
        self._fault = fault

    def stop(self) -> None:
        self._brokers.stop()

    def run(self) -> None:
        brokers = self._brokers
        brokers.start()
        for topic in (CONSUMER_OFFSETS, TRANSACTION_STATE):
            brokers.create(topic, [ALIVE], {"cleanup.policy": "compact"})
        self._all("starting workers", lambda trial: trial.prepare(brokers.address, brokers))
        self._all("publishing what stays", methodcaller("publish_first"))
        with self._printer.doing("stopping the follower"):
            self._wait_in_sync({LEADER, FOLLOWER})
            brokers.kill(FOLLOWER)
            self._wait_in_sync({LEADER})
        with ExitStack() as streams:
            for trial in self._going:
                streams.enter_context(trial.streaming())
            self._elect()
            if self._fault == ELECTION_RUNNING:
                self._all("waiting for red partitions", methodcaller("watch"))
        with self._printer.doing("starting the former leader"):
            brokers.start_again(LEADER)
        self._all("reading the logs", methodcaller("note_log"))
        if self._fault == ELECTION_NEW_OWNER:
            self._all("killing workers", methodcaller("change_owner"))
        if self._fault != ELECTION_RUNNING:
            self._all("starting workers", methodcaller("start_worker"))
            self._all("waiting for red partitions", methodcaller("watch"))
        self._accept()

    def _elect(self) -> None:
        """Let the leader die while timers are published, and elect the follower."""
        is_long = any(trial.cell.is_about_progress for trial in self._going)
        with self._printer.doing("publishing to the leader alone"):
            time.sleep(LOST_PROGRESS_S if is_long else BEFORE_ELECTION_S)
        self._all("noting what has fired", methodcaller("note_leader_dies"))
        if self._fault == ELECTION_DOWN:
            self._all("stopping workers", methodcaller("stop_worker"))
        with self._printer.doing("electing the follower"):
            self._brokers.kill(LEADER)
            self._brokers.brokers[FOLLOWER].start()
            wait_until(lambda: FOLLOWER in self._brokers.alive(), "the follower is back")
            for trial in self._going:
                self._elect_one(trial)
            time.sleep(AFTER_ELECTION_S)

    def _elect_one(self, trial: Trial) -> None:
        place, admin = TopicPartition(trial.topic, 0), trial.system.admin

        def is_leader() -> bool:
            return bool(
                admin.list_topics(trial.topic, timeout=DEADLINE_S).topics[trial.topic].partitions[0].leader == FOLLOWER
            )

        def elected() -> bool:
            with suppress(KafkaException):
                admin.elect_leaders(ElectionType.UNCLEAN, [place]).result(DEADLINE_S)
            return is_leader()

        wait_until(elected, f"{trial.topic} has a new leader")

    def _wait_in_sync(self, wanted: set[int]) -> None:
        for trial in self._going:
            topic, admin = trial.topic, trial.system.admin

            def in_sync(topic: str = topic, admin: Any = admin) -> bool:
                return {*admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions[0].isrs} == wanted

            wait_until(in_sync, f"in-sync replicas of {topic}: {wanted}")
