"""Snapshots of machines that are open for moments: questions wait, and a copy of the store is read."""

import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier, Event, Thread
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness.constants import Constants
from tests.harness.waiting import DEADLINE_S
from timers.core.ports import Lost
from timers.core.progress import Progress
from timers.core.steps import State
from timers.core.timer import Row
from timers.errors import Fenced
from timers.kafka.request_formats import enabled_formats
from timers.machines.queries.reading import want_snapshot
from timers.machines.store.failures import Condemnations
from timers.machines.store.memory_limit import RocksMemory
from timers.machines.store.opening import Stores, store_path
from timers.machines.store.rocks import RocksStore
from timers.process.config.settings import Settings
from timers.process.partition_metrics import PartitionMetrics
from timers.process.threads import call_in_thread
from timers.spark.engine import questions as engine_snapshots
from timers.spark.engine.questions import MomentaryRunner, Snapshots

TP = "timer-request", 3
CLUSTER: Any = SimpleNamespace(cluster_id="cluster", topic_ids={TP[0]: b"t" * 16})
MEMORY = RocksMemory(2**22)


def row(offset: int) -> Row:
    return offset, "t", "key", b"value", None, None


def stores(path: Path) -> Stores:
    return Stores(Settings(data_dir=path), CLUSTER, MEMORY, Condemnations(), enabled_formats(Settings()))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    store = stores(tmp_path).open(TP)
    store.write({100 + n: [row(n)] for n in range(9)}, 9)
    yield store
    store.close()


@pytest.fixture
def runner(store: RocksStore, tmp_path: Path) -> MomentaryRunner:
    return MomentaryRunner("timer-request/3", machine_at(9), partial(stores(tmp_path).copy, TP))


def machine_at(committed: int) -> Any:
    return SimpleNamespace(committed=Progress(committed), position=9)


def test_a_view_is_a_copy_that_does_not_change(store: RocksStore, runner: MomentaryRunner, tmp_path: Path) -> None:
    asked = runner.ask(lambda _: runner.view())
    assert runner.is_asked and not asked.done()
    runner.answer(machine_at(9), store)
    view = asked.result(0)
    assert not runner.is_asked and view is not None
    store.delete((104, 4), 5)  # they fire
    store.write({200: [row(9)]}, 10)
    assert (view.applied, view.rows, store.pending) == (9, 9, 5)
    assert len([key for key, _ in view if key[0] != 0xFF]) == 9
    copy = store_path(Settings(data_dir=tmp_path), TP).with_name("3.copy")
    assert copy.exists()
    view.close()
    assert not copy.exists()


def test_one_copy_of_a_store_is_open_at_a_time_and_one_of_a_killed_process_is_replaced(
    store: RocksStore, runner: MomentaryRunner, tmp_path: Path
) -> None:
    runner.answer(machine_at(9), store)
    assert runner.view() is None  # the store is not open now
    first, second = (runner.ask(lambda _: runner.view()) for _ in range(2))
    runner.answer(machine_at(9), store)
    view = first.result(0)
    assert view is not None and second.result(0) is None
    view.close()
    store.copy(store_path(Settings(data_dir=tmp_path), TP).with_name("3.copy"))
    third = runner.ask(lambda _: runner.view())
    runner.answer(machine_at(9), store)
    view = third.result(0)
    assert view is not None
    view.close()


def test_what_is_not_committed_is_in_no_snapshot(store: RocksStore, runner: MomentaryRunner) -> None:
    """Another owner may judge it otherwise, and the snapshot may be named after that [I30]."""
    asked = runner.ask(lambda _: runner.view())
    runner.answer(machine_at(8), store)
    assert asked.result(0) is None


@pytest.mark.parametrize(("error", "ends"), [(Lost("no"), True), (Fenced("no"), True), (ValueError("no"), False)])
def test_a_failed_commit_is_passed_on(store: RocksStore, runner: MomentaryRunner, error: Exception, ends: bool) -> None:
    def failing(_: Any) -> None:
        raise error

    asked, later = runner.ask(failing), runner.ask(lambda _: 7)
    answer: Callable[[], None] = partial(runner.answer, machine_at(9), store)
    if ends:
        with pytest.raises(type(error)):
            answer()
        assert runner.is_asked
        runner.end()
        with pytest.raises(Lost):
            later.result(0)
    else:
        answer()
        assert later.result(0) == 7
    assert asked.exception(0) is error


def test_a_question_that_was_taken_back_is_not_answered(store: RocksStore, runner: MomentaryRunner) -> None:
    """The thread of snapshots waits for 30 s. The machine may be opened again only after that."""
    taken_back = runner.ask(lambda _: 1 / 0)
    assert taken_back.cancel()
    runner.answer(machine_at(9), store)
    assert not runner.is_asked
    taken_back, later = runner.ask(lambda _: 1 / 0), runner.ask(lambda _: 7)
    assert taken_back.cancel()
    runner.end()
    after = runner.ask(lambda _: 7)  # of a thread that still had this runner
    for asked in later, after:
        with pytest.raises(Lost):
            asked.result(0)


@pytest.fixture
def snapshots(tmp_path: Path) -> Snapshots:
    parts: Any = stores(tmp_path)
    return Snapshots(parts, {TP: PartitionMetrics()})


def test_a_question_lets_a_machine_have_a_snapshot_in_the_process_that_answers(snapshots: Snapshots) -> None:
    sent = pickle.dumps(partial(want_snapshot, want=partial(Snapshots.want, TP)))
    machine: Any = SimpleNamespace(progress=Progress(5), state=State.ACCEPTING)
    pickle.loads(sent)(machine)
    assert snapshots._taker.wanted == {TP}


def test_an_end_does_not_wait_for_a_look_that_hangs(snapshots: Snapshots, constants: Constants) -> None:
    begun, go_on = Event(), Event()

    def look() -> None:
        begun.set()
        go_on.wait()

    constants(engine_snapshots, CLOSE_S=0.05, SNAPSHOT_LOOK_S=0.0)
    snapshots._taker.look = look  # type: ignore[method-assign]
    snapshots.runner(TP, machine_at(9))
    assert begun.wait(DEADLINE_S)
    try:
        call_in_thread("close", snapshots.close).result(DEADLINE_S)
    finally:
        go_on.set()
        snapshots._thread.join(DEADLINE_S)


def test_machines_that_are_answered_at_a_time_start_one_thread(store: RocksStore, snapshots: Snapshots) -> None:
    machine = machine_at(9)

    def slow_start() -> None:
        sleep(0.05)
        Thread.start(snapshots._thread)

    snapshots._thread.start = slow_start  # type: ignore[method-assign]
    snapshots._run = lambda: None  # type: ignore[method-assign]
    together = Barrier(2)

    def answer() -> None:
        together.wait()
        snapshots.answer(TP, machine, store, None)

    with ThreadPoolExecutor(2) as threads:
        for call in [threads.submit(answer) for _ in range(2)]:
            call.result(30)
    snapshots.close()
