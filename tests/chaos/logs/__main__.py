"""``python -m tests.chaos.logs``. Exit codes: 0 all promises kept, 1 not, 2 usage, 130 Ctrl-C."""

import argparse
import os
import random
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.chaos.logs import alarms, freeze
from tests.chaos.logs.cells import CELLS, MEANINGS, TOPICS, choose
from tests.chaos.logs.round import Rounds, Row
from tests.chaos.program import run_rounds
from tests.harness import class_archive, kafka_version
from tests.harness.printer import Printer
from tests.harness.three_brokers import ThreeBrokers

CELLS_OF, ALARMS, FREEZE = "cells", "alarms", "freeze"
PROGRAMS = (CELLS_OF, ALARMS, FREEZE)

SENTENCE = 150
"""Characters of a sentence in the table."""


class _NoBrokers:
    """Stands for the brokers of a program whose rounds each have brokers of their own."""

    def stop(self) -> None:
        """Nothing to do."""


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.logs", description="Cut, restore and replace the logs that timers depend on."
    )
    parser.add_argument("what", nargs="?", default=CELLS_OF, choices=PROGRAMS, help=f"({CELLS_OF})")
    parser.add_argument("--only", metavar="CELL,...", default="*", help="cells, such as 'request/*,*/cut/kept' (all)")
    parser.add_argument("--list", action="store_true", help="print the cells and end")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="of all cells (random)")
    parser.add_argument("--at-once", type=int, default=4, help="cells that run side by side (4)")
    parser.add_argument("--changes", type=int, default=1000, help="alarms: changes of each kind (1000)")
    parser.add_argument("--kinds", default=",".join(alarms.KINDS), help=f"alarms: kinds ({','.join(alarms.KINDS)})")
    parser.add_argument("--frozen", type=float, default=40.0, help="freeze: seconds for which a broker is frozen (40)")
    parser.add_argument(
        "--request-timeout", type=int, default=30, help="freeze: request.timeout.ms of the brokers, in seconds (30)"
    )
    parser.add_argument("--keep", action="store_true", help="keep logs and data of a good run too")
    kafka_version.add_option(parser)
    options = parser.parse_args(argv)
    try:
        options.cells = choose(options.only.split(","))
    except ValueError as error:
        parser.error(f"--only: {error}")
    options.kinds = options.kinds.split(",")
    if unknown := [kind for kind in options.kinds if kind not in alarms.KINDS]:
        parser.error(f"--kinds {unknown[0]}: choose from {', '.join(alarms.KINDS)}")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cells and return the exit code."""
    options = _arguments(argv)
    if options.list:
        for fault, meaning in MEANINGS.items():
            print(f"{fault}: {meaning}")
        for cell in options.cells:
            print(f"  {cell}")
        return 0
    os.environ.setdefault("KAFKA_OPTS", class_archive.options())
    if options.what == CELLS_OF:
        return run_rounds("logs", partial(_cells, options), lambda directory: _NoBrokers(), keep=options.keep)
    properties = freeze.properties(options.request_timeout) if options.what == FREEZE else alarms.PROPERTIES
    run = partial(_freeze if options.what == FREEZE else _alarms, options)
    return run_rounds(
        options.what, run, lambda directory: ThreeBrokers(directory / "brokers", properties), keep=options.keep
    )


def _alarms(options: argparse.Namespace, directory: Path, brokers: ThreeBrokers) -> bool:
    """Do the changes that must stop nothing. Returns whether none did."""
    found = alarms.run(brokers, directory, options.kinds, options.changes, Printer())
    for each in found:
        print(each, flush=True)
    return all(each.passed for each in found)


def _freeze(options: argparse.Namespace, directory: Path, brokers: ThreeBrokers) -> bool:
    """Freeze a broker. Returns whether the lags are good."""
    figures = freeze.Freeze(brokers, directory, Printer()).run(options.frozen)
    print(figures, flush=True)
    return figures.passed


def _cells(options: argparse.Namespace, directory: Path, brokers: _NoBrokers) -> bool:
    """Run the cells. Returns whether all of them passed."""
    printer = Printer()
    printer.line(f"seed {options.seed}: {len(options.cells)} of {len(CELLS)} cells")
    rows: list[Row] = []
    for some in Rounds(directory, options.seed, options.at_once, printer).run(options.cells):
        rows += some
        for row in some:
            printer.line(line(row))
    printer.line()
    rows.sort(key=lambda row: (TOPICS.index(row.cell.topic), CELLS.index(row.cell)))
    for row in rows:
        printer.line(line(row))
    failed = [str(row.cell) for row in rows if not row.passed]
    printer.line(
        f"{len(rows)} cells, {len(failed)} failed{f' (seed {options.seed}): ' if failed else ''}{','.join(failed)}"
    )
    return not failed


def line(row: Row) -> str:
    """One line of the table."""
    facts, verdict = row.facts, row.verdict
    if row.failure:
        return f"  FAILED  {row.cell!s:36} {row.failure[:400]}"
    state = "green" if facts.red_after_s is None else f"red {facts.red_after_s:.0f} s"
    repeats = ", may repeat" if facts.may_repeat else ""
    counts = (
        f"in log {len(facts.in_log):,} lost {verdict.lost:,} twice {verdict.twice:,}; held {len(facts.held):,} "
        f"silent {verdict.silent:,}; unsure {len(facts.unsure):,} "
        f"(fired {sum(facts.fired[number] > 0 for number in facts.unsure):,}) gone {facts.gone:,}; "
        f"letters {facts.letters.total():,} wrong {verdict.wrong_letters:,}"
    )
    why = "; ".join(verdict.failures) or facts.sentence[:SENTENCE]
    return f"  {'passed' if row.passed else 'FAILED':6}  {row.cell!s:36} {state:7} {counts}{repeats} {why}"


if __name__ == "__main__":
    sys.exit(main())
