"""Writes the results of one run as Markdown tables, which are aligned for a terminal."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from bench import machine

Row = dict[str, Any]
NOISY_SHARE = 0.1
"""A row is marked if other programs took more than this share of the CPU time of the machine."""


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns: the first two to the left, figures to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    sides = ["<" if column < 2 else ">" for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = (f"{cell:{side}{width}}" for cell, side, width in zip(cells, sides, widths, strict=True))
        return f"| {' | '.join(padded)} |"

    rule = "|".join(
        "-" * (width + 1) + (":" if side == ">" else "-") for width, side in zip(widths, sides, strict=True)
    )
    return "\n".join((line(header), f"|{rule}|", *map(line, rows)))


def medians(rows: Sequence[Row]) -> list[Row]:
    """One row for each workload and system: medians of repeated runs; of lost and wrong callbacks the maximum."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["title"], row["subject"]), []).append(row)
    return [_median_row(group) for group in groups.values()]


def _median_row(group: list[Row]) -> Row:
    row = dict(group[0])
    for name, value in row.items():
        values = [other[name] for other in group]
        if name in ("lost", "duplicates", "early", "altered"):
            row[name] = max(values)
        elif isinstance(value, float) and all(isinstance(other, float) for other in values):
            row[name] = median(values)
    row["runs"] = len(group)
    return row


def _per_timer_us(row: Row, name: str) -> str:
    return f"{1e6 * row[name] / row['workload']['timers']:.1f}"


def _noisy(row: Row, cores: int) -> bool:
    return bool(row["others_cpu_fire_s"] > NOISY_SHARE * cores * row["fire_window_s"])


def _storm(rows: Sequence[Row]) -> str:
    shown, peers = [], {row["title"]: row for row in rows if row["subject"] == "kstreams"}
    for row in rows:
        peer = peers.get(row["title"])
        ratio = f"{row['cpu_total_s'] / peer['cpu_total_s']:.2f}" if peer and peer is not row else ""
        accepts = "-" if row["accepts_per_s"] is None else f"{row['accepts_per_s']:,.0f}"
        shown.append(
            [
                row["title"],
                row["subject"] + (" (noisy)" if _noisy(row, row["cores"]) else ""),
                f"{row['lag_p50_ms']:,.0f} / {row['lag_p99_ms']:,.0f} / {row['lag_max_ms']:,.0f}",
                f"{row['cpu_total_s']:.1f}",
                f"{row['cpu_accept_s']:.1f}",
                f"{row['cpu_fire_s']:.1f}",
                ratio,
                f"{row['broker_cpu_fire_s']:.1f}",
                f"{row['peak_mb']:,.0f}",
                accepts if row["accepted_before_due"] else f"{accepts} late",
                "-" if row["accepts_steady_per_s"] is None else f"{row['accepts_steady_per_s']:,.0f}",
                f"{row['lost']:,} / {row['duplicates']:,} / {row['early']:,} / {row['altered']:,}",
            ]
        )
    header = [
        "workload",
        "system",
        "lag p50 / p99 / max ms",
        "CPU s, whole life",
        "accepting",
        "firing",
        "of kstreams'",
        "broker, firing",
        "peak MB",
        "accepted/s",
        "steadily",
        "lost / twice / early / altered",
    ]
    return table(header, shown)


def _bare(rows: Sequence[Row]) -> str:
    header = ["workload", "loop", "callbacks/s", "s", "CPU s, whole life", "µs a timer", "broker CPU s", "peak MB"]
    shown = [
        [
            row["title"],
            row["subject"],
            f"{row['per_s']:,.0f}",
            f"{row['out_s']:.2f}",
            f"{row['cpu_total_s']:.1f}",
            _per_timer_us(row, "cpu_total_s"),
            f"{row['broker_cpu_s']:.1f}",
            f"{row['peak_mb']:,.0f}",
        ]
        for row in rows
    ]
    return table(header, shown)


def _recovery(rows: Sequence[Row]) -> str:
    header = ["system", "pending", "assignment to ready s", "pending/s", "process start to ready s", "CPU s", "peak MB"]
    shown = [
        [
            row["subject"],
            f"{row['timers']:,}",
            f"{row['recovered_s']:.2f}",
            f"{row['timers'] / max(row['recovered_s'], 0.01):,.0f}",
            f"{row['start_to_ready_s']:.2f}",
            f"{row['cpu_s']:.1f}",
            f"{row['peak_mb']:,.0f}",
        ]
        for row in rows
    ]
    return table(header, shown)


