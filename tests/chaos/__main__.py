"""``python -m tests.chaos``: run rounds of chaos. Exit codes: 0 all promises kept, 1 not, 2 usage, 130 Ctrl-C."""

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.chaos import plan
from tests.chaos.program import one_broker, run_rounds
from tests.chaos.runner import Outcome, Round
from tests.harness import kafka_version
from tests.harness.disk import may_stall
from tests.harness.printer import Printer
from tests.harness.three_brokers import ThreeBrokers
from timers.cli.broker import EmbeddedBroker

SPARE_ROUNDS = 2
"""Further rounds if none of the requested ones counts: it depends on timing whether a fault hits timers in flight."""

NO_STALLS = "this process may not mount bindfs (Debian: `apt-get install bindfs`, and run it as root)"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description="Kill workers and brokers while timers fire."
    )
    parser.add_argument("--seed", type=int, help="of the first round; each further round adds 1 (random)")
    parser.add_argument("--rounds", type=int, default=1, help="number of rounds (1)")
    parser.add_argument("--timers", type=int, default=1_000_000, help="timers in each round (1000000)")
    parser.add_argument("--repeating", type=int, help="timers that repeat, beside them (one hundredth)")
    parser.add_argument("--workers", type=int, default=4, help="workers at the beginning of a round (4)")
    parser.add_argument("--faults", metavar="KIND,...", help=f"only these of: {', '.join(plan.NAMES)}")
    parser.add_argument(
        "--uncounted",
        action="store_true",
        help="succeed also if no round counts, without further rounds: on an idle machine timers may fire too quickly",
    )
    parser.add_argument("--keep", action="store_true", help="keep logs and data of good rounds too")
    kafka_version.add_option(parser)
    options = parser.parse_args(argv)
    options.kinds = [plan.NAMES.get(name) for name in options.faults.split(",")] if options.faults else [*plan.KINDS]
    if None in options.kinds:
        parser.error(f"--faults {options.faults}: choose from {', '.join(plan.NAMES)}")
    if plan.STALL in options.kinds and not may_stall():
        if options.faults:
            parser.error(f"--faults stall: {NO_STALLS}")
        options.kinds.remove(plan.STALL)
        print(f"NOT TRIED: {plan.STALL}: {NO_STALLS}", flush=True)
    if options.repeating is None:
        options.repeating = options.timers // 100
    if options.seed is None:
        options.seed = random.randrange(1_000_000)
    try:
        plan.make(options.seed, options.workers, options.timers, options.kinds)
    except ValueError as error:
        parser.error(str(error))
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rounds and return the exit code."""
    options = _arguments(argv)
    brokers_in: Callable[[Path], EmbeddedBroker | ThreeBrokers]
    brokers_in = three_brokers if plan.LEADERLESS in options.kinds else one_broker
    return run_rounds("timers", partial(_rounds, options), brokers_in, keep=options.keep)


def three_brokers(directory: Path) -> ThreeBrokers:
    """Return a cluster with its data below ``directory``."""
    return ThreeBrokers(directory / "brokers")


def _rounds(options: argparse.Namespace, directory: Path, brokers: EmbeddedBroker | ThreeBrokers) -> bool:
    """Run the rounds. Returns whether none failed, and one of them counts or need not count."""
    printer = Printer()
    outcomes: list[Outcome] = []
    for index in range(options.rounds + (0 if options.uncounted else SPARE_ROUNDS)):
        if index >= options.rounds and any(outcome.verdict.counts or not outcome.passed for outcome in outcomes):
            break
        chosen = plan.make(options.seed + index, options.workers, options.timers, options.kinds)
        number = f"round {index + 1} of {options.rounds}" if index < options.rounds else "one more, because none counts"
        printer.line(f"{number}: {options.timers:,} timers, {options.repeating:,} repeat, {options.workers} workers")
        for line in plan.describe(chosen):
            printer.line(f"  {line}")
        begun = time.monotonic()
        place = directory / f"round-{index + 1}"
        one = Round(brokers, chosen, options.timers, place, printer, options.repeating)
        outcomes.append(one.run())
        printer.line(f"  took {time.monotonic() - begun:.0f} s")
    counted = sum(outcome.verdict.counts for outcome in outcomes)
    failed = [outcome.seed for outcome in outcomes if not outcome.passed]
    printer.line(
        f"{len(outcomes)} rounds, {counted} count; {len(failed)} failed{f': seeds {failed}' if failed else ''}"
    )
    return not failed and (bool(counted) or options.uncounted)


if __name__ == "__main__":
    sys.exit(main())
