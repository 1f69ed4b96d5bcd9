"""Firings as they happen, in a browser: the list, its pause, and a console that is killed."""

import json
from typing import Any

import pytest

from tests.harness.console_process import ConsoleProcess
from tests.harness.records import Request
from tests.harness.system import System
from tests.harness.waiting import due_in, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.browser]


def fire(console: ConsoleProcess, target: str, *keys: str) -> None:
    """Set timers that fire at once."""
    for key in keys:
        body = {"topic": target, "key": key, "value": "v", "delay": 0}
        assert console.ask("POST", "/v1/timers", body)[0] == 201


def keys_of(page: Any) -> list[str]:
    """The keys of the listed firings, the newest first."""
    found: list[str] = page.locator(".ring tbody td:nth-child(5)").all_text_contents()
    return found


def test_firings_are_listed_and_stand_still_under_the_pointer(
    served: tuple[System, ConsoleProcess], open_page: Any
) -> None:
    system, console = served
    target = system.target()
    page = open_page(console.url).page
    page.goto(f"{console.url}/live?topics={target}")
    page.get_by_role("status").get_by_text("live", exact=True).wait_for()
    fire(console, target, "<i>one</i>")
    wait_until(lambda: keys_of(page) == ["<i>one</i>"], "the firing is listed")
    assert page.locator(".ring i").count() == 0
    row = page.locator(".ring tbody tr").first
    row.hover()
    before = row.bounding_box()
    fire(console, target, "two")
    page.get_by_text("1 newer ones wait").wait_for()
    assert row.bounding_box() == before and keys_of(page) == ["<i>one</i>"]
    page.mouse.move(2, 2)
    wait_until(lambda: keys_of(page) == ["two", "<i>one</i>"], "the list goes on")
    page.get_by_role("button", name="Pause").click()
    fire(console, target, "three")
    page.get_by_text("1 newer ones wait").wait_for()
    page.get_by_role("button", name="Go on").click()
    wait_until(lambda: len(keys_of(page)) == 3, "the list goes on")
    assert page.locator("[data-figure=fired]").text_content() == "3"
    page.locator(".ring tbody a").first.click()
    page.get_by_text("fired", exact=True).first.wait_for()


@pytest.mark.long
def test_a_record_of_any_producer_does_not_stop_the_list(served: tuple[System, ConsoleProcess], open_page: Any) -> None:
    """Its time may be no date of JavaScript, if brokers take such times."""
    _, console = served
    page = open_page(console.url).page
    fired = {"topic": "t", "timer_id": "i", "source": "r/0/1", "lag_ms": 5}
    events = [{**fired, "key": f"{ms}", "timestamp_ms": ms} for ms in (9e15, 1e300, 1_900_000_000_000)]
    body = "retry: 100000\n" + "".join(f"event: fired\ndata: {json.dumps(each)}\n\n" for each in events)
    page.route("**/v1/events?**", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    page.goto(f"{console.url}/live?topics=t")
    wait_until(lambda: len(keys_of(page)) == 3, "each firing is listed")
    times = page.locator(".ring tbody td.when").all_text_contents()
    assert times[0].startswith("2030-03-17 17:46:40") and times[2] == "9000000000000000 ms"


@pytest.mark.long
def test_a_stream_goes_on_after_its_console_was_killed(served: tuple[System, ConsoleProcess], open_page: Any) -> None:
    system, console = served
    target = system.target(partitions=2)
    watched = open_page(console.url)
    watched.expected = ["ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET"]
    page = watched.page
    page.goto(f"{console.url}/live?topics={target}")
    page.get_by_role("status").get_by_text("live", exact=True).wait_for()
    fire(console, target, "a", "b")
    wait_until(lambda: len(keys_of(page)) == 2, "the firings are listed")
    console.kill()
    system.send(*(Request(target, due_in(1), f"while-{number}") for number in range(5)))
    assert len(system.reader(target).take(7)) == 7
    console.start().wait_for("console: ")
    wait_until(lambda: len(keys_of(page)) == 7, "the stream goes on")
    fire(console, target, "z")
    wait_until(lambda: keys_of(page)[0] == "z", "and on")
    assert sorted(keys_of(page)) == sorted(["a", "b", "z", *(f"while-{number}" for number in range(5))])
