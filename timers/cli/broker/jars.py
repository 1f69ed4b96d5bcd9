"""Kafka's jars: ``jgo.toml`` names the packages, ``jgo.lock.toml`` has their exact versions and hashes.

``python -m timers.cli.broker.jars`` renews the lock (part of ``make lock``).
"""

from __future__ import annotations

from pathlib import Path

from timers.errors import BrokerError
from timers.process.jars import JarSet

KAFKA = JarSet("Kafka's jars", Path(__file__).with_name("jgo.toml"), BrokerError)


if __name__ == "__main__":
    print(KAFKA.relock())
