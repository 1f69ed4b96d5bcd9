"""The pictures of README.md and docs/console.md: screens of a shop in a browser. ``make pictures`` keeps them."""

import base64
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.screens import settled
from tests.harness.console_process import ConsoleProcess, worker_and_console
from tests.harness.records import Request
from tests.harness.system import System, with_ids
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from timers.queue import Queue

pytestmark = [pytest.mark.broker, pytest.mark.browser, pytest.mark.long]

TIMEOUTS, REMINDERS, QUEUE, MISSING = "order-timeouts", "reminders", "emails", "invoices"
WORKING_HOURS = ((8, 12), (9, 30), (10, 45), (11, 38), (12, 25), (14, 40), (16, 28), (18, 60), (20, 22))
"""Hour of a day, and how many timers are due in it."""

MOST_BYTES = 100_000


@pytest.fixture(scope="module")
def shop(broker_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[System, ConsoleProcess]]:
    """A worker and a console that may write, for the app ``shop``."""
    tmp_path = tmp_path_factory.mktemp("shop")
    settings = {**with_ids(), "TIMERS_QUERIES": "values", "TIMERS_WORKER_ID": "worker-1"}
    system = System(broker_address, tmp_path, "shop", **settings)
    for topic in {TIMEOUTS, REMINDERS, QUEUE} - set(system.cluster.topics()):
        system.create_topic(topic, 2)
    with worker_and_console(system, tmp_path) as shop:
        yield shop


def fill(system: System, console: ConsoleProcess) -> None:
    """Timers of a week, timers with ids within the hour, and one that was moved."""
    today_s = int(time.time()) // 86_400 * 86_400
    week = [
        Request(
            (TIMEOUTS, REMINDERS)[number % 3 == 0],
            today_s + day * 86_400 + hour * 3600 + number * 53 % 3600,
            f"k{number}",
        )
        for day in range(1, 8)
        for hour, count in WORKING_HOURS
        for number in range(count * (1 + day % 3))
    ]
    hot = [Request(REMINDERS, today_s + 2 * 86_400 + 18 * 3600, f"hot-{number}") for number in range(900)]
    system.send(*week, *hot)
    for number in range(1017, 1041):
        key, id = f"order-{number}", f"order/{number}"
        body: dict[str, Any] = {"topic": TIMEOUTS, "key": key, "id": id, "value": '{"state": "unpaid"}'}
        assert console.ask("POST", "/v1/timers", {**body, "at": due_in(600 + 37 * (number - 1017))})[0] == 201
    wait_until(lambda: console.ask("GET", "/v1/timer?id=order%2F1040")[0] == 200, "the timers are seen")
    assert console.ask("PATCH", "/v1/timer?id=order%2F1017&wait=30", {"delay": "15m"})[0] == 200


def give_up(console: ConsoleProcess) -> None:
    """Timers that become dead letters. The overview then says so for half an hour."""
    for number in range(4):
        body = {"topic": MISSING, "key": f"invoice-{number}", "value": "{}", "delay": 0}
        assert console.ask("POST", "/v1/timers", body)[0] == 201
    path = f"/v1/dead-letters?topic={MISSING}"
    wait_until(lambda: len(console.ask("GET", path)[1]["dead_letters"]) == 4, "the dead letters are listed")


def fill_queue(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue with messages that wait, and one that was given up."""
    system.use(monkeypatch)
    with Queue(QUEUE) as queue:
        for number in range(12):
            queue.send(f"message {number}")
        (message,) = queue.receive(1, DEADLINE_S)
        message.reject("no such customer")
        queue.settle()


def take(page: Any, file: Path) -> None:
    """Take a picture of the window."""
    settled(page)
    session = page.context.new_cdp_session(page)
    picture = base64.b64decode(session.send("Page.captureScreenshot", {"format": "webp", "quality": 80})["data"])
    assert picture[8:12] == b"WEBP" and len(picture) < MOST_BYTES
    file.write_bytes(picture)


def test_pictures_of_all_screens(
    shop: tuple[System, ConsoleProcess], open_page: Any, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, console = shop
    pictures.mkdir(parents=True, exist_ok=True)
    fill(system, console)
    fill_queue(system, monkeypatch)
    first_s = due_in(3)
    steady = [Request(TIMEOUTS, first_s + number // 25, f"order-{number}", b"unpaid") for number in range(25 * 40)]
    system.send(*steady)
    page = open_page(console.url, viewport={"width": 1280, "height": 760}).page
    page.goto(f"{console.url}/live?topics={TIMEOUTS}+{REMINDERS}")
    overview = open_page(console.url, viewport={"width": 1280, "height": 760}).page
    overview.goto(f"{console.url}/")
    wait_until(lambda: page.evaluate("1") and time.time() > first_s + 30, "timers fire for half a minute")
    overview.get_by_text(re.compile(r"over \d+ s, until")).wait_for()
    overview.get_by_role("heading", name="All timers fire").wait_for()
    take(overview, pictures / "overview.webp")
    take(page, pictures / "live.webp")
    give_up(console)
    for name, path, shown in (
        ("lag", f"/lag?topic={TIMEOUTS}", "The newest"),
        ("timers", f"/timers?topic={TIMEOUTS}&prefix=order/", "order/1018"),
        ("due", "/due", " timers."),
        ("dead-letters", "/dead-letters?code=topic-unknown", "does not exist when the timer is due"),
        ("workers", "/workers", "worker-1"),
        ("cluster", "/cluster", "Topics of the app"),
        ("queue", f"/queue?name={QUEUE}", "In flight, at most"),
        ("new-timer", f"/timers/new?topic={TIMEOUTS}&key=order-17&value=unpaid&id=order/17", "client.schedule("),
        ("timer", "/timer?id=order/1017", "verdict: the former version was replaced"),
    ):
        page.goto(console.url + path)
        page.get_by_text(shown).first.wait_for()
        if name == "timer":
            page.get_by_role("button", name="Show the value").click()
            page.get_by_role("button", name="JSON").click()
        take(page, pictures / f"{name}.webp")
    assert len(list(pictures.glob("*.webp"))) >= 10
