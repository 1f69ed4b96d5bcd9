"""``python -m bench.pairs --other DIRECTORY``: compare the worker of this checkout with that of another one.

A pair is one run of each worker with the same workload on the same broker, with the same publisher and the same checks;
only the worker process differs. The two take turns in running first. Figures of one pair are compared with each other,
so a slow change of the machine's speed does not count for one side.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench import machine, sparse, storm
from bench.engine import Engine
from bench.peers import bare
from bench.report import NOISY_SHARE, table
from bench.session import RESULTS, Session, measuring
from bench.workload import OVERDUE, PENDING, STORMS, WIDE, Workload
from tests.harness import kafka_version
from tests.harness.process import ROOT, clean_environment, stop_everything

THIS, OTHER = "this", "other"
FIGURES = {
    "cpu_total_s": "CPU s, whole life",
    "cpu_accept_s": "CPU s, accepting",
    "cpu_fire_s": "CPU s, firing",
    "cpu_ready_s": "CPU s, accepting and firing",
    "cpu_beyond_idle_s": "CPU s, firing, beyond idle",
    "broker_cpu_beyond_idle_s": "broker CPU s, firing, beyond idle",
    "lag_p50_ms": "lag p50 ms",
    "lag_p99_ms": "lag p99 ms",
    "received_p50_ms": "received after p50 ms",
    "received_p99_ms": "received after p99 ms",
    "peak_mb": "peak MB",
}
"""The compared figures; less is better. A workload has those that its run measures."""
RUNS: dict[Workload, Callable[[Session, Engine, Workload], Any]] = {
    **dict.fromkeys((*STORMS, *WIDE), storm.run),
    **dict.fromkeys(PENDING, sparse.accept),
    **dict.fromkeys(OVERDUE, sparse.overdue),
}
COUNTS = ("lost", "duplicates", "early", "altered")


@dataclass
class Pairs:
    """The runs of one workload. Entry ``i`` of both sides belongs to pair ``i``."""

    workload: Workload
    run: Callable[[Session, Engine, Workload], Any]
    runs: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {THIS: [], OTHER: []})
    failures: list[str] = field(default_factory=list)

    def compare(self, figure: str) -> dict[str, list[float]]:
        """Median, lowest and highest of each side and of the ratio this / other within a pair."""
        sides = {side: [float(run[figure]) for run in runs] for side, runs in self.runs.items()}
        ratios = self.ratios(figure)
        return {name: [median(found), min(found), max(found)] for name, found in {**sides, "ratio": ratios}.items()}

    def ratios(self, figure: str) -> list[float]:
        """This / other of each pair."""
        both = zip(self.runs[THIS], self.runs[OTHER], strict=True)
        return [this[figure] / max(other[figure], 1e-9) for this, other in both]

    def counts(self, side: str) -> dict[str, int]:
        """Lost, twice, early and altered callbacks of all runs of one side."""
        return {name: sum(run[name] for run in self.runs[side]) for name in COUNTS}

    @property
    def figures(self) -> list[str]:
        """The figures that were measured."""
        return _measured(self.runs[THIS][0]) if self.runs[THIS] else []

    @property
    def is_right(self) -> bool:
        """Whether all pairs were measured and each callback came once, not early and unaltered."""
        return not self.failures and not any(any(self.counts(side).values()) for side in self.runs)

    def to_json(self) -> dict[str, Any]:
        return {
            "workload": asdict(self.workload),
            "compared": {figure: self.compare(figure) for figure in self.figures},
            "counts": {side: self.counts(side) for side in self.runs},
            "failures": self.failures,
            "runs": self.runs,
        }


def _measured(run: Mapping[str, Any]) -> list[str]:
    return [figure for figure in FIGURES if run.get(figure) is not None]


def measure(session: Session, sides: Sequence[Engine], pairs: Pairs, number: int) -> None:
    """Measure one pair. If one of its runs fails, the pair does not count."""
    found: dict[str, dict[str, Any]] = {}
    for engine in sides if number % 2 == 0 else sides[::-1]:
        try:
            result = asdict(pairs.run(session, engine, pairs.workload))
        except Exception as error:
            session.printer.line(f"    {engine.name} FAILED: {error}")
            pairs.failures.append(f"pair {number + 1}, {engine.name}: {str(error).splitlines()[0]}")
            stop_everything()
            return
        if pairs.run is storm.run:
            result["cpu_ready_s"] = result["cpu_accept_s"] + result["cpu_fire_s"]
        found[engine.name] = {name: value for name, value in result.items() if not isinstance(value, (list, dict))}
        figures = ", ".join(f"{FIGURES[figure]} {result[figure]:,.4g}" for figure in _measured(result))
        session.printer.line(f"    pair {number + 1}, {engine.name}: {figures}")
    for side, run in found.items():
        pairs.runs[side].append(run)


def report(about: dict[str, Any], measured: Sequence[Pairs]) -> str:
    """Tables of all workloads as Markdown."""
    parts = [f"# Pairs: this ({about['commits'][THIS]}) and other ({about['commits'][OTHER]})"]
    parts.append(f"Measured in one run: {machine.sentence(about['machine'])}.")
    parts.append("Median (lowest to highest). Each ratio is this / other within one pair: below 1, this used less.")
    for pairs in measured:
        parts.append(f"## {pairs.workload.name}: {pairs.workload.title}")
        if pairs.runs[THIS]:
            rows = [
                [FIGURES[figure], *map(_cell, pairs.compare(figure).values()), _less(pairs.ratios(figure))]
                for figure in pairs.figures
            ]
            parts.append(table(["figure", THIS, OTHER, "this / other", "this is less in"], rows))
        for side, runs in pairs.runs.items():
            counts = " / ".join(f"{count:,}" for count in pairs.counts(side).values())
            line = f"{side}: {len(runs)} runs; lost / twice / early / altered {counts}"
            if pairs.run is storm.run:
                late = sum(not run["accepted_before_due"] for run in runs)
                noisy = sum(_noisy(run, about["machine"]["cores"]) for run in runs)
                line += f"; not all accepted before the first due second in {late}"
                line += f"; other programs took more than {NOISY_SHARE:.0%} of the machine in {noisy}"
            parts.append(f"{line}.")
        parts += [f"FAILED: {failure}" for failure in pairs.failures]
    return "\n\n".join(parts) + "\n"


def _cell(figures: Sequence[float]) -> str:
    middle, low, high = figures
    digits = 2 if high < 10 else 1 if high < 1000 else 0
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def _less(ratios: Sequence[float]) -> str:
    return f"{sum(ratio < 1 for ratio in ratios)} of {len(ratios)}"


def _noisy(run: dict[str, Any], cores: int) -> bool:
    return bool(run["others_cpu_fire_s"] > NOISY_SHARE * cores * run["fire_window_s"])


def _checked(engine: Engine, root: Path) -> Engine:
    """Return the engine, after a check of the package that its worker imports.

    Raises:
        SystemExit: it is not the package of the checkout.
    """
    asked = subprocess.run(
        [sys.executable, "-c", "import timers.app; print(timers.__file__)"],
        cwd=root,
        env=clean_environment(PYTHONPATH=str(root)),
        capture_output=True,
        text=True,
        check=False,
    )
    found = asked.stdout.strip().splitlines()[-1:]
    if found != [str(root / "timers" / "__init__.py")]:
        raise SystemExit(f"bench: {root} is no checkout whose worker runs here: {found or asked.stderr[-500:]}")
    return engine


def _commit(root: Path) -> str:
    commit, changed = machine.commit(root)
    return f"{commit}{' with changes' if changed else ''}"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.pairs", description=__doc__.split(": ", 1)[1].split("\n")[0])
    parser.add_argument("--other", type=Path, required=True, metavar="DIRECTORY", help="the other checkout")
    parser.add_argument("--pairs", type=int, default=7, help="for each workload (7)")
    known = {one.name: one for one in RUNS}
    storms = ",".join(one.name for one in STORMS)
    parser.add_argument("--workloads", default=storms, metavar="NAME,...", help=f"of {', '.join(known)} ({storms})")
    parser.add_argument("--smaller", type=int, default=1, metavar="FACTOR", help="divide the timers, to try it out (1)")
    parser.add_argument("--keep", action="store_true", help="leave logs and broker data of the run where they are")
    kafka_version.add_option(parser)
    options = parser.parse_args(argv)
    names = options.workloads.split(",")
    if unknown := set(names) - known.keys():
        parser.error(f"no workload {', '.join(sorted(unknown))}: there are {', '.join(known)}")
    chosen = [(known[name], RUNS[known[name]]) for name in names]
    smaller = options.smaller > 1
    options.workloads = [(one.smaller(options.smaller) if smaller else one, run) for one, run in chosen]
    options.other = options.other.resolve()
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report; return 0 if all was measured and no callback was lost, duplicate, early or altered."""
    options = _arguments(argv)
    roots = {THIS: ROOT, OTHER: options.other}
    sides = [_checked(Engine(root=root, name=side), root) for side, root in roots.items()]
    commits = {side: _commit(root) for side, root in roots.items()}
    measured = [Pairs(workload, run) for workload, run in options.workloads]
    about = {"machine": machine.describe(), "commits": commits, "arguments": {"pairs": options.pairs}}
    stem = RESULTS / "local" / f"pairs-{about['machine']['date'].replace(':', '')}"
    stem.parent.mkdir(parents=True, exist_ok=True)

    def write() -> None:
        results = {**about, "workloads": [pairs.to_json() for pairs in measured]}
        stem.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
        stem.with_suffix(".md").write_text(report(about, measured))

    try:
        with measuring("pairs-", keep=options.keep) as session:
            bare.warm_up(session)
            for pairs in measured:
                for number in range(options.pairs):
                    measure(session, sides, pairs, number)
                    write()  # an interrupted comparison keeps the measured pairs
    except KeyboardInterrupt:
        print("bench: interrupted", flush=True)
        return 130
    print(f"\n{report(about, measured)}\nwritten: {stem.relative_to(ROOT)}.json, .md", flush=True)
    return 0 if all(pairs.is_right for pairs in measured) else 1


if __name__ == "__main__":
    sys.exit(main())
