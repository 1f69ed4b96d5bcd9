"""Each extra has all packages that its part of ``timers`` imports, and the locks of the images have them, too.

Imports are read in the source, those in functions as well: a package that only one request of a day needs is found.
"""

import ast
import inspect
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import distribution, packages_distributions
from itertools import chain
from pathlib import Path
from typing import Any

import click
import pytest
from packaging.requirements import Requirement

from timers.cli import lazy
from timers.cli.main import cli

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

PARTS = {
    "": ("timers.client", "timers.queue", "timers.testing"),
    "worker": ("timers.worker", "timers.offline", "timers.app"),
    "console": ("timers.console",),
    "metrics": ("timers.queue.monitoring",),
    "outbox": ("timers.outbox",),
    "broker": ("timers.cli.broker",),
    "spark": ("timers.spark", "pyspark_timers"),
}
"""Extra -> its parts of the product; "": an installation without extras. The extra `oidc` is one package."""

MAY_LACK = {
    "opentelemetry": ("only after the program has imported it", {"", "console", "metrics", "outbox", "spark"}),
    "sqlalchemy": ("only if the caller's connection is of it", {"", "outbox"}),
    "cryptography": ("only for the keys of Spark's clients", {"", "worker", "console", "metrics", "outbox"}),
    "psycopg": ("only in the relay; SimTimers relays from a list", {""}),
    "prometheus_client": ("only in what the extra metrics is for", {""}),
    "joserfc": ("the console asks for the extra oidc if an issuer is set", {"console"}),
}
"""Module that the parts of these extras may import, though the extras do not have it, and why."""

BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")
"""Fields of statements that hold statements."""

LOCKS = {"requirements.txt": ("worker", "console", "broker"), "requirements-spark.txt": ("spark",)}
"""Lock of an image, or of ``make setup`` -> the extras that it is of."""


def canonical(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


@cache
def installed(extra: str) -> frozenset[str]:
    """The packages that pip installs for an extra, without those of the extras of other packages."""
    waiting = [*PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] if extra else [])]
    found: set[str] = set()
    while waiting:
        each = Requirement(waiting.pop())
        name = canonical(each.name)
        if name in found or (each.marker and not each.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        waiting += distribution(name).requires or []
    return frozenset(found)


PACKAGES = {module: set(map(canonical, packages)) for module, packages in packages_distributions().items()}
"""Module of another project -> the packages on the index that have it, or a part of it."""


@cache
def source(module: str) -> ast.Module | None:
    """The syntax tree of a module of this project."""
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_name(f"{path.name}.py")
    is_ours = module.partition(".")[0] in {"timers", "pyspark_timers"}
    return ast.parse(file.read_text()) if is_ours and file.exists() else None


def statements(node: ast.AST, *, in_functions: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports that may run: not those for type checkers, of other Pythons, or whose absence is handled."""
    fields: tuple[str, ...] = BLOCKS
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not in_functions:
        return
    elif isinstance(node, ast.If) and (holds := condition(node.test)) is not None:
        fields = ("body",) if holds else ("orelse",)
    elif isinstance(node, ast.Try) and any("ImportError" in ast.unparse(each.type or node) for each in node.handlers):
        fields = ("orelse", "finalbody")
    for child in chain.from_iterable(getattr(node, field, ()) for field in fields):
        yield from statements(child, in_functions=in_functions)


def condition(test: ast.expr) -> bool | None:
    """Whether a condition of type checkers, or of the version of Python, holds; None: it is another one."""
    if isinstance(test, ast.Name):
        return False if test.id == "TYPE_CHECKING" else None
    if isinstance(test, ast.Compare) and ast.unparse(test.left) == "sys.version_info":
        return bool(eval(ast.unparse(test), {"sys": sys}))
    return None


@cache
def imports(module: str, *, in_functions: bool) -> frozenset[str]:
    tree = source(module)
    assert tree is not None, module
    return frozenset(names(statements(tree, in_functions=in_functions)))


def names(found: Iterable[ast.Import | ast.ImportFrom]) -> Iterator[str]:
    """The modules of imports, and the packages in which they are: Python imports these first."""
    for each in found:
        if isinstance(each, ast.Import):
            modules = [alias.name for alias in each.names]
        else:
            inside = [f"{each.module}.{alias.name}" for alias in each.names]
            modules = [str(each.module), *(name for name in inside if source(name) is not None)]
        for name in modules:
            yield from (name[: found.start()] for found in re.finditer(r"\.|$", name))


def top(module: str) -> str:
    return module.partition(".")[0]


def is_foreign(module: str) -> bool:
    return top(module) not in {"timers", *sys.stdlib_module_names}


def foreign(modules: Iterable[str], *, in_functions: bool) -> dict[str, str]:
    """Top-level module of another project -> the chain of our modules that imports it, the first one last."""
    via, found = dict.fromkeys(modules, ""), dict[str, str]()
    waiting = list(via)
    while waiting:
        module = waiting.pop()
        trail = f"{module} {via[module]}".strip()
        for name in imports(module, in_functions=in_functions):
            if source(name) is not None:
                if name not in via:
                    via[name] = f"< {trail}"
                    waiting.append(name)
            elif is_foreign(name):
                found.setdefault(top(name), trail)
    return found


def modules_of(part: str) -> list[str]:
    """A module, and all that are in it."""
    files = (ROOT / part.replace(".", "/")).rglob("*.py")
    inside = (".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files)
    return [part, *(name for name in inside if not name.endswith("__"))]


@cache
def needed(extra: str) -> dict[str, str]:
    return foreign([name for part in PARTS[extra] for name in modules_of(part)], in_functions=True)


def lacking(found: dict[str, str], packages: Iterable[str]) -> dict[str, str]:
    """What is in none of the packages."""
    return {name: trail for name, trail in found.items() if PACKAGES.get(name, set()).isdisjoint(packages)}


@pytest.mark.parametrize("extra", PARTS)
def test_an_extra_has_what_its_part_imports(extra: str) -> None:
    found = lacking(needed(extra), installed(extra))
    assert found.keys() == {name for name, (_, extras) in MAY_LACK.items() if extra in extras}, found


@pytest.mark.parametrize("extra", [extra for extra in PARTS if extra])
def test_a_missing_package_of_an_extra_names_it(extra: str) -> None:
    """``backports`` is left out: it may be there without the package that is needed, and later Pythons need none."""
    named = {canonical(Requirement(each).name) for each in PROJECT["optional-dependencies"][extra]}
    expected = {name for name in needed(extra) if not PACKAGES.get(name, set()).isdisjoint(named)}
    assert expected - {"backports", "cryptography"} <= set(lazy.MODULES[extra])


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_has_what_the_parts_of_its_extras_import(lock: str) -> None:
    locked = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / lock).read_text(), re.MULTILINE))
    may_lack = {name for name, (_, extras) in MAY_LACK.items() if extras & set(LOCKS[lock])}
    for extra in LOCKS[lock]:
        found = lacking(needed(extra), locked)
        assert found.keys() <= may_lack, (extra, found)
        assert installed(extra) <= locked, "pip takes no package without a hash"


def test_a_package_has_one_version_in_all_extras() -> None:
    found: dict[str, set[str]] = {}
    for each in map(Requirement, chain(*(PROJECT["optional-dependencies"][extra] for extra in PARTS if extra))):
        found.setdefault(canonical(each.name), set()).add(str(each.specifier))
    assert not {name: versions for name, versions in found.items() if len(versions) > 1}


def callbacks(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each command, and the function that it calls."""
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), name)
            assert found is not None
            yield from callbacks(found, (*path, name))
    if command.callback is not None:
        yield path, inspect.unwrap(command.callback)


