"""Kafka's jars: ``jgo.toml`` names the packages, ``jgo.lock.toml`` has their exact versions and hashes."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from timers.errors import BrokerError
from timers.jars import Jar, JarSet, cache_dir

__all__ = ["KAFKA", "cache_dir", "ensure", "kafka_version", "locked"]

KAFKA = JarSet("Kafka's jars", Path(__file__).with_name("jgo.toml"), BrokerError)


def locked() -> tuple[Jar, ...]:
    """Return the jars of the lock, in class path order."""
    return KAFKA.locked()


def kafka_version() -> str:
    """Return the Kafka version of the lock."""
    return next(jar.version for jar in locked() if jar.artifact.startswith("kafka_"))


def ensure(out: TextIO | None) -> list[Path]:
    """Return the paths of Kafka's jars; see :meth:`timers.jars.JarSet.ensure`."""
    return KAFKA.ensure(out)
