"""How ``timers`` is put together: what imports what, as far as import-linter does not see it.

import-linter keeps packages in their rows. It looks for no circles inside a package, and Python does not stumble over
one whose imports are for type checkers only (``TYPE_CHECKING``). But files that name each other must be read together:
so each import counts here. If a number below falls, write the lower one. If it rises, find another place for what was
added.
"""

import ast
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TypeAlias

import timers

PRODUCT = Path(timers.__file__).parent
ROOT = PRODUCT.parent

STATEMENTS = ("body", "orelse", "handlers", "finalbody", "cases")
"""Fields of statements that hold statements."""

Graph: TypeAlias = Mapping[str, Iterable[str]]
"""Name -> what it imports."""

MOST_ENTRIES = 19
"""Files and folders of ``timers``."""

MOST_ROWS = 10
"""Rows of the import law in pyproject.toml, which CONTRIBUTING draws."""

LONGEST_CHAIN = 10
"""Folders of the longest chain in which each imports the next one; a ring counts as one."""


@cache
def modules() -> dict[str, Path]:
    """Name of a module -> its file."""
    paths = {path.relative_to(ROOT): path for path in PRODUCT.rglob("*.py")}
    return {".".join(name.with_suffix("").parts).removesuffix(".__init__"): path for name, path in paths.items()}


def imports(source: str, known: Iterable[str]) -> Iterator[str]:
    """The modules that a source imports, in functions and for type checkers too."""
    nodes: list[ast.AST] = [ast.parse(source)]
    for node in nodes:  # grows while it is read; expressions are left out, because they are many
        for field in STATEMENTS:
            nodes += getattr(node, field, ())
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in known else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@cache
def imported() -> dict[str, set[str]]:
    known = modules()
    return {name: known.keys() & set(imports(path.read_text(), known)) - {name} for name, path in known.items()}


@cache
def folders() -> dict[str, set[str]]:
    """Folder -> the folders whose files its files import, without the files that stand directly in ``timers``, and
    without ``__main__``: such a file is a program, which no other one imports. The files of a folder and those of a
    folder in it are two folders."""

    def folder(module: str) -> str:
        return str((modules()[module]).parent.relative_to(ROOT))

    found: dict[str, set[str]] = {}
    for module, others in imported().items():
        if module.endswith(".__main__"):
            continue
        found.setdefault(folder(module), set()).update(map(folder, others))
    found.pop("timers")
    return {each: others - {each, "timers"} for each, others in found.items()}


def circles(graph: Graph) -> set[frozenset[str]]:
    """What reaches itself, with all that it reaches and that reaches it."""
    reached: dict[str, set[str]] = {}
    for name in graph:
        reached[name], waiting = set(), [name]
        while waiting:
            new = set(graph.get(waiting.pop(), ())) - reached[name]
            reached[name] |= new
            waiting += new
    return {
        frozenset(other for other in reached[name] if name in reached[other]) for name in graph if name in reached[name]
    }


def longest_chain(graph: Graph) -> list[frozenset[str]]:
    """The longest chain in which each imports the next one; those of a circle are one link."""
    links = {name: frozenset([name]) for name in graph} | {name: each for each in circles(graph) for name in each}

    @cache
    def chain(link: frozenset[str]) -> list[frozenset[str]]:
        following = {links[other] for name in link for other in graph[name]} - {link}
        return [link, *max(map(chain, following), key=len, default=[])]

    return max(map(chain, set(links.values())), key=len)


def test_no_modules_import_each_other() -> None:
    assert circles(imported()) == set()


def test_no_folders_import_each_other() -> None:
    assert circles(folders()) == set()


def test_chains_of_folders_are_short() -> None:
    chain = longest_chain(folders())
    assert len(chain) <= LONGEST_CHAIN, " -> ".join("+".join(sorted(link)) for link in chain)


def test_the_top_level_is_small() -> None:
    entries = {each.name for each in PRODUCT.iterdir()} - {"__pycache__"}
    assert len(entries) <= MOST_ENTRIES, sorted(entries)


def test_the_import_law_has_few_rows() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert len(contracts[0]["layers"]) <= MOST_ROWS
    drawn = {each.strip() for row in contracts[0]["layers"] for each in row.split("|")}
    files = {f"timers.{each.stem}" for each in PRODUCT.iterdir() if each.is_dir() or each.suffix == ".py"}
    assert drawn == files - {"timers.__init__", "timers.__pycache__"}, "each file and folder has a row"


def test_what_is_counted_is_seen() -> None:
    source = "if TYPE_CHECKING:\n    from a.b import c\n\ndef f():\n    import d\n    from a import b, e\n"
    assert set(imports(source, {"a.b", "a.b.c", "a"})) == {"a.b.c", "d", "a.b", "a"}
    graph = {"a": "b", "b": "cd", "c": "a", "d": "e", "e": "", "f": "b"}
    assert circles(graph) == {frozenset("abc")}
    assert longest_chain(graph) == [frozenset(each) for each in ("f", "abc", "d", "e")]
