"""Limits for the sizes of files and functions, and forbidden words."""

import ast
import math
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from timers import errors

ROOT = Path(__file__).parents[2]
FILES = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
CODE = [
    name
    for name in FILES
    if name.startswith(("timers/", "tests/", "bench/")) and name.endswith(".py") and not name.startswith("timers/v1/")
]
PROSE = [name for name in CODE if name.startswith(("timers/", "bench/"))] + [
    name for name in FILES if name.endswith(".md") or name.startswith(("examples/", "deploy/"))
]

MAX_FILE_LINES = 700
MAX_FUNCTION_LINES = 65

LONGER_FILES: dict[str, str] = {}
"""File -> why it may be longer. At most two."""

LONGER_FUNCTIONS = {
    "tests/spark/test_audit_formats.py:test_every_request_format_adds_up_and_each_planted_fault_is_found": (
        "one scenario on one cluster: each planted fault needs the state before it"
    ),
    "timers/kafka/aiokafka_internals/callback_batch.py:_write": "compiled: one record, with the types of its numbers",
    "timers/machines/store/one_target.py:one_target": "compiled: one loop over bytes, with the types of its numbers",
    "timers/wire/occurrences.py:read_occurrences": "compiled: one loop over headers, with the types of its values",
    "timers/wire/plain_requests.py:read_plain": "compiled: one loop over bytes, with the types of its numbers",
}
"""``file:function`` -> why it may be longer."""

WORDS = """
    ailing anybody doors everybody lull metronome namesake nobody parcel parcels quarantine quarantined somebody spared
    tally whoever
"""
"""Former names, and words that are hard to understand."""

WORD = re.compile(rf"(?<![a-z])({'|'.join(WORDS.split())})(?![a-z])", re.IGNORECASE)

FORMER_NAMES_ALLOWED = {"UPGRADING.md"}
"""This page contains former names."""


WITH_TABLES = ("timers/core", "timers/kafka/aiokafka_internals", "timers/queue", "timers/spark/engine", "tests/harness")
"""Folders whose ``__init__`` has a table of its files."""


DEFINITION = re.compile(r"( *)(def|async def|class) ")


STATEMENTS = ("body", "orelse", "handlers", "finalbody", "cases")
"""Fields of statements that hold statements; a definition is in no expression."""


def lines_of(node: ast.stmt | ast.ExceptHandler | ast.match_case) -> float:
    """Lines of a statement. A case of a match says none: it is always looked into."""
    return math.inf if isinstance(node, ast.match_case) else (node.end_lineno or 0) - node.lineno + 1


def may_be_longer(text: str, than: int) -> bool:
    """Whether a function has more than ``than`` lines before the next definition beside it.

    Most files have none, and need not be parsed: to parse all takes seconds.
    """
    around: list[tuple[int, float]] = []
    for number, line in enumerate([*text.splitlines(), "class End:"]):
        if found := DEFINITION.match(line):
            indent = found.end(1)
            while around and around[-1][0] >= indent:
                if number - around.pop()[1] > than:
                    return True
            around.append((indent, math.inf if found[2] == "class" else number))
    return False


def functions(name: str, longer_than: int = 0) -> dict[str, int]:
    """Lines of each function of a file, without its docstring.

    Args:
        name: path of the file.
        longer_than: shorter functions may be left out: most statements need not be looked into then.
    """
    found: dict[str, int] = {}
    text = (ROOT / name).read_text()
    if longer_than and not may_be_longer(text, longer_than):
        return found
    nodes: list[ast.AST] = [ast.parse(text)]
    for node in nodes:  # grows while it is read
        for field in STATEMENTS:
            nodes += [each for each in getattr(node, field, ()) if lines_of(each) > longer_than]
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0]
            lines = (node.end_lineno or 0) - node.lineno + 1
            if ast.get_docstring(node) is not None:
                lines -= (first.end_lineno or 0) - first.lineno + 1
            found[f"{name}:{node.name}"] = max(lines, found.get(f"{name}:{node.name}", 0))
    return found


