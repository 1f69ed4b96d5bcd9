"""Machines whose targets may be paused or noisy."""

from pathlib import Path
from typing import Any

from tests.harness.machines import NativeRig
from timers.core.fired import Command
from timers.core.keys import OrderKey
from timers.core.levels import HOLDS_LEVEL
from timers.core.machine import Machine
from timers.core.progress import Progress
from timers.machines.store.memory_limit import RocksMemory
from timers.machines.store.rocks import RocksStore
from timers.wire import future

RAISED = Progress.first(HOLDS_LEVEL)


class Rig(NativeRig):
    """Timers of two targets, whose keys say which one."""

    def __init__(self, **options: object) -> None:
        super().__init__(progress=RAISED, **options)  # type: ignore[arg-type]

    def set(self, target: str, *due: int) -> None:
        for due_s in due:
            self.log.append(self.topic, b"%d" % due_s, future.encode(target, "k", b""), partition=0)
        self.read_all()

    def at(self, second: int, *commands: Command) -> list[OrderKey]:
        """Let a second begin. Returns what fires."""
        before = len(self.outbox.fired)
        self.observe(second)
        self.machine.take(commands)
        self.fire()
        self.machine.take(commands)
        while self.machine.fire_chunk() or self.machine.release_chunk():
            pass
        self.machine.commit_progress()
        fired: list[OrderKey] = self.outbox.fired[before:]
        return fired

    @property
    def holds(self) -> list[tuple[str, str]]:
        return [(hold.target, hold.reason) for hold in self.machine.progress.holds]


class DiskRig(Rig):
    """The same with stores on disk, whose groups are whole fetches."""

    def __init__(self, path: Path, **options: object) -> None:
        self._path, self._stores = path, 0
        super().__init__(**options)

    def open(self, *, wipe: bool = False, **options: Any) -> Machine:
        if wipe or not self._stores:
            self._stores += 1
            directory = self._path / f"store-{self._stores}"
            self.store = RocksStore.open(directory, "here", RocksMemory(2**20))  # type: ignore[assignment]
        return super().open(**options)


def pause(number: int = 1, target: str = "mail", **fields: int) -> Command:
    return Command(number, target, True, **fields)


def resume(number: int = 2, target: str = "mail", **fields: int) -> Command:
    return Command(number, target, False, **fields)
