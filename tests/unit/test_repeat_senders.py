"""What senders make of a repeating timer: the record, the refusals, files of timers, and ``timers next``."""

import json
from typing import Any

import pytest

from tests.harness.command_line import Run
from timers.client import Repeat, TimerRequest
from timers.client.request import Encoder
from timers.client.timer_lines import parse_fields
from timers.errors import InvalidTimerError, TimerTooLargeError
from timers.v1.future_pb2 import Future

NOW_S = 1_795_953_600
"""29 November 2026, 12:00 UTC."""

DAILY = Repeat.cron("0 9 * * 1-5", zone="Europe/Paris")
REQUEST = TimerRequest("reports", "k", b"daily", headers={"trace": "1"}, id="report", repeat=DAILY)


def test_a_definition_has_its_rule_in_place_of_a_due_second() -> None:
    key, value, headers = Encoder(1_000).definition(REQUEST, NOW_S)
    assert key == b"report"
    assert Future.FromString(value) == Future(callBackTopic="reports", callBackKey="k", callBack=b"daily")
    assert headers == [("trace", b"1"), ("timer-repeat", b"cron=0 9 * * 1-5; zone=Europe/Paris")]
    _, _, headers = Encoder(1_000).definition(REQUEST._replace(key=b"\xff", headers=(), token="t"), NOW_S)
    assert [name for name, _ in headers or ()] == ["callback-token", "timer-key", "timer-repeat"]


def test_the_encoder_takes_both_kinds_of_requests() -> None:
    encode = Encoder(1_000)
    far = Repeat.every(60, until=99_999_999_999)
    single = REQUEST._replace(repeat=None, at=2_000_000_000)
    for _ in range(2):
        assert encode(REQUEST._replace(repeat=far))[2] == [("trace", b"1"), ("timer-repeat", far.to_header())]
        assert encode(single)[2] == [("trace", b"1"), ("timer-due", b"2000000000")]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"id": None}, "needs an id"),
        ({"at": 2_000_000_000}, "neither at nor delay"),
        ({"delay": 5}, "neither at nor delay"),
        ({"repeat": "0 9 * * *"}, "make one with Repeat.cron"),
        ({"topic": "timer-request"}, "is one of the engine: a timer that repeats makes no requests"),
        ({"topic": "no topic"}, "is not a legal topic name"),
        ({"value": None}, "callback value is of type NoneType"),
        ({"repeat": Repeat.every(60, until=NOW_S)}, "has passed"),
        ({"repeat": Repeat.cron("0 9 * * *", zone="Europe/Pariss")}, "did you mean Europe/Paris?"),
    ],
)
def test_a_wrong_definition_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidTimerError) as error:
        Encoder(1_000, {"timer-request": "TIMERS_REQUEST_TOPIC"}).definition(REQUEST._replace(**changes), NOW_S)
    assert sentence in str(error.value)


def test_a_definition_with_a_large_value_is_refused() -> None:
    for large in ({"value": bytes(65_536)}, {"headers": {"large": bytes(4_096)}}):
        with pytest.raises(TimerTooLargeError, match="one that repeats may have 65536 and 4096"):
            Encoder(1_000_000).definition(REQUEST._replace(**large), NOW_S)


@pytest.mark.parametrize(
    "rule",
    [
        "cron=0 9 * * 1-5; zone=Europe/Paris; until=1798761600; spread=60; except=2026-12-24,2026-12-25",
        {
            "cron": "0 9 * * 1-5",
            "zone": "Europe/Paris",
            "until": "2027-01-01T00:00:00Z",
            "spread": "1m",
            "except": ["2026-12-25", "2026-12-24"],
            "catch_up": None,
        },
    ],
)
def test_a_rule_in_json_is_a_text_or_an_object(rule: object) -> None:
    fields = {"topic": "reports", "value": "", "id": "report", "repeat": rule}
    expected = "cron=0 9 * * 1-5; zone=Europe/Paris; until=1798761600; spread=60; except=2026-12-24,2026-12-25"
    repeat = parse_fields(fields, NOW_S * 10**9).repeat
    assert repeat is not None
    assert repeat.to_header().decode() == expected


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ({"cron": "0 9 * * *"}, "has no zone"),
        ({"every": "soon"}, "'soon' is not a duration"),
        ({"every": True}, 'every of repeat is true or false: give a text such as "15m", or whole seconds'),
        ({"every": 1.5}, "every of repeat is a number"),
        ({"every": 60, "from": "2026-12-01"}, "'2026-12-01' is not a time"),
        ({"every": 60, "unless": 1}, "repeat has no field 'unless': the fields are cron, zone, every"),
        ({"every": 60, "except": [5]}, "except of repeat is a list"),
        ({"every": "15m", "until": "2020-01-01T00:00:00Z"}, "has passed"),
        ("every=\ud800", "not UTF-8"),
        (15, "repeat is a number: give {"),
    ],
)
def test_a_wrong_rule_in_json_is_refused(rule: object, sentence: str) -> None:
    with pytest.raises(InvalidTimerError) as error:
        parse_fields({"topic": "reports", "value": "", "id": "report", "repeat": rule}, NOW_S * 10**9)
    assert sentence in str(error.value)


