"""The page to try calls, in a browser: it asks only this console, and its calls are those of its user."""

import re
from typing import Any

import pytest

from tests.harness.console_process import ConsoleProcess
from tests.harness.system import System
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.browser]


def test_its_page_can_be_used_by_all(served: tuple[System, ConsoleProcess], open_page: Any) -> None:
    from axe_playwright_python.sync_playwright import Axe

    _, console = served
    page = open_page(console.url, viewport={"width": 1600, "height": 900}, color_scheme="dark").page
    page.goto(console.url + "/try")
    sent = page.locator("#operations-timers-setTimer")
    sent.locator(".opblock-summary-control").click()
    sent.get_by_role("button", name="Try it out").click()
    for width in (1600, 390):
        page.set_viewport_size({"width": width, "height": 844})
        found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
        assert [(each["id"], [node["target"] for node in each["nodes"]]) for each in found] == [], width
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_call_is_tried_on_its_page(served: tuple[System, ConsoleProcess], open_page: Any) -> None:
    system, console = served
    page = open_page(console.url).page  # each violation of the policy, and each request to elsewhere, is a failure
    page.goto(console.url + "/")
    page.get_by_role("link", name="API", exact=True).click()
    page.wait_for_url("**/try")
    sent = page.locator("#operations-timers-setTimer")
    sent.locator(".opblock-summary-control").click()
    sent.get_by_role("button", name="Try it out").click()
    body = f'{{"topic": "{system.target()}", "value": "v", "delay": "1h", "id": "tried"}}'
    sent.locator("textarea.body-param__text").fill(body)
    sent.get_by_role("button", name="Execute").click()
    answer = sent.locator(".live-responses-table .response").first
    answer.locator(".response-col_status").get_by_text(re.compile("^201")).wait_for()
    assert '"id": "tried"' in answer.inner_text()
    wait_until(lambda: console.ask("GET", "/v1/timer?id=tried")[0] == 200, "the timer is set")
    assert page.evaluate("getComputedStyle(document.querySelector('#calls')).backgroundColor") == "rgb(255, 255, 255)"
