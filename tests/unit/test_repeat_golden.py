"""Rules that were accepted once stay accepted and name the same seconds, and those that were refused stay refused: a
definition is judged by its record alone, so a version that judged otherwise would read a log otherwise [I4].

``golden/repeat_rules.json`` has them. Lines may be added. Zone data do not count: all zones here are UTC.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from timers.wire.repeat import Repeat, RepeatError

GOLDEN = json.loads((Path(__file__).parent / "golden" / "repeat_rules.json").read_text())
FROM_S = 1_795_953_600
"""29 November 2026, 12:00 UTC."""


@pytest.mark.parametrize("header", GOLDEN["accepted"])
def test_an_accepted_rule_names_the_same_seconds(header: str) -> None:
    repeat = Repeat.of_header(header.encode())
    found: list[int | None] = []
    after_s: int | None = FROM_S
    while after_s is not None and len(found) < 4:
        after_s = repeat.next_nominal(after_s)
        found.append(after_s)
    assert found == GOLDEN["accepted"][header]


@pytest.mark.parametrize("header", GOLDEN["refused"])
def test_a_refused_rule_stays_refused(header: str) -> None:
    with pytest.raises(RepeatError):
        Repeat.of_header(header.encode())


def test_an_id_keeps_its_share_of_a_spread() -> None:
    repeat = Repeat.of_header(b"every=86400; spread=86399")
    assert {id: repeat.share_s(id.encode()) for id in GOLDEN["shares"]} == GOLDEN["shares"]
