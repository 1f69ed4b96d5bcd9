"""The screens of the console, and what they show: workers of one app."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.harness.console_pages import SCREENS
from tests.harness.console_process import ConsoleProcess
from tests.harness.system import System
from tests.harness.worker import Worker

SEEN = (*SCREENS, "/timer?id=seen%2F1", "/timer?id=none")
"""The screens, with one of a timer, and one of an id that no timer has."""


def settled(page: Any) -> None:
    """Wait until no part of the page is awaited any longer."""
    page.wait_for_function("() => !document.querySelector('[data-soon], .waiting, .htmx-request')")


@contextmanager
def running(
    address: str, tmp_path: Path, workers: int, **settings: str
) -> Iterator[tuple[System, ConsoleProcess, list[Worker]]]:
    """Workers and a console that reads, of one app."""
    system = System(address, tmp_path, TIMERS_QUERIES="values", **settings)
    started = [system.worker() for _ in range(workers)]
    url = f"http://127.0.0.1:{started[0].port}"
    console = ConsoleProcess(tmp_path / "console", {**system.environment, "TIMERS_WORKER_URL": url})
    try:
        for worker in started:
            worker.start()
        console.start().wait_for("console: ")
        for worker in started:
            worker.ready()
        yield system, console, started
    finally:
        console.end()
        system.close()
