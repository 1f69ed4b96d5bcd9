"""Occurrences that fire as others did that are alike send, and are followed by, the same as each one alone."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.harness.compiled import forms
from timers.core import repeating, sums
from timers.core.fired import NOISY, PAUSE, Hold, Moment
from timers.core.keys import NOTHING_FIRED
from timers.core.ports import Output
from timers.core.repeating import LAST, NOMINAL, OWED, REPEAT, TARGET, VERSION, WAYPOINT, Repeats
from timers.core.timer import DueRows, Origin, Row
from timers.wire.formats.future_by_id import rule_of

NOW_S = 1_800_000_000
RULES = [
    b"every=10; from=%d" % NOW_S,
    b"every=10; from=%d; until=%d" % (NOW_S, NOW_S + 20),
    b"every=1; from=%d; catch-up=none" % NOW_S,
    b"every=10; from=%d; spread=7" % NOW_S,
    b"cron=* * * * *; zone=Europe/Paris; catch-up=all",
    b"cron=0 9 * * *; zone=Europe/Nowhere",
]
VERSIONS = [b"by-id/0/2", b"by-id/0/3", b"by-id/0/3~1", None]
NOMINALS = [b"%d" % NOW_S] * 3 + [b"0%d" % NOW_S, b"%d" % (NOW_S - 7)]
ENDS: list[list[tuple[str, bytes | None]]] = [
    [],
    [],
    [],
    [("user", b"1"), ("user", None)],
    [(LAST, b"1")],
    [(OWED, b"%d" % (NOW_S + 10))],
    [(OWED, b"%d" % (NOW_S + 10)), (LAST, b"1"), ("user", b"1")],
]
"""Last headers of an occurrence."""
HOLDS = [None, *(Hold("out", reason, 1, Moment(0, NOTHING_FIRED, 0), NOW_S + 1) for reason in (PAUSE, NOISY))]
OTHERS: list[list[tuple[str, bytes | None]] | None] = [
    [(REPEAT, RULES[0]), (VERSION, b"by-id/0/2"), (WAYPOINT, b"%d" % NOW_S), (TARGET, b"out")],
    [(REPEAT, RULES[0]), (VERSION, b"by-id/0/2"), (OWED, b"%d" % NOW_S)],
    [(REPEAT, RULES[0]), (VERSION, b"by-id/0/2")],
    [("user", RULES[0]), (VERSION, b"by-id/0/2"), (NOMINAL, b"%d" % NOW_S)],
    [(REPEAT, RULES[0]), (LAST, b"1"), (NOMINAL, b"%d" % NOW_S), (VERSION, b"by-id/0/2")],
    [],
    None,
]
"""All headers of other rows."""


def row(seed: random.Random, offset: int) -> Row:
    """Returns a row; mostly that of an occurrence like the others."""
    if seed.random() < 0.2:
        headers = seed.choice(OTHERS)
    else:
        rule = seed.choice([*[RULES[0]] * 6, *RULES[1:]])
        headers = [(REPEAT, rule), (VERSION, seed.choice(VERSIONS)), (NOMINAL, seed.choice(NOMINALS))]
        headers += seed.choice(ENDS)
    as_stored = tuple(headers) if headers and seed.random() < 0.5 else headers
    return offset, "out", seed.choice(["k", b"k", None]), b"v", as_stored, Origin(f"id-{offset % 5}", NOW_S, 0)


def fired(fire_alike: Callable[..., int], due: list[DueRows], second: int, hold: Hold | None) -> Output:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeating, "fire_alike", fire_alike)
        return Repeats(rule_of).fire(due, second, hold)


@pytest.mark.parametrize("form", forms(sums))
def test_those_that_are_alike_fire_as_each_one_alone(form: str) -> None:
    seed = random.Random(7)
    for _ in range(300):
        seconds = seed.sample([NOW_S - 30, NOW_S - 7, NOW_S, NOW_S + 3, NOW_S], seed.randint(1, 3))
        due = [(due_s, [row(seed, 10 * n + m) for m in range(seed.randint(1, 9))]) for n, due_s in enumerate(seconds)]
        second, hold = NOW_S + seed.choice([3, 5, 200]), seed.choice(HOLDS)
        assert fired(forms(sums)[form].fire_alike, due, second, hold) == fired(
            lambda _, start, *__: start, due, second, hold
        )


@pytest.mark.parametrize("form", forms(sums))
def test_only_the_first_of_those_that_are_alike_is_decided(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Row] = []
    fire = Repeats._fire

    def noting(self: Repeats, row: Row, *others: Any) -> Any:
        asked.append(row)
        return fire(self, row, *others)

    monkeypatch.setattr(Repeats, "_fire", noting)
    headers = [(REPEAT, RULES[0]), (VERSION, b"by-id/0/2"), (NOMINAL, b"%d" % NOW_S)]
    rows: Sequence[Row] = [(n, "out", None, b"v", headers, Origin(f"id-{n}", NOW_S, 0)) for n in range(9)]
    output = fired(forms(sums)[form].fire_alike, [(NOW_S, [*rows])], NOW_S, None)
    assert asked == [rows[0]]
    assert len(output.followers) == len(output.due[0][1]) == len(rows)
