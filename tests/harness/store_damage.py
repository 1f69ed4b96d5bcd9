"""Damages files of a real store, runs a machine with it over a simulated log, and counts the firings of each timer.

``python -m tests.harness.store_damage --seeds 300`` runs many seeds and prints the results by file and kind of
damage; ``--ids``: with timers that have ids.
"""

import argparse
import contextlib
import shutil
import struct
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

from tests.harness.list_outbox import ListOutbox
from tests.simulation.kit import SimClock, SimLog
from timers.core.keys import OrderKey
from timers.core.limits import Limits
from timers.core.loop import Loop
from timers.core.ports import Lost
from timers.core.progress import Progress
from timers.core.timer import Decoded, Tick, TopicPartition
from timers.kafka.request_formats import REQUEST_FORMATS
from timers.machines.partition import PartitionSpec
from timers.machines.store.failures import Condemnations
from timers.machines.store.memory_limit import RocksMemory
from timers.machines.store.opening import Opening, Stores, store_path
from timers.machines.store.rocks import RocksStore
from timers.process.config.settings import Settings
from timers.wire import future

TOPIC = "timer-request"
TP = (TOPIC, 0)
FIRST_DUE_S, LAST_DUE_S = 1_000, 3_000
LIMITS = Limits(chunk_timers=2_000, chunk_bytes=10**7, max_request_bytes=10_000, partitions=1)
CHANGES = 20
"""With ids: one request in this number replaces an earlier timer, and one cancels an earlier timer."""


class Requests:
    """A log of requests, and the order keys that must fire.

    Args:
        count: number of requests.
        has_ids: whether they have ids; then some are replaced or cancelled.
    """

    def __init__(self, count: int, *, has_ids: bool) -> None:
        self.count = count
        self.has_ids = has_ids
        self.log = SimLog(SimClock(0), partitions=1)
        name = "future-by-id" if has_ids else "future"
        request_format = next(kind.request_format for kind in REQUEST_FORMATS if kind.request_format.name == name)
        self._decode = request_format.decode
        self.spec = PartitionSpec(TP, request_format._replace(decode=self.decode), LIMITS, retention_s=10**6)
        self._decoded: dict[tuple[int, int], Decoded] = {}
        random = Random(count)
        due: dict[bytes, OrderKey] = {}
        ids: list[bytes] = []
        for offset in range(count):
            id = b"id-%d" % offset
            due_s = random.randrange(FIRST_DUE_S, LAST_DUE_S)
            value: bytes | None = future.encode("t", f"key-{offset}", b"%064d" % offset)
            if has_ids and offset % CHANGES < 2 and ids:
                id = random.choice(ids)
                if offset % CHANGES == 0:
                    value = None
            else:
                ids.append(id)
            if value is None:
                due.pop(id, None)
                self.log.append(TOPIC, id, None, partition=0)
                continue
            due[id] = (due_s, offset)
            key, headers = (id, [("timer-due", b"%d" % due_s)]) if has_ids else (b"%d" % due_s, [])
            self.log.append(TOPIC, key, value, headers, partition=0)
        self.must_fire = set(due.values())

    def decode(self, records: Sequence[Any], max_request_bytes: int) -> Decoded:
        """The decoded records; each piece of the log is decoded once for all runs."""
        piece = records[0].offset, len(records)
        if piece not in self._decoded:
            self._decoded[piece] = self._decode(records, max_request_bytes)
        return self._decoded[piece]

    def check_doubt(self, tp: TopicPartition, progress: Progress, applied: int, compacted: str | None) -> Progress:
        return progress


