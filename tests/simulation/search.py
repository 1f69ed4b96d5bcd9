"""Looks for a seed whose run finds each mutation, and keeps the seeds in ``mutation_seeds.json``.

``make mutations-search`` runs it after a change of the simulator or of a mutation. It keeps each seed that still finds
its mutation. The tests run these seeds only: a search takes minutes, a run of each seed takes seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from tests.simulation import quick_seeds
from tests.simulation.edits import Mutation, applied
from tests.simulation.kit.faults import Violation
from tests.simulation.mutation_table import MUTATIONS
from tests.simulation.simulator import SimulationFailed, Simulator

PATH = Path(__file__).with_name("mutation_seeds.json")

MOST_SEEDS = 2000
"""How many seeds are tried. Most mutations are found within ten; the hardest needs some hundred."""

EASY_SEEDS = 40
"""So many seeds are tried at least, and twice as many as it takes to find the mutation. The shortest run is kept."""

HOW = (
    "run `make mutations-search`, which looks for a seed and writes it to tests/simulation/mutation_seeds.json. "
    "If it finds none, the simulator cannot find this broken rule any longer: mend the simulator"
)


def load() -> dict[str, int]:
    """Return rule -> seed."""
    seeds: dict[str, int] = json.loads(PATH.read_text())
    return seeds


def events_until_found(mutation: Mutation, seed: int) -> int | None:
    """Run a mutation until a checker finds it.

    Returns:
        The number of events in the log of the run; None if no checker found the mutation.
    """
    simulator = Simulator(seed, worker=mutation.worker)
    try:
        with applied(mutation.changes):
            simulator.run()
    except SimulationFailed as failure:
        if isinstance(failure.__cause__, (TypeError, AttributeError, NameError)):
            raise failure.__cause__ from None  # the mutation does not fit the code any longer
        # An assertion of the simulated store or log may stop the run too, but no promise was seen to be broken then.
        return simulator.log.seq if isinstance(failure.__cause__, Violation) else None
    return None


def search(rule: str, known: int | None, easy_seeds: int = EASY_SEEDS) -> int | None:
    """Look for a seed whose run finds a mutation.

    Args:
        rule: the rule that the mutation breaks.
        known: a seed that is kept if its run finds the mutation.
        easy_seeds: number of seeds that are tried at least.

    Returns:
        The seed; None if there is none.
    """
    mutation = MUTATIONS[rule]
    if known is not None and events_until_found(mutation, known) is not None:
        return known
    found: dict[int, int] = {}
    for seed in range(MOST_SEEDS):
        if found and seed >= max(easy_seeds, 2 * min(found)):
            break
        events = events_until_found(mutation, seed)
        if events is not None:
            found[seed] = events
    return min(found, key=lambda seed: found[seed], default=None)


def main() -> int:
    """Look for the missing seeds; return 1 if a mutation has none."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.search", description=__doc__)
    parser.add_argument("--all", action="store_true", help="look for new seeds of all mutations")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (one for each CPU)")
    options = parser.parse_args()
    known = load() if PATH.exists() and not options.all else {}
    seeds: dict[str, int] = {}
    with ProcessPoolExecutor(options.jobs) as pool:
        searches = {pool.submit(search, rule, known.get(rule)): rule for rule in MUTATIONS}
        for number, done in enumerate(as_completed(searches), 1):
            rule, seed = searches[done], done.result()
            if seed is not None:
                seeds[rule] = seed
            if seed is None or seed != known.get(rule):
                print(
                    f"{number}/{len(MUTATIONS)} {rule}: {'NOT FOUND' if seed is None else f'seed {seed}'}", flush=True
                )
    PATH.write_text(json.dumps(seeds, indent=4, sort_keys=True) + "\n")
    print(f"{len(seeds)} of {len(MUTATIONS)} mutations have a seed in {PATH.name}")
    missing = quick_seeds.renew(options.jobs)
    print(f"no seed finds {missing}" if missing else f"each other mutation has a seed in {quick_seeds.PATH.name}")
    return 1 if missing or len(seeds) < len(MUTATIONS) else 0


if __name__ == "__main__":
    sys.exit(main())
