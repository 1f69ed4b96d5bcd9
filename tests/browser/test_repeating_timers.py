"""A timer that repeats in a browser: the form shows what a rule means while it is typed, the page what comes next."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.harness.console_process import ConsoleProcess
from tests.harness.system import System

pytestmark = [pytest.mark.broker, pytest.mark.browser]

PHONE = {"width": 390, "height": 844}


def test_a_timer_that_repeats_is_previewed_set_looked_at_and_cancelled(
    served: tuple[System, ConsoleProcess], open_page: Any, pictures: Path
) -> None:
    system, console = served
    target, id = system.target(), f"working-day-{time.time_ns()}"
    page = open_page(console.url, viewport=PHONE).page
    page.goto(console.url + "/timers/new")
    page.get_by_role("combobox", name="Callback topic").fill(target)
    page.get_by_label("Value").fill("daily")
    page.get_by_label("Cron line").fill("0 9 * * 1-5")
    page.get_by_label("Time zone").fill("Europe/Paris")
    page.get_by_label("Id", exact=True).fill(id)
    page.get_by_role("heading", name="Next occurrences").wait_for()
    page.locator("#next li").nth(9).wait_for()
    assert "09:00:00+0" in page.locator("#next li").first.inner_text()
    page.get_by_text("clocks: ").first.wait_for()
    page.screenshot(path=pictures / "repeating-form-390.png", full_page=True)
    page.get_by_role("button", name="Set the timer").click()
    page.get_by_role("link", name="See the timer").click()
    page.get_by_text("cron=0 9 * * 1-5; zone=Europe/Paris").first.wait_for()
    page.locator("#next li").nth(9).wait_for()
    page.locator("#history li").first.wait_for()
    page.screenshot(path=pictures / "repeating-timer-390.png", full_page=True)
    assert page.get_by_role("button", name="Change the due time").count() == 0
    page.set_viewport_size({"width": 1280, "height": 900})
    page.screenshot(path=pictures / "repeating-timer.png", full_page=True)
    page.get_by_role("button", name="Cancel this timer").click()
    page.get_by_role("button", name="Yes, cancel it").click()
    page.get_by_text("The timer is cancelled").wait_for()
