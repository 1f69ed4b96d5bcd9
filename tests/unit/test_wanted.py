"""Files of repeating timers: what they may say, and how what is set differs from it."""

import base64
from typing import Any

import pytest

from timers.client import wanted
from timers.client.request import Encoder
from timers.client.wanted import differences, of_answer, of_request
from timers.errors import InvalidTimerError
from timers.wire.headers import SET

NOW_NS = 1_800_000_000 * 10**9
REPORT = """
set: billing
timers:
  - id: daily
    repeat: {cron: "0 9 * * 1-5", zone: Europe/Paris}
    topic: reports
    key: paris
    value: {kind: daily, pages: 3, date: 2026-12-24}
    headers: {trace: "1"}
  - {id: "07", repeat: {every: 15m, except: [2026-12-24]}, topic: reports, value: no}
"""


def read(text: str) -> wanted.WantedSet:
    return wanted.read(text.encode(), NOW_NS)


def answer(request: Any, **changed: Any) -> dict[str, Any]:
    """What a worker says of a timer that was set so."""
    headers = [(name, value if isinstance(value, str) else value.decode()) for name, value in request.headers]
    key = None if request.key is None else str(request.key)
    value = request.value if isinstance(request.value, bytes) else request.value.encode()
    rule = request.repeat.to_header().decode()
    said = {"id": request.id, "topic": request.topic, "key": key, "repeat": rule, "headers": headers}
    return {**said, "value": base64.b64encode(value).decode(), **changed}


def test_a_file_has_the_fields_of_other_files_and_texts_stay_texts() -> None:
    found = read(REPORT)
    assert (found.name, list(found.timers)) == ("billing", ["daily", "07"])
    daily, other = found.timers.values()
    assert daily.value == b'{"kind":"daily","pages":3,"date":"2026-12-24"}'
    assert daily.repeat is not None and daily.repeat.to_header() == b"cron=0 9 * * 1-5; zone=Europe/Paris"
    assert list(daily.headers) == [("trace", "1"), (SET, "billing")]  # type: ignore[arg-type]
    assert (other.value, other.repeat and other.repeat.excepted) == ("no", ("2026-12-24",))
    for each in found.timers.values():
        Encoder(1_000_000)(each)


def test_json_is_read_too() -> None:
    text = '{"set": "s", "timers": [{"id": "a", "repeat": "every=60", "topic": "t", "value": "\\u00fc"}]}'
    assert read(text).timers["a"].value == "ü"


TIMER = "\n  - {id: a, topic: t, value: x, repeat: {every: 1m}}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not exactly the fields set and timers"),
        ("set: a", "not exactly the fields set and timers"),
        ("set: a b\ntimers: []", "set is 'a b'"),
        ("set: s\ntimers: {}", "timers, a list"),
        ("set: s\ntimers:\n  - 7", "line 3: a timer is a mapping"),
        ("set: s\nset: t\ntimers: []", "line 2, column 1: the field 'set' is there twice"),
        ("set: s\ntimers: [", "is no YAML: line 2"),
        ("set: s\ntimers: &a [*a]", "alias"),
        ("set: s\ntimers: !!python/object/apply:os.system [ls]", "is no YAML: line 2"),
        ("set: s\n? [a]\n: b\ntimers: []", "no text"),
        ("[" * 5_000, "is no YAML"),
        (f"set: s\ntimers:{TIMER}{TIMER}", "line 4: id 'a' is there twice"),
        ("set: s\ntimers:\n  - {id: a, topic: t, value: x}", "line 3: a timer of a set has an id and a repeat"),
        (
            "set: s\ntimers:\n  - {id: 7, topic: t, value: x, repeat: {every: 1m}}",
            'id 7 is no text: write it in quotes, "7"',
        ),
        ("set: s\ntimers:\n\n  - {id: a, topic: t, value: x, repeat: {every: 0s}}", "line 4: every=0"),
        (
            "set: s\ntimers:\n  - {id: a, topic: t, value: x, repat: {every: 1m}, repeat: {every: 1m}}",
            "did you mean 'repeat'",
        ),
        (
            f"set: s\ntimers:\n  - {{id: a, topic: t, value: x, repeat: {{every: 1m}}, headers: {{{SET}: x}}}}",
            "leave it out",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, says: str) -> None:
    with pytest.raises(InvalidTimerError) as refused:
        read(text)
    assert says in str(refused.value)


def test_all_wrong_timers_are_named_and_no_more_than_twenty() -> None:
    text = "set: s\ntimers:" + "\n  - {id: a}" * 30
    with pytest.raises(InvalidTimerError, match=r"30 wrong:\nline 3: [^\0]*line 22: [^\n]*\nand 10 more\Z"):
        read(text)


def test_what_is_set_so_does_not_differ() -> None:
    for each in read(REPORT).timers.values():
        assert differences(of_answer(answer(each)), of_request(each)) == []


def test_an_interval_without_begin_is_compared_without_the_second_in_which_it_was_set() -> None:
    other = read(REPORT).timers["07"]
    assert other.repeat is not None
    begun = other.repeat.with_from(1_799_999_000).to_header().decode()
    assert differences(of_answer(answer(other, repeat=begun)), of_request(other)) == []


def test_what_differs_is_shown_line_by_line() -> None:
    daily = read(REPORT).timers["daily"]
    set_so = answer(daily, repeat="cron=30 8 * * 1-5; zone=Europe/Paris; spread=60", topic="old")
    assert differences(of_answer(set_so), of_request(daily)) == [
        "- repeat.cron: 30 8 * * 1-5",
        "+ repeat.cron: 0 9 * * 1-5",
        "  repeat.zone: Europe/Paris",
        "- topic: old",
        "+ topic: reports",
        '  key: "paris"',
        '  value: "{\\"kind\\":\\"daily\\",\\"pages\\":3,\\"date\\":\\"2026-12-24\\"}"',
        '  header trace: "1"',
        '  header timers-set: "billing"',
        "- repeat.spread: 60",
    ]
    assert differences(None, of_request(daily))[0] == "+ repeat.cron: 0 9 * * 1-5"
    assert differences(None, of_request(daily))[-1] == '+ header timers-set: "billing"'


def test_what_a_worker_does_not_show_is_not_compared() -> None:
    daily = read(REPORT).timers["daily"]
    said = answer(daily, due_at="2027-01-01T08:00:00Z")
    shown = {name: part for name, part in said.items() if name not in ("value", "headers")}
    assert differences(of_answer(shown), of_request(daily)) == []
    del shown["repeat"]
    assert "- due: 2027-01-01T08:00:00Z" in differences(of_answer(shown), of_request(daily))
