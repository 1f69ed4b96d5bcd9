"""Durable, exact timers on Apache Kafka: send a message now, get it back at the second you asked for."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("kafka-timers")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"
