"""Small functions of the pages: times, sizes, values in three forms, programs."""

import json
import re
import shlex
from collections import Counter
from dataclasses import replace
from typing import Any, Self

import pytest

from timers.console.access import Principal, ScryptHash
from timers.console.figures import Point
from timers.console.problems import Problem
from timers.console.web import timer_screens
from timers.console.web.board import Figures, Finding, Recent, findings, headline, lag_s, level
from timers.console.web.page import ago, data, link, moment, ranges, runbooks
from timers.console.web.timer_screens import best_form, in_form
from timers.console.web.worker_screens import bars
from timers.process.config.settings import Settings
from timers.process.counted import size, span

NOW_S = 1_900_000_000


@pytest.mark.parametrize(
    ("text", "second"),
    [
        ("now", NOW_S),
        ("1h", NOW_S + 3600),
        ("+1h", NOW_S + 3600),
        ("-90s", NOW_S - 90),
        ("1900000123", 1_900_000_123),
        ("12:00", 1_899_979_200),
        ("7:00", 1_899_961_200),
        ("00:00:07", 1_899_936_007),
        ("tomorrow", 1_900_022_400),
        ("Tomorrow 09:00", 1_900_054_800),
        ("today 12:00", 1_899_979_200),
        ("yesterday 23:59:59", 1_899_935_999),
        ("2030-01-31", 1_896_048_000),
        ("2030-01-31 12:00", 1_896_091_200),
        ("2030-01-31T12:00:05Z", 1_896_091_205),
        ("2030-01-31T12:00:00+02:00", 1_896_084_000),
    ],
)
def test_a_moment_is_read(text: str, second: int) -> None:
    assert moment("from", text, NOW_S) == second


@pytest.mark.parametrize(
    "text", ["someday", "1", "--1h", "2030-13-01", "-2030-01-31", "1h 2h", "٣h", "24:61", "tomorrow 1h"]
)
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


def test_a_time_without_a_day_is_the_last_one_of_a_filter_of_the_past() -> None:
    for text, second in (("12:00", 1_899_979_200), ("18:00", 1_899_914_400), ("today 18:00", 1_900_000_800)):
        assert moment("since", text, NOW_S, is_past=True) == second


def test_numbers_are_shown_as_ranges() -> None:
    assert [ranges(each) for each in ([], [3], [0, 1, 2, 5, 7, 8])] == ["", "3", "0–2, 5, 7–8"]


def test_a_value_has_three_forms() -> None:
    forms = {b'{"a": 1}': "json", b"[1]": "json", b"{no": "text", b"17": "text", b"": "text", b"\xff": "hex"}
    assert {value: best_form(value) for value in forms} == forms
    assert in_form(b'{"a":"\xc3\xbc"}', "text") == ('{"a":"ü"}', "")
    assert in_form(b'{"a":"\xc3\xbc"}', "json") == ('{\n  "a": "ü"\n}', "")
    kept = '{"n": 99999999999999999.99, "m": [1.50, [], {}, [-0.0]], "n": null, "t": true}'
    told = in_form(kept.encode(), "json")[0]
    assert "".join(line.strip() for line in told.split("\n")).replace(",", ", ") == kept, "its digits, and both names"
    assert json.loads(told) == json.loads(kept) and told.split("\n")[2:4] == ['  "m": [', "    1.50,"]
    assert in_form(b"[NaN]", "json") == ("", "It is not JSON.")
    assert in_form(b"\xffA", "hex")[0].endswith("ff 41" + " " * 44 + ".A")
    assert "UTF-8" in in_form(b"\xff", "text")[1] and "not JSON" in in_form(b"[" * 100_000, "json")[1]


