"""Run the simulator from a shell: ``python -m tests.simulation SEED`` replays one run, ``--seeds N`` does many."""

from __future__ import annotations

import argparse
from collections import Counter

from tests.simulation.simulator import SimulationFailed, Simulator


def main() -> int:
    """Run the seeds; return 1 if a run broke a promise."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", help="replay this seed and print its history")
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="run this many seeds (default 100)")
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="SEED", help="first of them (default 0)")
    parser.add_argument("--steps", type=int, default=150, metavar="N", help="steps of a run (default 150)")
    args = parser.parse_args()
    seeds = range(args.first, args.first + args.seeds) if args.seed is None else range(args.seed, args.seed + 1)
    counts: Counter[str] = Counter()
    for seed in seeds:
        simulator = Simulator(seed, args.steps)
        try:
            simulator.run()
        except SimulationFailed as failure:
            if args.seed is not None:
                print("\n".join(simulator.history))
            print(failure)
            return 1
        counts += simulator.checkers.counts
    if args.seed is not None:
        print("\n".join(simulator.history))
    print(f"{len(seeds)} runs, no promise broken: " + ", ".join(f"{n:,} {what}" for what, n in sorted(counts.items())))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
