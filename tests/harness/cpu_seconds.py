"""Shows where the CPU time of a test run goes: ``python -m pytest -p tests.harness.cpu_seconds ...``.

At the end it prints the CPU seconds of the collection, of each file, and of the tests that need most. A test's seconds
are those of the test process and of the child processes that have ended during the test; a broker or a worker that ends
later, or in another process, is not in them. Waiting costs nothing here: ``--durations`` shows elapsed seconds.
"""

import resource
import time
from collections import defaultdict
from collections.abc import Generator, Mapping
from typing import Any

import pytest

MOST = 40
"""How many files and how many tests are printed."""

COLLECTION = "collection and imports"

used: dict[str, float] = defaultdict(float)
"""CPU seconds by node id, of all test processes."""


def cpu_s() -> float:
    """CPU seconds of this process and of its child processes that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Count the seconds of a test with its fixtures."""
    before = cpu_s()
    result = yield
    used[item.nodeid] += cpu_s() - before
    return result


def pytest_collection_finish() -> None:
    """Count the seconds until here."""
    used[COLLECTION] += cpu_s()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of xdist sends its seconds to the process that prints them."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["cpu_seconds"] = dict(used)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add the seconds of a worker of xdist."""
    add(getattr(node, "workeroutput", {}).get("cpu_seconds", {}))


def add(seconds: Mapping[str, float]) -> None:
    """Add the seconds of another process."""
    for name, more in seconds.items():
        used[name] += more


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the seconds."""
    files: dict[str, float] = defaultdict(float)
    for name, seconds in used.items():
        files[name.partition("::")[0]] += seconds
    for what, counted in (("files", files), ("tests", used)):
        terminalreporter.section(f"CPU seconds of {what}: {sum(counted.values()):.1f} in all")
        for name in sorted(counted, key=lambda name: -counted[name])[:MOST]:
            terminalreporter.line(f"{counted[name]:7.2f} {name}")
