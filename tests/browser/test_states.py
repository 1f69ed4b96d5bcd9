"""The screens without workers, without brokers, with a part of the partitions, and with a million pending timers."""

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.browser.screens import SEEN, running, settled
from tests.harness.publication import Publication, publish_in_process
from tests.harness.system import PARTITIONS, timers
from tests.harness.waiting import wait_until
from timers.cli.broker import EmbeddedBroker

pytestmark = [pytest.mark.broker, pytest.mark.browser, pytest.mark.long]

DAY_S = 86_400
LONG_S = 300.0
"""Deadline for a million timers on a busy machine."""


def test_without_workers_and_brokers_each_screen_says_what_is_missing(tmp_path: Path, open_page: Any) -> None:
    from axe_playwright_python.sync_playwright import Axe

    broker = EmbeddedBroker(tmp_path / "broker", 0)
    try:
        with running(broker.start(), tmp_path, 1) as (_, console, (worker,)):
            watched = open_page(console.url)
            watched.expected = ["404", "503", "504"]
            page = watched.page
            page.goto(console.url + "/")
            page.get_by_role("heading", name="All timers fire").wait_for()
            worker.kill()
            page.get_by_role("heading", name="no timer fires").wait_for()
            page.get_by_text("No worker runs, so no timer fires").wait_for()
            broker.stop()
            page.get_by_text("Check that the brokers at TIMERS_BROKERS run").first.wait_for()
            for screen in SEEN:
                page.goto(console.url + screen)
                settled(page)
                found = Axe().run(page).response["violations"]
                assert [(each["id"], [node["target"] for node in each["nodes"]]) for each in found] == [], screen
                if screen not in ("/timers/new", "/due", "/lag", "/live", "/runbook?name=clocks"):
                    page.get_by_text("No worker answers").or_(page.get_by_text("brokers")).first.wait_for()
    finally:
        broker.stop()


NOT_KNOWN = re.compile(r"^Since .* it is unknown whether all timers fire")


def test_the_overview_does_not_say_that_timers_fire_when_the_brokers_are_silent(tmp_path: Path, open_page: Any) -> None:
    broker = EmbeddedBroker(tmp_path / "broker", 0)
    try:
        with running(broker.start(), tmp_path, 1) as (system, console, _):
            system.send(*timers(system.target(), 7, int(time.time()) + DAY_S, 1))
            watched = open_page(console.url)
            watched.expected = ["503", "504", "Failed to load resource"]
            page = watched.page
            page.goto(console.url + "/")
            page.get_by_role("heading", name="All timers fire").wait_for()
            pending = page.locator("#tiles .tile", has_text="Pending").locator(".figure")
            pending.get_by_text("7", exact=True).wait_for()
            page.get_by_role("link", name="All timers", exact=True).focus()
            page.locator("#state").hover()  # what is under the pointer does not move, and must be true
            assert broker.pid is not None
            os.kill(broker.pid, signal.SIGSTOP)
            try:
                page.get_by_role("heading", name=NOT_KNOWN).wait_for()
                page.mouse.move(0, 0)
                page.get_by_text("Grey figures are from").wait_for()
                page.locator("#tiles.old").wait_for()
                assert pending.inner_text() == "7", "the last figures are kept"
                state = console.ask("GET", "/v1/workers")[1].get("state", {"timers": "not-known"})
                assert state["timers"] == "not-known"
            finally:
                os.kill(broker.pid, signal.SIGCONT)
            page.get_by_role("heading", name="All timers fire").wait_for()
    finally:
        broker.stop()


def test_the_overview_does_not_say_that_timers_fire_when_a_worker_or_the_console_is_lost(
    broker_address: str, tmp_path: Path, open_page: Any
) -> None:
    """The group has not noticed yet that the worker is gone, so its partitions have no new owner."""
    with running(broker_address, tmp_path, 2, TIMERS_SESSION_TIMEOUT_S="300") as (_, console, workers):
        watched = open_page(console.url)
        watched.expected = ["503", "504", "Failed to load resource"]
        page = watched.page
        page.goto(console.url + "/")
        page.get_by_role("heading", name="All timers fire").wait_for()
        workers[1].kill()
        page.get_by_role("heading", name=NOT_KNOWN).wait_for()
        page.get_by_text("The console cannot ask this worker").wait_for()
        workers[1].start()
        page.get_by_role("heading", name="All timers fire").wait_for()
        console.send(signal.SIGSTOP)
        try:
            page.get_by_role("heading", name=NOT_KNOWN).wait_for()
            page.locator("#tiles.old").wait_for()
        finally:
            console.send(signal.SIGCONT)
        page.get_by_role("heading", name="All timers fire").wait_for()


def test_a_list_without_the_partitions_of_a_worker_says_so(broker_address: str, tmp_path: Path, open_page: Any) -> None:
    with running(broker_address, tmp_path, 2) as (_, console, workers):

        def shares() -> list[int]:
            return [len(worker["partitions"]) for worker in console.ask("GET", "/v1/workers")[1]["workers"]]

        wait_until(lambda: len(shares()) == 2 and all(shares()), "both workers have partitions")
        page = open_page(console.url).page
        page.goto(console.url + "/timers")
        page.get_by_text("No timer is pending").wait_for()
        workers[1].send(signal.SIGSTOP)
        try:
            page.reload()
            page.get_by_text("This answer is not complete").wait_for()
        finally:
            workers[1].send(signal.SIGCONT)


def test_a_million_timers_are_counted_and_listed_page_by_page(
    broker_address: str, tmp_path: Path, open_page: Any
) -> None:
    timers, tomorrow_s = 1_000_000, (int(time.time()) // DAY_S + 1) * DAY_S
    with running(broker_address, tmp_path, 1) as (system, console, _):
        target = system.target()
        publication = Publication(
            broker_address, system.request_topic, target, timers, tomorrow_s, 5 * DAY_S, 16, PARTITIONS, "spread"
        )  # three in each of the first seconds
        publish_in_process(publication, tmp_path)

        def pending() -> int:
            (worker,) = console.ask("GET", "/v1/workers")[1]["workers"]
            return worker.get("pending") or 0

        wait_until(lambda: pending() >= timers, "all timers are pending", LONG_S)
        watched = open_page(console.url)
        watched.page.set_default_timeout(LONG_S * 1000)
        page = watched.page
        page.goto(console.url + "/")
        page.locator("#tiles").get_by_text("1,000,000").wait_for()
        page.goto(f"{console.url}/timers?topic={target}")
        page.get_by_role("link", name="Next page").click()
        page.wait_for_url("**cursor=**")
        page.locator("#list tbody tr").nth(99).wait_for()
        page.goto(f"{console.url}/due?topic={target}")
        page.locator("[data-counted]").get_by_text(re.compile("^1,000,000 timers")).wait_for()
        hour = time.strftime("%Y-%m-%d %H:00", time.gmtime(tomorrow_s))
        page.get_by_role("link", name=f"{hour}, ").click()
        page.wait_for_url("**/due?day=**")
        page.get_by_role("link", name=f"{hour}, ").click()
        page.wait_for_url("**/due?minute=**")
        page.locator("[data-counted]").get_by_text("180 timers").wait_for()
