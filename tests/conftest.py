"""One embedded broker for all tests that need one: started by the first, stopped at the end of the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from timers.broker import EmbeddedBroker


@pytest.fixture(scope="session")
def broker_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``host:port`` of a broker that all tests share: keep to topics and groups of your own, and never stop it."""
    broker = EmbeddedBroker(tmp_path_factory.mktemp("shared") / "broker", port=0)
    try:
        yield broker.start()
    finally:
        broker.stop()
