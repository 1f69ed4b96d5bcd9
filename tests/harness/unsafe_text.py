"""Text of others that would change the direction of a page."""

import re

from timers.core.printable import UNSAFE_CHARACTERS

WHOLE = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f"
"""Persian, which needs a joiner, and emoji of several characters."""

HOSTILE = f"a\u202egpj.exe\u2066\u200f\u2028\x1b[2J\x9b\x7f<b>{WHOLE}"
SHOWN = f"a\\u202egpj.exe\\u2066\\u200f\\u2028\\x1b[2J\\x9b\\x7f<b>{WHOLE}"


def assert_safe(text: str) -> None:
    found = re.search(UNSAFE_CHARACTERS, re.sub(r"[\n\t]", "", text))
    assert found is None, text[max(0, found.start() - 200) : found.end() + 50]
