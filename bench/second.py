"""``python -m bench.second``: where the time of a second goes, from the tick to the callback and to its receiver.

A real worker notes when each step of each transaction begins and ends (:mod:`bench.second_app`), while a storm fires.
All times are milliseconds since the start of the due second. Worker and broker share the clock of the machine.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from bench import machine, storm
from bench.engine import Engine
from bench.peers import bare
from bench.report import table
from bench.session import RESULTS, measuring
from bench.workload import STORMS, WIDE
from tests.harness import kafka_version
from tests.harness.process import ROOT

STEPS = (
    "tick",
    "waking",
    "turn",
    "filling",
    "leaders",
    "add partitions",
    "produce",
    "add offsets",
    "commit offsets",
    "end",
    "waking again",
)
"""In the order in which they happen. The offsets are in few transactions."""
WITH, WITHOUT = "with offsets", "without offsets"
ABOUT = {
    "tick": "from the append of the tick until the worker has read it",
    "waking": "until the thread of the machine begins its transaction",
    "turn": "until no other machine fills a transaction",
    "filling": "until the timers are read from the store, and their records are in batches",
    "leaders": "leaders answer that they are there",
    "add partitions": "the coordinator adds the partitions to the transaction",
    "produce": "the leaders append the records: the callbacks are appended",
    "add offsets": "the coordinator adds the group to the transaction",
    "commit offsets": "the group's coordinator takes the offsets",
    "end": "the coordinator commits; then it writes the markers, and receivers get the callbacks",
    "waking again": "until the thread of the machine goes on",
}


class Step(NamedTuple):
    """A step of one machine, in epoch seconds."""

    machine: str
    name: str
    begin: float
    end: float


Spans = dict[str, tuple[float, float]]
"""Step -> milliseconds since the start of the due second at which it begins and ends."""


def transactions(steps: Iterable[Step], first_s: int, last_s: int) -> list[Spans]:
    """The first transaction of each machine in each due second."""
    ticks: dict[int, Step] = {}
    by_machine: dict[str, list[Step]] = {}
    for step in sorted(steps, key=lambda step: step.begin):
        if step.name == "tick":
            ticks.setdefault(int(step.begin), step)
        else:
            by_machine.setdefault(step.machine, []).append(step)
    found = []
    for of_machine in by_machine.values():
        turns = [step for step in of_machine if step.name == "turn"]
        for second in range(first_s, last_s + 1):
            tick = ticks.get(second)
            turn = None if tick is None else next((each for each in turns if each.begin >= tick.end), None)
            if tick is None or turn is None or turn.begin >= second + 1:
                continue
            whole = next(each for each in of_machine if each.name == "transaction" and each.begin >= turn.end)
            inside = [each for each in of_machine if whole.begin <= each.begin and each.end <= whole.end]
            found.append(_spans(second, tick, turn, whole, [each for each in inside if each is not whole]))
    return found


def _spans(second: int, tick: Step, turn: Step, whole: Step, requests: Sequence[Step]) -> Spans:
    spans = {
        "tick": (tick.begin, tick.end),
        "waking": (tick.end, turn.begin),
        "turn": (turn.begin, turn.end),
        "filling": (turn.end, whole.begin),
    }
    for request in requests:
        begin, end = spans.get(request.name, (request.begin, request.end))
        spans[request.name] = min(begin, request.begin), max(end, request.end)
    spans["waking again"] = max(end for _, end in spans.values()), whole.end
    return {name: ((begin - second) * 1000, (end - second) * 1000) for name, (begin, end) in spans.items()}


def figures(found: Sequence[Spans]) -> dict[str, dict[str, float]]:
    """Step -> medians of its begin and end, 99th percentile of its end, median and 99th percentile of what it took."""
    summed = {}
    for name in STEPS:
        spans = np.array([each[name] for each in found if name in each])
        if len(spans):
            took = spans[:, 1] - spans[:, 0]
            summed[name] = {
                "transactions": len(spans),
                "begin_p50_ms": float(np.median(spans[:, 0])),
                "end_p50_ms": float(np.median(spans[:, 1])),
                "end_p99_ms": float(np.percentile(spans[:, 1], 99)),
                "took_p50_ms": float(np.median(took)),
                "took_p99_ms": float(np.percentile(took, 99)),
            }
    return summed


def measure(name: str) -> dict[str, Any]:
    """Run the storm ``name``, and return the figures."""
    workload = next(each for each in (*STORMS, *WIDE) if each.name == name)
    with measuring("second-") as session:
        path = session.workdir / "steps.jsonl"
        bare.warm_up(session)
        due_s: list[int] = []

        def first_due_s(earliest_s: int) -> int:
            due_s.append(earliest_s)
            return earliest_s

        engine = Engine({"BENCH_STEPS": str(path)}, app="bench.second_app")
        fired = storm.run(session, engine, workload, first_due_s=first_due_s)
        steps = [Step(*json.loads(line)) for line in path.read_text().splitlines()]
    first_s, last_s = due_s[-1], due_s[-1] + workload.spread_s - 1
    found = transactions(steps, first_s, last_s)
    sides = {
        WITHOUT: [each for each in found if "add offsets" not in each],
        WITH: [each for each in found if "add offsets" in each],
    }
    inside = Counter(step.name for step in steps if step.machine and first_s <= step.begin < last_s + 1)
    return {
        "machine": machine.describe(),
        "workload": workload.name,
        "title": workload.title,
        "steps": {side: figures(each) for side, each in sides.items() if each},
        "per_s": {name: count / workload.spread_s for name, count in sorted(inside.items())},
        "appended_ms": [fired.lag_p50_ms, fired.lag_p99_ms],
        "received_ms": [fired.received_p50_ms, fired.received_p99_ms],
        "cpu_fire_s": fired.cpu_fire_s,
        "broker_cpu_fire_s": fired.broker_cpu_fire_s,
    }


def report(results: Mapping[str, Any], picture: str) -> str:
    """The figures as Markdown."""
    parts = [
        f"# A second of a worker: {results['title']}",
        f"Measured in one run: {machine.sentence(results['machine'])}.",
        "Milliseconds since the start of the due second. The tick begins with its append.",
        f"![the steps of a second]({picture})",
    ]
    for side, steps in results["steps"].items():
        count = max(each["transactions"] for each in steps.values())
        rows = [
            [name, *(f"{each[key]:.1f}" for key in each if key.endswith("_ms")), ABOUT[name]]
            for name, each in steps.items()
        ]
        header = ["step", "begins p50", "ends p50", "ends p99", "takes p50", "takes p99", "what it is"]
        parts += [f"## {count:,} transactions {side}", table(header, rows)]
    appended, received = results["appended_ms"], results["received_ms"]
    parts.append(f"Callbacks were appended after {appended[0]:.0f} ms (p50) and {appended[1]:.0f} ms (p99).")
    if received[0] is not None:
        parts.append(f"A `read_committed` consumer had them after {received[0]:.0f} and {received[1]:.0f} ms.")
    asked = ", ".join(f"{name} {count:.1f}" for name, count in results["per_s"].items())
    parts.append(f"Steps a second of all machines: {asked}.")
    return "\n\n".join(parts) + "\n"


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Write the picture: for each step a bar from its median begin to its median end, and a line up to the p99."""
    sides = results["steps"]
    figure, grid = plt.subplots(len(sides), 1, figsize=(9, 3.4 * len(sides)), squeeze=False, sharex=True)
    for axes, (side, steps) in zip(grid.flat, sides.items(), strict=True):
        _draw(axes, steps)
        count = max(each["transactions"] for each in steps.values())
        axes.set_title(f"{results['title']}: {count:,} transactions {side}", fontsize=10)
        for (what, color), times in zip(
            (("appended", "#1f77b4"), ("received", "#e07b39")),
            (results["appended_ms"], results["received_ms"]),
            strict=True,
        ):
            if times[0] is not None:
                axes.axvline(times[0], color=color, label=f"{what} p50")
                axes.axvline(times[1], color=color, ls="--", label=f"{what} p99")
        axes.legend(fontsize=7, loc="lower left")
    grid.flat[-1].set_xlabel("ms since the start of the due second")
    about = results["machine"]
    figure.suptitle(f"timers {about['commit']}, {about['cores']} cores, Kafka {about['kafka']}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw(axes: Axes, steps: Mapping[str, Mapping[str, float]]) -> None:
    for place, each in enumerate(steps.values()):
        begin, end = each["begin_p50_ms"], each["end_p50_ms"]
        axes.hlines(place, end, max(end, each["end_p99_ms"]), color="#7f7f7f", lw=1)
        axes.barh(place, end - begin, left=begin, color="#4d4d4d")
    axes.set_yticks(range(len(steps)), [f"{name} {each['took_p50_ms']:.1f}" for name, each in steps.items()])
    axes.invert_yaxis()
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the figures and the picture."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.second", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    names = [each.name for each in (*STORMS, *WIDE)]
    parser.add_argument("--workload", default="steady", choices=names)
    parser.add_argument("--publish", action="store_true", help="write results/second*, which is tracked")
    kafka_version.add_option(parser)
    options = parser.parse_args(argv)
    results = measure(options.workload)
    name = "second" if options.workload == "steady" else f"second_{options.workload}"
    stem = (RESULTS if options.publish else RESULTS / "local") / name
    stem.parent.mkdir(parents=True, exist_ok=True)
    draw(results, stem.with_suffix(".png"))
    text = report(results, f"{name}.png")
    stem.with_suffix(".md").write_text(text)
    stem.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    print(f"\n{text}\nwritten: {stem.relative_to(ROOT)}.json, .md, .png", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
