"""The page and the lines of an audit report, without Spark."""

from __future__ import annotations

import re
from collections import Counter
from html import unescape
from html.parser import HTMLParser

import pytest

from tests.harness.unsafe_text import HOSTILE, SHOWN, assert_safe
from timers.cli.output import Output
from timers.core.printable import printable
from timers.process.config.settings import Settings
from timers.spark.audit import report
from timers.spark.audit.findings import Counted, Due, Findings, Lag, PartitionRead, span_for
from timers.spark.audit.gaps import DELETED, NO_SOURCE, OPEN, OTHER_TOPIC, UNPLACED, Reason, Unplaced
from timers.spark.audit.outcomes import FAULTS, Moment

DUE = 1_700_000_000
SETTINGS = Settings.load({"TIMERS_BROKERS": "a:1"})


def offender(timer_id: str | None, **changes: object) -> dict[str, object]:
    return {
        "fault": "lost",
        "request": "timer-request/0/5",
        "topic": "timer-request",
        "partition": 0,
        "timer_id": timer_id,
        "due_s": DUE,
        "accepted_ms": DUE * 1000 - 5000,
        "callback_topic": "orders",
        "code": None,
        "firings": 0,
        "letters": 0,
        "letter_code": None,
        "cold": False,
        "fired_ms": None,
        "positions": None,
        **changes,
    }


def findings(**faults: list[dict[str, object]]) -> Findings:
    found = Findings(Moment(DUE * 1000 + 123, 5))
    found.statuses = Counter({"fired": 90, "pending": 7, "lost": len(faults.get("lost", []))})
    found.faults = Counter({fault: len(rows) for fault, rows in faults.items()})
    found.listed = faults
    found.lags = [Lag(DUE + at, 45, 10, 20, 30, 4000) for at in (0, 60)]
    found.lags_by_topic = [Lag("orders", 90, 10, 20, 30, 4000)]
    found.ahead = [Due(DUE + 600, 7, 700)]
    found.busiest = [Due(DUE + 600, 7, 700)]
    found.counted = [
        Counted("timer-request", "orders", "timer", 98, 9800, (DUE - 86_400) * 1000, DUE * 1000),
        Counted("timer-request", None, "rejected", 2, 200, DUE * 1000, DUE * 1000),
    ]
    found.read = [PartitionRead("timer-request", 0, 0, 101, DUE - 1)]
    found.callback_topics = ["orders"]
    found.stages = [("requests read", 100, 2.0)]
    return found


class Page(HTMLParser):
    """The tags of a page, those that are not closed, and its visible text."""

    VOID = ("meta", "br", "link", "img")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: Counter[str] = Counter()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen[tag] += 1
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen[tag] += 1

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def without_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes most of the time of a page, and says nothing about its text."""
    monkeypatch.setattr(report, "_svg", lambda *_: "<svg></svg>")


def test_a_page_without_faults_has_the_title_clean() -> None:
    html = report.page(findings(), SETTINGS)
    page = Page(html)
    assert page.open == [] and page.seen["svg"] == 3 and page.seen["script"] == 0
    check_colours(html)
    assert (
        "<title>Timer audit: Clean: none of 97 requests is lost, duplicated, early, altered or otherwise faulty</title>"
        in html
    )
    assert not re.search(r"""(src|href)=["']?\w+:""", html.replace("http://www.w3.org", "")), "it needs no other file"
    assert "width=" not in html[html.index("<svg") :][:200] and "#010203" not in html
    # 98 + 2 records hold 10,000 bytes, in a day; the formula adds 10 to each.
    assert "10.0 kB" in page.text and "11.0 kB" in page.text


@pytest.mark.usefixtures("without_drawing")
def test_names_are_escaped_in_html() -> None:
    evil = "<script>alert(1)</script>"
    html = report.page(findings(lost=[offender(evil, callback_topic=evil)]), SETTINGS)
    assert Page(html).seen["script"] == 0 and "&lt;script&gt;" in html
    assert "<title>Timer audit: Faulty: 1 lost of 98 requests</title>" in html


def test_lost_timers_after_the_progress_of_the_engine_are_counted_apart() -> None:
    behind = findings(lost=[offender("a"), offender("b", due_s=DUE - 5)])
    assert report.hint(behind).startswith("1 of the 2 listed lost timers are due after the engine's own progress")
    assert report.hint(findings(lost=[offender("b", due_s=DUE - 5)])) == ""
    lines = list(report.lines(behind))
    assert lines[0] == "Faulty: 2 lost of 99 requests" and "lost: a due 2023-11-14 22:13:20Z for orders" in lines


@pytest.mark.usefixtures("without_drawing")
def test_each_kind_of_fault_has_a_table() -> None:
    rows = {
        "lost": [offender(None, due_s=None, callback_topic=None, code="key-missing")],
        "duplicate": [offender("b", firings=2, fired_ms=DUE * 1000, positions=["orders/0/1", "orders/0/2"])],
        "early": [offender("c", firings=1, fired_ms=DUE * 1000 - 1, due_s=99_999_999_999)],
        "revoked": [offender("d", firings=1, fired_ms=DUE * 1000, letters=1, letter_code="topic-unknown")],
        "unasked": [offender("timer-request/0/7", request=None, accepted_ms=None, letters=None, firings=1)],
        "altered": [offender("e", firings=1, fired_ms=DUE * 1000)],
        "slow": [offender("f", firings=1, fired_ms=DUE * 1000 + 7_200_000)],
        "older-than-request": [offender("g", firings=1, fired_ms=DUE * 1000)],
        "broken-chain": [offender("h", firings=1, fired_ms=DUE * 1000)],
        "zone-differs": [offender("i", firings=1, fired_ms=DUE * 1000)],
    }
    assert list(rows) == list(FAULTS)
    text = Page(report.page(findings(**rows), SETTINGS)).text
    for fault in rows:
        assert f"1 {fault}" in text
    decoded = report.as_json(findings(**rows))
    assert not decoded["clean"] and decoded["offenders"]["lost"] == ["timer-request/0/5"]


