"""Shows findings as a page that needs no other file, with its charts, as JSON, and as lines for a terminal."""

from __future__ import annotations

import io
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import cache
from typing import Any, NamedTuple

import matplotlib
from jinja2 import Template
from matplotlib import dates, ticker
from matplotlib.figure import Figure

from timers import __version__
from timers.process.config.settings import Settings
from timers.process.counted import counted
from timers.process.http.html_templates import html_templates
from timers.spark.audit import gaps
from timers.spark.audit.findings import CLEAN, FAULTY, MAX_HOURS_LISTED, MAX_OFFENDERS_LISTED, Findings, Lag, Shown
from timers.spark.audit.outcomes import ALTERED, DUPLICATE, EARLY, FAULTS, LOST, PENDING, STATUSES, UNDECIDED
from timers.spark.requests import CANCEL
from timers.wire.topics import partition_name

_INK = "#010203"
"""Placeholder for the text colour of the page."""
_BLUE, _ORANGE, _GREY = "#3b82f6", "#ea8a1f", "#8a94a3"
"""Legible on white and on a dark background."""

_STYLE = {
    "svg.fonttype": "none",  # text instead of paths
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _GREY,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}

_MIN_SPANS = 10
"""Smallest length of a time axis, in steps."""

_MAX_YEAR_S = 253_402_300_799
"""The end of the year 9999, the last that Python's calendar supports."""


def lag_chart(lags: Sequence[Lag], span_s: int) -> str:
    """Percentiles of lag in milliseconds, over the due time; empty without any.

    The axis of lags ends at the 99th percentile of the points: one late minute would make the others a line.
    """
    if not lags:
        return ""
    figure, axes = _axes()
    times = [_at(lag.of) for lag in lags]
    style = {"marker": "o", "markersize": 3} if len(lags) < 60 else {}
    for label, colour, values in (
        ("max", _GREY, [lag.max_ms for lag in lags]),
        ("p99", _ORANGE, [lag.p99_ms for lag in lags]),
        ("p50", _BLUE, [lag.p50_ms for lag in lags]),
    ):
        axes.plot(times, values, color=colour, label=label, linewidth=1.6, **style)
    axes.set_ylabel("lag, ms")
    largest, smallest = _most(lags), min(lag.p50_ms for lag in lags)
    if largest > 50 * max(smallest, 1):
        axes.set_yscale("symlog", linthresh=10)
        axes.set_ylim(bottom=min(0, smallest), top=largest * 1.1)
    else:
        axes.set_ylim(bottom=min(0, smallest), top=max(1, largest * 1.1))
    axes.yaxis.set_major_formatter(_thousands())
    _legend(axes)
    _limit(axes, lags[0].of, lags[-1].of, span_s)
    return _svg(figure, axes, f"due time, UTC (one point: {_span(span_s)})", "lags")