def test_the_programs_set_the_same_timer() -> None:
    body = {"topic": "t", "key": "it's", "value": "a'b\n$(reboot)", "delay": "15m", "id": "x"}
    words = shlex.split(timer_screens.as_curl(body, "http://h").replace("\\\n", " "))
    assert words[:4] == ["curl", "-X", "POST", "http://h/v1/timers"] and json.loads(words[-1]) == body
    called: list[tuple[tuple[object, ...], dict[str, object]]] = []
    clients: list[tuple[tuple[object, ...], dict[str, object]]] = []
    settings = Settings(brokers="b:9092")

    class Client:
        def __init__(self, *given: object, **named: object) -> None:
            clients.append((given, named))

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

        def schedule(self, *arguments: object, **named: object) -> None:
            called.append((arguments, named))

    def run(given: dict[str, Any]) -> None:
        program = timer_screens.as_python(given, settings).replace("from timers.client import TimersClient", "")
        exec(program, {"TimersClient": Client})

    run(body)
    assert called.pop() == (("t", "it's", "a'b\n$(reboot)"), {"delay": 900, "id": "x"})
    run({"topic": "t", "value": "", "at": "2030-01-31T12:00:00Z"})
    arguments, named = called.pop()
    assert arguments == ("t", None, "") and named["at"].timestamp() == 1_896_091_200  # type: ignore[attr-defined]
    run({"topic": "t", "value": "", "at": "2030-01-31T12:00:00 Europe/Paris", "headers": [["a", "b"], ["a", "c"]]})
    arguments, named = called.pop()
    assert named["at"].timestamp() == 1_896_087_600  # type: ignore[attr-defined]
    assert named["headers"] == [("a", "b"), ("a", "c")]
    settings = replace(settings, request_topic="r", id_topic="i")
    run({"topic": "t", "value": "", "delay": "1s"})
    run({"topic": "t", "value": "", "delay": "1s", "id": "x"})
    assert clients[0] == (("b:9092",), {})
    assert [named for _, named in clients[-2:]] == [{"request_topic": "r"}, {"id_topic": "i"}]
    ann = Principal("ann", password=ScryptHash(14, 8, 1, b"salt", b"hash"))
    assert timer_screens.as_curl(body, "http://h", ann).startswith("curl -u ann -X POST")
    of_issuer = timer_screens.as_curl(body, "http://h", Principal("a:b", session="s"))
    assert of_issuer.startswith('curl -H "Authorization: Bearer $TOKEN" -X POST'), "it has no password"


# ---- diagnosis ------------------------------------------------------------------------------------------------------

WORKER = {"id": "w1", "ready": True, "reasons": [], "stopped": {}, "red": {}, "pending": 7, "why": None}
HEALTHY = {"overdue_s": 0.0, "recovering": 0, "unread": 3, "unstable": 0, "clock_skew_s": 0.01, "version": "1"}


def found(*workers: dict[str, Any]) -> list[Finding]:
    return findings(Figures(NOW_S, [{**WORKER, **HEALTHY, **each} for each in workers], {}))


def test_a_healthy_fleet_has_no_findings() -> None:
    assert found({}, {"id": "w2"}) == [] and level([]) == "green"


@pytest.mark.parametrize(
    ("figures", "where", "page", "worst", "words"),
    [
        ({"red": {"t/3": "no leader"}}, "t/3", "TimersPartitionsWaiting", "red", "no leader"),
        (
            {"red": {"t/3": "topic 't' is compacted", "t/4": "topic 't' is compacted"}, "lossy": ["t/3", "t/4"]},
            *("t/3 and 1 more", "TimersConfigLosesTimers", "red", "Topic 't' is compacted."),
        ),
        (
            {"red": {"t/3": "this worker does not know the zone of 2 timers"}, "zoneless": ["t/3"]},
            *("t/3", "TimersZoneUnknown", "red", "the zone of 2 timers"),
        ),
        ({"warnings": ["all rests on one copy"]}, "topics", "TimersConfigWeak", "amber", "one copy"),
        ({"notes": ["all rests on one copy"]}, "topics", "TimersConfigWeak", "green", "one copy"),
        ({"ready": False, "reasons": ["no tick was counted for 7.0 s"]}, "w1", "TimersNotReady", "red", "7.0 s"),
        ({"overdue_s": 75.0}, "w1", "TimersOverdue", "red", "1 min 15 s"),
        ({"clock_back": 1}, "w1", "TimersBrokerClockBack", "red", "caught up"),
        ({"brokers_held": 1}, "w1", "TimersClockHeld", "amber", "The clock of 1 broker is"),
        ({"brokers_held": 2}, "w1", "TimersClockHeld", "amber", "The clocks of 2 brokers are"),
        (
            {"recovering": 1, "recovery_remaining": 5000},
            "w1",
            "TimersRecoverySlow",
            "amber",
            "1 partition is reading its log",
        ),
        ({"recovering": 2, "recovery_remaining": 5000}, "w1", "TimersRecoverySlow", "amber", "5,000"),
        ({"open_circuits": 3}, "w1", "TimersTargetsFailing", "amber", "fail: 3"),
        ({"unread": 12, "unstable": 12}, "w1", "TimersRequestsHeldBack", "amber", "12 records"),
        ({"unread": 20_000}, "w1", "TimersRequestsUnread", "amber", "20,000"),
        ({"disk_free_bytes": 5, "disk_size_bytes": 100}, "w1", "TimersDiskFilling", "amber", "5 B of 100 B"),
        ({"clock_skew_s": -3.0}, "w1", "TimersClockSkew", "amber", "3.0 s"),
        ({"ready": None, "why": "no answer"}, "w1", "TimersNotReady", "unknown", "no answer"),
        ({"tick_age_s": 2.1}, "w1", "TimersNoTick", "unknown", "no tick for 2.1 s"),
        ({"overdue_s": 3.0}, "w1", "TimersOverdue", "amber", "due 3.0 s ago"),
    ],
)
def test_what_is_wrong_is_said_in_words(figures: dict[str, Any], where: str, page: str, worst: str, words: str) -> None:
    (finding,) = found(figures)
    assert (finding.where, finding.page, finding.level) == (where, page, worst) and words in finding.why


