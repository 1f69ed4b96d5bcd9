"""The pages of the project and their code blocks."""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

PAGES = sorted(
    path
    for folder, pattern in (
        (".", "*.md"),
        ("docs", "**/*.md"),
        ("examples", "*.md"),
        ("bench", "*.md"),
        ("findings", "*.md"),
    )
    for path in (ROOT / folder).glob(pattern)
)

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)(?P<marks>[ \w]*)\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S)


class Block(NamedTuple):
    """A fenced block of code.

    Attributes:
        page: file below the project.
        line: line of its first fence.
        marks: words after the language; ``run`` means that a test runs the block as it is.
    """

    page: str
    line: int
    language: str
    marks: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path) -> Iterator[Block]:
    """The fenced blocks of a page."""
    text = path.read_text()
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        code = textwrap.dedent(found["text"])
        yield Block(name_of(path), line, found["language"], tuple(found["marks"].split()), code)


def without_blocks(path: Path) -> str:
    """The text of a page; each block is replaced by as many empty lines, so that line numbers stay."""
    return _FENCE.sub(lambda found: "\n" * found[0].count("\n"), path.read_text())


ALL_BLOCKS = [block for path in PAGES for block in blocks(path)]
