"""``python -m bench.console``: first paint of each page of the console, and the lag of timers that fire meanwhile.

As in ``bench.listing`` a million timers wait and others fire at a steady rate; in every other turn a browser opens the
screens of a console one after the other.
"""

import argparse
import json
import threading
from collections import defaultdict

import numpy as np
from playwright.sync_api import Page, sync_playwright

from bench import listing, machine
from bench.engine import Engine
from bench.listing import Load
from bench.session import RESULTS, RunNames, Session, measuring
from tests.harness import chromium, kafka_version
from tests.harness.console_process import ConsoleProcess
from tests.harness.waiting import wait_until

SCREENS = ("/", "/timers", "/due", "/live", "/lag", "/dead-letters", "/workers", "/queues", "/timers/new")
FIRST_PAINT = """() => new Promise((resolve) => new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) if (entry.name === "first-contentful-paint") resolve(entry.startTime);
}).observe({ type: "paint", buffered: true }))"""


class Reader:
    """Opens all screens again and again while ``on`` is set, as a user with a browser does."""

    name = "pages"

    def __init__(self, session: Session, engine: Engine, names: RunNames) -> None:
        self.on = threading.Event()
        self._paints_ms: dict[str, list[float]] = defaultdict(list)
        self._ends = threading.Event()
        self._console = ConsoleProcess(
            names.directory / "console",
            {
                "TIMERS_BROKERS": session.cluster.brokers,
                "TIMERS_APP_ID": names.app_id,
                "TIMERS_REQUEST_TOPIC": names.request,
                "TIMERS_OSCILLATOR_TOPIC": names.oscillator,
                "TIMERS_DEAD_LETTER_TOPIC": f"timer-dead-letter-{names.run}",
                "TIMERS_WORKER_URL": f"http://127.0.0.1:{engine.port}",
            },
        )
        self._console.start().wait_for("console: ")
        wait_until(lambda: self._console.ask("GET", "/v1/health/ready")[0] == 200, "the console is ready")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium.path(), args=["--no-sandbox"])
            page = browser.new_page()
            while not self._ends.is_set():
                if self.on.wait(0.2):
                    self._open_all(page)
            browser.close()

    def _open_all(self, page: Page) -> None:
        for screen in SCREENS:
            if not self.on.is_set():
                return
            page.goto(self._console.url + screen, wait_until="commit")
            self._paints_ms[screen].append(float(page.evaluate(FIRST_PAINT)))

    def enter(self, phase: str) -> None:
        self.on.set() if phase == self.name else self.on.clear()

    def figures(self, seconds: int) -> dict[str, object]:
        every = [ms for paints in self._paints_ms.values() for ms in paints]
        return {
            "opened_per_s": round(len(every) / seconds, 1),
            "first_paint_ms": {"all": _quantiles(every)} | {k: _quantiles(v) for k, v in self._paints_ms.items()},
        }

    def close(self) -> None:
        self._ends.set()
        self._thread.join()
        self._console.end()


def _quantiles(values: list[float]) -> dict[str, float]:
    shown = {"p50": np.percentile(values, 50), "p99": np.percentile(values, 99), "max": max(values)}
    return {name: round(float(value), 1) for name, value in shown.items()}


def reader(session: Session, engine: Engine, names: RunNames) -> Load:
    """The load of this benchmark."""
    return Reader(session, engine, names)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.console", description="First paint of the console's pages")
    parser.add_argument("--pending", type=int, default=listing.PENDING, help=f"timers that wait ({listing.PENDING})")
    parser.add_argument("--per-s", type=int, default=listing.PER_S, help=f"timers that fire each s ({listing.PER_S})")
    parser.add_argument("--turns", type=int, default=listing.TURNS, help=f"of 10 s, an even number ({listing.TURNS})")
    parser.add_argument(
        "--publish", action="store_true", help="also write bench/results/console.json, which is tracked"
    )
    kafka_version.add_option(parser)
    options = parser.parse_args()
    with measuring("console-") as session:
        found = listing.measure(session, options.pending, options.turns, options.per_s, reader)
    text = json.dumps({"machine": machine.describe(), **found}, indent=1)
    print(text)
    if options.publish:
        (RESULTS / "console.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