@pytest.mark.usefixtures("without_drawing")
def test_outputs_of_no_request_are_counted_beside_the_verdict() -> None:
    found = findings()
    found.unplaced = [
        Unplaced("callbacks", OTHER_TOPIC, 1234, "jobs/0/5"),
        Unplaced("dead letters", NO_SOURCE, 1, None),
    ]
    lines = list(report.lines(found))
    assert found.clean and report.summary(found).startswith("Clean")
    assert f"not judged: callbacks that {UNPLACED[OTHER_TOPIC]}: 1,234, such as jobs/0/5" in lines
    assert f"not judged: dead letters that {UNPLACED[NO_SOURCE]}: 1, such as -" in lines
    page = Page(report.page(found, SETTINGS))
    assert page.open == [] and f"1,234callbacksThey {UNPLACED[OTHER_TOPIC]}.jobs/0/5" in page.text
    decoded = report.as_json(found)["not_judged"]
    assert decoded[0] == {"what": "callbacks", "reason": "other-topic", "records": 1234, "example": "jobs/0/5"}
    assert "Not judged" not in report.page(findings(), SETTINGS)


@pytest.mark.usefixtures("without_drawing")
def test_the_three_verdicts_have_their_own_exit_codes() -> None:
    """A fault counts more than what cannot be decided."""
    clean, faulty, hidden, gone = findings(), findings(lost=[offender("a")]), findings(), findings()
    hidden.gaps = [Reason(OPEN, "timer-request/0 has 3 records behind an open transaction")]
    for each in (gone, both := findings(lost=[offender("a")])):
        each.undecided = Counter({DELETED: 1})
        each.undecided_listed = {DELETED: [offender("b", fault=DELETED)]}
    verdicts = [each.verdict for each in (clean, faulty, hidden, gone, both)]
    assert verdicts == ["clean", "faulty", "undecided", "undecided", "faulty"]
    assert [report.EXIT_CODES[verdict] for verdict in verdicts] == [0, 3, 4, 4, 3]
    assert report.summary(gone) == "Undecided: of 97 requests none is faulty, but 1 cannot be judged"
    assert "not visible: timer-request/0 has 3 records behind an open transaction" in list(report.lines(hidden))
    for each in (hidden, gone):
        page = Page(report.page(each, SETTINGS))
        assert page.open == [] and ("open transaction" in page.text or "1 undecided: records-deleted" in page.text)
    decoded = report.as_json(both)
    assert decoded["undecided"]["timers"] == {DELETED: ["b"]} and decoded["offenders"] == {"lost": ["a"]}


@pytest.mark.usefixtures("without_drawing")
def test_an_audit_without_a_known_time_is_undecided() -> None:
    """What is lost by the earliest clock is lost."""
    unknown, lost = findings(), findings(lost=[offender("a")])
    for each in (unknown, lost):
        each.moment = Moment(DUE * 1000, 5, doubt="no two clocks agree: broker 1 shows noon")
    assert [unknown.verdict, lost.verdict] == ["undecided", "faulty"]
    assert report.summary(unknown).endswith("none is faulty, but the time is not known")
    assert "the time is not known: no two clocks agree: broker 1 shows noon" in list(report.lines(unknown))
    assert "broker 1 shows noon" in Page(report.page(unknown, SETTINGS)).text
    assert report.as_json(unknown)["undecided"]["time"] == unknown.moment.doubt
    assert report.as_json(findings())["undecided"]["time"] == ""


@pytest.mark.slow
@pytest.mark.parametrize("hours", [0, 1, 5, 24, 100, 240])
def test_charts_of_any_time_span_can_be_drawn(hours: int) -> None:
    """Drawing gives no warning, and the page chooses the colour of each text."""
    found = findings()
    found.ahead = [Due(DUE + 3600 * hour, 1 + hour, 100) for hour in range(hours + 1)]
    ahead = [(due.due_s, due.timers) for due in found.ahead]
    check_colours(report.rate_chart(ahead, found.ahead_span_s, "due", "ahead"))


def check_colours(html: str) -> None:
    drawn = "".join(re.findall(r"<svg.*?</svg>", html, re.DOTALL))
    assert "fill: currentColor" in drawn
    assert all("fill:" in style for style in re.findall(r'<text style="([^"]*)"', drawn))


def test_a_page_without_requests() -> None:
    empty = Findings(Moment(DUE * 1000, 5))
    assert "no request in scope, so nothing was judged" in report.page(empty, SETTINGS) and empty.clean


@pytest.mark.parametrize(("first", "last", "span"), [(0, 0, 1), (0, 240, 1), (0, 241, 5), (0, 10**11, 365 * 86_400)])
def test_a_chart_has_a_bounded_number_of_points(first: int, last: int, span: int) -> None:
    assert span_for(first, last) == span


def test_the_page_and_the_lines_of_an_audit_are_safe(capsys: pytest.CaptureFixture[str]) -> None:
    found = findings(lost=[offender(HOSTILE, callback_topic=HOSTILE)])
    Output().show(report.as_json(found), *report.lines(found))
    printed = capsys.readouterr().out
    assert_safe(printed)
    assert SHOWN in printed
    html = report.page(found, SETTINGS)
    assert_safe(html)
    assert SHOWN in unescape(html) and printable(HOSTILE) == SHOWN
