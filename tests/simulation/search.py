"""Looks for a seed whose run finds each mutation, and keeps the seeds in ``mutation_seeds.json``.

``make mutations-search`` runs it after a change of a simulator or of a mutation. It keeps each seed that still finds
its mutation. The tests run these seeds: a search takes minutes, a run of each seed takes seconds.
"""

import argparse
import json
import os
import sys
import time
import warnings
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from tests.simulation.edits import applied
from tests.simulation.kinds import KINDS

PATH = Path(__file__).with_name("mutation_seeds.json")

MOST_SEEDS = 2000
"""How many seeds are tried. Most mutations are found within ten; the hardest needs some hundred."""

EASY_SEEDS = 40
"""So many seeds are tried at least, and twice as many as it takes to find the mutation. The shortest run is kept."""

TRIED = 100
"""How many seeds a test tries, if that of the file does not find its mutation."""

HOW = (
    "run `make mutations-search`, which looks for a seed and writes it to tests/simulation/mutation_seeds.json. "
    "If it finds none, the simulator cannot find this broken rule any longer: mend the simulator"
)


def load() -> dict[str, dict[str, int]]:
    """Return kind -> rule -> seed."""
    seeds: dict[str, dict[str, int]] = json.loads(PATH.read_text())
    return seeds


def finds(kind: str, rule: str, seed: int) -> bool:
    """Whether the run of a seed finds a mutation.

    Raises:
        TypeError, AttributeError, NameError, LookupError: the mutation does not fit the code any longer.
    """
    of, mutation = KINDS[kind], KINDS[kind].mutations[rule]
    options = {"simulator": of.simulator, **mutation.options}
    with applied(mutation.changes, of.rooms):
        try:
            options.pop("simulator")(seed, **options).run()
        except Exception as failure:
            causes = failure, failure.__cause__
            for each in causes:
                if isinstance(each, (TypeError, AttributeError, NameError)):
                    raise each from None
            # An assertion of a simulated store or log may stop the run too, but no promise was seen to be broken then.
            return any(isinstance(each, of.found_by) for each in causes)
    return False


def is_found(kind: str, rule: str) -> bool:
    """Whether a run finds a mutation: that of its seed, or if this one does not, that of another seed."""
    known = load()[kind].get(rule)
    if known is not None and finds(kind, rule, known):
        return True
    warnings.warn(f"the run of seed {known} does not find {kind}: {rule!r}: {HOW}", stacklevel=2)
    return any(finds(kind, rule, seed) for seed in range(TRIED))


def search(kind: str, rule: str, known: int | None) -> int | None:
    """Look for the seed of the shortest run that finds a mutation, unless that of a known seed finds it.

    Returns:
        The seed; None if there is none.
    """
    if known is not None and finds(kind, rule, known):
        return known
    found: dict[int, float] = {}
    for seed in range(MOST_SEEDS):
        if found and seed >= max(EASY_SEEDS, 2 * min(found)):
            break
        began = time.process_time()
        if finds(kind, rule, seed):
            found[seed] = time.process_time() - began
    return min(found, key=lambda seed: found[seed], default=None)


def main() -> int:
    """Look for the missing seeds; return 1 if a mutation has none."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.search", description=__doc__)
    parser.add_argument("--all", action="store_true", help="look for new seeds, also where the known ones are good")
    parser.add_argument("--only", default="", metavar="TEXT", help="mutations whose kind and rule have this text")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (one for each CPU)")
    options = parser.parse_args()
    known = load() if PATH.exists() else {}
    seeds: defaultdict[str, dict[str, int]] = defaultdict(dict)
    missing, mutations = [], [(kind, rule) for kind, of in KINDS.items() for rule in of.mutations]
    with ProcessPoolExecutor(options.jobs) as pool:
        searches = {}
        for kind, rule in mutations:
            if (seed := known.get(kind, {}).get(rule)) is not None:
                seeds[kind][rule] = seed
            if options.only in f"{kind}: {rule}":
                searches[pool.submit(search, kind, rule, None if options.all else seed)] = kind, rule, seed
        for number, done in enumerate(as_completed(searches), 1):
            (kind, rule, before), seed = searches[done], done.result()
            if seed is None:
                seeds[kind].pop(rule, None)
                missing.append(f"{kind}: {rule}")
            else:
                seeds[kind][rule] = seed
            if seed is None or seed != before:
                print(f"{number}/{len(searches)} {kind}: {rule}: {'NOT FOUND' if seed is None else f'seed {seed}'}")
    PATH.write_text(json.dumps(seeds, indent=4, sort_keys=True) + "\n")
    print(f"{sum(map(len, seeds.values()))} of {len(mutations)} mutations have a seed in {PATH.name}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
