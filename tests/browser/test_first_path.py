"""From the first page to a cancelled timer, in a real browser over a real broker and worker."""

from typing import Any

import pytest

from tests.harness.console_process import ConsoleProcess
from tests.harness.system import System

pytestmark = [pytest.mark.broker, pytest.mark.browser]


def test_a_timer_is_set_found_and_cancelled(served: tuple[System, ConsoleProcess], open_page: Any) -> None:
    system, console = served
    target = system.target()
    page = open_page(console.url).page
    page.goto(f"{console.url}/")
    fires = page.get_by_role("heading", name="All timers fire")
    fires.or_(page.get_by_role("heading", name="when you have time")).wait_for()  # another test made dead letters
    page.get_by_role("link", name="New timer").click()
    page.get_by_label("Callback topic", exact=True).fill(target)
    page.get_by_label("Key", exact=True).fill("order-17")
    page.get_by_label("Value", exact=True).fill('{"state": "unpaid"}')
    page.get_by_label("Time from now", exact=True).fill("2h")
    page.get_by_label("Id", exact=True).fill("order/17 ü")
    page.get_by_text("client.schedule(").and_(page.get_by_text("delay=7200")).wait_for()
    page.get_by_role("button", name="Set the timer").click()
    page.get_by_role("link", name="See the timer").click()
    page.get_by_role("heading", name="Timer order/17 ü").wait_for()
    page.get_by_role("button", name="Show the value").click()
    page.get_by_text('{\n  "state": "unpaid"\n}').wait_for()
    page.get_by_text("requested").wait_for()
    page.get_by_role("button", name="Cancel this timer").click()
    page.get_by_role("button", name="Yes, cancel it").click()
    page.get_by_text("The timer is cancelled").wait_for()
    page.locator("#timer-state").get_by_text("cancelled").wait_for()
    page.get_by_role("button", name="Cancel this timer").wait_for(state="hidden")
    page.get_by_role("link", name="Timers", exact=True).click()
    page.get_by_label("Callback topic", exact=True).fill(target)
    page.get_by_role("button", name="Filter").click()
    page.get_by_text("No pending timer matches this filter").wait_for()
