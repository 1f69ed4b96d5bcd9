"""Says within seconds that no broker can be reached, which librdkafka's calls say only at their timeouts."""

from __future__ import annotations

import socket
import threading
import time
from queue import Empty, Queue

from timers.config.settings import Settings
from timers.errors import TimersError

WAIT_S = 1.5
"""Time for a broker to take a connection. With the start of Python a command says within 3 s that none does."""

_RETRY_S = 0.1

_GRACE_S = 0.5
"""Added for the threads, which may get the processor late on a busy machine."""


def load_settings() -> Settings:
    """The settings of a command that needs a broker.

    Raises:
        SettingsError: a setting is wrong.
        TimersError: no broker takes a connection.
    """
    settings = Settings.load()
    check_brokers(settings)
    return settings


def check_brokers(settings: Settings) -> None:
    """Check that one of the brokers takes a connection within :data:`WAIT_S`.

    Raises:
        TimersError: none does.
    """
    deadline = time.monotonic() + WAIT_S
    results: Queue[OSError | None] = Queue()
    for address in settings.brokers.split(","):
        # Threads, because a look-up of a name has no timeout; daemons, because it must not hold up the end.
        threading.Thread(target=_connect, args=(address, deadline, results), daemon=True).start()
    reason: object = "no answer"
    for _ in settings.brokers.split(","):
        try:
            error = results.get(timeout=max(0.0, deadline - time.monotonic()) + _GRACE_S)
        except Empty:
            break
        if error is None:
            return
        reason = error.strerror or error
    raise TimersError(
        f"no broker answers at {settings.brokers} ({reason}): is it running, and is TIMERS_BROKERS right? "
        "(`timers broker start` runs a broker on this machine)"
    )


def _connect(address: str, deadline: float, results: Queue[OSError | None]) -> None:
    host, _, port = address.rpartition(":")
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=WAIT_S).close()
        except OSError as error:
            if time.monotonic() + _RETRY_S < deadline:
                time.sleep(_RETRY_S)
                continue
            results.put(error)
        else:
            results.put(None)
        return
