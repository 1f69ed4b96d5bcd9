"""What an opening that fails leaves behind: nothing that keeps the next one from success."""

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from timers.core.keys import NOTHING_FIRED
from timers.core.levels import FIRST_LEVEL
from timers.core.progress import Progress
from timers.core.timer import TopicPartition
from timers.errors import StoreError
from timers.kafka.progress_log import ProgressLog
from timers.kafka.topics import Cluster
from timers.machines.store import opening
from timers.machines.store.database import Database
from timers.machines.store.failures import Condemnations, StoreWaits, forget_frames
from timers.machines.store.layout import ROWS_END
from timers.machines.store.memory_limit import RocksMemory
from timers.machines.store.opening import Stores, _Restoring, open_partition, store_path, stored_partitions
from timers.machines.store.rocks import RocksStore
from timers.process.config.settings import Settings

TP = ("timer-request-by-id", 0)


class SimProgressLog:
    """A progress log of a new app, in which one question has no answer.

    Attributes:
        fails: name of the method that raises; a test sets it.
        opened: logs that are not closed.
        owned: offset that the last question about a doubt named.
    """

    fails = ""
    opened = 0
    owned = 0

    def __init__(self, *_: object) -> None:
        self._answer("__init__")
        SimProgressLog.opened += 1

    def _answer(self, name: str) -> None:
        if self.fails == name:
            raise TimeoutError(name)

    def read(self, tps: object, *, after_fence: bool = True, only_some: bool = False) -> dict[Any, bytes]:
        self._answer("read")
        return {}

    def check_partitions(self, tp: object, records: object) -> None:
        self._answer("check_partitions")

    def read_one(self, tp: object, *, after_fence: bool) -> tuple[dict[Any, bytes], Progress, tuple[int, int]]:
        self._answer("read_one")
        return {}, Progress(), (3, 5)

    def check_doubt(self, tp: object, progress: Progress, applied: int, compacted: str | None) -> Progress:
        self._answer("check_doubt")
        SimProgressLog.owned = applied
        return progress

    def level_of_new_machines(self) -> int:
        self._answer("level_of_new_machines")
        return FIRST_LEVEL

    def close(self) -> None:
        SimProgressLog.opened -= 1


@pytest.fixture
def open_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], RocksStore]]:
    """Opens the same partition, each time with the same memory, as the attempts of a worker do."""
    monkeypatch.setattr(opening, "ProgressLog", SimProgressLog)
    memory, condemnations = RocksMemory(2**20), Condemnations()
    cluster: Any = SimpleNamespace(cluster_id="c", topic_ids={TP[0]: b"t"}, partitions={TP[0]: 1})
    formats: Any = {TP[0]: SimpleNamespace(has_ids=True, partitions_may_increase=False)}
    settings = Settings(data_dir=tmp_path, worker_id="w")

    ask: Any = SimpleNamespace(compare=lambda *_: (None, None), leaders=None)
    stores = Stores(settings, cluster, memory, condemnations, formats)

    def open_again(committed: dict[TopicPartition, int] | None = None) -> RocksStore:
        return open_partition(replace(stores, committed=committed or {}), TP, ask)[1]

    yield open_again
    assert SimProgressLog.opened == 0, "a log was not closed"
    assert not any(condemnations.by_reason.values()), "a half-made store was taken for a damaged one"


QUESTIONS = [*("__init__", "read_one", "read", "check_partitions", "check_doubt", "level_of_new_machines")]


