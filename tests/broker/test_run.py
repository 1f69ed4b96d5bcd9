"""``timers run``, which is ``make run``: it shows callbacks and leaves no process behind."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from timers.cli.broker.embedded import free_port

pytestmark = pytest.mark.broker

ROOT = Path(__file__).parents[2]
LINE = re.compile(r"fired topic=timers-demo key=demo-(\d+) due=(\d+) lag_ms=(-?\d+)\n")


@contextmanager
def timers_run(project: Path) -> Iterator[subprocess.Popen[str]]:
    """Starts the command in a new project, so that it starts its own broker and worker."""
    (project / ".timers").mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("TIMERS_")}
    env |= {"PYTHONPATH": str(ROOT), "TIMERS_WEB_PORT": str(free_port())}
    process = subprocess.Popen(
        [sys.executable, "-m", "timers.cli.main", "run"],
        cwd=project,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        print(process.communicate(timeout=60)[1])


def processes_of(project: Path) -> list[str]:
    """Command lines of the processes of this project, from /proc."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if entry.joinpath("cwd").resolve().is_relative_to(project):
                found.append(entry.joinpath("cmdline").read_text().replace("\0", " "))
        except OSError:  # it has just ended
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="needs /proc to see what is left behind")
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_run_shows_callbacks_and_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    with timers_run(tmp_path) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(6)]
        assert all(lines), "it ended before its time"
        assert len(processes_of(tmp_path)) >= 3, "the command, its worker and its broker"
        process.send_signal(number)
        assert process.wait(180) == 130
    assert processes_of(tmp_path) == []
    fired = [LINE.fullmatch(line) for line in lines]
    assert all(fired), lines
    assert all(int(found[3]) >= 0 for found in fired if found), "never early"
    assert sorted(int(found[1]) for found in fired if found) == [1, 2, 3, 4, 5, 6], "two a second, in order of due"


def test_run_interrupted_while_it_starts_leaves_nothing_behind(tmp_path: Path) -> None:
    with timers_run(tmp_path) as process:
        deadline = time.monotonic() + 180
        while not (tmp_path / ".timers" / "broker" / "pid").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(180) == 130
    assert processes_of(tmp_path) == []


@pytest.mark.long
def test_run_reports_the_death_of_its_worker(tmp_path: Path) -> None:
    with timers_run(tmp_path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("fired ")
        worker = next(int(found[1]) for line in process.stderr if (found := re.match(r"worker: process (\d+)", line)))
        said = process.stderr.readline()
        assert re.match(r"for commands in another terminal: export TIMERS_BROKERS=127\.0\.0\.1:[0-9]+", said), said
        os.kill(worker, signal.SIGKILL)
        assert process.wait(180) == 1
        assert "timers: the worker was ended by SIGKILL" in process.stderr.read()
    assert processes_of(tmp_path) == []
