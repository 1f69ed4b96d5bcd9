"""The roads of one native timer: from the machine's queue to the write of the store, and from a tick to the commit.

A road is the calls that enter a file of ``timers`` from another one. CONTRIBUTING draws both. A call that enters a file
again is a *return*; that a function ends, or that a generator goes on, is none. What the harness puts in the place of
brokers (the producer, and what is known of topics) is not part of a road. Calls of compiled code are not seen, so the
writer of callbacks is the one in Python, and the sums are left out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from inspect import CO_GENERATOR
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

import timers
from tests.harness.compiled import PYTHON, forms
from tests.harness.discarding import DiscardingProducer, UsableTopics, discarding
from timers.core.limits import Limits
from timers.core.lineage import Batch
from timers.core.loop import Loop
from timers.core.progress import Progress
from timers.core.timer import Fetched, Tick
from timers.kafka.aiokafka_internals import callback_batch
from timers.kafka.request_formats import NATIVE
from timers.machines.firing.policy import Policy
from timers.machines.partition import PartitionSpec
from timers.machines.store.database import Database
from timers.machines.store.memory_limit import RocksMemory
from timers.machines.store.rocks import RocksStore
from timers.wire import future
from timers.wire.formats import RequestRecord

PRODUCT = Path(timers.__file__).parent
SUMS = PRODUCT / "core" / "sums.py"
CONTRIBUTING = (PRODUCT.parent / "CONTRIBUTING.md").read_text()

WRITER = forms(callback_batch)[PYTHON]

DUE_S = 1_800_000_000
REQUESTS = ("requests", 0)


class Step(NamedTuple):
    """A call that enters a file from another one."""

    depth: int
    """Number of files on the way to it."""
    file: str
    """Below ``timers``."""
    function: str

    def __str__(self) -> str:
        return f"{'  ' * self.depth + self.file:<52}{self.function}"


class Walk:
    """Records the road of a call."""

    def __init__(self) -> None:
        self.road: list[Step] = []
        self._frames: list[FrameType] = []
        self._depths: dict[int, int] = {}

    def go(self, call: Callable[[], object], until: Callable[..., object]) -> list[Step]:
        """Returns the road to the function ``until``, which must be called."""
        self._until: Any = until
        self._arrived = False
        sys.setprofile(self._note)
        try:
            call()
        finally:
            sys.setprofile(None)
        assert self._arrived, f"{until} was not called"
        return self.road

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or self._arrived or any(each is frame for each in self._frames):
            return
        self._frames.append(frame)  # so that no other frame gets its id
        file = self._file(frame)
        if file is not None:
            caller = frame.f_back
            while caller is not None and self._file(caller) is None:
                caller = caller.f_back
            is_known = frame.f_code.co_flags & CO_GENERATOR and any(step.file == file for step in self.road)
            if caller is None or self._file(caller) != file:
                depth = 0 if caller is None else self._depths[id(caller)] + 1
                if not is_known:  # a generator that begins was made before
                    self.road.append(Step(depth, file, frame.f_code.co_qualname))
            else:
                depth = self._depths[id(caller)]
            self._depths[id(frame)] = depth
        self._arrived = frame.f_code is self._until.__code__

    @staticmethod
    def _file(frame: FrameType) -> str | None:
        path = Path(frame.f_code.co_filename)
        return str(path.relative_to(PRODUCT)) if path.is_relative_to(PRODUCT) and path != SUMS else None


def returns(road: list[Step]) -> int:
    """Number of calls that enter a file again."""
    return len(road) - len({step.file for step in road})


def request(offset: int) -> Fetched:
    record = RequestRecord(offset, b"%d" % DUE_S, future.encode("target", "key", b"value"), [], DUE_S * 1000 - 5000)
    return Fetched(offset, offset + 1, [record], passed=[(0, Batch(offset, offset, 1, 1))])


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    """The loop of a machine that has accepted requests, and has fired."""
    store = RocksStore.open(tmp_path / "store", "test", RocksMemory(64 << 20))
    transaction = discarding(UsableTopics({"target": 4}), REQUESTS)
    producer: Any = DiscardingProducer()
    producer.batch, producer.write_callbacks = WRITER.CallbackBatch, WRITER.write_callbacks
    transaction._producer = producer
    policy = Policy(transaction._settings, transaction._topics, transaction)
    spec = PartitionSpec(REQUESTS, NATIVE, Limits(20_000, 16 << 20, 1_000_000, partitions=1))
    loop = Loop(spec.machine(Progress(), store, policy))
    loop.add_tick(Tick((DUE_S - 10) * 1000))
    loop.step()
    loop.add_fetch(request(0))
    loop.step()
    assert loop.machine.pending == 1
    yield loop
    store.close()


def accept(loop: Loop) -> list[Step]:
    loop.add_fetch(request(1))
    return Walk().go(loop.step, Database.write)


def fire(loop: Loop) -> list[Step]:
    loop.add_tick(Tick(DUE_S * 1000))
    return Walk().go(loop.step, DiscardingProducer.transact)


ROADS = {"accept": (accept, 9, 3), "fire": (fire, 10, 3)}
"""Name -> (what walks it, how many files it may have, how many returns)."""


@pytest.mark.parametrize("name", ROADS)
def test_a_road_is_short(name: str, loop: Loop) -> None:
    walk, files, most_returns = ROADS[name]
    road = walk(loop)
    assert len({step.file for step in road}) <= files, "\n".join(map(str, road))
    assert returns(road) <= most_returns, "\n".join(map(str, road))


@pytest.mark.parametrize("name", ROADS)
def test_contributing_draws_each_road(name: str, loop: Loop) -> None:
    drawn = re.search(rf"^```text\n# {name}\n(.*?)^```", CONTRIBUTING, re.MULTILINE | re.DOTALL)
    road = [str(step) for step in ROADS[name][0](loop)]
    assert drawn is not None and drawn[1].splitlines() == road, "\n".join(road)


def test_a_call_that_enters_a_file_again_is_a_return() -> None:
    road = [Step(0, "a", "f"), Step(1, "b", "g"), Step(2, "a", "h"), Step(1, "c", "i"), Step(1, "b", "k")]
    assert returns(road) == 2
