"""Seeds with which the simulators of queues, markers, repeating timers, losses, snapshots and the engine on Spark find
each mutation quickly.

A test runs the seed of its mutation in ``quick_seeds.json``. If this run finds the mutation no longer, the test warns,
and looks for another seed, which takes seconds. ``make mutations-search`` renews the file.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeAlias

from tests.simulation import loss_mutations, marker_mutations, queue_mutations, repeat_mutations, snapshot_mutations
from tests.simulation.edits import applied
from tests.simulation.kit.faults import Violation
from tests.simulation.loss_simulator import LossSimulator
from tests.simulation.marker_simulator import MarkerSimulator
from tests.simulation.queue_brokers import Violation as QueueViolation
from tests.simulation.repeat_simulator import RepeatSimulator
from tests.simulation.simulator import SimulationFailed
from tests.simulation.snapshot_simulator import SnapshotLossSimulator, SnapshotSimulator

PATH = Path(__file__).with_name("quick_seeds.json")

MOST_SEEDS = 400
"""How many seeds are tried. All mutations but a few are found within ten."""

EASY_SEEDS = 30
"""So many seeds are tried at least, and the one with the shortest run is kept."""

Finds: TypeAlias = Callable[[int], bool]
"""Whether the run of a seed finds a mutation."""


def queue_finds(rule: str, seed: int) -> bool:
    """Whether a simulated run of a queue finds a mutation."""
    try:
        with queue_mutations.MUTATIONS[rule].simulator(seed) as simulator:
            simulator.run()
    except QueueViolation:
        return True
    return False


def markers_find(rule: str, seed: int) -> bool:
    """Whether a simulated run with markers finds a mutation."""
    mutation = marker_mutations.MUTATIONS[rule]
    try:
        with applied(mutation.changes):
            MarkerSimulator(seed).run()
    except SimulationFailed as failure:
        if isinstance(failure.__cause__, Violation):
            return True
        raise
    return False


def repeats_find(rule: str, seed: int) -> bool:
    """Whether a simulated run with timers that repeat finds a mutation."""
    try:
        with applied(repeat_mutations.MUTATIONS[rule].changes):
            RepeatSimulator(seed).run()
    except SimulationFailed as failure:
        return isinstance(failure.__cause__, Violation)
    return False


def losses_find(rule: str, seed: int) -> bool:
    """Whether a simulated run in which logs lose their end finds a mutation."""
    mutation = loss_mutations.MUTATIONS[rule]
    try:
        with applied(mutation.changes):
            LossSimulator(seed, worker=mutation.worker).run()
    except AssertionError as failure:
        if isinstance(failure.__cause__, Violation):
            return True
        raise
    return False


def snapshots_find(rule: str, seed: int) -> bool:
    """Whether a simulated run with snapshots finds a mutation."""
    of_cuts = snapshot_mutations.LOSS_MUTATIONS
    mutation = of_cuts[rule] if rule in of_cuts else snapshot_mutations.MUTATIONS[rule]
    simulator = SnapshotLossSimulator if rule in of_cuts else SnapshotSimulator
    try:
        with applied(mutation.changes):
            simulator(seed, worker=mutation.worker).run()
    except AssertionError as failure:
        return isinstance(failure.__cause__, Violation)
    return False


def load() -> dict[str, int]:
    """Return kind and rule -> seed."""
    seeds: dict[str, int] = json.loads(PATH.read_text())
    return seeds


def is_found(name: str, finds: Finds, most_seeds: int = MOST_SEEDS) -> bool:
    """Whether a run finds a mutation: that of its seed, or if this one does not, that of any seed."""
    known = load().get(name)
    if known is not None and finds(known):
        return True
    warnings.warn(f"the run of seed {known} does not find {name!r}: run `make mutations-search`", stacklevel=2)
    return any(finds(seed) for seed in range(most_seeds))


def search(finds: Finds) -> int | None:
    """Look for the seed of the shortest run that finds a mutation; None if no run finds it."""
    durations: dict[int, float] = {}
    for seed in range(MOST_SEEDS):
        if durations and seed >= EASY_SEEDS:
            break
        began = time.process_time()
        if finds(seed):
            durations[seed] = time.process_time() - began
    return min(durations, key=lambda seed: durations[seed], default=None)


def all_mutations() -> dict[str, Finds]:
    """Return kind and rule -> what tries a seed."""
    from tests.simulation import (
        spark_losses,
        spark_mutations,
        spark_snapshots,
    )  # not at the top: needs the extra 'spark'

    return {
        **{f"queue: {rule}": partial(queue_finds, rule) for rule in queue_mutations.MUTATIONS},
        **{f"markers: {rule}": partial(markers_find, rule) for rule in marker_mutations.MUTATIONS},
        **{f"repeats: {rule}": partial(repeats_find, rule) for rule in repeat_mutations.MUTATIONS},
        **{f"losses: {rule}": partial(losses_find, rule) for rule in loss_mutations.MUTATIONS},
        **{
            f"snapshots: {rule}": partial(snapshots_find, rule)
            for rule in (*snapshot_mutations.MUTATIONS, *snapshot_mutations.LOSS_MUTATIONS)
        },
        **{f"spark: {rule}": partial(spark_mutations.spark_finds, rule) for rule in spark_mutations.MUTATIONS},
        **{f"spark losses: {rule}": partial(spark_losses.losses_find, rule) for rule in spark_losses.BROKEN},
        **{
            f"spark snapshots: {rule}": partial(spark_snapshots.snapshots_find, rule) for rule in spark_snapshots.BROKEN
        },
    }


def renew(jobs: int | None = None) -> list[str]:
    """Keep each seed that still finds its mutation, and look for those that are missing.

    Returns:
        The mutations that no seed finds.
    """
    known = load() if PATH.exists() else {}
    mutations = all_mutations()
    with ProcessPoolExecutor(jobs or os.cpu_count()) as pool:
        seeds = dict(
            zip(mutations, pool.map(kept_or_found, mutations.values(), map(known.get, mutations)), strict=True)
        )
    PATH.write_text(json.dumps({name: seed for name, seed in seeds.items() if seed is not None}, indent=4) + "\n")
    return [name for name, seed in seeds.items() if seed is None]


def kept_or_found(finds: Finds, known: int | None) -> int | None:
    """The seed if its run finds the mutation, else another one."""
    return known if known is not None and finds(known) else search(finds)
