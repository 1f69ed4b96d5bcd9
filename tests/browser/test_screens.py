"""Each screen: rules of accessibility in light and dark, narrow and wide windows, the keyboard alone."""

import re
from typing import Any

import pytest

from tests.browser.screens import SEEN, settled
from tests.harness.console_process import ConsoleProcess
from tests.harness.system import System
from tests.harness.waiting import due_in, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.browser]

ALL = {"resultTypes": ["violations"]}
COLOURS = {**ALL, "runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
SCHEMES = {"light": ALL, "dark": COLOURS}
"""Which rules of axe are tried in which scheme: the schemes differ in their colours only."""


@pytest.fixture(scope="module")
def seen(served: tuple[System, ConsoleProcess]) -> ConsoleProcess:
    """A console that has something to show on each screen."""
    system, console = served
    target = system.target()
    for number in range(3):
        body = {"topic": target, "key": f"k{number}", "value": "v", "at": due_in(3600), "id": f"seen/{number}"}
        assert console.ask("POST", "/v1/timers", body)[0] == 201
    wait_until(lambda: console.ask("GET", "/v1/timer?id=seen%2F2")[0] == 200, "the timers are seen")
    return console


@pytest.mark.parametrize("screen", SEEN)
def test_a_screen_can_be_used_by_all(screen: str, seen: ConsoleProcess, open_page: Any) -> None:
    from axe_playwright_python.sync_playwright import Axe

    watched = open_page(seen.url, viewport={"width": 1600, "height": 900})
    watched.expected = ["404"]
    page = watched.page
    page.goto(seen.url + screen)
    settled(page)
    for scheme, rules in SCHEMES.items():
        page.emulate_media(color_scheme=scheme)
        found = Axe().run(page, options=rules).response["violations"]
        assert [(each["id"], [node["target"] for node in each["nodes"]]) for each in found] == [], scheme
    page.set_viewport_size({"width": 390, "height": 844})
    found = Axe().run(page, options=ALL).response["violations"]
    assert [(each["id"], [node["target"] for node in each["nodes"]]) for each in found] == [], "on a phone"


def test_a_phone_shows_the_labels_of_columns_and_the_time_of_its_zone(seen: ConsoleProcess, open_page: Any) -> None:
    watched = open_page(seen.url, viewport={"width": 360, "height": 800}, timezone_id="Asia/Kolkata")
    watched.expected = ["404"]
    page = watched.page
    for screen in SEEN:
        page.goto(seen.url + screen)
        settled(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, screen
        if screen == "/timers":
            labels = "td => getComputedStyle(td, '::before').content"
            assert page.locator("#list td").nth(2).evaluate(labels) == '"Timer: "'
        if screen in ("/", "/timers", "/timer?id=seen%2F1"):
            due = page.locator("time").first
            here = page.evaluate("at => new Date(at).toTimeString().slice(0, 8)", due.get_attribute("datetime"))
            assert due.locator("+ .rel").inner_text().endswith(f"{here} UTC+5:30")


def test_a_part_that_changes_its_size_moves_nothing_that_is_about_to_be_clicked(
    seen: ConsoleProcess, open_page: Any
) -> None:
    """A refresh gives the parts above the pointer another height, by a line that is planted in the answer."""
    page = open_page(seen.url, viewport={"width": 390, "height": 844}).page
    lines = 0

    def answer(route: Any) -> None:
        found = route.fetch()
        planted = '<section id="state" data-live class="state green">' + "<p class=planted>one more line</p>" * lines
        text = re.sub(r'<section id="state"[^>]*>', planted, found.text())
        route.fulfill(response=found, body=text)

    page.goto(seen.url + "/")
    settled(page)
    link = page.get_by_role("link", name="All timers", exact=True)
    link.scroll_into_view_if_needed()
    link.hover()
    before = link.bounding_box()
    page.route("**/", answer)
    for lines in (12, 3, 0):
        page.wait_for_function("count => document.querySelectorAll('#state > p.planted').length === count", arg=lines)
        assert abs(link.bounding_box()["y"] - before["y"]) < 1, lines  # pages scroll by whole pixels
    assert page.evaluate("state.style.height") == "" and page.evaluate("getComputedStyle(state).overflowY") == "visible"


def test_the_field_of_a_topic_is_completed(seen: ConsoleProcess, open_page: Any) -> None:
    page = open_page(seen.url).page
    page.goto(seen.url + "/timers")
    topic = page.locator("#list td[data-label=Topic]").first.inner_text()
    assert page.locator("#topics option").count() == 0, "the brokers are asked when they are needed"
    page.get_by_label("Callback topic").focus()
    page.locator(f'#topics option[value="{topic}"]').wait_for(state="attached")
    offered = page.locator("#topics option").evaluate_all("all => all.map(each => each.value)")
    assert offered == sorted(offered) and not [each for each in offered if each.startswith(("timer-", "__"))]


def focus(page: Any) -> str:
    """Name of the element that the keyboard is at."""
    name: str = page.evaluate(
        """() => { const at = document.activeElement;
        return (at.getAttribute('aria-label') || at.labels?.[0]?.textContent || at.textContent).trim() }"""
    )
    return name


def go_to(page: Any, name: str) -> None:
    """Press Tab until the focus is there."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if focus(page) == name:
            visible = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert visible != "none", f"the focus on {name} is not visible"
            return
    raise AssertionError(f"{name} cannot be reached by the keyboard")


def test_a_timer_is_set_and_cancelled_by_the_keyboard(seen: ConsoleProcess, open_page: Any) -> None:
    page = open_page(seen.url).page
    page.goto(seen.url + "/")
    page.keyboard.press("Tab")
    assert focus(page) == "Skip to content"
    go_to(page, "New timer")
    page.keyboard.press("Enter")
    page.wait_for_url("**/timers/new")
    go_to(page, "Callback topic")
    page.keyboard.type("keyboard")
    go_to(page, "Time from now")
    page.keyboard.press("Control+A")
    page.keyboard.type("3h")
    go_to(page, "Id")
    page.keyboard.type("by-keyboard")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="See the timer").wait_for()
    go_to(page, "See the timer")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Cancel this timer").wait_for()
    go_to(page, "Cancel this timer")
    page.keyboard.press("Enter")
    assert focus(page) == "No, keep it", "the harmless answer has the focus"
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="hidden")
    page.keyboard.press("Enter")
    page.keyboard.press("Shift+Tab")
    assert focus(page) == "Yes, cancel it"
    page.keyboard.press("Enter")
    page.get_by_text("The timer is cancelled").wait_for()


def test_a_refresh_moves_nothing_that_is_about_to_be_clicked(seen: ConsoleProcess, open_page: Any) -> None:
    page = open_page(seen.url).page
    page.goto(seen.url + "/")
    settled(page)
    page.evaluate(
        """() => { window.fresh = {};
        addEventListener('timers:fresh', e => { fresh[e.target.id] = (fresh[e.target.id] || 0) + 1 }) }"""
    )
    link = page.locator("#coming a.id").first
    link.hover()
    link.evaluate("element => { element.dataset.mark = 'same' }")
    page.evaluate("() => { window.fresh = {} }")  # on a busy machine a refresh may have come before the pointer
    before = link.bounding_box()
    page.wait_for_function("() => (fresh.tiles || 0) >= 2")
    assert page.evaluate("() => fresh.coming || 0") == 0
    assert link.get_attribute("data-mark") == "same" and link.bounding_box() == before
    page.mouse.move(2, 2)
    page.wait_for_function("() => (fresh.coming || 0) >= 1")
    assert page.locator("[data-mark]").count() == 0


def test_pause_stops_the_refresh(seen: ConsoleProcess, open_page: Any) -> None:
    page = open_page(seen.url).page
    asked: list[str] = []
    page.clock.install()
    page.goto(seen.url + "/")
    settled(page)
    page.on("request", lambda request: asked.append(request.url))
    page.clock.run_for(3000)
    wait_until(lambda: page.evaluate("1") and asked, "the page is refreshed")
    page.get_by_role("button", name="Pause").click()
    page.clock.run_for(3000)
    asked.clear()
    page.clock.run_for(60_000)
    assert page.evaluate("1") and asked == []
    page.get_by_role("button", name="Go on").click()
    page.clock.run_for(3000)
    wait_until(lambda: page.evaluate("1") and asked, "the refresh goes on")
