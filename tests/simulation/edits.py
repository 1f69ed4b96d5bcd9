"""Breaks a rule of the product for the time of a run, by a change of its syntax tree.

A change names an expression or a statement of :data:`ROOMS` and what stands there instead. It must be there exactly
once. The file, the class and the function do not matter: so code may move, and private methods may get other names,
while the change still finds its rule. ``...`` in a change stands for any expression; the expressions that were found
there may be used again, in their order, as ``...``.

While the change is applied, the function has the code of the changed tree. So the product needs no seams for mutations.
A table at the top of a module, such as :data:`timers.machines.life.LIFE`, may be changed, too.
"""

import ast
import importlib
import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple, TypeAlias

import timers
from tests.simulation.kit.outbox import SimTransactions
from tests.simulation.kit.worker import SimWorker

ROOMS = (
    "core",
    "machines/firing",
    "machines/life.py",
    "machines/opener.py",
    "machines/store/opening.py",
    "kafka/progress_rules.py",
    "wire/cold.py",
)
"""Folders and files of the product in which a rule may be broken."""

TRANSACTION_ROOMS = (
    *(f"kafka/aiokafka_internals/{name}.py" for name in ("produce", "version_two", "transaction_errors")),
    "machines/firing/producer.py",
)
"""The same for the producer of a machine."""

SPARK_ROOMS = tuple(f"spark/engine/{name}.py" for name in ("bucket", "machines", "query"))
"""The same for the engine on Spark."""

QUEUE_ROOMS = (
    *(f"queue/{name}.py" for name in ("delivery", "entry", "ledger", "member", "metadata", "records", "sending")),
    *(f"queue/{name}.py" for name in ("settling", "starts", "verification")),
)
"""The same for queues."""

Change: TypeAlias = tuple[str, str]
"""What the product says, and what a mutation says instead: two expressions, or a statement and statements."""


class Mutation(NamedTuple):
    """A broken rule: changes of the product's code, and options of the simulator, such as a class of workers.

    The option ``simulator`` is another simulator."""

    changes: tuple[Change, ...]
    options: Mapping[str, Any]


def changed(*changes: Change, **options: Any) -> Mutation:
    """Returns the mutation that makes changes, in a run with these options."""
    return Mutation(changes, options)


def sending(producer: type[SimTransactions]) -> Mutation:
    """Returns the mutation in which each machine has a producer of this kind, which stands for a client of brokers."""

    class Worker(SimWorker):
        producer_kind = producer

    return changed(worker=Worker)


class Place(NamedTuple):
    """A part of a syntax tree that a change names."""

    node: ast.AST
    held: list[ast.AST]
    """What stands in it for each ``...``."""
    function: tuple[str, ...]
    """Names of the classes and of the function around it; the last one is the function."""


@cache
def trees(rooms: tuple[str, ...] = ROOMS) -> dict[Path, ast.Module]:
    """Returns file -> syntax tree of the rooms."""
    root = Path(timers.__file__).parent
    places = [root / room for room in rooms]
    paths = [path for room in places for path in ([room] if room.is_file() else sorted(room.rglob("*.py")))]
    return {path: ast.parse(path.read_text()) for path in paths}


@cache
def _nodes(rooms: tuple[str, ...]) -> dict[type[ast.AST], list[tuple[Path, ast.AST]]]:
    """Returns kind -> the nodes of this kind in all rooms. To walk through all trees for each change takes 0.1 s."""
    found: dict[type[ast.AST], list[tuple[Path, ast.AST]]] = {}
    for path, tree in trees(rooms).items():
        for node in ast.walk(tree):
            found.setdefault(type(node), []).append((path, node))
    return found


@contextmanager
def applied(changes: Sequence[Change], rooms: tuple[str, ...] = ROOMS) -> Iterator[None]:
    """Run with ``changes`` of these rooms.

    Raises:
        LookupError: a text is not there exactly once, or not in a function or a table, or its change has no effect.
    """
    parts = _parts(changes, rooms)
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in parts]
    try:
        for each in parts:
            setattr(*each)
        yield
    finally:
        for each in before:
            setattr(*each)


def _parts(changes: Sequence[Change], rooms: tuple[str, ...]) -> list[tuple[Any, str, Any]]:
    """Returns what is changed: an object, the name of its attribute, and the new value. It is the code of a function,
    or a table of a module."""
    edited: dict[Path, ast.Module] = {}
    functions: set[tuple[Path, tuple[str, ...]]] = set()
    tables: set[tuple[Path, int]] = set()
    for old, new in changes:
        pattern, statements = _parsed(old, new)
        path = _path(old, pattern, edited, rooms)
        tree = edited.setdefault(path, ast.parse(path.read_text()))
        (place,) = _places(tree, pattern)
        if place.function:
            top = tree.body.index(_definition(tree, place.function[0]))
            functions.add((path, place.function))
        else:
            top = next(number for number, each in enumerate(tree.body) if place.node in ast.walk(each))
            if not isinstance(tree.body[top], ast.AnnAssign) or tree.body[top] is place.node:
                raise LookupError(f"{old!r} is not inside a function or a table of {path}")
            tables.add((path, top))
        tree.body[top] = ast.fix_missing_locations(_Replace(place, statements).visit(tree.body[top]))
    codes = [_code(path, edited[path], names) for path, names in sorted(functions)]
    changed = [(function, "__code__", code) for function, code in codes]
    for path in sorted({path for path, _ in tables}):
        changed += _tables(path, edited[path], {top for at, top in tables if at == path})
    return changed


