"""A worker that ends makes each step, whatever fails or hangs; and cuts connections that cannot be closed in order."""

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.conn import AIOKafkaConnection

from tests.harness.constants import Constants
from timers.kafka.aiokafka_internals import sessions
from timers.process.config.settings import Settings
from timers.worker import faust_internals
from timers.worker.service import CUT_OFF_S, END_TIMEOUT_S, STOP_TIMEOUT_S, TimersApp

DEADLINE_S = 30


class Ending:
    """A worker whose steps are noted.

    Args:
        failing: the step that raises an error.
    """

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, *, reaches: bool = True) -> None:
        self.steps: list[Any] = []

        def step(name: str) -> Any:
            async def take(*_: Any) -> None:
                self.steps.append(name)
                if name == failing:
                    raise RuntimeError(f"of {name}")

            return take

        async def reaches_a_broker() -> bool:
            return reaches

        monkeypatch.setattr(faust_internals.App, "on_stop", step("Faust"))
        self.app = TimersApp(Settings.load({"TIMERS_BROKERS": "b:1", "TIMERS_DATA_DIR": str(tmp_path)}))
        self.app._end_after_timeout = lambda timeout_s, *_: self.steps.append(timeout_s)  # type: ignore[method-assign]
        self.app._query_pages.close = step("pages")  # type: ignore[method-assign]
        pool: Any = SimpleNamespace(settle=step("settle"), hand_over=step("hand over"), close=step("pool"))
        consumer: Any = SimpleNamespace(leave=step("leave"), reaches_a_broker=reaches_a_broker, has_others=None)
        self.app.status.pool, self.app.status.consumer = pool, consumer
        self.app._snapshot_taker = SimpleNamespace()  # type: ignore[assignment]


async def test_each_step_of_an_end_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ending = Ending(tmp_path, monkeypatch, "")
    await ending.app.on_stop()
    handover = ["settle", "leave", "hand over"]
    assert ending.steps == [STOP_TIMEOUT_S, *handover, "pool", END_TIMEOUT_S, "pages", "Faust"]


async def test_a_worker_that_is_cut_off_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ending = Ending(tmp_path, monkeypatch, "", reaches=False)
    await ending.app.on_stop()
    assert ending.steps == [STOP_TIMEOUT_S, END_TIMEOUT_S, "pool", CUT_OFF_S, "pages", "Faust"]


@pytest.mark.parametrize("failing", ["leave", "pool", "pages"])
async def test_a_failed_step_keeps_no_other_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    ending = Ending(tmp_path, monkeypatch, failing)
    with pytest.raises(RuntimeError, match=f"of {failing}"):
        await ending.app.on_stop()
    assert ending.steps[-4:] == ["pool", END_TIMEOUT_S, "pages", "Faust"]


async def test_a_process_at_its_limit_of_threads_makes_each_step_of_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ending = Ending(tmp_path, monkeypatch, "")

    class Watchdog:
        """A timer whose first thread cannot be started."""

        def __init__(self, timeout_s: float, _: object) -> None:
            self.timeout_s = timeout_s

        def start(self) -> None:
            if self.timeout_s == STOP_TIMEOUT_S:
                raise RuntimeError("can't start new thread")
            ending.steps.append(self.timeout_s)

    monkeypatch.setattr(threading, "Timer", Watchdog)
    ending.app._end_after_timeout = partial(TimersApp._end_after_timeout, ending.app)  # type: ignore[method-assign]
    await ending.app.on_stop()
    assert ending.steps == ["settle", "leave", "hand over", "pool", END_TIMEOUT_S, "pages", "Faust"]
    assert "this end has no limit of 80 s: can't start new thread" in caplog.text


async def test_a_connection_that_takes_nothing_is_cut(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> None:
    async def nothing(_: object) -> None: ...

    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await accepted.put(writer)

    monkeypatch.setattr(AIOKafkaConnection, "_do_version_lookup", nothing)
    constants(sessions, CLOSE_S=0.05)
    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    connection = sessions.Connection("127.0.0.1", server.sockets[0].getsockname()[1])
    await connection.connect()
    broker = await accepted.get()
    connection._writer.write(bytes(50_000_000))
    async with asyncio.timeout(DEADLINE_S):
        await connection.close()
    broker.transport.abort()
    server.close()


@pytest.mark.parametrize("timed_out", [STOP_TIMEOUT_S, END_TIMEOUT_S])
async def test_a_worker_that_does_not_close_its_partitions_in_time_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timed_out: float
) -> None:
    """If only the clients are slow to disconnect, all is done."""
    ending = Ending(tmp_path, monkeypatch, "")
    codes: list[int] = []

    class Watchdog:
        """A timer whose time is over at once."""

        def __init__(self, timeout_s: float, end: Callable[[], None]) -> None:
            self.start = end if timeout_s == timed_out else lambda: None

    monkeypatch.setattr(threading, "Timer", Watchdog)
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(logging, "shutdown", lambda: None)
    ending.app._end_after_timeout = partial(TimersApp._end_after_timeout, ending.app)  # type: ignore[method-assign]
    await ending.app.on_stop()
    assert codes == [1 if timed_out == STOP_TIMEOUT_S else 0]
