"""One embedded broker for all tests that need one, and which tests run on one worker of xdist."""

from __future__ import annotations

import gc
import os
import re
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness import class_archive, compiled, kafka_version
from tests.harness.brokers import NEVER_KILLED
from tests.harness.constants import Constants
from timers.cli.broker import EmbeddedBroker, embedded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that runs the tests in the background has them ignore Ctrl-C, and so would all that they start; but what
    # Ctrl-C does is among what they try.
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parents[1]

PROPERTIES = {
    # Compaction is looked for every 15 s by default, for which a test would wait.
    "log.cleaner.backoff.ms": "500",
    **NEVER_KILLED,
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Let xdist send what a test has logged: some messages have half a surrogate pair, which is no text for it."""
    report: Any = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to test machine code that is older than its source; choose the broker of the tests."""
    if changed := compiled.stale():
        raise pytest.UsageError(f"{', '.join(map(str, changed))}: changed after it was compiled; run make setup")
    if version := config.getoption("kafka"):
        try:
            kafka_version.choose(version)
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None
    if (xdist := getattr(config, "workerinput", None)) is not None:
        # A port is chosen some time before a process binds it: each worker of xdist has ports of its own.
        number, count = int(xdist["workerid"].removeprefix("gw")), xdist["workercount"]
        embedded._FREE_PORTS = embedded._FREE_PORTS[number::count]
    os.environ.setdefault("KAFKA_OPTS", class_archive.options())


def pytest_report_header() -> str:
    """The version of Kafka, without which no failure can be read."""
    return f"brokers: Kafka {kafka_version.chosen()}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """``make pictures`` keeps the pictures that the tests of the pages take; ``make test-kafka`` chooses the broker."""
    parser.addoption("--pictures", metavar="DIRECTORY", help="where pictures of the console's pages are written")
    parser.addoption("--kafka", metavar="VERSION", help="of the brokers; tests/kafka has the locks of the versions")


def shared_broker(session_directory: Path) -> EmbeddedBroker:
    """The broker of this test session, which all workers of xdist use: the first one starts it."""
    return EmbeddedBroker(session_directory / "shared" / "broker", port=0, properties=PROPERTIES)


def session_directory(config: pytest.Config) -> Path:
    """The temporary directory of the session; each worker of xdist has a directory in it."""
    # The fixture of this name is not there when the session ends.
    base: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    return base.parent if hasattr(config, "workerinput") else base


@pytest.fixture
def constants(monkeypatch: pytest.MonkeyPatch) -> Constants:
    """Sets constants of modules until the end of the test."""
    return Constants(monkeypatch)


@pytest.fixture(scope="session")
def broker_address(request: pytest.FixtureRequest) -> str:
    """``host:port`` of a broker that all tests share: keep to topics and groups of your own, and never stop it."""
    return shared_broker(session_directory(request.config)).start()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with the Kafka connector and Delta, for all tests: a start costs ten seconds."""
    from tests.harness.spark_job import FAST  # not at the top: importing Spark takes seconds
    from timers.spark.session import Launch, start

    directory = tmp_path_factory.mktemp("spark")
    settings = {**FAST, "spark.sql.warehouse.dir": str(directory / "warehouse")}
    session = start(Launch("tests", directory / "spark.log", "local[2]", defaults=settings))
    yield session
    session.stop()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop the broker, after all workers of xdist have ended."""
    if not hasattr(session.config, "workerinput"):
        directory = session_directory(session.config)
        if (directory / "shared").exists():
            shared_broker(directory).stop()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first: Spark's tests, which are two groups, then other groups, large ones first.

    Of groups with one size, files that start brokers come first.

    Without a broker these are the runs of the simulator.
    """
    sizes = Counter(group_of(item.nodeid) for item in items)

    def order(item: pytest.Item) -> tuple[bool, bool, int, bool]:
        group = group_of(item.nodeid)
        is_simulator = group.startswith("tests/simulation/test_simulator")
        starts = starts_brokers(group.partition("::")[0])
        return not group.startswith("spark"), not is_simulator, -sizes[group], not starts

    items.sort(key=order)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the garbage collector rest while tests are imported, and pass over what the imports have made: it stays, and
    looking at it costs a quarter of the imports and a tenth of the tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadgroup``, tests that share a fixture of their file or Spark's session run in one process."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class BySharedFixture(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return BySharedFixture(config, log)


def group_of(nodeid: str) -> str:
    """The name of the tests that run in the same process as this one."""
    path = nodeid.partition("::")[0]
    if path.startswith("tests/spark/test_engine") or "[spark" in nodeid:
        return "spark engine"  # each start of Spark costs ten seconds of two cores
    if path.startswith("tests/spark/"):
        return "spark"
    if path.startswith("tests/browser/"):
        return "browser"  # one browser, one worker and one console serve all of them
    return path if shares_a_fixture(path) else nodeid


@cache
def shares_a_fixture(path: str) -> bool:
    """Whether a file has a fixture for all its tests, or uses the worker that many tests share."""
    return re.search(r'scope="module"|running: System', (ROOT / path).read_text()) is not None


@cache
def starts_brokers(path: str) -> bool:
    """Whether a file starts brokers of its own. Each start takes seconds."""
    return path.endswith(".py") and "EmbeddedBroker" in (ROOT / path).read_text()