def test_no_tool_has_left_a_folder() -> None:
    """Tools keep what they have found in folders with a dot: such files are of one machine."""
    hidden = {name.split("/")[0] for name in FILES if name.startswith(".")}
    assert hidden == {".ci", ".dockerignore", ".github", ".gitignore", ".pre-commit-config.yaml"}


@pytest.mark.parametrize("folder", ["broker", "spark"])
def test_tests_that_make_check_does_not_collect_have_their_marker(folder: str) -> None:
    """``make check`` leaves out these folders: a test without the marker would run nowhere."""
    files = [name for name in FILES if name.startswith(f"tests/{folder}/test_")]
    assert files
    marked = re.compile(rf"^pytestmark = .*pytest\.mark\.{folder}\b", re.MULTILINE)
    assert [name for name in files if not marked.search((ROOT / name).read_text())] == []


def test_each_test_file_has_a_name_of_its_own() -> None:
    """Else ``pytest`` without a path collects nothing: it takes two of one name for one."""
    names = Counter(Path(name).name for name in CODE if name.startswith("tests/") and "/test_" in name)
    assert [name for name, count in names.items() if count > 1] == []


def test_no_test_file_imports_another_one() -> None:
    """What several need is in a file of its own: beside them, or in tests/harness."""
    imports = re.compile(r"^(from|import) tests\.([\w.]+\.)?test_", re.MULTILINE)
    assert [name for name in CODE if name.startswith("tests/") and imports.search((ROOT / name).read_text())] == []


def test_no_file_has_marks_of_a_merge() -> None:
    marks = re.compile(rb"^(<{7}|>{7}) ", re.MULTILINE)
    assert [name for name in FILES if marks.search((ROOT / name).read_bytes())] == []


def test_files_are_short() -> None:
    long = {name for name in CODE if len((ROOT / name).read_text().splitlines()) > MAX_FILE_LINES}
    assert long == set(LONGER_FILES)
    assert len(LONGER_FILES) <= 2


def test_functions_are_short() -> None:
    long = {
        name
        for file in CODE
        for name, lines in functions(file, MAX_FUNCTION_LINES).items()
        if lines > MAX_FUNCTION_LINES
    }
    assert long == set(LONGER_FUNCTIONS)


def test_no_forbidden_words() -> None:
    found = [
        f"{name}:{number}: {line}"
        for name in PROSE
        if name not in FORMER_NAMES_ALLOWED
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1)
        if WORD.search(line)
    ]
    assert found == []


BLOCKS = """
class A:
    def in_class(self):
        with x:
            def in_function(): pass
if x:
    def in_if(): pass
else:
    def in_else(): pass
try:
    def in_try(): pass
except E:
    def in_except(): pass
finally:
    def in_finally(): pass
for x in y:
    match x:
        case 1:
            async def in_case(): pass
"""


def test_functions_in_any_block_are_measured(tmp_path: Path) -> None:
    file = tmp_path / "blocks.py"
    file.write_text(BLOCKS)
    assert {name.rpartition(":")[2] for name in functions(str(file))} == set(re.findall(r"in_\w+", BLOCKS))
    assert functions(str(file))[f"{file}:in_class"] == 3
    assert functions(str(file), 2) == {f"{file}:in_class": 3}


@pytest.mark.parametrize("indent", ["", "    "])
@pytest.mark.parametrize("after", ["", "def after(): pass\n"])
def test_a_long_function_with_another_one_in_it_is_measured(tmp_path: Path, indent: str, after: str) -> None:
    file = tmp_path / "long.py"
    lines = ["def outer():", "    def inner():", "        pass", *["    x = 1"] * MAX_FUNCTION_LINES]
    file.write_text("class A:\n    x = 1\n" + "\n".join(indent + line for line in lines) + "\n" + after)
    assert functions(str(file), MAX_FUNCTION_LINES) == {f"{file}:outer": MAX_FUNCTION_LINES + 3}


