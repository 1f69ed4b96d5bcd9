"""Fixtures of the broker tests: systems on the shared broker, and a broker of its own for one test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.ids import Ids
from tests.harness.system import System, with_ids
from timers.cli.broker import EmbeddedBroker


@pytest.fixture(scope="session")
def running(broker_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """A system whose worker runs for the whole session. Tests that use it have their own targets and do not stop it."""
    system = System(broker_address, tmp_path_factory.mktemp("running"))
    try:
        system.worker(forked=False).start().ready()
        yield system
    finally:
        system.close()


@pytest.fixture(autouse=True)
def goes_on(request: pytest.FixtureRequest) -> Iterator[None]:
    """Start the worker of :func:`running` again if it has ended: only the test in which it ended fails."""
    system: System | None = request.getfixturevalue("running") if "running" in request.fixturenames else None
    yield
    if system is not None and not (worker := system.workers[0]).running:
        said = worker.tail()
        worker.start().ready()
        pytest.fail(f"the worker that all tests share has ended:\n{said}")


@pytest.fixture
def here(running: System, monkeypatch: pytest.MonkeyPatch) -> System:
    """The system with the running worker; the environment has its settings."""
    running.use(monkeypatch)
    return running


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker for one test, not started."""
    broker = EmbeddedBroker(tmp_path / "broker", port=0)
    yield broker
    broker.stop()


@pytest.fixture
def ids(broker_address: str, tmp_path: Path) -> Iterator[Ids]:
    """An app whose timers have ids, without a worker."""
    ids = Ids(broker_address, tmp_path)
    yield ids
    ids.system.close()


@pytest.fixture
def id_system(broker_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[System]:
    """A system whose timers may have ids, without a started worker; the environment has its settings."""
    system = System(broker_address, tmp_path, **with_ids())
    system.use(monkeypatch)
    yield system
    system.close()


@pytest.fixture
def system(broker_address: str, tmp_path: Path) -> Iterator[System]:
    """A system for one test, without a started worker."""
    system = System(broker_address, tmp_path)
    yield system
    system.close()
