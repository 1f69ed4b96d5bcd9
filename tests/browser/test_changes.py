"""Changes of pending timers in a browser: all that match a filter are cancelled, one is moved."""

from typing import Any

import pytest

from tests.harness.console_process import ConsoleProcess
from tests.harness.system import System
from tests.harness.waiting import due_in, wait_until
from timers.console.web.page import environment
from timers.console.web.timer_screens import COUNTED

pytestmark = [pytest.mark.broker, pytest.mark.browser]


def set_timers(console: ConsoleProcess, target: str, prefix: str, count: int) -> None:
    """Set timers that are due in an hour, and wait until the worker has them."""
    for number in range(count):
        body = {"topic": target, "key": "k", "value": "v", "at": due_in(3600), "id": f"{prefix}{number}"}
        assert console.ask("POST", "/v1/timers", body)[0] == 201
    wait_until(lambda: len(pending(console, target)) == count, "the timers are listed")


def pending(console: ConsoleProcess, target: str) -> list[dict[str, Any]]:
    """The timers of a topic."""
    found: list[dict[str, Any]] = console.ask("GET", f"/v1/timers?topic={target}")[1]["timers"]
    return found


def test_all_timers_of_a_filter_are_cancelled(served: tuple[System, ConsoleProcess], open_page: Any) -> None:
    system, console = served
    target = system.target()
    set_timers(console, target, "tenant-x/", 12)
    page = open_page(console.url).page
    page.goto(f"{console.url}/timers?topic={target}&prefix=tenant-x/")
    page.get_by_role("button", name="Count them").click()
    page.get_by_text("12 timers would be cancelled").wait_for()
    page.get_by_text("The first of them").wait_for()
    assert len(pending(console, target)) == 12
    page.get_by_role("button", name="Cancel 12").click()
    page.get_by_text("12 timers are cancelled. This was the last step").wait_for()
    page.get_by_role("button", name="Stop").wait_for(state="hidden")
    page.get_by_role("link", name="See what is left").click()
    page.get_by_text("No pending timer matches this filter").wait_for()
    assert pending(console, target) == []


def test_steps_go_on_until_they_are_stopped(served: tuple[System, ConsoleProcess], open_page: Any) -> None:
    """The answers are made here, so that there are many steps: a real step takes five seconds."""
    system, console = served
    target = system.target()
    set_timers(console, target, "slow/", 1)
    steps, is_last, fails = [0], [False], [False]
    template = environment("/ops/timers").get_template("parts/cancel_step.html")

    def answer(route: Any) -> None:
        if "confirm=" not in route.request.post_data:
            route.continue_()
        elif fails[0]:
            route.abort()
        else:
            steps[0] += 1
            counts = {name: steps[0] if name == "cancelled" else 0 for name in COUNTED}
            following = None if is_last[0] else f"token-{steps[0]}"
            body = template.render(
                counts=counts,
                following=following,
                problem=None,
                words=COUNTED,
                selection={"prefix": "slow/"},
                matching="1",
            )
            route.fulfill(content_type="text/html", body=body)

    watched = open_page(console.url)
    watched.expected = ["ERR_FAILED", "htmx:afterRequest", "htmx:sendError"]
    page = watched.page
    page.route("**/timers/cancel", answer)
    page.goto(f"{console.url}/timers?topic={target}&prefix=slow/")
    page.get_by_role("button", name="Count them").click()
    page.get_by_role("button", name="Cancel 1").wait_for()
    page.wait_for_function("() => !document.querySelector('.htmx-added')")  # until then it is a button without htmx
    page.get_by_role("button", name="Cancel 1").press("Enter")
    wait_until(lambda: page.evaluate("1") and steps[0] >= 3, "steps follow each other")
    stop = page.get_by_role("button", name="Stop")
    assert stop.evaluate("element => element === document.activeElement"), "the focus stays at the button"
    stop.press("Enter")
    page.get_by_role("button", name="Go on").wait_for()
    page.wait_for_function("() => !document.querySelector('.htmx-request')")
    page.locator("[data-progress]").get_by_text(f"{steps[0]:,} of 1 timers").wait_for()
    before = steps[0]
    fails[0] = True
    page.get_by_role("button", name="Go on").click()
    page.get_by_text("The console does not answer").wait_for()
    page.locator("[data-progress]").get_by_text(f"{before:,} of 1 timers").wait_for()
    fails[0], is_last[0] = False, True
    page.get_by_role("button", name="Go on").click()
    page.get_by_text(f"{before + 1:,} timers are cancelled. This was the last step").wait_for()
    assert steps[0] == before + 1
    page.get_by_role("button", name="Go on").wait_for(state="hidden")


def test_a_timer_is_moved_and_fires_as_it_was_set(served: tuple[System, ConsoleProcess], open_page: Any) -> None:
    system, console = served
    target = system.target()
    headers = [["trace", "abc"], ["empty", None]]
    body = {"topic": target, "key": {"base64": "/wA="}, "value": "v", "delay": "1h", "id": "moved/1", "token": "tok"}
    assert console.ask("POST", "/v1/timers", {**body, "headers": headers})[0] == 201
    wait_until(lambda: len(pending(console, target)) == 1, "the timer is listed")
    page = open_page(console.url).page
    page.goto(f"{console.url}/timer?id=moved/1")
    page.get_by_label("New due time").fill("1s")
    page.get_by_role("button", name="Change the due time").click()
    page.get_by_text("The due time is changed").wait_for()
    page.get_by_text("verdict: the former version was replaced").wait_for()
    (fired,) = system.reader(target).take(1)
    assert (fired.key, fired.value) == (b"\xff\x00", b"v")
    assert {("trace", b"abc"), ("empty", None), ("callback-token", b"tok")} <= set(fired.headers or ())