def test_the_headline_says_what_the_findings_mean() -> None:
    silent, healthy = {**WORKER, "ready": None, "why": "no answer"}, {**WORKER, **HEALTHY}
    problem = Problem("brokers-unreachable", "why")
    for figures, words in (
        (Figures(NOW_S, [], {}), "no timer fires"),
        (Figures(NOW_S, [], {}, problem), "it is not known whether all timers fire"),
        (Figures(NOW_S, [healthy], {}, problem), "it is not known whether all timers fire"),
        (Figures(NOW_S, [healthy], {}, is_old=True), "it is not known whether all timers fire"),
        (Figures(NOW_S, [silent, silent], {}), "it is not known whether all timers fire"),
        (Figures(NOW_S, [silent, healthy], {}), "look at it when you have time"),
        (Figures(NOW_S, [{**silent, "assigned": {"t": [1]}}, healthy], {}), "it is not known whether all timers fire"),
        (Figures(NOW_S, [silent, {**healthy, "red": {"t/0": "x"}}], {}), "some timers do not fire"),
        (Figures(NOW_S, [{**healthy, "red": {"t": "x"}, "lossy": ["t"]}], {}), "timers fire, and may be lost"),
        (Figures(NOW_S, [{**healthy, "red": {"t": "x"}, "zoneless": ["t"]}], {}), "some timers do not fire"),
        (Figures(NOW_S, [], {}, taken="another program"), "it is not known whether all timers fire"),
    ):
        assert headline(figures, findings(figures)) == words
    (letters,) = findings(Figures(NOW_S, [healthy], {}), 1200)
    assert letters.level == "amber" and "1,200" in letters.why and letters.screen == "dead-letters"


def test_a_finding_names_a_section_that_exists_and_the_worst_is_first() -> None:
    mixed = found({"clock_skew_s": 5.0, "version": "2"}, {"id": "w2", "overdue_s": 99.0, "red": {"t/0": "x"}})
    assert [each.level for each in mixed] == ["red", "red", "amber", "amber"] and level(mixed) == "red"
    gone = findings(Figures(NOW_S, [], {})) + findings(Figures(NOW_S, [], {}, Problem("brokers-unreachable", "why")))
    gone += findings(Figures(NOW_S, [], {}, taken="another program"))
    figures = ("clock_back", "brokers_held", "recovering", "open_circuits", "disk_size_bytes")
    bad = found({**dict.fromkeys(figures, 1), "unread": 20_000}, {"id": "w2", "unread": 12, "unstable": 12})
    assert len(bad) == 7
    for each in (*mixed, *gone, *bad):
        assert runbooks()[each.page.lower()][0] == each.page
    assert all(target in runbooks() for _, text in runbooks().values() for target in re.findall(r"\(#([^)]+)\)", text))


# ---- figures over time ----------------------------------------------------------------------------------------------


def test_rates_and_quantiles_of_a_stretch_of_time() -> None:
    inf = float("inf")
    ways = {"waited": Counter({0.1: 10, 1.0: 100, inf: 100})}
    steps = [("w1", Point(100, 5.0, 60, 0, ways)), ("w1", Point(105, 5.0, 40, 0, {}))]
    seen = Recent.of([*steps, ("w2", Point(103, 60.0, 120, 0, {}))], 105)
    assert (seen.at_s, seen.seconds, seen.per_s) == (105, 60, 12.0), "10 a second of the one, and 2 of the other"
    assert lag_s(seen.ways, 0.1) == 0.1 and lag_s(seen.ways, 0.99) == 0.99
    assert [(bar.label, bar.callbacks, bar.percent) for bar in bars(seen.ways["waited"])] == [
        ("to 100 ms", 10, 11.11),
        ("to 1.0 s", 90, 100.0),
    ]
    assert bars(Counter()) == []