@cache
def definitions(module: str) -> dict[str, ast.AST]:
    """Name -> the function or class of a module, or the place from which the module imports it."""
    tree = source(module)
    assert tree is not None
    found: dict[str, ast.AST] = {}
    for each in statements(tree, in_functions=True):
        if isinstance(each, ast.ImportFrom):
            found |= {alias.asname or alias.name: each for alias in each.names}
    return found | {
        each.name: each for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }


@cache
def uses(module: str, name: str) -> tuple[frozenset[str], frozenset[str]]:
    """What a function or class imports, and the names in it."""
    node = definitions(module).get(name)
    if node is None:
        return frozenset(), frozenset()
    if isinstance(node, ast.ImportFrom):
        return frozenset(names([node])), frozenset()
    inside = list(ast.walk(node))
    others = {each.id for each in inside if isinstance(each, ast.Name)}
    others -= {each.arg for each in inside if isinstance(each, ast.arg)}
    found = chain.from_iterable(statements(each, in_functions=True) for each in ast.iter_child_nodes(node))
    return frozenset({module, *names(found)}), frozenset(others)


def needed_by(function: Any) -> dict[str, str]:
    """As :func:`needed`, of one command: what is reached from its function by the names that are in it."""
    waiting, found = [(function.__module__, function.__name__)], set[str]()
    seen = set(waiting)
    for module, name in waiting:  # grows while it is read
        imported, others = uses(module, name)
        found |= imported
        place = definitions(module).get(name)
        reached = (
            [(str(place.module), name)] if isinstance(place, ast.ImportFrom) else [(module, each) for each in others]
        )
        new = {each for each in reached if source(each[0]) is not None} - seen
        seen |= new
        waiting += new
    direct = {top(name): function.__name__ for name in found if is_foreign(name)}
    return direct | foreign((name for name in found if source(name) is not None), in_functions=False)


def rows() -> Iterator[tuple[list[str], list[frozenset[str]]]]:
    """Of the page's table: words of a command, and the packages of each way to install what it needs."""
    table = (ROOT / "docs" / "install.md").read_text().partition("| command | extra |\n")[2].partition("\n\n")[0]
    for commands, extras in re.findall(r"^\| (`.*) \| (`.*) \|$", table, re.MULTILINE):
        ways = [frozenset[str]().union(*map(installed, re.findall(r"`(\w+)`", way))) for way in extras.split(" or ")]
        for command in re.findall(r"`(.*?)`", commands):
            yield command.partition(" --")[0].split(), ways


@pytest.mark.slow
def test_the_page_names_each_command_that_needs_an_extra() -> None:
    """A row has extras of which one is enough (or), or of which all are needed (commas)."""
    named = list(rows())
    for path, function in callbacks(cli):
        needs = {
            name: trail for name, trail in lacking(needed_by(function), installed("")).items() if name not in MAY_LACK
        }
        ways = next((ways for command, ways in named if command == list(path[: len(command)])), [installed("")])
        assert ways and not [found for packages in ways if (found := lacking(needs, packages))], (path, needs)
