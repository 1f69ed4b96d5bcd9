"""The page on versions of Kafka claims tests on the versions that tests can start, and on no others."""

import re
from pathlib import Path

from tests.harness.kafka_version import OTHERS, chosen

PAGE = (Path(__file__).parents[2] / "docs" / "kafka-versions.md").read_text()
FAULTS = "### Faults of brokers"
ROWS = re.findall(r"^\| ([^|]+) \| (tests run|read \[\d\]|no(?: \[\d\])?) \|", PAGE, re.MULTILINE)


def test_tests_run_on_the_versions_that_have_a_lock() -> None:
    assert {name for name, state in ROWS if state == "tests run"} == {chosen(), *OTHERS}


def test_each_vendor_has_a_source() -> None:
    vendors = PAGE[PAGE.index("## Kafka of others") :]
    cited = [int(number) for number in re.findall(r"\| (?:read|no) \[(\d)\]", vendors)]
    sources = [int(number) for number in re.findall(r"^(\d)\. .*\[", vendors, re.MULTILINE)]
    assert cited == sources == list(range(1, len(cited) + 1))
    tables = PAGE[PAGE.index("## Apache Kafka") : PAGE.index(FAULTS)] + vendors
    assert len(ROWS) == len(re.findall(r"^\| (?!-|version|cluster|it needs)", tables, re.MULTILINE))


def test_the_faults_of_the_embedded_broker_are_those_of_its_version() -> None:
    """With another version, look the corrections up in its source, and say so."""
    faults = PAGE[PAGE.index(FAULTS) : PAGE.index("## Kafka of others")]
    assert f"The [embedded broker](first-steps.md), {chosen()}, has the corrections" in faults
