"""One browser, one worker and one console for all tests of the pages, and a page that notices what goes wrong."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import chromium
from tests.harness.console_process import ConsoleProcess, worker_and_console
from tests.harness.system import System, with_ids
from tests.harness.waiting import DEADLINE_S


@pytest.fixture(scope="package")  # not the session: its event loop would run in the thread of later tests
def browser() -> Iterator[Any]:
    """Chromium, without a window."""
    from playwright.sync_api import sync_playwright  # not at the top: pytest imports this file also without a browser

    with sync_playwright() as playwright:
        # Its sandbox does not work for root, as which CI runs.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium.path(), args=arguments, timeout=1000 * DEADLINE_S)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def served(broker_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[System, ConsoleProcess]]:
    """A worker with ids, and a console below a path of a proxy, which may write."""
    tmp_path = tmp_path_factory.mktemp("pages")
    system = System(broker_address, tmp_path, **with_ids(), TIMERS_QUERIES="values")
    with worker_and_console(system, tmp_path, "/ops/timers") as served:
        yield served


class Watched:
    """A page of the browser, and all that a user of its console would not see.

    Attributes:
        noise: errors of scripts, violations of the policy, requests to elsewhere.
        expected: parts of noise that a test brings about, such as the status of an answer.
    """

    def __init__(self, browser: Any, base_url: str, **options: Any) -> None:
        self.noise: list[str] = []
        self.expected: list[str] = []
        self._context = browser.new_context(base_url=base_url, **options)
        self._context.set_default_timeout(DEADLINE_S * 1000)
        self.page = self._context.new_page()
        self.page.on("console", self._on_message)
        self.page.on("pageerror", lambda error: self.noise.append(str(error)))
        self.page.on("request", lambda request: self._on_request(request.url, base_url))

    def _on_message(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.noise.append(message.text)

    def _on_request(self, url: str, base_url: str) -> None:
        if not url.startswith((base_url, "data:", "blob:")):
            self.noise.append(f"request to {url}")

    def close(self) -> None:
        """End, and check that nothing went wrong unseen."""
        self._context.close()
        unexpected = [text for text in self.noise if not any(each in text for each in self.expected)]
        assert unexpected == []


@pytest.fixture
def open_page(browser: Any) -> Iterator[Any]:
    """Opens pages of a console; at the end of the test each is checked."""
    opened: list[Watched] = []

    def open_at(base_url: str, **options: Any) -> Watched:
        opened.append(Watched(browser, base_url, **options))
        return opened[-1]

    yield open_at
    for each in opened:
        each.close()


@pytest.fixture(scope="session")
def pictures(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pictures of the pages go: the directory of the option ``--pictures``, or one that is thrown away."""
    given = request.config.getoption("--pictures")
    return Path(given) if given else tmp_path_factory.mktemp("pictures")