def _most(lags: Sequence[Lag]) -> int:
    """The largest lag that the chart shows."""
    return sorted(lag.max_ms for lag in lags)[(len(lags) - 1) * 99 // 100]


def outside(shown: Shown | None, lags: Sequence[Lag] = ()) -> str:
    """What a chart does not show, in a sentence; empty if it shows all."""
    parts = []
    if shown is not None and shown.earlier:
        parts.append(f"{counted(shown.earlier, 'timer')} due before {when(shown.first_s)}")
    if shown is not None and shown.later:
        parts.append(f"{counted(shown.later, 'timer')} due after {when(shown.last_s)}")
    above = sum(lag.max_ms > _most(lags) for lag in lags)
    if above:
        parts.append(f"the largest lags of {counted(above, 'point')}, up to {max(lag.max_ms for lag in lags):,} ms")
    return f"Not in the picture: {', '.join(parts)}." if parts else ""


class Day(NamedTuple):
    """What a report of an earlier day has said."""

    day: date
    requests: int
    faults: int
    p50_ms: int | None
    p99_ms: int | None
    file: str
    """Name of its page, beside the page of today."""


def days(reports: Mapping[str, str], kind: str) -> list[Day]:
    """What earlier reports have said, oldest first. One that cannot be read is left out.

    Args:
        reports: name of a file such as ``2030-01-31.json`` -> its text.
        kind: that of the reports that count. Those of an earlier version do not tell theirs, and count.
    """
    found = []
    for name, text in reports.items():
        try:
            said, day = json.loads(text), date.fromisoformat(name.removesuffix(".json"))
            if said.get("kind", kind) != kind:
                continue
            lag = said["lag"] or {}
            numbers = said["requests"], sum(said["faults"].values()), lag.get("p50_ms"), lag.get("p99_ms")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
        if all(isinstance(number, int) or number is None for number in numbers):
            found.append(Day(day, *numbers, file=f"{day.isoformat()}.html"))
    return sorted(found)[-MAX_TREND_DAYS:]


MAX_TREND_DAYS = 366
"""Largest number of days in a trend."""


def trend_chart(days: Sequence[Day]) -> str:
    """Percentiles of lag in milliseconds, over the days that have any; empty with fewer than two."""
    lags = [day for day in days if day.p50_ms is not None and day.p99_ms is not None]
    if len(lags) < 2:
        return ""
    figure, axes = _axes()
    times = [datetime(each.day.year, each.day.month, each.day.day, tzinfo=UTC) for each in lags]
    for label, colour, values in (
        ("p99", _ORANGE, [each.p99_ms for each in lags]),
        ("p50", _BLUE, [each.p50_ms for each in lags]),
    ):
        axes.plot(times, values, color=colour, label=label, linewidth=1.6, marker="o", markersize=3)
    axes.set_ylabel("lag, ms")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(_thousands())
    _legend(axes)
    return _svg(figure, axes, "day, UTC", "trend")


def _legend(axes: Any) -> None:
    axes.legend(ncols=3, loc="upper left", bbox_to_anchor=(0, 1.16), frameon=False, labelcolor=_INK)


def rate_chart(points: Sequence[tuple[int, int]], span_s: int, what: str, name: str) -> str:
    """Bars: a number of timers for each time span; empty without any.

    Args:
        points: (first second of a span, number).
    """
    if not points:
        return ""
    figure, axes = _axes()
    axes.bar(
        [_at(at) for at, _ in points],
        [count for _, count in points],
        width=span_s * 0.9 / 86_400,
        align="edge",
        color=_BLUE,
    )
    axes.set_ylabel(f"timers {what}")
    axes.yaxis.set_major_locator(ticker.MaxNLocator(nbins="auto", integer=True))
    axes.yaxis.set_major_formatter(_thousands())
    _limit(axes, points[0][0], points[-1][0], span_s)
    return _svg(figure, axes, f"due time, UTC (one bar: {_span(span_s)})", name)


def _axes() -> tuple[Any, Any]:
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(9, 2.9), layout="constrained")
        axes = figure.add_subplot()
    axes.grid(axis="y", color=_GREY, alpha=0.25, linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def _limit(axes: Any, first_s: int, last_s: int, span_s: int) -> None:
    """Set the time axis. Few points get space around them: otherwise the axis would be years or parts of a second."""
    around_s = max(span_s, (_MIN_SPANS * span_s - (last_s - first_s)) // 2)
    axes.set_xlim(_at(first_s - around_s), _at(last_s + span_s + around_s))


def _svg(figure: Any, axes: Any, x_label: str, name: str) -> str:
    axes.set_xlabel(x_label)
    locator = dates.AutoDateLocator(tz=UTC, minticks=3, maxticks=9)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz=UTC))
    text = io.StringIO()
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    drawn = text.getvalue()
    drawn = drawn[drawn.index("<svg") :].replace(_INK, "currentColor")
    label = f'<svg class="chart" role="img" aria-label="{name}"'
    return _SIZE.sub("", drawn, count=2).replace("<svg", label, 1)


_SIZE = re.compile(r' (width|height)="[0-9.]+pt"')
"""Size of the whole drawing: removed, because the page sets the width."""


def _thousands() -> ticker.Formatter:
    return ticker.FuncFormatter(lambda value, _: f"{value:,.0f}" if float(value).is_integer() else f"{value:g}")


def _at(second: int) -> datetime:
    return datetime.fromtimestamp(min(second, _MAX_YEAR_S), UTC)


def _span(seconds: int) -> str:
    """A time span in words, such as "5 minutes"."""
    for unit, size in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds % size == 0:
            count = seconds // size
            return f"{count} {unit}s" if count > 1 else f"a{'n' if unit == 'hour' else ''} {unit}"
    return f"{seconds} seconds" if seconds > 1 else "a second"


EXIT_CODES = {CLEAN: 0, FAULTY: 3, UNDECIDED: 4}
"""Verdict -> exit code of the command."""

_RECORD_BYTES = 10
"""Bytes that the capacity formula of docs/operations.md, P + 26, adds to the key, value and headers of a request. P is
a Future without its 6 bytes of tags and lengths, and a key has 10 digits."""

_SECONDS_A_DAY = 86_400


