"""``python -m bench [storm|recovery|backlog|cost|all ...]``: start a broker, measure, report. See README.md."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from bench import backlog, cost, machine, plot, readme, recovery, report, storm
from bench.engine import Engine
from bench.peers import bare, faust_table
from bench.peers.kafka_streams import KafkaStreams
from bench.session import RESULTS, Session, measuring
from bench.subject import Subject, Unavailable
from bench.workload import PARTITIONS, PAYLOAD_BYTES, QUICK_FACTOR, STORMS, Workload
from tests.harness import kafka_version
from tests.harness.process import ROOT, stop_everything

QUESTIONS = ("storm", "recovery", "backlog", "cost")
PEERS: tuple[type[Subject], ...] = (KafkaStreams,)
BASELINE = Workload("baseline", 30_000, 20)


def _setting(text: str) -> tuple[str, str]:
    name, given, value = text.partition("=")
    if not given or not name.startswith("TIMERS_"):
        raise argparse.ArgumentTypeError(f"{text!r} is not TIMERS_NAME=VALUE (try TIMERS_STORE_MEMORY_MB=64)")
    return name, value


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.split(":")[0])
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=f"{', '.join(QUESTIONS)} or all (default)")
    parser.add_argument(
        "--workload", action="append", metavar="NAME", help=f"of {', '.join(one.name for one in STORMS)}"
    )
    parser.add_argument("--timers", type=int, help="a storm of your own: how many timers")
    parser.add_argument("--spread", type=int, default=1, metavar="SECONDS", help="... due over how many seconds (1)")
    parser.add_argument("--payload", type=int, default=PAYLOAD_BYTES, metavar="BYTES", help=f"({PAYLOAD_BYTES})")
    parser.add_argument("--partitions", type=int, default=PARTITIONS, help=f"({PARTITIONS})")
    parser.add_argument(
        "--repeat", type=int, default=1, help="repeat each storm this many times; the table shows medians (1)"
    )
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True, help="measure the peers too")
    parser.add_argument("--engine", action=argparse.BooleanOptionalAction, default=True, help="measure our engine")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=_setting,
        metavar="TIMERS_NAME=VALUE",
        help="a setting of our engine, noted in the report",
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"a {QUICK_FACTOR}th of everything: to try the benchmark itself"
    )
    parser.add_argument(
        "--publish",
        nargs="?",
        const="latest",
        metavar="NAME",
        help="also write bench/results/NAME.* (latest), which is tracked",
    )
    parser.add_argument("--keep", action="store_true", help="leave logs and broker data of the run where they are")
    kafka_version.add_option(parser)
    options = parser.parse_args(argv)
    wrong = set(options.questions) - {*QUESTIONS, "all"}
    if wrong:
        parser.error(f"unknown question {', '.join(sorted(wrong))}: choose from {', '.join(QUESTIONS)}, all")
    if options.payload < 8:
        parser.error(f"--payload {options.payload} is less than the 8 bytes of an id")
    if not options.questions or "all" in options.questions:
        options.questions = list(QUESTIONS)
    return options


def _storms(options: argparse.Namespace) -> list[Workload]:
    if options.timers:
        return [Workload("custom", options.timers, options.spread, options.payload, options.partitions)]
    names = options.workload or [one.name for one in STORMS]
    unknown = set(names) - {one.name for one in STORMS}
    if unknown:
        raise SystemExit(
            f"bench: no workload {', '.join(sorted(unknown))}: there are {', '.join(w.name for w in STORMS)}"
        )
    return [
        Workload(one.name, one.timers, one.spread_s, options.payload, options.partitions)
        for one in STORMS
        if one.name in names
    ]


class _BenchmarkRun:
    """One run of the benchmark: its options, systems and results."""

    def __init__(self, session: Session, options: argparse.Namespace) -> None:
        self.session = session
        self.options = options
        self.results: dict[str, Any] = {"machine": machine.describe(), "arguments": sys.argv[1:], "not_measured": {}}
        self.results["settings"] = dict(options.set)
        self.failed = False
        self.subjects: list[Subject] = [Engine(dict(options.set))] if options.engine else []
        for peer in PEERS if options.peers else ():
            try:
                one = peer()
                one.prepare(session)
                self.subjects.append(one)
            except Unavailable as reason:
                session.printer.line(f"  {peer.name} cannot be measured: {reason}")
                self.results["not_measured"][peer.name] = str(reason)

    def _size(self, workload: Workload) -> Workload:
        return workload.smaller(QUICK_FACTOR) if self.options.quick else workload

    def _measure(self, key: str, name: str, call: Callable[[], Any]) -> None:
        """Do one measurement. If it fails, note the reason; the others are still done."""
        try:
            found = call().to_json()
        except Exception as error:
            reason = str(error) or repr(error)
            self.session.printer.line(f"  {name} FAILED: {reason}")
            self.results["not_measured"][name] = reason.splitlines()[0]
            self.failed = True
            stop_everything()
            return
        self.results.setdefault(key, []).append(found)
        figures = (
            item for item in found.items() if isinstance(item[1], (int, float)) and not isinstance(item[1], bool)
        )
        self.session.printer.line("    " + ", ".join(f"{name} {value:,.6g}" for name, value in figures))

    def storm(self) -> None:
        for workload in map(self._size, _storms(self.options)):
            for repetition in range(self.options.repeat):
                for subject in self.subjects if repetition % 2 == 0 else self.subjects[::-1]:
                    name = f"storm {workload.title}, {subject.name}"
                    self._measure("storm", name, partial(storm.run, self.session, subject, workload))
            for with_headers in (False, True) if self.options.peers and workload.spread_s == 1 else ():
                name = f"bare loop {workload.title}{', with headers' if with_headers else ''}"
                self._measure("bare", name, partial(bare.run, self.session, workload, with_headers=with_headers))
        if self.options.peers:
            self._measure("baseline", "faust_table", partial(faust_table.run, self.session, self._size(BASELINE)))

    def recovery(self) -> None:
        self._measure_each("recovery", recovery.run, self._size(recovery.RECOVERY))

    def backlog(self) -> None:
        self._measure_each("backlog", backlog.run, self._size(backlog.BACKLOG))

    def cost(self) -> None:
        self._measure_each("cost", cost.run, self._size(cost.COST))

    def _measure_each(
        self, key: str, measurement: Callable[[Session, Subject, Workload], Any], workload: Workload
    ) -> None:
        for subject in self.subjects:
            self._measure(key, f"{key}, {subject.name}", partial(measurement, self.session, subject, workload))


def _write(run: _BenchmarkRun, publish: str | None) -> None:
    """Write the results as JSON, Markdown and picture, and print the tables."""
    about = run.results["machine"]
    local = RESULTS / "local"
    local.mkdir(parents=True, exist_ok=True)
    stem = f"{about['date'].replace(':', '')}-{about['commit']}{'-dirty' if about['dirty'] else ''}"
    stems = [local / stem, *([RESULTS / publish] if publish else [])]
    for path in stems:
        path.with_name(f"{path.name}.json").write_text(json.dumps(run.results, indent=1) + "\n")
        text = report.markdown(run.results)
        if plot.draw(run.results, path.with_name(f"{path.name}.png")):
            text += f"\n![lag, CPU and memory]({path.name}.png)\n"
        path.with_name(f"{path.name}.md").write_text(text)
    if publish == readme.PUBLISHED.stem and any(row["subject"] == "timers" for row in run.results.get("storm", ())):
        readme.publish()
    print("\n" + report.markdown(run.results), flush=True)
    for path in stems:
        print(f"written: {path.relative_to(ROOT)}.json, .md, .png", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; return 1 if a measurement failed, else 0. An unavailable peer is no failure."""
    options = _arguments(argv)
    _storms(options)
    begun = time.monotonic()
    try:
        with measuring(keep=options.keep) as session:
            bare.warm_up(session)
            run = _BenchmarkRun(session, options)
            for question in options.questions:
                session.printer.line(f"{question}:")
                getattr(run, question)()
            run.results["took_s"] = time.monotonic() - begun
            _write(run, options.publish)
            return int(run.failed)
    except KeyboardInterrupt:
        print("bench: interrupted", flush=True)
        return 130


if __name__ == "__main__":
    sys.exit(main())
