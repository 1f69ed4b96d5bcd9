"""The versions of Kafka on which the tests with a broker can run."""

import argparse
import tomllib
from collections.abc import Iterator

import pytest

from tests.harness import kafka_version
from tests.harness.constants import Constants
from timers.cli.broker import jars


@pytest.fixture(autouse=True)
def shipped(constants: Constants) -> Iterator[str]:
    """The version that a test may replace."""
    constants(jars, KAFKA=jars.KAFKA)
    yield kafka_version.chosen()


@pytest.mark.parametrize("version", ["3.9.1", "4.4.0"])
def test_each_version_has_the_hashes_of_its_jars(version: str) -> None:
    parser = argparse.ArgumentParser()
    kafka_version.add_option(parser)
    parser.parse_args(["--kafka", version])

    assert kafka_version.chosen() == version
    wanted = tomllib.loads(jars.KAFKA.spec.read_text())["dependencies"]["coordinates"]
    locked = {(jar.group, jar.artifact, jar.version) for jar in jars.KAFKA.locked()}
    assert {tuple(each.rstrip("!").split(":")) for each in wanted} <= locked, "make lock renews it"
    assert {jar.version for jar in jars.KAFKA.locked() if jar.group == "org.apache.kafka"} == {version}
    assert all(len(jar.sha256) == 64 for jar in jars.KAFKA.locked())


def test_the_version_of_the_product_needs_no_second_lock(shipped: str) -> None:
    kafka_version.choose("4.4.0")
    kafka_version.choose(shipped)
    assert kafka_version.chosen() == shipped
    assert jars.KAFKA.spec.parent.name == "broker"


def test_an_unknown_version_is_refused_with_those_we_have(shipped: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    kafka_version.add_option(parser)
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(["--kafka", "3.8.0"])
    assert f"Kafka 3.8.0 has no lock in tests/kafka: choose one of 3.9.1, {shipped}, 4.4.0" in capsys.readouterr().err
