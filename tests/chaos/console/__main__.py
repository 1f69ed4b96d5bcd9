"""``python -m tests.chaos.console``. Exit codes: 0 all promises kept, 1 not, 2 usage, 130 Ctrl-C."""

import argparse
import random
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.chaos.console.round import Outcome, Round
from tests.chaos.program import one_broker, run_rounds
from tests.harness import forked, kafka_version
from tests.harness.printer import Printer
from timers.cli.broker import EmbeddedBroker

SHOWN = 10


def main(argv: Sequence[str] | None = None) -> int:
    """Run a round and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.console", description="Kill consoles, worker and broker before they answer."
    )
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="of the round (random)")
    parser.add_argument("--kills", type=int, default=1000, help="kills between a record and its answer (1000)")
    parser.add_argument("--seconds", type=float, default=3600.0, help="end after so many, with fewer kills (3600)")
    parser.add_argument("--keep", action="store_true", help="keep logs and data of a good round too")
    kafka_version.add_option(parser)
    options = parser.parse_args(argv)
    forked.preload("timers.console.web.server", "timers.console.kafka_cluster")
    return run_rounds("console", partial(_round, options), one_broker, keep=options.keep)


def _round(options: argparse.Namespace, directory: Path, broker: EmbeddedBroker) -> bool:
    """Run the round. Returns whether all promises were kept."""
    printer = Printer()
    printer.line(f"seed {options.seed}: {options.kills:,} kills")
    outcome = Round(broker, options.seed, options.kills, directory, printer, options.seconds).run()
    _report(outcome, printer)
    return outcome.is_passed


def _report(outcome: Outcome, printer: Printer) -> None:
    printer.line(f"{'kept' if outcome.is_passed else 'BROKEN'}, {outcome.took_s:.0f} s, kills: {dict(outcome.kills)}")
    printer.line(f"  between the record of a request and its answer: {outcome.hits:,}")
    printer.line(
        f"  timers {outcome.timers:,}, answered as set {outcome.promised:,}, lost {len(outcome.lost)}, "
        f"fired twice {len(outcome.doubled)}, with two ids {len(outcome.split)}, dead letters {outcome.letters}"
    )
    printer.line("  answers: " + ", ".join(f"{answer}: {count:,}" for answer, count in sorted(outcome.answers.items())))
    for what in (*outcome.wrong, f"lost: {outcome.lost[:SHOWN]}", f"fired twice: {outcome.doubled[:SHOWN]}")[:SHOWN]:
        if not outcome.is_passed:
            printer.line(f"  {what}")


if __name__ == "__main__":
    sys.exit(main())
