"""Each screen at three widths: no text is cut or broken inside a word, and a phone shows the first row of each list."""

from pathlib import Path
from typing import Any

import pytest

from tests.browser.screens import SEEN, settled
from tests.harness.console_process import ConsoleProcess
from tests.harness.system import System
from tests.harness.waiting import due_in, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.browser]

WIDTHS = (1440, 768, 390)
BESIDE = (1261, 1001, 901)
"""The least widths at which the overview has its two lists beside each other, three tiles, and the menu beside all."""

ZONE = "Asia/Kolkata"
"""A zone with a long name beside UTC: rows need the most room."""

LISTS = ("/timers", "/fired", "/dead-letters", "/queues", "/workers", "/changes", "/cluster")

FIND = Path(__file__).with_name("cut_text.js").read_text()
"""What is cut, outside of the window or broken inside a word. A longer word than 24 characters may be broken."""


@pytest.fixture(scope="module")
def crowded(served: tuple[System, ConsoleProcess]) -> ConsoleProcess:
    """A console with something to show on each screen: also names that are very long, and text without a space."""
    system, console = served
    target, gone = system.target(), f"target-of-a-service-{'without-end-' * 12}that-does-not-exist"
    long = {"key": "k" * 300, "id": f"tenant-x/{'y' * 250}"}
    for more in ({"key": "customer-199", "id": "seen/1"}, long):
        body = {"topic": target, "value": "v", "at": due_in(3600), **more}
        assert console.ask("POST", "/v1/timers", body)[0] == 201
    for topic in (target, gone):
        assert (
            console.ask("POST", "/v1/timers", {"topic": topic, "value": "v", "delay": 0, "key": "customer-199"})[0]
            == 201
        )
    wait_until(lambda: console.ask("GET", "/v1/dead-letters")[1]["dead_letters"], "a dead letter is listed")
    wait_until(lambda: console.ask("GET", f"/v1/fired?topic={target}")[1]["fired"], "a timer has fired")
    wait_until(lambda: console.ask("GET", "/v1/timer?id=seen%2F1")[0] == 200, "the timers are seen")
    return console


def top_of(page: Any, selector: str) -> float:
    """Where the first such element that is shown begins, asked at once: a refresh may replace it."""
    shown = page.wait_for_function(
        """selector => {
        const boxes = [...document.querySelectorAll(selector)].map(each => each.getBoundingClientRect());
        const found = boxes.find(each => each.height); return found && { top: found.top } }""",
        arg=selector,
    )
    return float(shown.json_value()["top"])


def test_the_search_finds_what_is_cut_and_what_is_broken(crowded: ConsoleProcess, open_page: Any) -> None:
    watched = open_page(crowded.url, viewport={"width": 390, "height": 844}, bypass_csp=True)
    page = watched.page
    page.goto(crowded.url + "/runbook?name=clocks")
    assert page.evaluate(FIND) == []
    for style, words, kind in (
        ("width: 40px; overflow: hidden; white-space: nowrap", "a long sentence", "cut: "),
        ("height: 10px; overflow: hidden; width: 80px", "a long sentence", "cut: "),
        ("width: 40px; overflow-wrap: anywhere", "uninterrupted", "broken: uninterrupted"),
        ("white-space: nowrap; margin-left: 380px", "a long sentence", "outside: "),
    ):
        page.evaluate(
            """([style, words]) => { document.querySelector('[data-planted]')?.remove();
            const made = document.createElement('div'); made.style.cssText = style; made.textContent = words;
            made.dataset.planted = ''; document.querySelector('main').append(made) }""",
            [style, words],
        )
        assert any(each.startswith(kind) for each in page.evaluate(FIND)), style


@pytest.mark.parametrize("width", WIDTHS)
def test_no_text_is_cut_or_broken(width: int, crowded: ConsoleProcess, open_page: Any) -> None:
    watched = open_page(crowded.url, viewport={"width": width, "height": 844}, timezone_id=ZONE)
    watched.expected = ["404"]
    page = watched.page
    for screen in (*SEEN, "/timers?part=customer", "/dead-letters?code=topic-unknown"):
        page.goto(crowded.url + screen)
        settled(page)
        page.locator("time + .rel").first.or_(page.locator("h1")).first.wait_for()  # times have the zone beside them
        assert page.evaluate(FIND) == [], screen
        assert page.evaluate("document.documentElement.scrollWidth") <= width, screen


@pytest.mark.parametrize("width", BESIDE)
def test_what_stands_side_by_side_on_the_overview_is_not_cut(
    width: int, crowded: ConsoleProcess, open_page: Any
) -> None:
    page = open_page(crowded.url, viewport={"width": width, "height": 844}, timezone_id=ZONE).page
    page.goto(f"{crowded.url}/")
    settled(page)
    page.locator("#workers tbody tr").first.wait_for()
    assert page.evaluate(FIND) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_phone_shows_the_first_row_of_each_list(crowded: ConsoleProcess, open_page: Any) -> None:
    page = open_page(crowded.url, viewport={"width": 390, "height": 844}, timezone_id=ZONE).page
    for screen in LISTS:
        page.goto(crowded.url + screen)
        settled(page)
        assert top_of(page, "#list tbody tr, #list .card, #state .card, #list .empty") < 844 - 40, screen
    page.goto(crowded.url + "/")
    assert top_of(page, "#coming tbody tr") < 844 - 40


def test_a_phone_opens_the_menu_and_the_whole_filter(crowded: ConsoleProcess, open_page: Any) -> None:
    page = open_page(crowded.url, viewport={"width": 390, "height": 844}).page
    page.goto(crowded.url + "/timers")
    settled(page)
    assert not page.get_by_label("Due from").is_visible() and not page.get_by_role("link", name="Workers").is_visible()
    page.get_by_role("button", name="More").click()
    page.get_by_label("Due from").wait_for()
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("link", name="Workers").click()
    page.wait_for_url("**/workers")
