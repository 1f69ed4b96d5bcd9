"""One embedded broker for all tests that need one: started by the first, stopped at the end of the session."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from timers.broker import EmbeddedBroker

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that runs the tests in the background has them ignore Ctrl-C, and so would all that they start; but what
    # Ctrl-C does is among what they try.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Brokers of tests live for seconds: what Java would spend on making their code faster costs more than it brings.
os.environ.setdefault("KAFKA_OPTS", "-XX:TieredStopAtLevel=1")


@pytest.fixture(scope="session")
def broker_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``host:port`` of a broker that all tests share: keep to topics and groups of your own, and never stop it."""
    properties = {
        # Compaction is looked for every 15 s by default, for which a test would wait.
        "log.cleaner.backoff.ms": "500",
        # It is never killed: that a busy machine lets it wait for some seconds is no reason to fence it.
        "broker.session.timeout.ms": "30000",
    }
    broker = EmbeddedBroker(tmp_path_factory.mktemp("shared") / "broker", port=0, properties=properties)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("KAFKA_OPTS")  # it lives long enough to become faster
            address = broker.start()
        yield address
    finally:
        broker.stop()
