"""docs/security.md says of ACLs what the broker tests try, and names no setting that there is not."""

import re
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

from tests.harness.acls import worker_acls
from timers.client import retry
from timers.machines.queries.pages import QueryPages
from timers.process.clock import Clock
from timers.process.config.declarations import SETTINGS
from timers.process.config.settings import Settings
from timers.queue import records
from timers.spark import monitoring
from timers.wire import headers, topics
from timers.wire.formats import countdown, schedule
from timers.worker import web

DOC = (Path(__file__).parents[2] / "docs" / "security.md").read_text()

LINE = re.compile(
    r"^\$A --(?P<kind>[a-z-]+) (?P<name>\S+) (?:--resource-pattern-type (?P<pattern>\w+) )?(?P<rest>.*)$",
    re.MULTILINE,
)


def name_of(value: object) -> str:
    assert isinstance(value, Enum)
    return value.name.lower()


def test_the_least_acls_are_those_that_are_tried() -> None:
    said = {
        (line["kind"].replace("-", "_"), line["name"], line["pattern"] or "literal", operation.lower())
        for line in (found.groupdict() for found in LINE.finditer(re.sub(r"(?<=\S) +", " ", DOC)))
        for operation in re.findall(r"--operation (\w+)", line["rest"])
    }
    tried = {
        (
            name_of(rule.restype),
            rule.name,
            name_of(rule.resource_pattern_type),
            name_of(rule.operation).replace("_", ""),
        )
        for rule in worker_acls(Settings(), "timers", "orders")
    }
    assert said == tried


def test_the_rights_to_retry_dead_letters_are_named() -> None:
    settings = Settings()
    for name in (settings.retried_topic, topics.retrier_id(settings.app_id)):
        assert f"`{name}`" in DOC


def row_of(words: str) -> str:
    (row,) = [line for line in DOC.partition("\n## Ports\n")[2].splitlines() if line.startswith("| ") and words in line]
    return row


def test_the_pages_of_the_web_port_are_those_of_a_worker_and_of_an_engine() -> None:
    """Whoever closes ports reads there what they show."""
    nothing: Any = None

    def pages(*registers: Callable[[Callable[[str], Callable[[Any], Any]]], None]) -> set[str]:
        paths: set[str] = set()
        for register in registers:
            register(lambda path: lambda handler: paths.add(path))
        return paths

    queries = QueryPages(Settings, Clock().now_s).register
    of_worker = pages(queries, lambda page: web.register(page, nothing))
    of_engine = pages(queries, lambda page: monitoring.register(page, nothing, {}, nothing))
    assert set(re.findall(r"`(/[a-z/]+)`", row_of("`TIMERS_WEB_PORT`"))) == of_worker == of_engine


def test_each_setting_it_names_is_one() -> None:
    names = {setting.env for setting in SETTINGS.values()}
    said = set(re.findall(r"TIMERS_[A-Z_]+", DOC))
    assert said - names == set()
    assert {name for name in names if re.search("SECURITY|SASL|SSL|CALLBACK|DEPTH", name)} - said <= {
        "TIMERS_SASL_PASSWORD",
        "TIMERS_SSL_KEY_PASSWORD",
    }


def test_the_page_says_what_each_header_is_worth() -> None:
    table = DOC.partition("## What headers are worth")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
    modules = (headers, records, schedule, retry)
    names = {value for module in modules for name, value in vars(module).items() if name.isupper()}
    read = {name for name in names if isinstance(name, str) and re.fullmatch(r"[a-z0-9-]*[a-z0-9]", name)}
    assert {name for row in rows for name in re.findall(r"`([^`]+)`", row)} == {
        *read,
        countdown.CALLER,
        f"{headers.TIMER_TRACE}*",
    }
