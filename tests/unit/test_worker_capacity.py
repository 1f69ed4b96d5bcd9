"""How many machines fit into the limits of the process, and what is said about those that do not."""

import asyncio
import re
import resource
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.docs.markdown import ROOT
from tests.harness.constants import Constants
from tests.harness.sim_admin import answered
from timers.core.progress import Progress
from timers.machines import opener
from timers.machines.store.opening import Opened
from timers.process import limits as process_limits
from timers.process.config.settings import Settings
from timers.process.http.open_connections import most_connections
from timers.worker.machines.capacity import FEWEST_TABLES, MOST_TABLES, Capacity, NoRoom, memory_shortage
from timers.worker.machines.openings import Openings, Partition

MANY = 2**40


def measured(files: int, machines: int, *, threads: int = MANY, brokers: int = 1) -> Capacity:
    capacity = Capacity()
    capacity.measure(files, threads, most_connections(files), brokers, machines)
    return capacity


def test_the_table_in_the_docs_has_the_numbers_of_the_code() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    rows = re.findall(r"^\| ([\d,]+) \| (\d+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", page, re.MULTILINE)
    found = [[int(cell.replace(",", "")) for cell in row] for row in rows]
    assert [row[0] for row in found] == [1024, 2048, 4096, 16_384, 65_536]
    expected = []
    for files, *_ in found:
        one, three = (measured(files, MANY, brokers=brokers).most for brokers in (1, 3))
        expected.append([files, most_connections(files), one, three, one // 3, three // 3])
    assert found == expected


def test_tables_share_what_the_limit_leaves() -> None:
    assert measured(2048, 384).tables == FEWEST_TABLES
    assert measured(2**20, 8).tables == MOST_TABLES
    between = measured(16_384, 384)
    assert FEWEST_TABLES < between.tables < MOST_TABLES
    assert between.most >= 384 and between.shortage(384) == ""


def test_a_machine_that_does_not_fit_waits_until_another_one_closes() -> None:
    capacity = measured(2048, 384)
    for _ in range(capacity.most):
        capacity.enter()
    with pytest.raises(NoRoom, match=rf"can open {capacity.most} partitions with its limit of 2048 open files"):
        capacity.enter()
    capacity.leave()
    capacity.enter()


def test_the_warning_names_the_figure_the_limit_to_raise_and_the_number_of_workers() -> None:
    said = measured(2048, 384).shortage(384)
    assert "can open 86 of the app's 384 partitions, because its limit of open files is 2048." in said
    (needed,) = re.findall(r"raise the hard limit of open files \(ulimit -Hn\) to (\d+), or run 5 workers", said)
    assert measured(int(needed), 384).shortage(384) == "" and measured(int(needed) - 1, 384).shortage(384)
    few = measured(MANY, 384, threads=400).shortage(384)
    assert "can open 90 of the app's 384 partitions, because its limit of threads is 400" in few


def test_memory_that_may_not_be_enough_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_limits, "most_memory_bytes", lambda: 512 * 2**20)
    assert memory_shortage(Settings(), 100) == ""
    assert "may have 512 MB of memory, and may need 762 MB" in memory_shortage(Settings(), 384)


def test_limits_of_a_control_group_count(tmp_path: Path, constants: Constants) -> None:
    constants(process_limits, _CGROUP=tmp_path)
    no_limit = process_limits.most_threads()
    (tmp_path / "pids.max").write_text("max\n")
    assert process_limits.most_threads() == no_limit
    (tmp_path / "pids.max").write_text("77\n")
    (tmp_path / "memory.max").write_text("1000\n")
    assert (process_limits.most_threads(), process_limits.most_memory_bytes()) == (77, 1000)


def test_the_soft_limit_of_open_files_becomes_the_hard_one() -> None:
    program = (
        "from timers.process.limits import raise_open_files as r; import resource; print(r(), resource.getrlimit(7))"
    )

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 900))

    done = subprocess.run([sys.executable, "-c", program], preexec_fn=limit, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["900", "(900,", "900)"]


def openings_with(capacity: Capacity, parts: Any, store: Any, monkeypatch: pytest.MonkeyPatch) -> Openings:
    """Openings whose brokers answer at once."""
    taken = Openings(capacity, lambda: parts)
    taken.answers = SimpleNamespace(ask=lambda *_: answered({}))  # type: ignore[assignment]
    monkeypatch.setattr(opener, "open_partition", lambda *_, **__: Opened(Progress(), store, 0))
    monkeypatch.setattr(opener, "may_restore", lambda *_: False)
    taken.restoring = threading.Semaphore(0)  # what needs no restore waits for none
    return taken


async def test_a_machine_waits_for_room_and_one_that_fails_gives_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    capacity = measured(0, 8)
    assert capacity.most == 1
    fails: BaseException | None = TimeoutError()
    has_no_outbox = True

    class SimTransaction:
        def open(self) -> None:
            if fails is not None:
                raise fails

        def close(self) -> None:
            closed.append("outbox")

    class SimStore:
        applied = 0

        def close(self) -> None:
            closed.append("store")

        view = close

    class SimParts:
        settings = SimpleNamespace(progress_topic="progress", app_id="app")
        cluster = SimpleNamespace(partitions={"progress": 1})
        ask_log = None

        def producer(self, *_: object) -> None: ...

        def outbox(self, *_: object) -> Any:
            if has_no_outbox:
                raise RuntimeError
            return SimpleNamespace(transaction=SimTransaction())

        def machine(self, *_: object) -> str:
            return "machine"

        def expect(self, *_: object) -> None: ...

    taken = openings_with(capacity, SimParts(), SimStore(), monkeypatch)

    async def opening() -> Any:
        return await taken.open(Partition(("requests", 0)))

    with pytest.raises(RuntimeError):
        await opening()
    has_no_outbox = False
    with pytest.raises(TimeoutError):
        await opening()
    assert closed == ["outbox"]
    fails = None
    opened = await opening()
    with pytest.raises(NoRoom):
        await opening()
    assert closed == ["outbox"], "it was not begun"
    await asyncio.to_thread(opened.close)
    assert closed == ["outbox", "store", "outbox"]
    (await opening()).close()
    taken.close()


async def test_without_room_nothing_is_read_ahead_and_the_opening_waits() -> None:
    """Else the error would end the worker."""
    capacity = measured(0, 8)
    capacity.enter()
    parts: Any = SimpleNamespace(settings=None)
    taken, opening = Openings(capacity, lambda: parts), Partition(("requests", 0))
    assert await taken.read_ahead(opening) is None
    with pytest.raises(NoRoom):
        await taken.open(opening)
