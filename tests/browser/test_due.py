"""When timers are due, in a browser: from the hours of a week to one second, its forecast, and the list."""

import re
from typing import Any

import pytest

from tests.harness.console_process import ConsoleProcess
from tests.harness.records import Request
from tests.harness.system import System
from tests.harness.waiting import due_in, wait_until
from timers.core.printable import utc_text

pytestmark = [pytest.mark.broker, pytest.mark.browser]


def test_the_way_from_a_week_to_the_timers_of_a_hot_second(
    served: tuple[System, ConsoleProcess], open_page: Any
) -> None:
    system, console = served
    target, due_s = system.target(), due_in(2 * 86_400) // 60 * 60 + 30
    system.send(*(Request(target, due_s, f"hot-{number}") for number in range(1200)), Request(target, due_s + 3, "x"))
    counts = f"/v1/pending?by=day&topic={target}"
    wait_until(lambda: sum(each["timers"] for each in console.ask("GET", counts)[1]["counts"]) == 1201, "all are seen")
    page = open_page(console.url).page
    page.goto(f"{console.url}/due?topic={target}")
    counted = page.locator("[data-counted]").get_by_text(re.compile("^1,201 timers"))
    counted.wait_for()
    due_at = utc_text(due_s).replace("T", " ")
    cell = page.get_by_role("link", name=f"{due_at[:13]}:00, 1,201 timers")
    assert cell.text_content() == "1.2k"
    assert page.locator("td.heat-6").count() == 1, "the hottest cell has the hottest colour"
    cell.click()
    page.wait_for_url("**/due?day=*")
    counted.wait_for()
    page.get_by_role("link", name=f"{due_at[:16]}, ").focus()
    page.get_by_text(f"{due_at[:16]}, 1,201 timers").wait_for()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    page.wait_for_url("**/due?minute=*")
    page.get_by_label("Timers fired in a second").fill("600")
    page.get_by_role("button", name="Find the ten hottest").click()
    hottest = page.locator("[data-hot] tbody tr").first
    hottest.get_by_text("1,200").wait_for()
    assert hottest.locator("td").all_text_contents() == [due_at, "1,200", "2.0 s"]
    hottest.get_by_role("link").click()
    page.get_by_role("link", name="Next page").wait_for()
    assert page.locator("#list tbody tr").count() == 100
