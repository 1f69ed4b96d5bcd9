"""Small functions of the pages: times, sizes, values in three forms, programs."""

from __future__ import annotations

import json
import shlex

import pytest

from timers.console.problems import Problem
from timers.console.web import programs
from timers.console.web.moments import moment
from timers.console.web.rendering import ago, data, link, size, span
from timers.console.web.timer_screens import in_form

NOW_S = 1_900_000_000


@pytest.mark.parametrize(
    ("text", "second"),
    [
        ("now", NOW_S),
        ("1h", NOW_S + 3600),
        ("+1h", NOW_S + 3600),
        ("-90s", NOW_S - 90),
        ("1900000123", 1_900_000_123),
        ("2030-01-31", 1_896_048_000),
        ("2030-01-31 12:00", 1_896_091_200),
        ("2030-01-31T12:00:05Z", 1_896_091_205),
        ("2030-01-31T12:00:00+02:00", 1_896_084_000),
    ],
)
def test_a_moment_is_read(text: str, second: int) -> None:
    assert moment("from", text, NOW_S) == second


@pytest.mark.parametrize("text", ["tomorrow", "1", "--1h", "2030-13-01", "-2030-01-31", "1h 2h", "٣h"])
def test_another_text_is_refused_with_the_forms(text: str) -> None:
    if text == "1":
        assert moment("from", text, NOW_S) == 1
        return
    with pytest.raises(Problem, match=r"is no time: write now, 1h"):
        moment("from", text, NOW_S)


def test_figures_for_people() -> None:
    assert [span(each) for each in (None, 0.0123, 2.345, 61, 90_061)] == ["–", "12 ms", "2.3 s", "1 min 1 s", "1 d 1 h"]
    assert [size(each) for each in (None, 7, 2048, 5 * 1024**4)] == ["–", "7 B", "2.0 KiB", "5.0 TiB"]
    assert [ago(NOW_S + each, NOW_S + 0.5) for each in (0, 5, -125)] == ["now", "in 5 s", "2 min 5 s ago"]
    assert [data(each) for each in (None, "k", {"base64": "/wA="})] == ["–", "k", "0xff00"]
    assert link("/timers", topic="", from_=7, id="a b&") == "/timers?from=7&id=a+b%26"


def test_a_value_has_three_forms() -> None:
    assert in_form(b'{"a":"\xc3\xbc"}', "text") == ('{"a":"ü"}', "")
    assert in_form(b'{"a":"\xc3\xbc"}', "json") == ('{\n  "a": "ü"\n}', "")
    assert in_form(b"\xffA", "hex")[0].endswith("ff 41" + " " * 44 + ".A")
    assert "UTF-8" in in_form(b"\xff", "text")[1] and "not JSON" in in_form(b"[" * 100_000, "json")[1]


def test_the_programs_set_the_same_timer() -> None:
    body = {"topic": "t", "key": "it's", "value": "a'b\n$(reboot)", "delay": "15m", "id": "x"}
    words = shlex.split(programs.curl(body, "http://h").replace("\\\n", " "))
    assert words[:4] == ["curl", "-X", "POST", "http://h/v1/timers"] and json.loads(words[-1]) == body
    called: list[tuple[tuple[object, ...], dict[str, object]]] = []

    class Client:
        def __enter__(self) -> Client:
            return self

        def __exit__(self, *_: object) -> None: ...

        def schedule(self, *arguments: object, **named: object) -> None:
            called.append((arguments, named))

    def run(given: dict[str, str]) -> None:
        exec(programs.python(given).replace("from timers.client import TimersClient", ""), {"TimersClient": Client})

    run(body)
    assert called.pop() == (("t", "it's", "a'b\n$(reboot)"), {"delay": 900, "id": "x"})
    run({"topic": "t", "value": "", "at": "2030-01-31T12:00:00Z"})
    ((arguments, named),) = called
    assert arguments == ("t", None, "") and named["at"].timestamp() == 1_896_091_200  # type: ignore[attr-defined]