class SimulatedWorker:
    """A worker with one machine, which may be stopped and whose store may be damaged after each step.

    Args:
        requests: log of the machine.
        data_dir: directory of its store.
        progress: committed progress.
        second: second of the last tick.
        applied: ``applied`` of its former store.

    Attributes:
        went_back: number of openings of a store without its last batches.
    """

    def __init__(self, requests: Requests, data_dir: Path, progress: Progress, second: int, applied: int = 0) -> None:
        self.requests = requests
        self.outbox = ListOutbox()
        self.outbox.progress = progress
        self.condemnations = Condemnations()
        self.second = second
        self.went_back = 0
        self._applied = applied
        self.move(data_dir)

    def move(self, data_dir: Path) -> None:
        """Continue with the store in ``data_dir``."""
        self.settings = Settings(data_dir=data_dir, worker_id="w")
        self.path = store_path(self.settings, TP)
        self._memory = RocksMemory(4 * 1024 * 1024)  # little memory, so that most reads use the files
        self.open()

    def open(self) -> None:
        """Open the store and the machine as the worker does."""
        log: Any = self.requests
        cluster: Any = SimpleNamespace(cluster_id="c", topic_ids={TOPIC: b"t"})
        formats: Any = {TOPIC: SimpleNamespace(has_ids=self.requests.has_ids)}
        stores = Stores(self.settings, cluster, self._memory, self.condemnations, formats)
        ask: Any = SimpleNamespace(compare=lambda *_: (None, None))
        opening = Opening(log, stores, TP, (0, self.requests.count), ask)
        progress, self.store, *_ = opening.open(self.outbox.progress)
        self.went_back += self.store.applied < self._applied
        self.loop = Loop(self.requests.spec.machine(progress, self.store, self.outbox))
        self._tick()

    def step(self) -> None:
        """Fetch, or let a second pass if there is nothing to fetch. Damage is handled as in the worker."""
        machine = self.loop.machine
        try:
            if machine.position < self.requests.count:
                self.loop.add_fetch(self.requests.log.fetch(*TP, machine.position, 4_000))
            else:
                self.second += 20
                self._tick()
            self.loop.step()
            while self.loop.firing:
                self.loop.step()
            _ = machine.oldest_due_s
            next(machine.waiting(machine.progress.fired_through), None)
        except Lost as error:
            del machine
            traceback.clear_frames(error.__traceback__)  # an iterator in a frame would keep the store's files locked
            self.store.close()
            self.open()
        self._applied = self.store.applied

    def _tick(self) -> None:
        self.loop.add_tick(Tick(self.second * 1000), self.requests.count if self.requests.has_ids else None)

    @property
    def done(self) -> bool:
        """Whether all seconds have fired."""
        return self.loop.machine.progress.fired_through[0] >= LAST_DUE_S

    def copy_to(self, data_dir: Path) -> None:
        """Copy the files as a crash leaves them."""
        wait_for_background_jobs(self.store)
        target = store_path(replace(self.settings, data_dir=data_dir), TP)
        shutil.copytree(self.path, target)


def wait_for_background_jobs(store: RocksStore) -> None:
    """Wait until RocksDB has nothing to do in the background. After an error there it does no more."""
    database = store._db.rdict
    running = ("num-running-flushes", "num-running-compactions")
    pending = ("mem-table-flush-pending", "compaction-pending")

    def some(names: Sequence[str]) -> bool:
        return any(database.property_int_value(f"rocksdb.{name}") for name in names)

    while some(running) or (some(pending) and not some(["background-errors"])):
        sleep(0.01)


@dataclass(frozen=True)
class Image:
    """A store to start with, and its state."""

    data_dir: Path
    progress: Progress
    second: int
    applied: int
    fired: list[OrderKey]


def images(requests: Requests, directory: Path) -> list[Image]:
    """Stores of a worker that was killed or stopped: early, and after it had read all and fired some requests."""
    worker = SimulatedWorker(requests, directory / "first", Progress(), 0)
    found: list[Image] = []
    while len(found) < 4:
        worker.step()
        early = worker.store.applied > requests.count * 0.6 and not found
        if early or (worker.second > FIRST_DUE_S + 300 and len(found) == 2):
            for kind in ("killed", "stopped"):
                data_dir = directory / f"image-{len(found)}"
                worker.copy_to(data_dir)
                if kind == "stopped":
                    stopped = SimulatedWorker(requests, data_dir, worker.outbox.progress, worker.second)
                    stopped.store.close()
                found.append(
                    Image(data_dir, worker.outbox.progress, worker.second, worker.store.applied, worker.outbox.fired)
                )
    worker.store.close()
    return found


# ---- damage ---------------------------------------------------------------------------------------------------------


def record_ends(data: bytes) -> list[int]:
    """Ends of the records of a write-ahead log or manifest: 32 KiB blocks of fragments with 7-byte headers."""
    ends, at = [], 0
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        if not kind and not length:
            break
        at += 7 + length
        if kind in (1, 4):
            ends.append(at)
    return ends


def flip(path: Path, random: Random) -> None:
    data = bytearray(path.read_bytes())
    start = random.randrange(max(1, len(data) - 64))
    data[start : start + 64] = bytes(byte ^ 0xFF for byte in data[start : start + 64])
    _overwrite(path, data)


def zero(path: Path, random: Random) -> None:
    data = bytearray(path.read_bytes())
    start = random.randrange(max(1, len(data))) // 4096 * 4096
    data[start : start + 4096] = bytes(len(data[start : start + 4096]))
    _overwrite(path, data)


