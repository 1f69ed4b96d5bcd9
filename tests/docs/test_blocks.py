"""Each code block of each page is checked by its language.

Shell commands are parsed: each command of ours must exist, with these options.
"""

import ast
import importlib.util
import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import click
import pytest

from tests.docs.markdown import ALL_BLOCKS, PAGES, ROOT, Block, name_of, without_blocks
from timers.cli.main import cli
from timers.errors import SettingsError
from timers.process.config.declarations import SETTINGS
from timers.process.config.variables import file
from timers.v1 import future_pb2
from timers.wire import headers, topics

LANGUAGES = {"python", "sh", "json", "java", "go", "javascript", "promql", "sql", "text", "yaml"}
"""``text`` is what a program prints, a drawing or a formula: nothing that a reader would run. ``yaml`` is values of the
chart: tests/deploy/test_chart.py. ``sql`` is for programs that read tables, which no test runs."""

SETTINGS_BY_ENV = {setting.env: setting for setting in SETTINGS.values()}
MAKE_TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"].keys()
NEXT_VERSION = PROJECT["tool"]["setuptools_scm"]["fallback_version"].removesuffix(".dev0")

PROGRAMS = """
    $A . cat cd curl cut date deploy/spark/standalone.sh do docker done du echo find for git go helm jq
    kafka-console-producer.sh kafka-configs.sh kafka-consumer-groups.sh kafka-delete-records.sh
    kafka-get-offsets.sh mv
    kafka-reassign-partitions.sh
    kafka-streams-application-reset.sh kcat kubectl mvn node npm openssl pip printf sed seq sleep spark-class
    psql sqlite3 tail test
"""
"""Other first words of commands. ``$A`` is kafka-acls.sh on the page about security, which has a test of its own."""


