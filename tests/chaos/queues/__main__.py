"""``python -m tests.chaos.queues``. Exit codes: 0 all promises kept, 1 not, 2 usage, 130 Ctrl-C."""

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from tests.chaos.program import one_broker, run_rounds
from tests.chaos.queues.round import Outcome, Round
from tests.harness import kafka_version
from tests.harness.printer import Printer
from timers.cli.broker import EmbeddedBroker


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.queues", description="Kill, stop, drain and add the consumers of a queue."
    )
    parser.add_argument("--seed", type=int, help="of the first round; each further round adds 1 (random)")
    parser.add_argument("--rounds", type=int, default=1, help="number of rounds (1)")
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages in each round (1000000)")
    parser.add_argument("--consumers", type=int, default=4, help="consumers at the beginning of a round (4)")
    parser.add_argument("--storm", type=float, default=120.0, help="seconds in which messages are sent (120)")
    parser.add_argument("--keep", action="store_true", help="keep logs and data of good rounds too")
    kafka_version.add_option(parser)
    options = parser.parse_args(argv)
    if options.seed is None:
        options.seed = random.randrange(1_000_000)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rounds and return the exit code."""
    options = _arguments(argv)
    return run_rounds("queues", partial(_rounds, options), one_broker, keep=options.keep)


def _rounds(options: argparse.Namespace, directory: Path, broker: EmbeddedBroker) -> bool:
    """Run the rounds. Returns whether none failed."""
    printer = Printer()
    outcomes: list[Outcome] = []
    for seed in range(options.seed, options.seed + options.rounds):
        printer.line(f"seed {seed}: {options.messages:,} messages, {options.consumers} consumers")
        place = directory / f"round-{seed}"
        one = Round(broker, seed, options.messages, options.consumers, options.storm, place, printer)
        outcomes.append(one.run())
        _report(outcomes[-1], printer)
    failed = [outcome.seed for outcome in outcomes if not outcome.is_passed]
    printer.line(f"{len(outcomes)} rounds, {len(failed)} failed{f': seeds {failed}' if failed else ''}")
    return not failed


def _report(outcome: Outcome, printer: Printer) -> None:
    printer.line(f"  {'kept' if outcome.is_passed else 'BROKEN'}, {outcome.took_s:.0f} s, faults: {outcome.faults}")
    printer.line("  " + ", ".join(f"{name} {count:,}" for name, count in asdict(outcome.verdict).items()))
    for failure in outcome.failures:
        printer.line(f"  {failure}")


if __name__ == "__main__":
    sys.exit(main())
