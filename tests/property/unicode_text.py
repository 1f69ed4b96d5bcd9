"""Any text, for properties.

Hypothesis needs seconds to build its table of all characters, in each new checkout. So a commit tries a small alphabet,
and the profile ``many`` tries all characters.
"""

from hypothesis import settings
from hypothesis import strategies as st

_FURTHER = (0x200D, 0x2028, 0x202E, 0x3042, 0x4E2D, 0xAC00, 0xE000, 0xFB01, 0xFEFF, 0xFFFD, 0xFFFE, 0xFFFF)
"""Joiners, line separators, changes of direction, wide and composed characters, private ones, and no characters."""

_BEYOND = (0x10000, 0x1F600, 0xE0001, 0x10FFFF)
"""They take four bytes in UTF-8, and two units in UTF-16."""

ALPHABET = "".join(map(chr, (*range(0x500), *_FURTHER, *_BEYOND)))
"""Control characters, Latin, Greek, Cyrillic, and one character of each kind that programs treat differently."""


def texts(max_size: int | None = None) -> st.SearchStrategy[str]:
    """Texts that have a UTF-8 encoding: without surrogates."""
    is_full = settings.get_current_profile_name() == "many"
    return st.text(st.characters(exclude_categories=["Cs"]) if is_full else ALPHABET, max_size=max_size)


TEXT = texts()
