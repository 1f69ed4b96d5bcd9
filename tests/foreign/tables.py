"""The tables of docs/other-clients.md, of what was measured."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from tests.harness.process import ROOT

PAGE = ROOT / "docs" / "other-clients.md"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _filled(text: str, found: re.Match[str]) -> str:
    return f"{found[1]}\n{text}\n{found[2]}"


def with_tables(page: str, tables: Mapping[str, str]) -> str:
    """A page with these tables, each between the lines ``<!-- begin NAME -->`` and ``<!-- end NAME -->``."""
    for name, text in tables.items():
        place = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->\n)", re.DOTALL)
        page, count = place.subn(partial(_filled, text), page)
        assert count == 1, f"{PAGE} has no place for the table {name}"
    return page
