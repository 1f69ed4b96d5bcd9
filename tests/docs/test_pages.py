"""What the pages name exists: links, headings, settings, metrics, commands and their options."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from prometheus_client import generate_latest

from tests.docs.markdown import PAGES, ROOT, name_of, without_blocks
from tests.harness.sim_console import SimCluster
from timers.cli.main import cli
from timers.console.web.server import Server
from timers.outbox.monitoring import METRICS as OUTBOX_METRICS
from timers.process.config.declarations import SETTINGS
from timers.process.config.settings import Settings
from timers.process.metrics import Entry
from timers.queue.monitoring import METRICS as QUEUE_METRICS
from timers.spark.monitoring import METRICS as SPARK_METRICS
from timers.worker.metrics import METRICS as WORKER_METRICS

OLDER = {"UPGRADING.md"}
"""This page also contains former names."""

DECISIONS = [path for path in PAGES if path.parent.name == "adr"]
CURRENT = [path for path in PAGES if name_of(path) not in OLDER and path not in DECISIONS]

ENVIRONMENT = {setting.env for setting in SETTINGS.values()}
PATTERNS = {"TIMERS_", "TIMERS_SSL_", "TIMERS_SECURITY_"}
"""Beginnings of names, which stand for a group of settings."""

MAKEFILE = (ROOT / "Makefile").read_text()
PARTS_OF_CHECK = {f"test-{part}" for part in re.findall(r"^PARTS = (.+)$", MAKEFILE, re.MULTILINE)[0].split()}
MAKE_TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE)) | PARTS_OF_CHECK

OF_PROMETHEUS = re.compile(r"_(bucket|sum|count)$")


def headings(path: Path) -> Iterator[str]:
    """The anchors that GitHub gives to the headings of a page."""
    for title in re.findall(r"^#+ (.+)$", without_blocks(path), re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).replace("`", "")
        yield re.sub(r"[^\w -]", "", plain.lower()).replace(" ", "-")


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_each_link_leads_somewhere(path: Path) -> None:
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_blocks(path)):
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if not target.exists() or (anchor and anchor not in headings(target)):
            dead.append(link)
    assert dead == []


def test_the_index_names_each_page() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link).resolve() for link in re.findall(r"\]\(([^)#\s]+)\)", index.read_text())}
    assert {name_of(path) for path in PAGES} - {name_of(path) for path in [index, *DECISIONS]} == {
        name_of(path) for path in linked if path.suffix == ".md"
    }


def test_each_decision_has_a_number_of_its_own() -> None:
    numbers = [int(path.name[:4]) for path in DECISIONS]
    assert sorted(numbers) == list(range(1, len(DECISIONS) + 1))
    titles = {path.name: re.match(r"# (\d+)\. ", path.read_text()) for path in DECISIONS}
    assert [name for name, title in titles.items() if title is None or int(title[1]) != int(name[:4])] == []


@pytest.mark.parametrize("path", CURRENT, ids=name_of)
def test_settings_and_metrics_exist(path: Path) -> None:
    text = path.read_text()
    assert set(re.findall(r"\bTIMERS_[A-Z_]*", text)) <= ENVIRONMENT | PATTERNS | {"TIMERS_NAME"}
    catalogs: tuple[Entry[Any], ...] = (*WORKER_METRICS, *QUEUE_METRICS, *SPARK_METRICS, *OUTBOX_METRICS)
    metrics = {entry.name for entry in catalogs}
    named = {OF_PROMETHEUS.sub("", name) for name in re.findall(r"`(timers_[a-z_]+)[`{]", text)}
    console = Server(Settings.load({"TIMERS_BROKERS": "nowhere:1"}), SimCluster())
    of_console = set(re.findall(r"^# TYPE (\w+)", generate_latest(console.metrics).decode(), re.MULTILINE))
    assert named - metrics - of_console <= {"timers_on_spark"}


def options(command: click.Command, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], set[str]]:
    """Each command of ``timers``, as its words, with its options."""
    found = {path: {option for param in command.params for option in param.opts} | {"--help", "--version"}}
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            child = command.get_command(click.Context(command), name)
            assert child is not None
            found |= options(child, (*path, name))
    return found


OPTIONS = options(cli)


def test_the_page_on_security_names_each_kind_of_process_with_a_port_of_metrics() -> None:
    """Whoever closes ports reads there which there are."""
    kinds = {"queue": "a queue's process", "outbox": "a relay of an outbox", "spark": "a job on Spark"}
    assert {path[0] for path, found in OPTIONS.items() if "--metrics-port" in found} == kinds.keys()
    lines = (ROOT / "docs" / "security.md").read_text().splitlines()
    (row,) = [line for line in lines if line.startswith("| ") and "`--metrics-port`" in line]
    assert all(words in row for words in kinds.values())


@pytest.mark.parametrize("path", CURRENT, ids=name_of)
def test_commands_in_text_exist_and_have_the_options(path: Path) -> None:
    """A command in text, as in `timers spark audit --from 1d`; blocks are checked elsewhere."""
    wrong = []
    for said in re.findall(r"`timers ([a-z][^`]*)`", without_blocks(path)):
        words = tuple(re.match(r"[a-z -]*", said)[0].split())  # type: ignore[index]
        known = max((words[:length] for length in range(len(words) + 1) if words[:length] in OPTIONS), key=len)
        used = {option.partition("=")[0] for option in re.findall(r"(?<!\S)--[a-z-]+", said)}
        if not known or used - OPTIONS[known]:
            wrong.append(said)
    assert wrong == []


@pytest.mark.parametrize("path", CURRENT, ids=name_of)
def test_options_in_text_are_options_of_a_command(path: Path) -> None:
    """An option alone, as in `--tables`. Options of bench are its own."""
    if path.parent.name == "bench":
        return
    known = set().union(*OPTIONS.values())
    said = set(re.findall(r"`(--[a-z][a-z0-9-]+)", without_blocks(path)))
    assert said - known == set()


@pytest.mark.parametrize("path", CURRENT, ids=name_of)
def test_targets_of_make_in_text_exist(path: Path) -> None:
    """A target in text, as in `make check`; blocks are checked elsewhere."""
    assert set(re.findall(r"`make ([a-z][a-z-]*)", without_blocks(path))) <= MAKE_TARGETS
