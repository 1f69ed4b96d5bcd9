"""Partitions of the engine on Spark that commit to files: for tests of its state in Spark without brokers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.harness.list_outbox import ListOutbox
from timers.core.counters import Counters
from timers.core.ports import Lost
from timers.core.progress import Progress
from timers.core.timer import DueRows, Tick
from timers.firing.breaker import OpenCircuit
from timers.spark.engine.machines import Failing, Known, Opened, Producer
from timers.wire import progress as progress_record

TOPIC_ID = b"topic in a file."


class FileOutbox(ListOutbox):
    """Appends a line to a file for each transaction: what has fired, and the progress."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._fired: list[tuple[int, str, int]] = []

    def begin(self, tick: Tick) -> None:
        super().begin(tick)
        self._fired = []

    def fire(self, due: Sequence[DueRows]) -> None:
        assert self.tick is not None
        self._fired += [(due_s, str(row[2]), self.tick.append_ms) for due_s, rows in due for row in rows]

    def commit(self, progress: Progress) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps([self._fired, progress_record.encode(progress, TOPIC_ID).hex()]) + "\n")


def transactions(path: Path) -> list[tuple[list[tuple[int, str, int]], Progress]]:
    """(due second, name, tick in ms) of the firings, and the progress, of each transaction of a partition."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [(fired, progress_record.decode(bytes.fromhex(record))[0]) for fired, record in map(json.loads, lines)]


@dataclass
class FilePartitions:
    """Implements :class:`timers.spark.engine.machines.Partitions`. Each opening reads the progress again."""

    directory: Path
    had_others: bool = False

    def adopt(self, circuits: list[OpenCircuit]) -> None:
        assert not circuits

    def failing(self) -> Failing:
        return Failing([], [])

    def start_of(self, partition: int) -> int:
        return 0

    def run(self, calls: Sequence[Callable[[], None]]) -> None:
        for call in calls:
            call()

    def open(self, known: dict[int, Known | None]) -> dict[int, Opened]:
        return {partition: self._open(partition) for partition in known}

    def reopen(self, partition: int, error: Lost) -> Opened:
        raise error

    def producer(self, partition: int) -> Producer:
        return Producer(0, 0)

    def _open(self, partition: int) -> Opened:
        path = self.directory / f"{partition}.jsonl"
        done = transactions(path)
        return Opened(done[-1][1] if done else Progress(), TOPIC_ID, FileOutbox(path), Counters(), lambda _: None)
