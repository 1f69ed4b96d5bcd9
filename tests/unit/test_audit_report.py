"""The page and the lines of an audit report, without Spark."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from datetime import date
from decimal import Decimal
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest

from tests.harness.unsafe_text import HOSTILE, SHOWN, assert_safe
from timers.cli.output import Output
from timers.cli.spark_audit import _objective, _write_reports
from timers.core.printable import printable
from timers.kafka.topic_offsets import Offsets, TopicOffsets
from timers.process.config.settings import Settings
from timers.spark.audit import report
from timers.spark.audit.findings import (
    Counted,
    Due,
    Findings,
    HourDue,
    HourLag,
    Lag,
    Objective,
    PartitionRead,
    Reached,
    Shown,
    span_for,
)
from timers.spark.audit.gaps import (
    NO_SOURCE,
    OPEN_TRANSACTION,
    OTHER_TOPIC,
    RECORDS_DELETED,
    UNPLACED,
    Reason,
    Unplaced,
)
from timers.spark.audit.history import Gap, Known, Position
from timers.spark.audit.outcomes import FAULTS, Moment
from timers.spark.jobs import day_audit
from timers.spark.jobs import history as history_job

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


def without_charts() -> Findings:
    """Drawing takes most of the time of a report."""
    found = findings()
    found.lags, found.ahead = [], []
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
        "altered": [offender("e", firings=1, fired_ms=DUE * 1000, altered="value: 1a in the request, 2b")],
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
    assert decoded["altered"] == {"e": "value: 1a in the request, 2b"} and "value: 1a in the request, 2b" in text
    assert any(line.endswith("(value: 1a in the request, 2b)") for line in report.lines(findings(**rows)))


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
    hidden.gaps = [Reason(OPEN_TRANSACTION, "timer-request/0 has 3 records behind an open transaction")]
    for each in (gone, both := findings(lost=[offender("a")])):
        each.undecided = Counter({RECORDS_DELETED: 1})
        each.undecided_listed = {RECORDS_DELETED: [offender("b", fault=RECORDS_DELETED)]}
    verdicts = [each.verdict for each in (clean, faulty, hidden, gone, both)]
    assert verdicts == ["clean", "faulty", "undecided", "undecided", "faulty"]
    assert [report.EXIT_CODES[verdict] for verdict in verdicts] == [0, 3, 4, 4, 3]
    assert report.summary(gone) == "Undecided: of 97 requests none is faulty, but 1 cannot be judged"
    assert "not visible: timer-request/0 has 3 records behind an open transaction" in list(report.lines(hidden))
    for each in (hidden, gone):
        page = Page(report.page(each, SETTINGS))
        assert page.open == [] and ("open transaction" in page.text or "1 undecided: records-deleted" in page.text)
    decoded = report.as_json(both)
    assert decoded["undecided"]["timers"] == {RECORDS_DELETED: ["b"]} and decoded["offenders"] == {"lost": ["a"]}


class SimTopics(TopicOffsets):
    """A partition with ten records."""

    def __init__(self) -> None: ...

    def ends(self, topics: Iterable[str]) -> Offsets:
        return {topic: {0: 10} for topic in topics}


@pytest.mark.usefixtures("without_drawing")
def test_a_gap_of_the_history_that_is_accepted_leaves_the_verdict_as_it_is() -> None:
    """The audit of a day still names it."""
    place, found = Position(10, 10, 0, "id", 0), findings()
    known = Known(1, {("request", "timer-request", 0): place, ("output", "orders", 0): place}, 1, 0)
    gaps = [Gap(topic, 0, 3, 7, 0, "records-deleted") for topic in ("timer-request", "orders")]
    (reason,) = day_audit._reasons(known, gaps, SimTopics())
    assert reason.code == RECORDS_DELETED and "timer-request/0 at offsets 3 to 7" in reason.text
    assert "`timers spark history --accept-gaps`" in reason.text
    accepted = [gap._replace(is_accepted=True) for gap in gaps]
    assert list(day_audit._reasons(known, accepted, SimTopics())) == []
    found.accepted = [history_job.described_gap(accepted[0])]
    assert found.clean and report.as_json(found)["accepted"] == found.accepted
    said = "timer-request/0: offsets 3 to 7 are not in the history, because they were deleted before they were read"
    assert f"accepted: {said}" in list(report.lines(found))
    assert f"Accepted by an operator: {said}." in Page(report.page(found, SETTINGS)).text


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


@pytest.mark.usefixtures("without_drawing")
def test_the_page_says_whether_the_objective_is_met_and_which_timers_were_later() -> None:
    found = findings()
    found.objective = Objective(Decimal("99.9"), 100)
    found.reached = [Reached("orders", 1000, 999), Reached("jobs", 1001, 999)]
    found.missed = [offender("late-1", lag_ms=4000), offender("late-2", lag_ms=101)]
    found.dead_letters = [("topic-missing", 3), ("key-missing", 1)]
    found.pending_by_hour = [HourDue(DUE - DUE % 3600, "orders", 7)]
    found.lags_by_hour = [HourLag(DUE - DUE % 3600, "orders", 90, 10, 20, 30, 4000)]
    lines, text, decoded = list(report.lines(found)), Page(report.page(found, SETTINGS)).text, report.as_json(found)
    assert "objective 99.9 % within 100 ms: met for orders, 1 of 1,000 later" in lines
    assert "objective 99.9 % within 100 ms: not met for jobs, 2 of 1,001 later" in lines
    assert "Objective: 99.9 % within 100 ms" in text and "late-1" in text and "99.9000 %" in text
    assert [each["met"] for each in decoded["objective"]["topics"]] == [True, False]
    assert decoded["objective"]["missed"][1] == {"name": "late-2", "due_s": DUE, "lag_ms": 101}
    assert decoded["dead_letters"] == {"topic-missing": 3, "key-missing": 1} and "topic-missing3" in text
    assert decoded["pending_by_hour"] == [{"hour_s": DUE - DUE % 3600, "topic": "orders", "timers": 7}]
    assert decoded["lags_by_hour"][0]["p99_ms"] == 30 and "2023-11-14 22:00:00Zorders90102030" in text


@pytest.mark.usefixtures("without_drawing")
def test_what_lies_outside_of_a_picture_is_said() -> None:
    found = findings()
    assert "Not in the picture" not in report.page(found, SETTINGS)
    found.lags_shown, found.ahead_shown = Shown(DUE, DUE + 60, earlier=1), Shown(DUE, DUE + 600, 0, 12)
    found.lags = [Lag(DUE + at, 45, 10, 20, 30, 40 if at else 5000) for at in range(200)]
    page = Page(report.page(found, SETTINGS)).text
    late = "the largest lags of 1 point, up to 5,000 ms"
    assert f"Not in the picture: 1 timer due before 2023-11-14 22:13:20Z, {late}." in page
    assert "Not in the picture: 12 timers due after 2023-11-14 22:23:20Z." in page


def test_reports_are_kept_by_day_with_a_trend(tmp_path: Path) -> None:
    """One that is damaged, or of another program, is left out; that of the same day is replaced."""
    found = without_charts()
    found.lag = Lag("all", 90, 10, 20, 30, 4000)
    for day, fired_ms in ((1, 5), (2, 7), (2, 9)):
        found.lag = found.lag._replace(p50_ms=fired_ms)
        path = _write_reports(tmp_path, date(2030, 1, day), found, SETTINGS, "day", is_whole=True)
        (tmp_path / "2029-12-31.json").write_text('{"requests": 1}')
        (tmp_path / "2029-12-30.json").write_bytes(b"\xff")
        (tmp_path / "2029-99-99.json").write_text(json.dumps(report.as_json(found)))
        for name, damage in (("28", {"faults": 3}), ("27", {"requests": "<b>"}), ("26", {"lag": [1]})):
            (tmp_path / f"2029-12-{name}.json").write_text(json.dumps({**report.as_json(found), **damage}))
    html = path.read_text()
    assert html == (tmp_path / "2030-01-02.html").read_text() and Page(html).open == []
    assert re.findall(r'<a href="([^"]+)">([^<]+)</a>', html) == [
        ("2030-01-02.html", "2030-01-02"),
        ("2030-01-01.html", "2030-01-01"),
    ]
    assert 'aria-label="trend"' in html and json.loads((tmp_path / "report.json").read_text())["lag"]["p50_ms"] == 9
    kept = {each.name: each.read_text(errors="replace") for each in tmp_path.glob("????-*.json")}
    assert [(each.day.day, each.p50_ms, each.requests) for each in report.days(kept, "day")] == [
        (1, 5, 97),
        (2, 9, 97),
    ]


def test_a_day_is_replaced_by_a_whole_audit_only_and_a_trend_is_of_one_kind(tmp_path: Path) -> None:
    """A report of an earlier version may be of any kind."""
    found = without_charts()
    older = json.dumps(report.as_json(found))
    (tmp_path / "2029-12-31.json").write_text(older)
    for day, kind in ((1, "day"), (2, "topics"), (3, "day")):
        _write_reports(tmp_path, date(2030, 1, day), found, SETTINGS, kind, is_whole=True)
    before = {each.name: each.read_text() for each in tmp_path.iterdir() if each.name.startswith("20")}
    assert not list(tmp_path.glob("*.new"))
    found.lag = None
    path = _write_reports(tmp_path, date(2030, 1, 3), found, SETTINGS, "topics", is_whole=False)
    assert {name: (tmp_path / name).read_text() for name in before} == before
    assert re.findall(r'<a href="([^"]+)">', path.read_text()) == ["2030-01-02.html", "2029-12-31.html"]
    assert json.loads((tmp_path / "report.json").read_text())["lag"] is None
    kept = {name: text for name, text in before.items() if name.endswith(".json")}
    assert [each.file for each in report.days(kept, "day")] == ["2029-12-31.html", "2030-01-01.html", "2030-01-03.html"]


def test_of_many_reports_only_the_newest_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MAX_TREND_DAYS", 2)
    for day in (1, 2, 3):
        (tmp_path / f"2030-01-0{day}.json").write_text(json.dumps(report.as_json(findings())))
    (tmp_path / "2030-01-01.json").unlink()
    (tmp_path / "2030-01-01.json").mkdir()  # to read it is an error
    path = _write_reports(tmp_path, date(2030, 1, 4), without_charts(), SETTINGS, "day", is_whole=True)
    assert re.findall(r'<a href="([^"]+)">', path.read_text()) == ["2030-01-04.html", "2030-01-03.html"]


@pytest.mark.parametrize("text", ["99.9", "99.9%", "101%:5ms", "99.9%:1s", "%:5ms", "99.9 %:5ms"])
def test_a_wrong_objective_is_one_sentence(text: str) -> None:
    assert _objective("99.9%:100ms") == (Decimal("99.9"), 100)
    with pytest.raises(click.UsageError, match="is not SHARE:TIME, such as"):
        _objective(text)


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