def cut(path: Path, random: Random) -> None:
    data = path.read_bytes()
    ends = record_ends(data) if path.suffix == ".log" or path.name.startswith("MANIFEST") else []
    _overwrite(path, data[: random.choice(ends[:-1]) if ends[:-1] and random.random() < 0.6 else len(data) // 2])


def empty(path: Path, random: Random) -> None:
    _overwrite(path, b"")


def remove(path: Path, random: Random) -> None:
    path.unlink()


def _overwrite(path: Path, data: bytes | bytearray) -> None:
    """Overwrite a file in place, so that processes that have it open read the new content."""
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()


DAMAGES: tuple[Callable[[Path, Random], None], ...] = (flip, flip, flip, zero, cut, empty, remove)
FILES = ("*.sst",) * 12 + ("*.log",) * 4 + ("MANIFEST-*",) * 4 + ("CURRENT", "OPTIONS-*", "rocksdict-config.json")


def damage(store: Path, random: Random) -> str:
    """Damage one file; return its name and the kind of damage."""
    files: list[Path] = []
    while True:
        with contextlib.suppress(FileNotFoundError):  # RocksDB deletes files while it runs
            while not files:
                files = sorted(path for path in store.glob(random.choice(FILES)) if path.stat().st_size)
            how, path = random.choice(DAMAGES), random.choice(files)
            how(path, random)
            return f"{how.__name__} {path.suffix or path.name.split('-')[0]}"
        files = []


@dataclass(frozen=True)
class Result:
    """The result of one run with a damaged store."""

    what: str
    condemned: dict[str, int]
    went_back: bool
    lost: int
    wrong: int
    """Number of firings of timers that had fired, or were replaced or cancelled."""

    @property
    def noticed(self) -> bool:
        """Whether the worker noticed the damage."""
        return self.went_back or any(self.condemned.values())


def run(seed: int, requests: Requests, disks: list[Image], directory: Path) -> Result:
    """Run with one damaged store. Even seeds damage it while the worker is stopped, odd ones while it runs."""
    random = Random(f"damage {seed}")
    image = random.choice(disks)
    data_dir = directory / f"run-{seed}"
    shutil.copytree(image.data_dir, data_dir)
    path = store_path(Settings(data_dir=data_dir, worker_id="w"), TP)
    left_open = None
    if seed % 2 == 0:
        what = damage(path, random) + ", stopped"
        worker = SimulatedWorker(requests, data_dir, image.progress, image.second, image.applied)
    else:
        worker = SimulatedWorker(requests, data_dir, image.progress, image.second, image.applied)
        for _ in range(random.randrange(40)):
            worker.step()
        what = damage(path, random) + ", running"
        for _ in range(random.randrange(20)):
            worker.step()
        after = random.choice(["runs on", "stops", "is killed"])
        what += f", {after}"
        if after == "stops":
            worker.store.close()
            worker.open()
        elif after == "is killed":
            killed = directory / f"killed-{seed}"
            worker.copy_to(killed)
            left_open = worker.store
            worker.move(killed)
    while not worker.done:
        worker.step()
    assert worker.store.pending == 0, f"{worker.store.pending} timers are left"
    worker.store.close()
    if left_open is not None:
        left_open.close()
    fired = Counter(image.fired)
    fired.update(worker.outbox.fired)
    lost = len(requests.must_fire - fired.keys())
    wrong = sum(fired.values()) - len(requests.must_fire & fired.keys())
    shutil.rmtree(directory / f"killed-{seed}", ignore_errors=True)
    shutil.rmtree(data_dir, ignore_errors=True)
    return Result(what, worker.condemnations.by_reason, worker.went_back > 0, lost, wrong)


def main() -> None:
    """Run many seeds; exit with 1 if a timer was lost or fired twice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many damages (300)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--timers", type=int, default=200_000, help="requests in the log (200000)")
    parser.add_argument("--ids", action="store_true", help="timers with ids")
    options = parser.parse_args()
    began = monotonic()
    requests = Requests(options.timers, has_ids=options.ids)
    with tempfile.TemporaryDirectory(prefix="timers-damage-") as name:
        disks = images(requests, Path(name))
        results = []
        for seed in range(options.first, options.first + options.seeds):
            result = run(seed, requests, disks, Path(name))
            results.append(result)
            print(f"{seed}: {result}", flush=True)
    kinds = Counter((result.what, result.noticed) for result in results)
    for (what, was_noticed), count in sorted(kinds.items()):
        print(f"{count:4} {'noticed' if was_noticed else 'not read'}: {what}")
    lost, wrong = sum(result.lost for result in results), sum(result.wrong for result in results)
    noticed = sum(result.noticed for result in results)
    print(
        f"{len(results)} damages of a store with {options.timers} timers, {noticed} of them noticed: {lost} timers "
        f"lost, {wrong} fired twice or wrongly; {monotonic() - began:.0f} s"
    )
    sys.exit(bool(lost or wrong))


if __name__ == "__main__":
    main()
