"""Writes the figures of a published run into the README: ``python -m bench.readme``."""

import json
import re
from typing import Any

from bench.report import medians
from bench.session import RESULTS
from tests.harness.process import ROOT

README = ROOT / "README.md"
PUBLISHED = RESULTS / "latest.json"
BEGIN = "<!-- Written by `python -m bench.readme` from bench/results/latest.json: do not edit. -->\n"
END = "<!-- End of the figures. -->\n"

NAMES = {"timers": "timers", "kstreams": "Kafka Streams"}

SECTION = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)


def _storm_table(rows: list[dict[str, Any]]) -> str:
    """Lag, CPU time and memory of each workload: our worker and, where it was measured, Kafka Streams."""
    lines = ["| workload | system | lag p50 / p99 / max | CPU seconds | peak memory |", "|---|---|---|---|---|"]
    lines += [
        f"| {row['title']} | {NAMES[row['subject']]} "
        f"| {row['lag_p50_ms']:,.0f} / {row['lag_p99_ms']:,.0f} / {row['lag_max_ms']:,.0f} ms "
        f"| {row['cpu_total_s']:.1f} | {row['peak_mb']:,.0f} MB |"
        for row in rows
    ]
    return "\n".join(lines)


def _violations(rows: list[dict[str, Any]]) -> str:
    """What the run counted of lost, doubled, early and altered callbacks of our worker."""
    total = {name: sum(row[name] for row in rows) for name in ("lost", "duplicates", "early", "altered")}
    if not any(total.values()):
        return "No callback was lost, doubled, early or altered."
    counted = ", ".join(f"{name} {count:,}" for name, count in total.items())
    return f"**Faults of `timers` in this run: {counted}.**"


def figures(results: dict[str, Any]) -> str:
    """The section of the README with the figures of one run."""
    machine, rows = results["machine"], medians(results["storm"])
    ours = [row for row in rows if row["subject"] == "timers"]
    load = ours[0]["workload"]
    cost_us = 1e6 * ours[0]["cpu_total_s"] / load["timers"]
    text = [
        f"All figures are from one run of `make bench`: commit `{machine['commit']}`, {machine['date'][:10]}, Kafka "
        f"{machine['kafka']}, {machine['cores']} cores ({machine['cpu']}) that broker, worker and publisher share. "
        f"Callbacks have {load['payload_bytes']} bytes, topics have {load['partitions']} partitions, and all output is "
        f"transactional. {_violations(ours)}",
        _storm_table(rows),
        f"In the first row a timer costs {cost_us:.0f} µs of CPU from request to callback, without publishing.",
    ]
    for row in results.get("recovery", ()):
        text[-1] += (
            f" On an empty disk, a process of {NAMES[row['subject']]} recovered {row['timers']:,} pending timers in "
            f"{row['recovered_s']:.1f} s, and fired {row['start_to_ready_s']:.1f} s after its start."
        )
    for row in results.get("baseline", ()):
        text[-1] += (
            f" An ordinary Faust table with a changelog accepted {row['accepts_per_s']:,.0f} timers a second, and the "
            f"worker in the first row {ours[0]['accepts_per_s']:,.0f}."
        )
    return "\n\n".join(text) + "\n"


def with_figures(readme: str, results: dict[str, Any]) -> str:
    """The README with the figures of ``results``."""
    section = f"{BEGIN}\n{figures(results)}\n{END}"
    text, count = SECTION.subn(lambda _: section, readme)
    if count != 1:
        raise ValueError(f"README.md has {count} sections between {BEGIN!r} and {END!r}; it needs one")
    return text


def publish() -> None:
    """Write the figures of ``bench/results/latest.json`` into the README."""
    README.write_text(with_figures(README.read_text(), json.loads(PUBLISHED.read_text())))


if __name__ == "__main__":
    publish()