def _module(path: Path) -> Any:
    root = Path(timers.__file__).parent.parent
    return importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))


def _tables(path: Path, tree: ast.Module, tops: Collection[int]) -> Iterator[tuple[Any, str, Any]]:
    """The changed tables of a module, and those that are made of them."""
    module, known = _module(path), dict[str, Any]()
    for top, each in enumerate(tree.body):
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.value is not None:
            names = {node.id for node in ast.walk(each.value) if isinstance(node, ast.Name)}
            if top in tops or names & known.keys():
                code = compile(ast.Expression(each.value), str(path), "eval")
                known[each.target.id] = value = eval(code, {**vars(module), **known})
                if value == getattr(module, each.target.id):
                    raise LookupError(f"the change of {each.target.id} in {path.name} has no effect")
    return ((module, name, value) for name, value in known.items())


def _definition(tree: ast.Module, name: str) -> ast.stmt:
    """Returns the class or function of this name at the top of a file."""
    return next(each for each in tree.body if getattr(each, "name", None) == name)


def _path(old: str, pattern: ast.AST, edited: dict[Path, ast.Module], rooms: tuple[str, ...]) -> Path:
    known = [each for each in _nodes(rooms).get(type(pattern), ()) if each[0] not in edited]
    changed = [(path, node) for path, tree in edited.items() for node in ast.walk(tree)]
    found = [path for path, node in (*known, *changed) if type(node) is type(pattern) and _matches(pattern, node, [])]
    if len(found) != 1:
        where = f"{len(found)} times, in {[path.name for path in found]}" if found else "nowhere"
        raise LookupError(f"{old!r} must be once in {rooms} and is there {where}: change the mutation with the code")
    return found[0]


def _parsed(old: str, new: str) -> tuple[ast.AST, list[ast.stmt]]:
    """Returns the pattern, and the statements, or a single expression, that replace it."""
    (pattern,), statements = ast.parse(old).body, ast.parse(new).body
    expressions = isinstance(pattern, ast.Expr) and len(statements) == 1 and isinstance(statements[0], ast.Expr)
    return (pattern.value if isinstance(pattern, ast.Expr) and expressions else pattern), statements


def _places(node: ast.AST, pattern: ast.AST, names: tuple[str, ...] = (), *, inside: bool = False) -> Iterator[Place]:
    for child in ast.iter_child_nodes(node):
        around, is_inside = names, inside
        if not inside and isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            around, is_inside = (*names, child.name), not isinstance(child, ast.ClassDef)
        held: list[ast.AST] = []
        if type(child) is type(pattern) and _matches(pattern, child, held):
            yield Place(child, held, around if is_inside else ())
        yield from _places(child, pattern, around, inside=is_inside)


def _matches(pattern: Any, node: Any, held: list[ast.AST]) -> bool:
    if isinstance(pattern, ast.Constant) and pattern.value is ...:
        held.append(node)
        return True
    if isinstance(pattern, ast.AST):
        fields = [(getattr(pattern, name, None), getattr(node, name, None)) for name in pattern._fields]
        return type(pattern) is type(node) and all(_matches(*pair, held) for pair in fields)
    if isinstance(pattern, list):
        pairs = zip(pattern, node, strict=False)
        return len(pattern) == len(node) and all(_matches(*pair, held) for pair in pairs)
    return bool(pattern == node)


class _Replace(ast.NodeTransformer):
    def __init__(self, place: Place, statements: list[ast.stmt]) -> None:
        self._place = place
        self._statements = [_Fill(place.held).visit(each) for each in statements]

    def visit(self, node: ast.AST) -> Any:
        if node is not self._place.node:
            return self.generic_visit(node)
        return self._statements if isinstance(node, ast.stmt) else self._statements[0].value


class _Fill(ast.NodeTransformer):
    """Puts what was found into the places of ``...``."""

    def __init__(self, held: Sequence[ast.AST]) -> None:
        self._held = iter(held)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return next(self._held) if node.value is ... else node


def _code(path: Path, tree: ast.Module, names: tuple[str, ...]) -> tuple[FunctionType, CodeType]:
    owner = _module(path)
    future = [each for each in tree.body if isinstance(each, ast.ImportFrom) and each.module == "__future__"]
    part = ast.Module([*future, _definition(tree, names[0])], [])  # to compile the whole file takes longer
    code = compile(part, str(path), "exec", dont_inherit=True)
    for name in names:
        code = next(each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == name)
    for name in names[:-1]:
        owner = getattr(owner, name)
    member = vars(owner)[names[-1]]
    function = inspect.unwrap(getattr(member, "__func__", None) or getattr(member, "fget", None) or member)
    if (code.co_code, code.co_consts, code.co_names) == (
        function.__code__.co_code,
        function.__code__.co_consts,
        function.__code__.co_names,
    ):
        raise LookupError(f"the change of {'.'.join(names)} in {path.name} has no effect")
    return function, code
