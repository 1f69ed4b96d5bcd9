"""Runs the simulator from a shell.

`--seed N --days D` runs D simulated days: what happens is chosen by chance, idle time is skipped, and each night all is
checked. It prints a line for each simulated hour in which something happened; if there are more than three days, a line
for each day. After a failure it looks for a shorter run that fails in the same way, and prints the command that repeats
it. A number alone replays a short run; --seeds N does many short runs, or many runs of D days.
"""

import argparse
import re
import time
from collections import Counter
from collections.abc import Collection

from tests.simulation import days
from tests.simulation.kinds import KINDS
from tests.simulation.shrinking import shrunk
from tests.simulation.simulator import SimulationFailed


def main() -> int:
    """Run the seeds; return 1 if a run broke a promise."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "replay", type=int, nargs="?", metavar="SEED", help="replay this short run and print its history"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="the seed of a run of --days")
    parser.add_argument("--days", type=int, metavar="D", help="run D simulated days")
    parser.add_argument("--events", type=int, default=200, metavar="E", help="what happens a day (default 200)")
    parser.add_argument(
        "--faults",
        type=kinds_of_faults,
        default=tuple(days.FAULTS),
        metavar="KIND,...",
        help=f"the faults of --days (default all): {', '.join(days.FAULTS)}; none for no fault",
    )
    parser.add_argument("--only", type=days.from_text, metavar="DAY.NUMBER-NUMBER,...", help="do these events only")
    parser.add_argument(
        "--shrink-s", type=float, default=120, metavar="S", help="seconds for shrinking a failing run (default 120)"
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="run this many seeds (default 100 short runs)")
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="SEED", help="first of them (default 0)")
    parser.add_argument("--steps", type=int, default=150, metavar="N", help="steps of a short run (default 150)")
    parser.add_argument("--of", choices=KINDS, default="machines", help="what short runs simulate (default machines)")
    parser.add_argument("--list", action="store_true", help="what there is to simulate, where, and what it proves")
    args = parser.parse_args()
    if args.list:
        for name, kind in KINDS.items():
            print(f"{name:16}{kind.proves}\n{'':16}{kind.simulator.__module__.replace('.', '/')}.py")
        return 0
    if args.days is not None:
        first = args.first if args.seed is None else args.seed
        return all_days(args, range(first, first + (args.seeds or 1)))
    return short_runs(args)


def kinds_of_faults(text: str) -> tuple[str, ...]:
    """The kinds of faults that an option names."""
    named = tuple(each for each in text.split(",") if each and each != "none")
    if unknown := set(named) - set(days.FAULTS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not one of {', '.join(days.FAULTS)}")
    return named


def all_days(args: argparse.Namespace, seeds: range) -> int:
    """Run simulated days, and shrink a run that fails."""
    days.quiet()
    begun, rounds, events = time.monotonic(), 0, 0
    counts: Counter[str] = Counter()
    for seed in seeds:
        run = days.Days(seed, args.days, args.events, args.faults, args.only, tell=say)
        try:
            run.run()
        except SimulationFailed as failure:
            print(f"FOUND: {failure}", flush=True)
            shrink(run, failure, args.shrink_s)
            return 1
        rounds, events = rounds + run.rounds, events + len(run.done)
        counts += run.counts
    took_s = time.monotonic() - begun
    print(", ".join(f"{n:,} {what}" for what, n in sorted(counts.items())))
    print(
        f"no promise broken: {len(seeds) * args.days:,} days, {events:,} events and {rounds:,} rounds of machines "
        f"in {took_s:,.0f} s ({rounds / max(took_s, 1) * 3600:,.0f} rounds an hour)"
    )
    return 0


def shrink(run: days.Days, failure: SimulationFailed, seconds: float) -> None:
    """Print the shortest run that was found to fail as another one has."""
    last = failure

    def fails(only: Collection[tuple[int, int]]) -> Collection[tuple[int, int]] | None:
        nonlocal last
        again = days.Days(run.seed, run.days, run.actions, run.faults, frozenset(only))
        try:
            again.run()
        except SimulationFailed as found:
            if signature(found) == signature(failure):
                last = found
                return again.done
        return None

    print(f"shrinking {len(run.done):,} events, for at most {seconds:.0f} s ...", flush=True)
    left = shrunk(run.done, fails, seconds)
    print("\n".join(["the shrunk run:", *(f"  {line}" for line in last.history), f"{last.__cause__}"]))
    print(f"{len(left)} events are left: python -m tests.simulation {run.options(left)}")


def signature(failure: SimulationFailed) -> tuple[type, list[str]]:
    """What two failures of one cause share: the words of their message, without names and numbers."""
    return type(failure.__cause__), re.findall(r"(?<![\w/.'-])[a-z]+(?![\w/.'=-])", f"{failure.__cause__}"[:100])


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


def short_runs(args: argparse.Namespace) -> int:
    """Run short runs, or replay one."""
    days.quiet()
    first, number = (args.first, args.seeds or 100) if args.replay is None else (args.replay, 1)
    counts: Counter[str] = Counter()
    for seed in range(first, first + number):
        simulator = KINDS[args.of].simulator(seed, **({"steps": args.steps} if args.of == "machines" else {}))
        try:
            simulator.run()
        except Exception as failure:
            if args.replay is not None:
                print("\n".join(getattr(simulator, "history", ())))
            print(f"seed {seed} of {args.of}: {failure}")
            return 1
        counts += simulator.counts
    if args.replay is not None:
        print("\n".join(getattr(simulator, "history", ())))
    print(f"{number} runs, no promise broken: " + ", ".join(f"{n:,} {what}" for what, n in sorted(counts.items())))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
