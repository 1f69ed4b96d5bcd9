"""``python -m bench.spark``: compare lag, rates, CPU and state size of the engine on Spark with the worker."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import machine, storm
from bench.engine import Engine
from bench.peers import bare
from bench.session import RESULTS, RunNames, Session, measuring
from bench.spark_engine import WARM_UP, CpuSeconds, SparkEngine
from bench.storm import StormResult
from bench.subject import Subject
from bench.workload import Workload
from tests.harness import kafka_version
from tests.harness.process import ROOT

STORM = Workload("storm", 600_000, 20)
RATE_S = 10
"""How long each rate is measured."""
RATES = (50_000, 70_000, 90_000, 110_000)
"""Timers due in each second; the search ends with the first rate that is too high."""
HIGHEST_LAG_MS = 3_000


@dataclass(frozen=True)
class Measured:
    """One storm on one subject."""

    result: StormResult
    state_bytes: int
    """Size on disk when all timers were pending."""
    micro_batch_s: list[float]
    """50th and 99th percentile of the duration of a micro-batch; empty for the worker."""
    cpu_s: dict[str, CpuSeconds]
    """CPU of the engine on Spark until it was ``ready``, all was ``pending``, and all was ``fired``."""

    def to_json(self) -> dict[str, Any]:
        cpu_s = {moment: used._asdict() for moment, used in self.cpu_s.items()}
        more = {"state_bytes": self.state_bytes, "micro_batch_s": self.micro_batch_s, "cpu_s": cpu_s}
        return {**self.result.to_json(), **more}

    def _cpu_between(self, since: str, until: str) -> str:
        if since not in self.cpu_s:
            return "-"
        used = [after - before for before, after in zip(self.cpu_s[since], self.cpu_s[until], strict=True)]
        return " + ".join(f"{each:.1f}" for each in used)

    def row(self) -> str:
        one = self.result
        cells = (
            one.title,
            one.subject,
            f"{one.accepts_per_s or 0:,.0f} / {one.accepts_steady_per_s or 0:,.0f}",
            f"{one.lag_p50_ms:,.0f} / {one.lag_p99_ms:,.0f} / {one.lag_max_ms:,.0f}",
            f"{one.lost} / {one.duplicates} / {one.early} / {one.altered}",
            f"{one.cpu_accept_s:.1f} / {one.cpu_fire_s:.1f}",
            f"{self._cpu_between('ready', 'pending')} / {self._cpu_between('pending', 'fired')}",
            f"{self.state_bytes / max(1, one.workload['timers']):,.0f}" if one.accepted_before_due else "late",
            " / ".join(f"{each:.1f}" for each in self.micro_batch_s) or "-",
        )
        return f"| {' | '.join(cells)} |"


HEADINGS = (
    "timers",
    "engine",
    "in/s, from first to last / steady",
    "lag ms p50 / p99 / max",
    "lost / twice / early / altered",
    "CPU s taking in / firing",
    "Java + Python",
    "state bytes a timer",
    "micro-batch s p50 / p99",
)


def measure(session: Session, subject: Subject, workload: Workload) -> Measured:
    """Measure one storm."""
    state = 0
    used: dict[str, CpuSeconds] = {}
    took: list[float] = []

    def observe(moment: str, names: RunNames) -> None:
        nonlocal state, took
        if isinstance(subject, SparkEngine):
            used[moment] = subject.cpu_s()
            took = [seconds for _, seconds in subject.micro_batches()]  # the end of the run deletes its logs
        if moment == "pending":
            state = _directory_bytes(names.data_dir)

    result = storm.run(session, subject, workload, observe=observe)
    return Measured(result, state, [float(each) for each in np.percentile(took, (50, 99))] if took else [], used)


def _directory_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _report(about: dict[str, Any], measured: Sequence[Measured]) -> str:
    lines = [
        f"Commit {about['commit']}{' (with changes)' if about['dirty'] else ''}, {about['date']}, {about['cpu']}, "
        f"{about['cores']} cores that broker, publisher and engine share, {about['memory_gb']} GB; load before: "
        f"{about['load_before']}. The engine on Spark had fired {WARM_UP.timers:,} other timers before: it is started "
        "once, and Java is slow at first. In/s is from the first request published to the last one accepted.",
        "",
        f"| {' | '.join(HEADINGS)} |",
        f"|{'---|' * len(HEADINGS)}",
        *(each.row() for each in measured),
    ]
    return "\n".join(lines) + "\n"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__.split(": ")[1])
    parser.add_argument("--timers", type=int, default=STORM.timers, help=f"of the storm ({STORM.timers})")
    parser.add_argument("--spread", type=int, default=STORM.spread_s, metavar="SECONDS", help=f"({STORM.spread_s})")
    parser.add_argument("--master", default="local[2]", help="of Spark (local[2])")
    parser.add_argument("--worker", action=argparse.BooleanOptionalAction, default=True, help="measure the worker too")
    parser.add_argument(
        "--rates",
        type=lambda text: tuple(int(each) for each in text.split(",") if each),
        default=RATES,
        metavar="N,N,...",
        help=f"timers due in each second, rising, until p99 lag is over {HIGHEST_LAG_MS} ms; '' for none",
    )
    parser.add_argument("--publish", action="store_true", help="also write bench/results/spark.*, which is tracked")
    parser.add_argument("--keep", action="store_true", help="leave logs and the broker's data")
    kafka_version.add_option(parser)
    return parser.parse_args(argv)


def _measure_all(session: Session, options: argparse.Namespace) -> Iterator[Measured]:
    spark = SparkEngine(options.master)
    workload = Workload(STORM.name, options.timers, options.spread)
    for subject in (Engine(), spark) if options.worker else (spark,):
        yield measure(session, subject, workload)
    for rate in options.rates:
        one = measure(session, spark, Workload(f"{rate:,} a second", rate * RATE_S, RATE_S))
        yield one
        if one.result.lag_p99_ms > HIGHEST_LAG_MS:
            return


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report; return 0 if no callback was lost, duplicate or early."""
    options = _arguments(argv)
    measured: list[Measured] = []
    with measuring("spark-", keep=options.keep) as session:
        about = machine.describe()
        bare.warm_up(session)
        for one in _measure_all(session, options):
            measured.append(one)
            session.printer.line(one.row())
    text = _report(about, measured)
    results = {"machine": about, "arguments": sys.argv[1:], "storm": [each.to_json() for each in measured]}
    stem = RESULTS / "spark" if options.publish else RESULTS / "local" / session.workdir.name
    stem.parent.mkdir(parents=True, exist_ok=True)
    stem.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    stem.with_suffix(".md").write_text(text)
    print(f"\n{text}\nwritten: {stem.relative_to(ROOT)}.json, .md", flush=True)
    wrong = [each.result for each in measured if each.result.lost or each.result.duplicates or each.result.early]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
