"""Handlers in child processes: their calls reach the message, and a message that ends its process is known."""

import importlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.constants import Constants
from tests.harness.queue_calls import SimMessage
from tests.harness.queue_handlers import RAISED, handle
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.errors import LeaseLostError, QueueError
from timers.queue import running
from timers.queue.running import Child


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    child = Child(handle)
    yield child
    child.end(kill=True)


def handled(child: Child, value: str, **more: Any) -> list[Any]:
    """The calls on a message that a child handled."""
    message: Any = SimMessage(value, **more)
    child.handle(message)
    return list(message.calls)


@pytest.mark.parametrize(
    ("value", "calls"),
    [
        ("nothing", ["ack"]),
        ("fail bad", [("retry", None, "ValueError('bad')")]),
        ("raise exit", [("retry", None, "SystemExit('bad')")]),
        ("fork", ["ack"]),
        ("unreadable", [("retry", None, "ValueError(\"invalid literal for int() with base 10: 'no number'\")")]),
        ("reject why", [("reject", "why")]),
        ("retry 7", [("retry", 7.0, "as asked")]),
        ("retry-list 5 30", [("retry", 5.0, "")]),
        ("settle-and-fail", ["ack"]),
        ("settle-twice", ["ack"]),
        ("settle-and-output results", ["ack"]),
        (
            "output results",
            [("output", "results", b"output results", {"key": b"\xfe", "headers": [("a", b"1")]}), "ack"],
        ),
        ("extend 60", [("extend", 60.0), "ack"]),
        (
            "extend nan",
            [("retry", None, "InvalidTimerError('lease_s=nan is not a number of seconds from 0 to 1000000000')")],
        ),
    ],
)
def test_what_a_handler_calls_happens_in_the_parent(child: Child, value: str, calls: list[Any]) -> None:
    assert handled(child, value) == calls


@pytest.mark.parametrize(
    "value", [*(f"raise {name}" for name in RAISED), "unsendable", "unreadable", "exits-when-read", "coroutine"]
)
def test_no_exception_of_a_handler_counts_as_a_crash(child: Child, value: str) -> None:
    ((name, after, error),) = handled(child, value)
    assert (name, after) == ("retry", None)
    assert error
    assert handled(child, "nothing") == ["ack"]


def test_a_failure_in_a_process_is_one_line_and_one_traceback(child: Child, caplog: pytest.LogCaptureFixture) -> None:
    running._shown.clear()
    for _ in range(3):
        handled(child, "fail bad")
    handled(child, "settle-and-fail")
    first, *others = [record.getMessage() for record in caplog.records]
    assert first.count("Traceback") == 1 and "RemoteError" not in first
    assert first.startswith("message jobs/0/fail bad failed in attempt 1: ValueError('bad')\nTraceback")
    assert others[:2] == ["message jobs/0/fail bad failed in attempt 1: ValueError('bad')"] * 2
    assert len(others) == 3 and "settle-and-fail failed in attempt 1" in others[2]


