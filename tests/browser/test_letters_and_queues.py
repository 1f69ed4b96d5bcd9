"""Dead letters and queues in a browser: what failed, why, and how it is mended."""

import re
from typing import Any

import pytest

from tests.harness.console_process import ConsoleProcess
from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.queue import Queue

pytestmark = [pytest.mark.broker, pytest.mark.browser]


def test_what_failed_is_found_and_retried(served: tuple[System, ConsoleProcess], open_page: Any) -> None:
    system, console = served
    missing = f"missing-{system.target()}"
    for number in range(3):
        body = {"topic": missing, "key": f"k{number}", "value": "<b>late</b>", "delay": 0}
        assert console.ask("POST", "/v1/timers", body)[0] == 201
    path = f"/v1/dead-letters?topic={missing}"
    wait_until(lambda: len(console.ask("GET", path)[1]["dead_letters"]) == 3, "the dead letters are listed")
    page = open_page(console.url).page
    page.goto(console.url + "/dead-letters")
    page.get_by_label("Code").select_option("topic-unknown")
    page.get_by_label("Callback topic").fill(missing)
    page.get_by_label("Written since").fill("-1h")
    page.get_by_role("button", name="Filter").click()
    page.get_by_text("The callback topic does not exist when the timer is due").wait_for()
    rows = page.locator("#list tbody tr")
    rows.nth(2).wait_for()
    assert rows.count() == 3
    rows.first.get_by_role("link").click()
    page.get_by_role("button", name="Show the request").click()
    page.locator("pre").get_by_text("<b>late</b>").wait_for()
    system.create_topic(missing, 1)
    page.get_by_role("button", name="Retry this one").click()
    page.get_by_role("button", name="Yes, publish it").click()
    page.get_by_role("link", name="See the timer").wait_for()
    page.go_back()
    page.get_by_role("button", name="Count them").click()
    page.get_by_text("2 dead letters would be retried").wait_for()
    page.get_by_role("button", name="Retry 2").click()
    page.get_by_text("2 dead letters were retried").wait_for()
    page.get_by_role("link", name="Show the list again").click()
    page.locator("#list tbody tr").get_by_text("retried").nth(2).wait_for()
    assert {record.value for record in system.reader(missing).take(3)} == {b"<b>late</b>"}


@pytest.mark.long
def test_a_queue_shows_what_waits_and_what_it_gave_up(
    served: tuple[System, ConsoleProcess], open_page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, console = served
    topic = system.target()
    system.use(monkeypatch)
    with Queue(topic) as queue:
        for text in ("bad", "good", "later"):
            queue.send(text)
        for message in (*queue.receive(1, DEADLINE_S), *queue.receive(1, DEADLINE_S)):
            message.ack() if message.value == b"good" else message.reject("no such customer")
        queue.settle()
    page = open_page(console.url).page
    page.goto(console.url + "/queues")
    page.get_by_role("link", name=topic).click()
    page.get_by_role("heading", name=f"Queue {topic}").wait_for()
    assert page.locator(".tile").first.locator(".figure").text_content() == "1"
    page.get_by_role("link", name="Dead letters of this queue").click()
    page.get_by_text("no such customer").wait_for()
    assert re.search(rf"queue={re.escape(topic)}", page.url)
    page.get_by_role("button", name="Count them").click()
    page.get_by_role("button", name="Retry 1").click()
    page.get_by_text("1 dead letter was retried").wait_for()
