"""The pages while workers freeze, die and come back, and while all brokers are silent: what is known is said in time,
the last figures stay with their age, and no false cause is named."""

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.browser.screens import running, settled
from tests.harness.console_process import ConsoleProcess
from tests.harness.system import System, timers
from tests.harness.waiting import due_in, wait_until
from tests.harness.worker import Worker

pytestmark = [pytest.mark.broker, pytest.mark.browser, pytest.mark.long]

NOT_KNOWN = re.compile(r"^Since .* it is unknown whether all timers fire")
SAID_S, CAUSE_S = 3.0, 10.0
"""When the headline says that it is not known, and when the page names the cause."""

BUSY_S = 1.5
"""For a machine on which other tests run."""


@contextmanager
def pages_of(
    address: str, tmp_path: Path, workers: int, open_page: Any, **settings: str
) -> Iterator[tuple[System, ConsoleProcess, list[Worker], Any]]:
    """Workers that fire, a console, and its open overview."""
    with running(address, tmp_path, workers, **settings) as (system, console, started):
        system.send(*timers(system.target(), 40, due_in(2), 4), *timers(system.target(), 7, due_in(86_400), 1))
        watched = open_page(console.url)
        watched.expected = ["503", "504", "Failed to load resource"]
        watched.page.goto(console.url + "/")
        watched.page.get_by_role("heading", name="All timers fire").wait_for()
        tile(watched.page, "Pending").get_by_text("7", exact=True).wait_for()
        wait_until(lambda: float(rate(watched.page) or 0) > 0, "a page shows the rate that a worker has counted")
        yield system, console, started, watched.page


def tile(page: Any, name: str) -> Any:
    return page.locator("#tiles .tile", has_text=name).locator(".figure")


def rate(page: Any) -> str:
    text: str = tile(page, "Firing").inner_text()
    return text.removesuffix("/s").replace("–", "")


def says_in_time(page: Any, began_s: float) -> None:
    page.get_by_role("heading", name=NOT_KNOWN).wait_for(timeout=1000 * (SAID_S + BUSY_S))
    assert time.monotonic() - began_s <= SAID_S + BUSY_S


def blames_no_broker(page: Any) -> None:
    said = page.locator("#state").inner_text()
    assert "brokers" not in said.lower(), said
    assert "brokers-unreachable" not in page.content()


def test_a_frozen_worker_is_named_and_its_last_figures_stay(
    broker_address: str, tmp_path: Path, open_page: Any
) -> None:
    with pages_of(broker_address, tmp_path, 1, open_page, TIMERS_SESSION_TIMEOUT_S="60") as (_, console, workers, page):
        shown = rate(page)
        workers[0].send(signal.SIGSTOP)
        began_s = time.monotonic()
        try:
            says_in_time(page, began_s)
            page.get_by_text("The console cannot ask this worker").wait_for(timeout=1000 * CAUSE_S)
            page.locator("#tiles.old").wait_for()
            assert tile(page, "Pending").inner_text() == "7" and rate(page) == shown
            until_s = began_s + 12  # it had become dashes, and a false cause, after 9 s
            while time.monotonic() < until_s:
                blames_no_broker(page)
                assert tile(page, "Pending").inner_text() == "7"
                page.wait_for_timeout(250)
            page.goto(console.url + "/workers")
            settled(page)
            page.get_by_text("It last reported these figures").wait_for()
        finally:
            workers[0].send(signal.SIGCONT)
        page.goto(console.url + "/")
        page.get_by_role("heading", name="All timers fire").wait_for()


def test_of_three_workers_one_is_lost_and_the_others_take_over(
    broker_address: str, tmp_path: Path, open_page: Any
) -> None:
    with pages_of(broker_address, tmp_path, 3, open_page) as (_, console, workers, page):
        workers[2].kill()
        says_in_time(page, time.monotonic())
        blames_no_broker(page)
        page.get_by_role("heading", name="All timers fire").wait_for()
        page.goto(console.url + "/workers")
        page.locator("section.card", has_text="left the group").get_by_text("It last reported these figures").wait_for()


def test_the_line_goes_back_to_a_time_without_a_page_and_without_a_console(
    broker_address: str, tmp_path: Path, open_page: Any
) -> None:
    """A worker fires for a while, and only then a console starts: its first page shows what was before."""
    system = System(broker_address, tmp_path, TIMERS_QUERIES="values")
    worker = system.worker()
    console = ConsoleProcess(
        tmp_path / "console", {**system.environment, "TIMERS_WORKER_URL": f"http://127.0.0.1:{worker.port}"}
    )
    try:
        worker.start().ready()
        target = system.target()
        system.send(*timers(target, 90, due_in(2), 45))
        system.reader(target).take(90, 100)
        console.start().wait_for("console: ")
        said = console.ask("GET", "/v1/figures")[1]
        (kept,) = said["workers"]
        assert sum(point["counts"].get("fired", 0) for point in kept["points"]) >= 80
        page = open_page(console.url).page
        page.goto(console.url + "/")
        line = page.locator("#line .chart")
        line.wait_for()
        columns = line.evaluate("each => JSON.parse(each.dataset.chart).columns")
        assert columns[0][-1] - columns[0][0] >= 30, "half a minute and more, at the first look"
    finally:
        console.end()
        system.close()