def test_ctrl_c_while_a_process_imports_its_handler_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = [
        "import os, signal",
        f"if os.getpid() != {os.getpid()}:",
        "    os.kill(os.getpid(), signal.SIGINT)",
        "def handle(message): pass",
    ]
    (tmp_path / "interrupted.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    one = Child(importlib.import_module("interrupted").handle)
    try:
        assert handled(one, "x") == ["ack"]
        assert "Traceback" not in capfd.readouterr().err
    finally:
        one.end(kill=True)


def test_a_handler_learns_that_its_lease_is_lost(child: Child) -> None:
    assert handled(child, "extend 60", lost=LeaseLostError("lost")) == [
        ("retry", None, 'LeaseLostError("message jobs/0/extend 60 is no longer this receiver\'s")')
    ]


def test_a_thread_that_extends_a_lease_after_the_handler_does_not_meet_the_next_message(child: Child) -> None:
    for _ in range(5):
        extended = handled(child, "beat")
        assert set(extended[:-1]) == {("extend", 60)} and extended[-1] == "ack"
        assert handled(child, "nothing") == ["ack"]


@pytest.mark.parametrize(("value", "ending"), [("kill", "was ended by SIGKILL"), ("exit 7", "ended with exit code 7")])
def test_a_message_that_ends_its_process_is_known(child: Child, value: str, ending: str) -> None:
    assert handled(child, value) == [("crashed", ending)]
    assert handled(child, "nothing") == ["ack"], "the next message has a new process"


def test_a_process_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    child = Child(handle)
    child.start()
    message: Any = SimMessage("hang")
    sent, wait_for_reply = threading.Event(), child._reply

    def reply(message: Any) -> Any:
        sent.set()
        return wait_for_reply(message)

    monkeypatch.setattr(child, "_reply", reply)
    thread = threading.Thread(target=child.handle, args=(message,))
    thread.start()
    assert sent.wait(DEADLINE_S)
    message.is_overdue = True
    wait_until(lambda: not thread.is_alive(), "the end of the process")
    assert message.calls == []
    assert "message jobs/0/hang: its lease is over, so its process was ended" in caplog.text
    assert handled(child, "nothing") == ["ack"]
    child.end(kill=True)


def test_a_handler_that_cannot_be_imported_is_an_error_and_no_crash() -> None:
    def local(message: Any) -> None:
        """A function that only this process has."""

    child = Child(local)
    message: Any = SimMessage("nothing")
    with pytest.raises(QueueError, match="must be a function of a module"):
        child.handle(message)
    assert message.calls == []


SLOW = f"""
import os, pathlib, time

here = pathlib.Path(__file__)

def handle(message):
    message.reject(str(os.getpid()))

if os.getpid() != {os.getpid()}:
    here.with_name("begun").touch()
    while not here.with_name("go-on").exists():
        time.sleep(0.02)
"""


class Importing:
    """A child whose process imports its handler until ``go-on`` exists, and the thread in which it has a message."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        tmp_path.joinpath("slow_handler.py").write_text(SLOW)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "slow_handler", raising=False)
        self.stopping = threading.Event()
        self.child = Child(importlib.import_module("slow_handler").handle, self.stopping.is_set)
        self.message: Any = SimMessage("first")
        self.thread = threading.Thread(target=self.child.handle, args=(self.message,), daemon=True)
        self.thread.start()
        wait_until((tmp_path / "begun").exists, "the import")
        self.process = self.child._process

    def end_lease(self) -> None:
        self.message.is_overdue = True
        self.wait()

    def wait(self) -> None:
        wait_until(lambda: not self.thread.is_alive(), "the return of the thread")

    def has_ended(self) -> bool:
        try:
            self.process.is_alive()
        except ValueError:  # it has ended, and is closed
            return True
        return False


def test_an_import_that_outlives_a_lease_goes_on_for_the_next_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    importing = Importing(tmp_path, monkeypatch)
    importing.end_lease()
    assert importing.message.calls == []
    assert "message jobs/0/first: its lease is over, and a process still imports its handler" in caplog.text
    assert not importing.has_ended()
    pid = importing.process.pid
    (tmp_path / "go-on").touch()
    for value in ("second", "third"):
        assert handled(importing.child, value) == [("reject", str(pid))]
    importing.child.end(kill=True)


@pytest.mark.parametrize("holds", ["a message", "no message"])
def test_an_import_that_hangs_is_ended_with_the_queue(
    holds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    importing = Importing(tmp_path, monkeypatch)
    if holds == "a message":
        importing.stopping.set()
        importing.wait()
        assert importing.message.calls == ["put back"]
    else:
        importing.end_lease()
        constants(running, _JOIN_S=DEADLINE_S)
        began_s = time.monotonic()
        importing.child.end(kill=False)  # as run() does when it returns
        assert time.monotonic() - began_s < DEADLINE_S, "an import does not see that the pipe is closed"
    assert importing.has_ended()


def test_a_message_whose_lease_ended_with_the_import_is_not_handled(constants: Constants) -> None:
    constants(running, _POLL_S=DEADLINE_S)
    child = Child(handle)
    message: Any = SimMessage("kill")
    message.is_overdue = True
    child.handle(message)
    assert message.calls == []
    process = child._process
    assert handled(child, "nothing") == ["ack"]
    assert child._process is process
    child.end(kill=True)