def summary(findings: Findings) -> str:
    """The verdict in one sentence."""
    requests = counted(findings.requests, "request")
    doubts = [f"{findings.undecided.total():,} cannot be judged"] if findings.undecided else []
    doubts += ["some requests are not visible"] if findings.gaps else []
    doubts += ["the time is not known"] if findings.moment.doubt else []
    if findings.verdict == FAULTY:
        found = ", ".join(f"{findings.faults[fault]:,} {fault}" for fault in FAULTS if findings.faults[fault])
        return "; ".join([f"Faulty: {found} of {requests}", *doubts])
    if findings.verdict == UNDECIDED:
        return f"Undecided: of {requests} none is faulty, but {' and '.join(doubts)}"
    if not findings.requests:
        return "Clean: there is no request in scope, so nothing was judged"
    return f"Clean: none of {requests} is lost, duplicated, early, altered or otherwise faulty"


def hint(findings: Findings) -> str:
    """Possible reasons for lost timers; empty if none is known."""
    lost, sentences = findings.listed.get(LOST, []), []
    cold = sum(row["cold"] for row in lost)
    behind = sum(not row["cold"] and not findings.is_passed(row) for row in lost)
    if behind:
        sentences.append(
            f"{_of(behind, len(lost))} listed lost timers are due after the engine's own progress: the engine is down, "
            "behind, or never started. Compare the table of partitions below, and audit again when it has caught up."
        )
    if cold:
        sentences.append(
            f"{_of(cold, len(lost))} listed lost timers are in the cold tier: start 'timers spark promote', or read "
            "its output to see why it does not promote them, and audit again."
        )
    return " ".join(sentences)


def _of(some: int, listed: int) -> str:
    return "All" if some == listed else f"{some:,} of the {listed:,}"


def lines(findings: Findings) -> Iterator[str]:
    yield summary(findings)
    if hint(findings):
        yield hint(findings)
    if findings.moment.doubt:
        yield f"the time is not known: {findings.moment.doubt}"
    for reason in findings.gaps[:10]:
        yield f"not visible: {reason.text}"
    for sentence in findings.accepted[:10]:
        yield f"accepted: {sentence}"
    yield ""
    yield f"{'requests':<16}{findings.requests:>14,}"
    for status in STATUSES:
        if findings.statuses[status] or status in (*STATUSES[:2], PENDING, LOST):
            yield f"  {status:<14}{findings.statuses[status]:>14,}"
    for fault in [fault for fault in FAULTS if fault != LOST]:
        if findings.faults[fault] or fault in (DUPLICATE, EARLY):
            yield f"{fault:<18}{findings.faults[fault]:>12,}"
    for each in findings.unplaced:
        what = f"{each.what} that {gaps.UNPLACED[each.reason]}"
        yield f"not judged: {what}: {each.records:,}, such as {each.example or '-'}"
    for begin in findings.begins:
        where = f"{partition_name(begin.topic, begin.partition)} begins at offset {begin.start:,}"
        yield f"{where}: it counts from {counted(begin.timers, 'request')} that were pending at offset {begin.offset:,}"
    for lag in findings.lags_by_topic[:10]:
        figures = f"p50 {lag.p50_ms:,} ms, p99 {lag.p99_ms:,} ms, max {lag.max_ms:,} ms"
        yield f"lag of {lag.fired:,} fired to {lag.of}: {figures}"
    for topic in findings.reached[:10]:
        result, late = "met" if topic.meets(findings.objective) else "not met", topic.fired - topic.within
        yield f"objective {findings.objective}: {result} for {topic.topic}, {late:,} of {topic.fired:,} later"
    for code, timers in findings.dead_letters[:10]:
        yield f"dead letters: {timers:,} {code}"
    for fault, rows in [*sorted(findings.listed.items()), *sorted(findings.undecided_listed.items())]:
        for row in rows[:10]:
            what = f" ({row['altered']})" if fault == ALTERED else ""
            yield f"{fault}: {_name(row)} due {when(row['due_s'])} for {row['callback_topic'] or '-'}{what}"


