"""Draws lag, CPU time, memory, and the memory of a worker with a backlog."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from bench.report import Row, medians

COLORS = {"timers": "#1f77b4", "kstreams": "#e07b39", "bare": "#7f7f7f", "bare+headers": "#4d4d4d"}
CPU_TITLE = "CPU µs a timer, whole life of the process"


def _lag(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw the lag by due second; with one due second, the share of callbacks by lag."""
    spread_s = rows[0]["workload"]["spread_s"]
    for row in rows:
        color = COLORS.get(row["subject"])
        if spread_s > 1:
            seconds = range(len(row["lag_by_second_ms"]))
            axes.plot(seconds, [one[0] for one in row["lag_by_second_ms"]], color=color, label=f"{row['subject']} p50")
            axes.plot(
                seconds,
                [one[1] for one in row["lag_by_second_ms"]],
                color=color,
                ls="--",
                label=f"{row['subject']} p99",
            )
        else:
            axes.plot(row["lag_percentiles_ms"], range(101), color=color, label=row["subject"])
    axes.set_title(rows[0]["title"], fontsize=10)
    axes.set_xlabel("due second" if spread_s > 1 else "lag, ms")
    axes.set_ylabel("lag, ms" if spread_s > 1 else "% out")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def _bars(axes: Axes, rows: Sequence[Row], name: str, scale: float, per_timer: bool, title: str) -> None:
    """Draw one group for each workload with one bar for each system."""
    titles = list(dict.fromkeys(row["title"] for row in rows))
    subjects = list(dict.fromkeys(row["subject"] for row in rows))
    width = 0.8 / len(subjects)
    for index, subject in enumerate(subjects):
        found = [row for row in rows if row["subject"] == subject]
        places = [titles.index(row["title"]) + index * width for row in found]
        heights = [scale * row[name] / (row["workload"]["timers"] if per_timer else 1) for row in found]
        bars = axes.bar(places, heights, width, color=COLORS.get(subject), label=subject)
        axes.bar_label(bars, fmt="%.3g", fontsize=6)
    axes.set_xticks(
        [place + 0.4 - width / 2 for place in range(len(titles))], [text.replace(" ", "\n", 1) for text in titles]
    )
    axes.tick_params(axis="x", labelsize=7)
    axes.margins(y=0.3)
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=7, ncols=2, loc="upper left")


def _memory(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw resident memory and the number of callbacks while a backlog fires."""
    out = axes.twinx()
    for row in rows:
        seconds = [second for second, _, _ in row["memory"]]
        color = COLORS.get(row["subject"])
        axes.plot(seconds, [mb for _, mb, _ in row["memory"]], color=color, label=f"{row['subject']} MB")
        out.plot(seconds, [count / 1e6 for _, _, count in row["memory"]], color=color, ls=":")
    axes.set_title(f"backlog of {rows[0]['timers']:,} overdue timers", fontsize=10)
    axes.set_xlabel("s since the start of the process")
    axes.set_ylabel("resident, MB")
    out.set_ylabel("dotted: million out")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def draw(results: dict[str, Any], path: Path) -> bool:
    """Write the picture; return False if the run has no figures for it."""
    rows, backlog = medians(results.get("storm", ())), results.get("backlog", ())
    if not rows and not backlog:
        return False
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["title"], []).append(row)
    pictures: list[Callable[[Axes], None]] = [partial(_lag, rows=group) for group in groups.values()]
    if rows:
        everything = [*rows, *medians(results.get("bare", ()))]
        pictures += [
            partial(_bars, rows=everything, name="cpu_total_s", scale=1e6, per_timer=True, title=CPU_TITLE),
            partial(_bars, rows=everything, name="peak_mb", scale=1.0, per_timer=False, title="peak memory, MB"),
        ]
    if backlog:
        pictures.append(partial(_memory, rows=backlog))
    columns = min(3, len(pictures))
    lines = -(-len(pictures) // columns)
    figure, grid = plt.subplots(lines, columns, figsize=(5 * columns, 3.6 * lines), squeeze=False)
    places = list(grid.flat)
    for picture in pictures:
        picture(places.pop(0))
    for axes in places:
        axes.set_visible(False)
    about = results["machine"]
    figure.suptitle(
        f"timers {about['commit']}, {about['cores']} cores, Kafka {about['kafka']}, {about['date']}", fontsize=9
    )
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return True
