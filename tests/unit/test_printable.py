"""Text of others, as it is shown."""

import json

import pytest

from timers.core.printable import one_line, printable, printable_json, quoted

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f"
"""An emoji of several, which joiners connect."""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("order-17 \u00fc \u0416 \u4e2d", "order-17 \u00fc \u0416 \u4e2d"),
        ("a\x00\x1b]0;title\x07\x7f\x9b", "a\\x00\\x1b]0;title\\x07\\x7f\\x9b"),
        ("a\tb\r\nc\x85\u2028\u2029", "a\\tb\\r\\nc\\x85\\u2028\\u2029"),
        ("\u202e\u2066\u2069\u200e\u200f\u061c", "\\u202e\\u2066\\u2069\\u200e\\u200f\\u061c"),
        ("\udcff\udc80 \ud83d", "\\xff\\x80 \\ud83d"),
        ("C:\\new \\x1b", "C:\\new \\x1b"),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"),
        (
            "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f",
            "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f",
        ),
        ("\U0001f3f4\U000e0067\U000e0062\U000e007f", "\U0001f3f4\U000e0067\U000e0062\U000e007f"),
    ],
)
def test_only_what_controls_a_terminal_or_the_direction_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown
    assert json.loads(printable_json(json.dumps(text, ensure_ascii=False))) == text


def test_bytes_are_one_line() -> None:
    assert one_line(None) == "null"
    assert one_line(b"\xff\xe2\x80\xae\n\xc3\xbc") == "\\xff\\u202e\\n\u00fc"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("\u0645\u06cc\u200c\u062e", "'\u0645\u06cc\u200c\u062e'"),
        (f"{FAMILY} \U0001f3f4\U000e0067\U000e0062\U000e007f", f"'{FAMILY} \U0001f3f4\U000e0067\U000e0062\U000e007f'"),
        ("\U0001fae8 younger than Python 3.11", "'\U0001fae8 younger than Python 3.11'"),
        ("\\u200c \\\u200c", "'\\\\u200c \\\\\u200c'"),
        ("it's\x1b\u202e\ufeff\xa0", '"it\'s\\x1b\\u202e\\ufeff\\xa0"'),
        (b"\xd9\x85\xff", "'\u0645\\xff'"),
        ("\udcff\ud83d", "'\\xff\\ud83d'"),
        (ValueError("\u06cc\u200c\u062e"), "ValueError('\u06cc\u200c\u062e')"),
        (["\u200d", None, 1.5], "['\u200d', None, 1.5]"),
    ],
)
def test_what_a_sentence_quotes_is_whole_and_safe(value: object, shown: str) -> None:
    assert quoted(value) == shown == printable(shown)
