"""How `timers queue run` ends: after a signal, and after a function that breaks the streams of its process."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from timers.errors import SettingsError
from timers.queue import Queue

COMMAND = """
import importlib
import logging
import sys
from collections import Counter
from types import SimpleNamespace

import timers.queue
from timers.cli.main import main


class SimQueue:
    stopping = False
    driver = SimpleNamespace(lost_last_calls="lost" in sys.argv)
    handlers = SimpleNamespace(left=0)

    def __init__(self, *arguments, **named): ...

    def __enter__(self):
        return self

    def __exit__(self, *_): ...

    def stop(self):
        self.stopping = True

    def run(self, handler, concurrency, processes):
        handler(None)
        logging.getLogger("timers.queue").warning("it has run")

    def counters(self):
        return SimpleNamespace(acked=1, retried=0, dead=Counter())


timers.queue.Queue = SimQueue
importlib.import_module("timers.cli.queue").load_settings = lambda: SimpleNamespace(brokers="localhost:1")
sys.exit(main(["queue", "run", "jobs", "module:function"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "breaks",
    [
        "sys.stdout.close()",
        "sys.stderr.close()",
        "setattr(sys, 'stdout', None)",
        "setattr(sys, 'stderr', None)",
        "os.close(1)",
        "os.close(2)",
        "[os.close(1), os.close(2), sys.stdout.close()]",
    ],
)
def test_a_function_that_breaks_a_stream_does_not_change_the_exit_code(breaks: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(f"import os, sys\n\n\ndef function(message):\n    {breaks}\n")
    done = subprocess.run([sys.executable, "-c", COMMAND], cwd=tmp_path, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, b""), done.stderr.decode()


@pytest.mark.parametrize(("sent", "exit_code"), [("SIGTERM", 0), ("SIGINT", 130)])
def test_ctrl_c_ends_with_130_when_the_functions_have_returned(sent: str, exit_code: int, tmp_path: Path) -> None:
    lines = f"import os, signal\n\n\ndef function(message):\n    os.kill(os.getpid(), signal.{sent})\n"
    (tmp_path / "module.py").write_text(lines)
    done = subprocess.run([sys.executable, "-c", COMMAND], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == exit_code, done.stderr
    assert "it has run" in done.stderr and "stopped: 1 acknowledged" in done.stderr and "Traceback" not in done.stderr


def test_the_losses_that_are_accepted_and_the_jitter_reach_the_queue(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("def function(message): ...\n")
    options = '"module:function", "--accept-loss", "jobs/0", "--accept-loss", "jobs/3", "--jitter", "0.5"'
    init = "named):\n        print(named['accept_loss'], named['backoff'].jitter)"
    command = COMMAND.replace('"module:function"', options).replace("named): ...", init)
    done = subprocess.run([sys.executable, "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "('jobs/0', 'jobs/3') 0.5\n"), done.stderr


@pytest.mark.parametrize(
    "names",
    [
        None,
        3,
        "jobs/0",
        *([each] for each in ("other/0", "jobs", 7, "jobs/abc", "jobs/03", "jobs/ 3", "jobs/-1", "jobs/")),
    ],
)
def test_losses_are_accepted_of_partitions_of_the_queue(names: Any) -> None:
    with pytest.raises(SettingsError, match=r"accept_loss=.* a list of partitions such as \['jobs/0'\]"):
        Queue("jobs", brokers="localhost:1", accept_loss=names)


def test_an_end_whose_last_calls_were_not_committed_is_a_failure(tmp_path: Path) -> None:
    lines = "import os, signal\n\n\ndef function(message):\n    os.kill(os.getpid(), signal.SIGTERM)\n"
    (tmp_path / "module.py").write_text(lines)
    command = [sys.executable, "-c", COMMAND, "lost"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    last = "timers: the queue 'jobs' ended before its last calls were committed: messages are delivered again\n"
    assert "stopped: 1 acknowledged" in done.stderr and done.stderr.endswith(last)


def test_a_signal_that_follows_the_first_line_at_once_lets_the_functions_return(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("def function(message): ...\n")
    signalled = """
cli = importlib.import_module("timers.cli.queue")
say = cli.say


def say_and_end(text):
    say(text)
    if text.startswith("handling messages"):
        os.kill(os.getpid(), signal.SIGTERM)


cli.say = say_and_end
"""
    command = "import os, signal\n" + COMMAND.replace("sys.exit(", signalled + "sys.exit(")
    done = subprocess.run([sys.executable, "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "stopped: 1 acknowledged" in done.stderr


HANGING = """
import importlib
import sys
from time import sleep
from types import SimpleNamespace

from timers.cli.main import main
from timers.queue import Queue

cli = importlib.import_module("timers.cli.queue")
cli.load_settings = lambda: SimpleNamespace(brokers="localhost:1")
cli._LEFT_THREADS_S = 0.1


class SimMessage(SimpleNamespace):
    __hash__ = object.__hash__


waiting = [SimMessage(is_overdue=True, source="jobs/0/1", attempt=1, is_settled=False, put_back=lambda: None)]


def receive(queue, *_):
    sleep(0.01)
    return [waiting.pop()] if waiting else []


Queue.receive_to_run = receive
sys.exit(main(["queue", "run", "jobs", "module:function", "--concurrency", "2"]))
"""


@pytest.mark.parametrize(
    "lines",
    [
        "async def function(message):\n    end()\n    await asyncio.to_thread(threading.Event().wait)\n",
        "def function(message):\n    end()\n    ThreadPoolExecutor(1).submit(threading.Event().wait).result()\n",
    ],
)
def test_a_function_that_hangs_in_a_thread_of_a_pool_does_not_keep_the_process(lines: str, tmp_path: Path) -> None:
    imports = "import asyncio, os, signal, threading\nfrom concurrent.futures import ThreadPoolExecutor\n\n\n"
    imports += "def end():\n    os.kill(os.getpid(), signal.SIGTERM)\n\n\n"
    (tmp_path / "module.py").write_text(imports + lines)
    command = [sys.executable, "-c", HANGING]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "stopped: 0 acknowledged" in done.stderr and "Traceback" not in done.stderr
