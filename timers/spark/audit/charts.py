"""Charts as SVG inside a page: they need no other file, and their text has the colour of the page's text."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import matplotlib
from matplotlib import dates, ticker
from matplotlib.figure import Figure

from timers.spark.audit.findings import Due, Lag

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
    """Percentiles of lag in milliseconds, over the due time."""
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
    largest, smallest = max(lag.max_ms for lag in lags), min(lag.p50_ms for lag in lags)
    if largest > 50 * max(smallest, 1):
        axes.set_yscale("symlog", linthresh=10)
        axes.set_ylim(bottom=min(0, smallest))
    else:
        axes.set_ylim(bottom=min(0, smallest), top=max(1, largest * 1.1))
    axes.yaxis.set_major_formatter(_thousands())
    axes.legend(ncols=3, loc="upper left", bbox_to_anchor=(0, 1.16), frameon=False, labelcolor=_INK)
    _limit(axes, lags[0].of, lags[-1].of, span_s)
    return _svg(figure, axes, f"due time, UTC (one point: {_span(span_s)})", "lags")


def rate_chart(points: Sequence[tuple[int, int]], span_s: int, what: str, name: str) -> str:
    """Bars: a number for each time span.

    Args:
        points: (first second of a span, number).
    """
    figure, axes = _axes()
    axes.bar(
        [_at(at) for at, _ in points],
        [count for _, count in points],
        width=span_s * 0.9 / 86_400,
        align="edge",
        color=_BLUE,
    )
    axes.set_ylabel(what)
    axes.yaxis.set_major_locator(ticker.MaxNLocator(nbins="auto", integer=True))
    axes.yaxis.set_major_formatter(_thousands())
    _limit(axes, points[0][0], points[-1][0], span_s)
    return _svg(figure, axes, f"due time, UTC (one bar: {_span(span_s)})", name)


def ahead_chart(ahead: Sequence[Due], span_s: int) -> str:
    """Pending timers over their due time."""
    return rate_chart([(due.due_s, due.timers) for due in ahead], span_s, "timers due", "ahead")


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