def _backlog(rows: Sequence[Row]) -> str:
    header = [
        "system",
        "overdue",
        "process start to last s",
        "fired/s",
        "CPU s",
        "MB ready / first half / second half / peak",
        "lost / twice / early / altered",
    ]
    shown = [
        [
            row["subject"],
            f"{row['timers']:,}",
            f"{row['out_s']:.1f}",
            f"{row['timers_per_s']:,.0f}",
            f"{row['cpu_s']:.1f}",
            " / ".join(f"{row[name]:,.0f}" for name in ("ready_mb", "early_half_mb", "late_half_mb", "peak_mb")),
            f"{row['lost']:,} / {row['duplicates']:,} / {row['early']:,} / {row['altered']:,}",
        ]
        for row in rows
    ]
    return table(header, shown)


def _cost(rows: Sequence[Row]) -> str:
    header = ["system", "moment", "Kafka records", "Kafka bytes", "store bytes", "where the records are"]
    shown = []
    for row in rows:
        for moment in ("pending", "fired"):
            topics = sorted(row[moment].items(), key=lambda item: -item[1]["records"])
            where = ", ".join(f"{name} {topic['records']:.2f}" for name, topic in topics if topic["records"] >= 0.005)
            shown.append(
                [
                    row["subject"],
                    moment,
                    f"{row[f'{moment}_kafka_records']:.3f}",
                    f"{row[f'{moment}_kafka_bytes']:.0f}",
                    f"{row[f'{moment}_store_bytes']:.0f}",
                    where,
                ]
            )
    return table(header, shown)


def _baseline(rows: Sequence[Row]) -> str:
    header = ["system", "timers", "accepted/s", "CPU µs a timer", "broker CPU µs a timer", "peak MB"]
    shown = [
        [
            row["subject"],
            f"{row['timers']:,}",
            f"{row['accepts_per_s']:,.0f}",
            f"{row['cpu_us_per_timer']:.1f}",
            f"{row['broker_cpu_us_per_timer']:.1f}",
            f"{row['peak_mb']:,.0f}",
        ]
        for row in rows
    ]
    return table(header, shown)


SECTIONS = (
    (
        "storm",
        "Storm",
        "Published in advance with a payload of {payload} bytes on {partitions} partitions, one worker, broker on the "
        "same machine. Lag = broker's append time of the fired record − start of the due second, over all timers, read "
        "by a `read_committed` consumer. CPU seconds are user + system of all processes of the system: over its whole "
        "life up to the last callback, while it accepted, and from 1 s before the first due second to 0.5 s after the "
        "last callback.",
        lambda rows: _storm(medians(rows)),
    ),
    (
        "bare",
        "The limit: a bare client loop",
        "The same requests, all there before the loop starts: read, parsed, and their callbacks sent at once in "
        "transactions. Nothing is stored and nothing waits.",
        lambda rows: _bare(medians(rows)),
    ),
    (
        "baseline",
        "The baseline: the textbook Faust table",
        "One event at a time into a table with a changelog. It fires nothing: this is its acceptance alone.",
        _baseline,
    ),
    (
        "recovery",
        "Recovery from an empty disk",
        "Stopped with everything pending, data directory deleted, started again.",
        _recovery,
    ),
    (
        "backlog",
        "A backlog",
        "Half accepted, the worker stopped, the other half published, all of it let come due, the worker started. "
        "Memory is resident: when it was ready, the medians while each half of the callbacks went out, the peak.",
        _backlog,
    ),
    (
        "cost",
        "Cost of a timer",
        "For each timer, with a payload of {payload} bytes. Kafka records count transaction markers; `APP-…` are "
        "internal topics, `__…` the broker's own. Bytes are log segments; store bytes are disk blocks of the data "
        "directory.",
        _cost,
    ),
)


def markdown(results: dict[str, Any]) -> str:
    """The report as Markdown."""
    parts = ["# Benchmark", f"Measured in one run: {machine.sentence(results['machine'])}."]
    cores = results["machine"]["cores"]
    if results.get("settings"):
        parts.append("With " + ", ".join(f"`{name}={value}`" for name, value in results["settings"].items()) + ".")
    for key, title, text, render in SECTIONS:
        rows = [{**row, "cores": cores} for row in results.get(key, ())]
        if rows:
            load = rows[0].get("workload", rows[0])
            values = {"payload": load.get("payload_bytes", "?"), "partitions": load.get("partitions", "?")}
            parts += [f"## {title}", text.format(**values), render(rows)]
    if any(_noisy(row, cores) for row in results.get("storm", ())):
        parts.append(f"*(noisy)*: while it fired, other programs took more than {NOISY_SHARE:.0%} of the machine.")
    missing = [f"* {name}: {reason}" for name, reason in results["not_measured"].items()]
    if missing:
        parts += ["## Not measured", "\n".join(missing)]
    return "\n\n".join(parts) + "\n"
