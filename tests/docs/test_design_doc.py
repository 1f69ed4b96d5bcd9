"""docs/design.md defines every promise and invariant that code and docs refer to, and nothing that the code ignores."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DESIGN = (ROOT / "docs" / "design.md").read_text()
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()

INVARIANTS = re.findall(r"^### (I\d+)\. ", DESIGN, re.MULTILINE)
PROMISES = re.findall(r"^\| (P\d+) \| \*\*", DESIGN, re.MULTILINE)

REFERENCE = re.compile(r"\[([A-Z]\d+)\]")

Place = tuple[str, int]
"""(file below the project, line)"""


def python_files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def references(paths: Iterator[Path]) -> dict[str, list[Place]]:
    """Each reference of the form ``[I3]``, with any letter, and where it is."""
    found: dict[str, list[Place]] = {}
    for path in paths:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for name in REFERENCE.findall(line):
                found.setdefault(name, []).append((str(path.relative_to(ROOT)), number))
    return found


def test_numbers_are_unique_and_have_no_gap() -> None:
    assert [f"I{number}" for number in range(1, len(INVARIANTS) + 1)] == INVARIANTS
    assert [f"P{number}" for number in range(1, 9)] == PROMISES


@pytest.mark.parametrize("part", ["*Reason*: ", "*Kept in*: "])
def test_every_invariant_has_a_reason_and_a_module(part: str) -> None:
    sections = re.split(r"^#{2,3} ", DESIGN, flags=re.MULTILINE)
    assert [text[:4] for text in sections if re.match(r"I\d+\. ", text) and text.count(part) != 1] == []


def test_every_reference_is_defined() -> None:
    markdown = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "adr").glob("*.md")]
    found = references(iter([*python_files("timers", "tests", "bench"), *markdown]))
    unknown = {name: places for name, places in found.items() if name not in {*INVARIANTS, *PROMISES}}
    assert unknown == {}


def test_every_invariant_is_referred_to_by_the_product() -> None:
    found = references(python_files("timers"))
    assert [name for name in INVARIANTS if name not in found] == []


def test_every_module_that_the_design_names_exists() -> None:
    named = re.findall(r"`((?:timers|tests|bench)/[\w/.]+)`", DESIGN)
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_link_of_both_pages_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)#\s]+)", DESIGN + GLOSSARY)
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []


def test_the_glossary_is_in_alphabetical_order() -> None:
    for table in re.findall(r"^\|---\|---\|\n((?:\|.*\n)+)", GLOSSARY, re.MULTILINE):
        terms = [row.split("|")[1].strip(" `").lower() for row in table.splitlines()]
        assert terms == sorted(terms)
        assert len(terms) == len(set(terms))


def test_a_decision_that_another_one_changes_says_so() -> None:
    """Else its reader takes for true what is no longer so."""
    status: dict[int, set[int]] = {}
    for path in (ROOT / "docs" / "adr").glob("*.md"):
        (paragraph,) = re.findall(r"^Status: .*?(?=\n\n)", path.read_text(), re.MULTILINE | re.DOTALL)
        named = re.findall(r"ADRs? \d+(?:(?:, | and )\d+)*", re.sub(r"\]\(.*?\)", "", paragraph))
        named += re.findall(r"(?<=\]\()\d{4}(?=-)", paragraph)
        status[int(path.name[:4])] = {int(number) for text in named for number in re.findall(r"\d+", text)}
    assert status[28] >= {1, 7, 8, 12, 22}
    assert {later: sorted(n for n in status[later] if later not in status[n]) for later in status} == {
        later: [] for later in status
    }