@pytest.mark.parametrize("question", QUESTIONS)
def test_whichever_question_fails_the_next_attempt_opens_the_store(
    question: str, open_again: Callable[[], RocksStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(SimProgressLog, "fails", question)
        with pytest.raises(TimeoutError, match=question) as failed:
            open_again()
    assert failed.value.__traceback__ is not None, (
        "the worker keeps the error, with its frames, during the next attempt"
    )
    store = open_again()
    assert store.applied == 0
    store.close()


def test_what_was_read_and_not_committed_is_void_if_the_log_is_in_doubt(open_again: Callable[..., RocksStore]) -> None:
    store = open_again()
    store.write({}, 5)
    store.close()
    open_again().close()
    assert SimProgressLog.owned == 5, "this process has closed no machine of it"
    open_again({TP: 4}).close()
    assert SimProgressLog.owned == 4
    open_again({TP: 9}).close()
    assert SimProgressLog.owned == 5


def test_a_store_whose_catching_up_fails_is_closed(
    open_again: Callable[[], RocksStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_again().close()

    def fail(store: RocksStore, *_: object, **__: object) -> None:
        keys = store._db._keys(b"")
        next(keys)  # its iterator keeps the files locked as long as a frame refers to it
        raise TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(RocksStore, "drop_through", fail)
        with pytest.raises(TimeoutError) as failed:
            open_again()
    assert failed.value.__traceback__ is not None
    open_again().close()


@pytest.mark.parametrize("step", ["number", "get_all", "items"])
def test_a_new_store_of_which_a_step_fails_leaves_no_directory_and_no_lock(
    step: str, open_again: Callable[[], RocksStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("IO error: Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Database, step, fail)
        with pytest.raises(Exception, match="open files"):
            open_again()
    open_again().close()


@pytest.mark.parametrize("read", ["scan", "waiting", "items", "_keys"])
def test_a_closed_store_can_be_opened_although_it_is_iterated(read: str, open_again: Callable[[], RocksStore]) -> None:
    """An error that a machine has handled may keep it, in a frame, until the garbage collector looks."""
    store = open_again()
    store.write({7: [(3, "t", "k", b"", None, None)]}, 4)
    database: Any = store._db
    iterators: dict[str, Callable[[], Iterator[Any]]] = {
        "scan": lambda: store.scan(NOTHING_FIRED, 9),
        "waiting": lambda: store.waiting(NOTHING_FIRED),
        "items": lambda: database.items(b"", ROWS_END),
        "_keys": lambda: database._keys(b""),
    }
    kept = iterators[read]()
    assert next(kept)
    store.close()
    open_again().close()
    assert list(kept) == []


def test_a_store_that_this_process_has_open_ends_no_worker(open_again: Callable[[], RocksStore]) -> None:
    store = open_again()
    with pytest.raises(StoreWaits, match="is still open in this worker"):
        open_again()
    store.close()
    open_again().close()


def test_frames_of_causes_are_forgotten_too() -> None:
    def inner() -> None:
        held = object()
        raise ValueError(held)

    try:
        try:
            inner()
        except ValueError as cause:
            raise RuntimeError from cause
    except RuntimeError as error:
        forget_frames(error)
        assert error.__cause__ is not None and error.__cause__.__traceback__ is not None
        below = error.__cause__.__traceback__.tb_next
        assert below is not None and not below.tb_frame.f_locals


def test_a_progress_log_is_closed_if_its_broker_is_away() -> None:
    class SimLeaders:
        async def close(self) -> None:
            raise RuntimeError("the broker is away")

    log = ProgressLog(Settings(), Cluster("", {}, {}))
    leaders: Any = SimLeaders()
    log._client = leaders
    log.close()
    with pytest.raises(RuntimeError, match="closed"):
        log._loop.get_loop()


def test_stores_are_listed_by_their_last_use_though_a_process_that_ends_deletes_a_file(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    for partition, used_s in ((0, 300), (1, 100), (2, 200)):
        store = store_path(settings, (TP[0], partition))
        store.mkdir(parents=True)
        (store / "CURRENT").write_text("")
        os.utime(store / "CURRENT", (used_s, used_s))
        (store / "000007.log").symlink_to("deleted")  # it is listed, and not there any more
    assert stored_partitions(settings, [TP[0]]) == [(TP[0], 1), (TP[0], 2), (TP[0], 0)]


# ---- two attempts of one task share a directory ---------------------------------------------------------------------

SETTINGS = Settings(worker_id="w")
CLUSTER: Any = SimpleNamespace(cluster_id="c", topic_ids={TP[0]: b"t"})


class Rival:
    """Another attempt, which opens the store just when its directory is being deleted."""

    def __init__(self, stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
        self._stores = stores
        self._path = store_path(stores.settings, TP)
        self._monkeypatch = monkeypatch
        self._threads = ThreadPoolExecutor(1)

    def came(self, change: Callable[[], RocksStore | None]) -> tuple[RocksStore | None, Future[RocksStore]]:
        """Change the store, and let the rival come meanwhile. Returns what the change has opened, and the rival."""
        delete, came = shutil.rmtree, list[Future[RocksStore]]()

        def deleted(path: Path, **options: Any) -> None:
            if not came and path == self._path:
                came.append(self._threads.submit(self._stores.open, TP))
                wait(came, 0.2)
            delete(path, **options)

        self._monkeypatch.setattr(shutil, "rmtree", deleted)
        mine = change()
        self._threads.shutdown()
        return mine, came[0]


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    formats: Any = {TP[0]: SimpleNamespace(has_ids=False)}
    return Stores(replace(SETTINGS, data_dir=tmp_path), CLUSTER, RocksMemory(2**20), Condemnations(), formats)


def emptied(stores: Stores, store: RocksStore) -> RocksStore:
    return stores.emptied(TP, store)


def restored(stores: Stores, store: RocksStore) -> RocksStore:
    beside = stores.open(TP, beside=True)
    asked: Any = None
    return _Restoring(stores, TP, asked, asked, asked, asked, lambda: None, [store, beside], asked).use(beside)


def of_another_log(stores: Stores, store: RocksStore) -> RocksStore:
    store.close()
    other: Any = SimpleNamespace(cluster_id="another", topic_ids=CLUSTER.topic_ids)
    return replace(stores, cluster=other).open(TP)


@pytest.mark.parametrize("change", [emptied, restored, of_another_log])
def test_a_store_is_not_opened_while_it_is_emptied_or_replaced(
    change: Callable[[Stores, RocksStore], RocksStore], stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stores.open(TP)
    mine, rival = Rival(stores, monkeypatch).came(lambda: change(stores, store))
    assert mine is not None and isinstance(rival.exception(), StoreWaits)
    mine.write({100: [(1, "t", "k", b"v", None, None)]}, 2)
    mine.close()
    again = stores.open(TP)
    assert (again.applied, again.pending) in ((2, 1), (0, 0))
    again.close()
    assert not any(stores.condemnations.by_reason.values()), "no file of another attempt was deleted"


def test_a_condemned_store_is_deleted_before_the_next_attempt(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    store = stores.open(TP)
    store.condemn()
    _, rival = Rival(stores, monkeypatch).came(store.close)
    anew = rival.result()
    anew.write({100: [(1, "t", "k", b"v", None, None)]}, 2)
    anew.close()
    again = stores.open(TP)
    assert (again.applied, again.pending) == (2, 1)
    again.close()


def test_a_condemned_store_is_closed_without_a_lock_to_delete(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    store = stores.open(TP)
    store.condemn()

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as disk:
        disk.setattr(fcntl, "flock", refuse)
        with pytest.raises(StoreError, match="Read-only file system"):
            store.close()
    stores.open(TP).close()
