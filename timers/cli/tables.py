"""Tables on standard output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click


def print_table(columns: Sequence[str], widths: Sequence[int], rows: Iterable[Sequence[str]]) -> None:
    """Print each row at once; print the names of the columns before the first row."""
    for number, cells in enumerate(rows):
        if not number:
            click.echo(_line(columns, widths))
        click.echo(_line(cells, widths))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()
