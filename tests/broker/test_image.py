"""The image: its worker fires a timer that its console sets, and it ends when told to, from its first moment on."""

from __future__ import annotations

import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.harness.image import Image, needs, web_port
from tests.harness.process import Process
from tests.harness.system import System
from tests.harness.waiting import wait_until
from timers.cli.broker.embedded import free_port

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(4000)]

END_S = 5.0


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    needs()
    made = Image()
    yield made
    made.close()


def first(process: Process) -> int:
    """The id of process number 1 of the container."""

    def children() -> list[int]:
        return [child.pid for child in psutil.Process(process.pid).children()]

    return wait_until(children, "the container has a process")[0]


def ends(process: Process, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while process.running and time.monotonic() < deadline:
        time.sleep(0.02)
    return not process.running


def takes_signals(pid: int) -> bool:
    """Whether process number 1 is the init, and takes signals: it asks for them before it starts its program."""
    init = psutil.Process(pid)
    return bool(init.name() == "tini" and init.children())


SLEEP = ["sleep", "600"]
"""A program that does not handle SIGTERM, as Python in its first two seconds."""


def test_a_container_ends_at_once_also_before_its_program_handles_signals(image: Image, tmp_path: Path) -> None:
    *init, program = image.config["Entrypoint"]
    assert program == "timers"
    process = image.process("init", [*init, *SLEEP], tmp_path).start()
    number_one = first(process)
    wait_until(partial(takes_signals, number_one), "the init runs")
    os.kill(number_one, signal.SIGTERM)
    assert ends(process, END_S), process.tail()


def test_without_init_the_signal_would_be_lost(image: Image, tmp_path: Path) -> None:
    process = image.process("bare", SLEEP, tmp_path).start()
    os.kill(first(process), signal.SIGTERM)
    try:
        assert not ends(process, 1.5)
    finally:
        process.clean_up()


def test_worker_and_console_of_the_image_fire_a_timer(system: System, image: Image, tmp_path: Path) -> None:
    settings = {name: value for name, value in system.environment.items() if name.startswith("TIMERS_")}
    settings |= {"TIMERS_DATA_DIR": "/var/lib/timers", **web_port()}
    port = str(free_port())
    target = system.target()
    worker = image.started("worker", ["worker"], tmp_path, **settings)
    worker_url = f"http://127.0.0.1:{settings['TIMERS_WEB_PORT']}"
    more = {"TIMERS_CONSOLE_PORT": port, "TIMERS_WORKER_URL": worker_url, "TIMERS_CONSOLE_WRITE": "1"}
    console = image.started("console", ["console"], tmp_path, **settings, **more)
    try:
        wait_until(lambda: answers(f"{worker_url}/health/ready"), "the worker is ready")
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/v1/health/ready"), "the console is ready")
        body = f'{{"topic": "{target}", "key": "k", "value": "of the image", "delay": 1}}'.encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/timers", body, headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status in (200, 201, 202)
        (fired,) = system.reader(target).take(1)
        assert (fired.key, fired.value) == (b"k", b"of the image") and fired.lag_ms >= 0
        for process in (worker, console):
            os.kill(first(process), signal.SIGTERM)
        assert ends(console, END_S) and ends(worker, 60), worker.tail()
        assert "not compiled" not in worker.log
    finally:
        worker.clean_up()
        console.clean_up()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.HTTPError):
        return False