def test_a_forbidden_word_would_be_found() -> None:
    assert WORD.search("class Quarantine:") and WORD.search("spared_topics") and not WORD.search("indoors")


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    drawn, above = [], ["TimersError"]
    for stem, name in re.findall(r"^    ([ │├└─]+)(\w+)", errors.__doc__ or "", re.MULTILINE):
        depth = len(stem) // 4
        above[depth:] = [name]
        drawn.append((name, above[depth - 1]))
    classes = {
        kind: base.rpartition(".")[2]
        for name in CODE
        if name.startswith("timers/")
        for kind, base in re.findall(r"^ *class (\w+)\(([\w.]+)", (ROOT / name).read_text(), re.MULTILINE)
    }
    kinds = {"TimersError"}
    while more := {name for name, base in classes.items() if base in kinds} - kinds:
        kinds |= more
    assert sorted(drawn) == sorted((name, classes[name]) for name in kinds - {"TimersError"} if name[0] != "_")


def test_contributing_says_what_each_package_and_shared_file_is_for() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text().partition("## Layers")[2].partition("## Roads")[0]
    modules = {Path(name).parts[1].removesuffix(".py") for name in CODE if name.startswith("timers/")} - {"__init__"}
    named = re.findall(r"`(?:timers/)?(\w+)(?:\.py)?`", "\n".join(re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)))
    assert sorted([*named, "app"]) == sorted({*modules, "v1"})


def test_each_finding_compares_what_is_seen_and_is_in_the_table() -> None:
    scripts = [name for name in FILES if name.startswith("findings/") and name.endswith(".sh")]
    compares = 'if [ "$seen" != "$expected" ]; then'
    assert [name for name in scripts if compares not in (ROOT / name).read_text()] == []
    table = re.findall(r"^\| \[([\w-]+)\]\(\1\.sh\) \|", (ROOT / "findings" / "README.md").read_text(), re.MULTILINE)
    assert table == sorted(Path(name).stem for name in scripts)


def test_only_one_file_knows_the_kinds_of_entries_by_their_lengths() -> None:
    """Of the index of ids: :mod:`timers.core.operation` has a function for each field."""
    asks = re.compile(r"len\((entry|each|operation|former)\) [=!<>]=|\b(entry|operation|former)\[")
    places = ("timers/core/", "timers/machines/store/", "timers/worker/", "timers/wire/formats/")
    known = {name for name in CODE if name.startswith(places) and asks.search((ROOT / name).read_text())}
    assert known == {"timers/core/operation.py"}, "read entries and operations by the functions of this file"


def test_only_one_module_uses_private_parts_of_pyspark() -> None:
    """What breaks with a new version of Spark stands in one place."""
    private = re.compile(
        r"^(?:from|import) py4j|java_gateway|find_spark_home|\._(?:jvm|jsc|jsq|jsparkSession|jdf)\b|_active_spark"
    )
    found = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "timers").rglob("*.py")
        if any(private.search(line) for line in path.read_text().splitlines())
    }
    assert found == {"timers/spark/jvm.py"}


def test_only_one_function_waits_for_a_producer() -> None:
    """``Producer.flush`` itself may end the process: see :func:`timers.kafka.clients.flush`."""
    product = (name for name in CODE if name.startswith("timers/"))
    assert {name for name in product if "producer.flush(" in (ROOT / name).read_text()} == {"timers/kafka/clients.py"}


@pytest.mark.parametrize("folder", WITH_TABLES)
def test_the_table_of_a_folder_has_each_of_its_files(folder: str) -> None:
    named = re.findall(r"^``(\w+)``", (ROOT / folder / "__init__.py").read_text(), re.MULTILINE)
    files = [Path(name).stem for name in CODE if Path(name).parent == Path(folder)]
    assert sorted(named) == sorted(set(files) - {"__init__"})
