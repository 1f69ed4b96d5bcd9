"""Text that would change the direction of a page, in a browser: pages and scripts show it escaped."""

import re
from typing import Any

import pytest

from tests.harness.console_process import ConsoleProcess
from tests.harness.system import System
from tests.harness.waiting import due_in, wait_until
from timers.core.printable import UNSAFE_CHARACTERS, printable

pytestmark = [pytest.mark.broker, pytest.mark.browser]

HOSTILE = "inv\u202efdp.exe\u2066\u200f \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \U0001f468\u200d\U0001f467"
SHOWN = printable(HOSTILE)


def assert_safe(page: Any) -> None:
    """Nothing on the page holds such text, in an element or an attribute that is shown."""
    shown: str = page.evaluate(
        """() => [document.title, document.documentElement.innerText,
        ...[...document.querySelectorAll('[title], [aria-label], [alt], [placeholder]')].map(
            each => each.title + each.ariaLabel + each.alt + each.placeholder)].join(' ')"""
    )
    assert not re.search(UNSAFE_CHARACTERS, re.sub(r"[\n\t]", "", shown))


def test_pages_show_marks_of_direction_escaped(served: tuple[System, ConsoleProcess], open_page: Any) -> None:
    system, console = served
    body = {"topic": system.target(), "key": HOSTILE, "value": HOSTILE, "at": due_in(3600), "id": HOSTILE}
    assert console.ask("POST", "/v1/timers", body)[0] == 201
    page = open_page(console.url).page
    wait_until(
        lambda: page.goto(f"{console.url}/timers?prefix=inv") and page.get_by_text(SHOWN).count(), "it is listed"
    )
    assert_safe(page)
    page.get_by_role("link", name=SHOWN, exact=True).click()
    page.get_by_role("button", name="Show the value").click()
    page.get_by_label("Value", exact=True).get_by_text(SHOWN).wait_for()
    page.get_by_text("requested").wait_for()
    assert page.title().startswith(SHOWN) and page.locator("h1").text_content() == f"Timer {SHOWN}"
    assert_safe(page)
    page.get_by_role("button", name="Cancel this timer").click()
    assert_safe(page)
    page.get_by_role("button", name="Yes, cancel it").click()
    page.get_by_text("The timer is cancelled").wait_for()


def test_the_script_of_firings_follows_the_same_rule(served: tuple[System, ConsoleProcess], open_page: Any) -> None:
    system, console = served
    target = system.target()
    page = open_page(console.url).page
    page.goto(f"{console.url}/live?topics={target}")
    page.get_by_role("status").get_by_text("live", exact=True).wait_for()
    body = {"topic": target, "key": HOSTILE, "value": "v", "delay": 0, "id": f"live {HOSTILE}"}
    assert console.ask("POST", "/v1/timers", body)[0] == 201
    page.get_by_role("link", name=f"live {SHOWN}").wait_for()
    assert page.locator(".ring tbody td:nth-child(5)").all_text_contents() == [SHOWN]
    assert_safe(page)
    codes = [*range(0x2100), 0x3042, *range(0xD7F0, 0xE010), 0xFEFF, 0x1F600]
    texts = [f"a{chr(code)}b" for code in codes] + ["\ud83d", HOSTILE]
    from_units = "String.fromCharCode(...units)"
    units = [[int.from_bytes(pair) for pair in _pairs(text)] for text in texts]
    shown = page.evaluate(f"(all) => all.map((units) => timersPrintable({from_units}))", units)
    assert shown == [printable(text) for text in texts]


def _pairs(text: str) -> list[bytes]:
    data = text.encode("utf-16-be", "surrogatepass")
    return [data[start : start + 2] for start in range(0, len(data), 2)]
