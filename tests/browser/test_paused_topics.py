"""Paused callback topics in a browser: pause, look, resume slowly."""

from typing import Any

import pytest

from tests.harness.console_process import ConsoleProcess
from tests.harness.system import System, soon
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.browser]


def test_a_topic_is_paused_and_resumed_after_a_look(served: tuple[System, ConsoleProcess], open_page: Any) -> None:
    system, console = served
    target = system.target()
    page = open_page(console.url).page
    page.goto(console.url + "/")
    page.get_by_role("link", name="Paused topics").click()
    page.get_by_role("combobox", name="Callback topic").fill(target)
    page.get_by_label("Why").fill("provider <down>")
    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_text("The workers take it within two seconds").wait_for()
    page.get_by_role("heading", name=target).wait_for()  # the list shows it without a reload

    def is_taken() -> bool:
        (found,) = (each for each in console.ask("GET", "/v1/targets")[1]["targets"] if each["topic"] == target)
        return not found["waits_for"]

    wait_until(is_taken, "each partition has taken it")
    requests = system.send(*soon(target, 20))
    system.wait_past(requests[0].due_s)
    page.get_by_text("20 timers", exact=True).wait_for()  # counted anew, while the pointer is on a button below
    page.goto(console.url + "/")
    page.get_by_text("A callback topic is paused").first.wait_for()
    page.goto(console.url + "/targets")
    page.get_by_text("provider <down>").wait_for()
    assert not system.reader(target).rest()
    page.get_by_label("Send the held timers evenly over").fill("5s")  # longer than the list takes to refresh
    page.get_by_role("button", name="Resume …").click()
    page.get_by_text("4 a second").wait_for()
    page.get_by_role("button", name=f"Resume {target}", exact=True).click()
    page.get_by_text("it was paused without an end").wait_for()
    page.get_by_text("being sent", exact=True).wait_for()
    system.fired(requests)
    page.get_by_text("No callback topic is paused").wait_for()


def test_what_is_typed_is_kept_while_the_list_refreshes(served: tuple[System, ConsoleProcess], open_page: Any) -> None:
    system, console = served
    target = system.target()
    assert console.ask("POST", "/v1/targets/pause", {"topic": target})[0] == 200
    page = open_page(console.url).page
    page.goto(console.url + "/targets")
    over = page.get_by_role("form", name=f"Resume {target}").get_by_label("Send the held timers evenly over")
    over.fill("7m")
    page.get_by_label("Why").click()  # the pointer and the focus are elsewhere
    with page.expect_response("**/targets"):
        pass
    with page.expect_response("**/targets"):
        pass
    assert over.input_value() == "7m"
    assert console.ask("POST", "/v1/targets/resume", {"topic": target})[0] == 200