def of(*languages: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("block", [each for each in ALL_BLOCKS if each.language in languages], ids=str)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_blocks_are_fenced(path: Path) -> None:
    """An indented block has no language, so no test knows what to do with it."""
    lines = without_blocks(path).splitlines()
    indented = [
        f"{number + 1}: {line}"
        for number, line in enumerate(lines)
        if line.startswith("    ") and number and not lines[number - 1].strip()
    ]
    assert indented == []


def test_each_block_has_a_known_language() -> None:
    assert [f"{each}: {each.language!r}" for each in ALL_BLOCKS if each.language not in LANGUAGES] == []
    assert [str(each) for each in ALL_BLOCKS if set(each.marks) - {"run"}] == []


@of("python")
def test_python_is_valid(block: Block) -> None:
    ast.parse(block.text)


@of("json")
def test_json_is_valid(block: Block) -> None:
    json.loads(block.text)


@of("promql")
def test_queries_of_prometheus_are_valid(block: Block) -> None:
    promql_parser = pytest.importorskip("promql_parser")
    promql_parser.parse(block.text)


@of("java")
def test_names_in_java_are_those_of_the_wire(block: Block) -> None:
    """Java is not compiled here: fields, topics and headers must exist."""
    fields = {field.name for field in future_pb2.Future.DESCRIPTOR.fields}
    set_by_java = {name[0].lower() + name[1:] for name in re.findall(r"\.set([A-Z]\w*)\(", block.text)}
    assert set_by_java <= fields
    assert set(re.findall(r'"(timer-[a-z-]+)"', block.text)) <= {topics.REQUEST, headers.TIMER_KEY, headers.TIMER_TOPIC}


@of("java", "go", "javascript")
def test_lines_of_a_program_are_those_of_an_example(block: Block) -> None:
    """tests/broker/test_example_producers.py compiles and runs the examples."""
    if block.page == "docs/without-protobuf.md":
        folder = ROOT / "examples" / block.language
        (source,) = (*folder.glob("*.go"), *folder.glob("schedule.js"), *folder.rglob("Schedule.java"))
        lines = {line.strip() for line in source.read_text().splitlines()}
        assert [line for line in block.text.splitlines() if line.strip() not in lines] == []


@of("sh")
def test_shell_is_valid(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for words in commands(block.text):
        check_command(words)


SUBSTITUTION = r"\$\(([^()]+)\)"
OUTPUT = "OUTPUT"


def commands(text: str) -> list[list[str]]:
    """The simple commands of a shell script, each as its words; assignments before a command are checked, and cut.

    The output of a command in ``$(...)`` is the word :data:`OUTPUT`.
    """
    text = re.sub(r"\\\n", " ", text)
    found = [command for inner in re.findall(SUBSTITUTION, text) for command in commands(inner)]
    text = re.sub(SUBSTITUTION, OUTPUT, text)
    for line in text.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;()")
        lexer.whitespace_split = True
        command: list[str] = []
        for word in [*lexer, ";"]:
            if re.fullmatch(r"[|&;()]+", word):
                if command:
                    found.append(command)
                command = []
            elif not command and (assigned := re.fullmatch(r"(\w+)=(.*)", word, re.DOTALL)):
                check_assignment(*assigned.groups())
            else:
                command.append(word)
    return found


def check_assignment(name: str, value: str) -> None:
    if not name.startswith("TIMERS_"):
        return
    setting = SETTINGS_BY_ENV[name]
    if setting.parse is not file and value != OUTPUT:  # the file of an example does not exist here
        setting.parse(name, value)


def check_command(words: list[str]) -> None:
    match words:
        case ["timers", *arguments]:
            parse_timers(arguments)
        case ["export", *assignments]:
            for each in assignments:
                name, _, value = each.partition("=")
                check_assignment(name, value)
        case ["spark-submit", "--master", _, "OUTPUT", *arguments]:
            parse_timers(["spark", *arguments])
        case ["make", *arguments]:
            assert {each for each in arguments if "=" not in each} <= MAKE_TARGETS, words
        case ["python" | ".venv/bin/python", "-m", module, *_]:
            assert importlib.util.find_spec(module) is not None, words
        case ["pip", "install", *what]:
            for extra in re.findall(r"\[(.+?)\]", " ".join(what)):
                assert set(extra.split(",")) <= EXTRAS, words
            assert set(re.findall(r"kafka_timers-(.+?)-", " ".join(what))) <= {NEXT_VERSION}, words
        case [program, *_]:
            assert program in PROGRAMS.split(), f"{words}: is {program!r} a program that a reader has?"


def parse_timers(arguments: list[str]) -> None:
    """Parse a command line of ``timers`` as the command does, without running it."""
    command: click.Command = cli
    # With the names of the help option: a command keeps those of its first context, also for later tests.
    context = click.Context(cli, info_name="timers", **cli.context_settings)
    while isinstance(command, click.Group):
        name, found, arguments = command.resolve_command(context, arguments)
        assert name is not None and found is not None
        command = found
    with command.make_context(name, arguments, parent=context):
        pass


@pytest.mark.parametrize(
    "line",
    [
        "timers shedule --in 5s",
        "timers schedule --inn 5s --topic t --value v",
        "timers list && timers gett x",
        "TIMERS_WEB_PORT=http timers worker",
        "TIMERS_WEB_PROT=6066 timers worker",
        "export TIMERS_WEB_PROT=6066",
        "make tests",
        "python -m bench.no_such_module",
        "pip install '.[workers]'",
        "pip install dist/kafka_timers-9.9.9-py3-none-any.whl",
        "timerz list",
    ],
)
def test_a_wrong_command_would_be_found(line: str) -> None:
    with pytest.raises((click.UsageError, SettingsError, KeyError, AssertionError)):
        for words in commands(line):
            check_command(words)


def test_a_database_file_is_that_of_one_page() -> None:
    """A reader runs the pages in one folder: a second program would find the file, without its own tables."""
    texts = [(block.page, block.text) for block in ALL_BLOCKS]
    texts += [("examples/README.md", path.read_text()) for path in (ROOT / "examples").glob("*.py")]
    texts += [("docs/outbox.md", (ROOT / "timers/cli/outbox.py").read_text())]  # the help of its commands
    pages: dict[str, set[str]] = {}
    for page, text in texts:
        for name in re.findall(r"\b[a-z]+\.db\b", text):
            pages.setdefault(name, set()).add(page)
    assert {"orders.db", "receiver.db", "shop.db"} <= pages.keys()
    assert {name: found for name, found in pages.items() if len(found) > 1} == {}


CONTINUED = {"docs/first-steps.md": "README.md"}
"""Pages that begin where another one ends."""


@pytest.mark.parametrize("page", sorted({block.page for block in ALL_BLOCKS}))
def test_callback_topics_of_a_page_are_created_on_it(page: str) -> None:
    """Otherwise timers of a reader who tries it become dead letters, and those that repeat do so without end."""
    texts = [(ROOT / each).read_text() for each in (page, CONTINUED.get(page, page))]
    created = {name for text in texts for name in re.findall(r"timers topics create ([a-z-]+)", text)}
    created |= {name for text in texts for name in re.findall(r"--topic ([a-z-]+) .*--create-topic", text)}
    used = set()
    for block in ALL_BLOCKS:
        if block.page == page and "timers.testing" not in block.text:  # there all topics exist
            lines = block.text.replace("\\\n", " ")
            used |= {*re.findall(r"timers schedule .*?(?:--topic|-t) ([a-z-]+)", lines)}
            used |= {*re.findall(r"(?:\bschedule\(|\bTimerRequest\()\s*\"([a-z-]+)\"", lines)}
    assert used <= created