def as_json(findings: Findings) -> dict[str, Any]:
    """The findings for a program: totals and the names of the offenders."""
    return {
        "clean": findings.clean,
        "verdict": findings.verdict,
        "summary": summary(findings),
        "as_of_ms": findings.moment.as_of_ms,
        "grace_s": findings.moment.grace_s,
        "requests": findings.requests,
        "statuses": {status: findings.statuses[status] for status in STATUSES},
        "faults": {fault: findings.faults[fault] for fault in FAULTS},
        "offenders": {fault: [_name(row) for row in rows] for fault, rows in findings.listed.items()},
        "altered": {_name(row): row["altered"] for row in findings.listed.get(ALTERED, [])},
        "undecided": {
            "time": findings.moment.doubt,
            "not_visible": [reason._asdict() for reason in findings.gaps],
            "reasons": dict(findings.undecided),
            "timers": {why: [_name(row) for row in rows] for why, rows in findings.undecided_listed.items()},
        },
        "accepted": findings.accepted,
        "not_judged": [each._asdict() for each in findings.unplaced],
        "begins": [begin._asdict() for begin in findings.begins],
        "storage": _storage(findings),
        "lag": None if findings.lag is None else findings.lag._asdict(),
        "lags": [lag._asdict() for lag in findings.lags_by_topic],
        "lags_by_hour": [lag._asdict() for lag in findings.lags_by_hour],
        "objective": {
            "percent": float(findings.objective.percent),
            "within_ms": findings.objective.within_ms,
            "topics": [{**each._asdict(), "met": each.meets(findings.objective)} for each in findings.reached],
            "missed": [{"name": _name(row), "due_s": row["due_s"], "lag_ms": row["lag_ms"]} for row in findings.missed],
        },
        "dead_letters": dict(findings.dead_letters),
        "pending_by_hour": [each._asdict() for each in findings.pending_by_hour],
        "busiest": [due._asdict() for due in findings.busiest],
    }


@cache
def _template() -> Template:
    """The template of the page. A process that audits several days compiles it once."""
    environment = html_templates("timers.spark.audit", ".")
    environment.filters |= {
        "n": lambda number: f"{number:,}",
        "counted": counted,
        "when": when,
        "when_ms": when_ms,
        "size": size,
    }
    return environment.get_template("report.html")


def page(findings: Findings, settings: Settings, days: Sequence[Day] = ()) -> str:
    """The page.

    Args:
        days: what earlier reports have said, and this one.
    """
    return _template().render(
        findings=findings,
        settings=settings,
        version=__version__,
        summary=summary(findings),
        undecided_meaning=gaps.MEANING,
        unplaced_meaning=gaps.UNPLACED,
        hint=hint(findings),
        statuses=STATUSES,
        faults=FAULTS,
        max_listed=MAX_OFFENDERS_LISTED,
        max_hours=MAX_HOURS_LISTED,
        name_of=_name,
        passed=findings.is_passed,
        storage=_storage(findings),
        cancels=sum(each.records for each in findings.counted if each.kind == CANCEL),
        days=days,
        trend_chart=trend_chart(days),
        outside_lags=outside(findings.lags_shown, findings.lags),
        outside_ahead=outside(findings.ahead_shown),
        lag_chart=lag_chart(findings.lags, findings.lag_span_s),
        fired_chart=rate_chart([(lag.of, lag.fired) for lag in findings.lags], findings.lag_span_s, "fired", "fired"),
        ahead_chart=rate_chart(
            [(due.due_s, due.timers) for due in findings.ahead], findings.ahead_span_s, "due", "ahead"
        ),
    )


def _name(row: dict[str, Any]) -> str:
    """The timer-id of an offender; for a request that cannot be decoded, the name of its record."""
    return str(row["timer_id"] or row["request"])


def _storage(findings: Findings) -> list[dict[str, Any]]:
    """For each request topic: bytes of its records, bytes by the capacity formula, and bytes on disk."""
    by_topic: dict[str, list[Any]] = defaultdict(list)
    for each in findings.counted:
        by_topic[each.topic].append(each)
    rows = []
    for topic, parts in sorted(by_topic.items()):
        records, held = sum(each.records for each in parts), sum(each.bytes for each in parts)
        seconds = (max(each.last_ms for each in parts) - min(each.first_ms for each in parts)) / 1000
        formula = held + _RECORD_BYTES * records
        rows.append(
            {
                "topic": topic,
                "records": records,
                "held": held,
                "each": held / records,
                "formula": formula,
                "disk": findings.disks.get(topic) if isinstance(findings.disks, dict) else None,
                "a_day": formula / seconds * _SECONDS_A_DAY if seconds >= 1 else None,
            }
        )
    return rows


def when(second: int | None) -> str:
    """An epoch second as date and time; as a number if it is outside Python's calendar."""
    if second is None:
        return "-"
    try:
        return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"second {second}"


def when_ms(moment_ms: int | None) -> str:
    if moment_ms is None:
        return "-"
    return f"{when(moment_ms // 1000)[:-1]}.{moment_ms % 1000:03}Z"


def size(count: float | None) -> str:
    if count is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"
