"""The version of Kafka whose brokers tests and benchmarks start: ``--kafka VERSION``; else that of the product.

``tests/kafka/VERSION.toml`` names the packages of a version, and its lock has their hashes, as in
``timers/cli/broker``. ``python -m tests.harness.kafka_version`` renews these locks (part of ``make lock``).
"""

import argparse
from typing import Any

from tests.harness.process import ROOT
from timers.cli.broker import jars
from timers.errors import BrokerError
from timers.process.jars import JarSet

SHIPPED = jars.KAFKA
OTHERS = {
    spec.stem: JarSet(f"the jars of Kafka {spec.stem}", spec, BrokerError)
    for spec in sorted((ROOT / "tests" / "kafka").glob("*.toml"))
    if not spec.name.endswith(".lock.toml")
}


def _version_of(jar_set: JarSet) -> str:
    return next(jar.version for jar in jar_set.locked() if jar.artifact.startswith("kafka_"))


def chosen() -> str:
    """The version whose brokers this process starts."""
    return _version_of(jars.KAFKA)


def choose(version: str) -> None:
    """Start brokers of this version from now on, in this process.

    Raises:
        ValueError: there is no lock of this version.
    """
    known = {_version_of(SHIPPED): SHIPPED, **OTHERS}
    if version not in known:
        raise ValueError(f"Kafka {version} has no lock in tests/kafka: choose one of {', '.join(sorted(known))}")
    jars.KAFKA = known[version]


class _Choose(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, _namespace: Any, value: Any, _option: Any = None) -> None:
        try:
            choose(value)
        except ValueError as error:
            parser.error(str(error))


def add_option(parser: argparse.ArgumentParser) -> None:
    """Give a command the option ``--kafka VERSION``, which holds as soon as it is parsed."""
    parser.add_argument(
        "--kafka", action=_Choose, metavar="VERSION", help=f"of the broker ({', '.join(sorted(OTHERS))}; {chosen()})"
    )


if __name__ == "__main__":
    from tests.harness.oauth import JOSE4J
    from tests.harness.strangers import STREAMS_JARS

    for jar_set in (*OTHERS.values(), JOSE4J, STREAMS_JARS):
        print(jar_set.relock())