NOTE = "in place of 02:30, which clocks skip"


def test_the_next_ten_are_shown_with_what_clock_changes_do(run: Run) -> None:
    rule = "30 2 * * *", "--zone", "America/New_York", "--from", "2035-03-10T12:00:00Z"
    code, out, err = run("next", *rule, "--count", "2")
    lines = [line.split(maxsplit=3) for line in out.splitlines()]
    assert code == 0
    assert lines[1:] == [
        [
            "Sun",
            "2035-03-11T03:00:00-04:00",
            "2035-03-11T07:00:00Z",
            "2057209200     in place of 02:30, which clocks skip",
        ],
        ["Mon", "2035-03-12T02:30:00-04:00", "2035-03-12T06:30:00Z", "2057293800"],
    ]
    assert (
        "clocks: set forward on Sun 2035-03-11 from 02:00 to 03:00, which skips 02:30: one occurrence, at 03:00, "
        "stands for what is skipped\n"
    ) in err
    code, out, _ = run("next", *rule, "-o", "json")
    shown = [json.loads(line) for line in out.splitlines()]
    assert len(shown) == 10
    assert shown[0] == {
        "nominal": 2_057_209_200,
        "due": 2_057_209_200,
        "due_at": "2035-03-11T07:00:00Z",
        "local": "2035-03-11T03:00:00-04:00",
        "note": NOTE,
    }


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ("*/20 2 * * *", "which skips 02:00, 02:20, 02:40: nothing fires for what is skipped"),
        ("0,15,30,45 2 * * *", "skips 02:00, 02:15, 02:30 and 1 more: one occurrence, at 03:00, stands for"),
        (
            "*/20 1 * * *",
            "which repeats 01:00, 01:20, 01:40: what is repeated fires both times, because minute or hour",
        ),
        (
            "30 1 * * *",
            "set back on Sun 2035-11-04 from 02:00 to 01:00, which repeats 01:30: what is repeated fires the",
        ),
        ("0 9 * * *", "set forward on Sun 2035-03-11 from 02:00 to 03:00: no occurrence falls into this gap"),
        ("0 9 1 * MON", "days: day of month 1 or day of week MON: one is enough"),
        ("0 9 1-7 * *", "days: day of month 1-7 alone decides"),
        ("0 9 */2 * MON", "days: day of month */2 and day of week MON must both match, because one begins with *"),
    ],
)
def test_words_say_what_a_line_does(run: Run, rule: str, sentence: str) -> None:
    code, _, err = run("next", rule, "--zone", "America/New_York", "--from", "2035-03-01T12:00:00Z")
    assert code == 0
    assert sentence in err


def test_the_share_of_an_id_is_in_its_due_second(run: Run) -> None:
    rule = "--every", "1h", "--from", "2035-01-01T00:00:00Z", "--spread", "10m", "--until", "2035-01-01T01:00:00Z"
    _, out, err = run("next", *rule, "--id", "o-1", "-o", "json")
    assert [(each["due"] - each["nominal"], each["nominal"]) for each in map(json.loads, out.splitlines())] == [
        (522, 2_051_222_400),
        (522, 2_051_226_000),
    ]
    assert "that is all" in err
    assert "each timer is late by its share of up to 600 s" in run("next", *rule)[2]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["next"], "give a rule: a cron line with --zone"),
        (["next", "0 9 * * *"], "has no zone (try zone=Europe/Berlin)"),
        (["next", "0 9 * * *", "--zone", "Europe/Pariss"], "did you mean Europe/Paris?"),
        (["schedule", "--topic", "t", "--value", "", "--every", "1m"], "a timer that repeats needs --id"),
        (["schedule", "--topic", "t", "--value", "", "--every", "1m", "--in", "5s"], "give one of --in DURATION"),
        (
            ["schedule", "--topic", "t", "--value", "", "--id", "a", "--cron", "0 9 31 2 *", "--zone", "UTC"],
            "names no day",
        ),
        (["schedule", "--topic", "t", "--value", "", "--id", "a", "--cron", "0 9 * * *"], "has no zone"),
        (["schedule", "--from-file", "/dev/null", "--every", "1m"], "--from-file goes with"),
    ],
)
def test_what_cannot_be_is_refused(run: Run, args: list[str], sentence: str) -> None:
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert sentence in err
