"""Many runs of the correct engine. Also: a seed repeats its run, and the runs do each action often enough."""

from collections import Counter

import pytest

from tests.simulation import edits, mutations
from tests.simulation.kinds import KINDS
from tests.simulation.life_mutations import SlowWorker
from tests.simulation.machine_mutations import UpgradedWorker
from tests.simulation.pauses import PausingWorker
from tests.simulation.simulator import SimulationFailed, Simulator
from timers.core.operation import UNCHANGED, VERDICTS

UPGRADE_SEEDS = 15


@pytest.mark.slow
def test_no_run_breaks_a_promise() -> None:
    counts: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for seed in range(KINDS["machines"].later.start):
        simulator = Simulator(seed)
        simulator.run()
        counts += simulator.checkers.counts
        faults.update(step.split()[1].rstrip(":") for step in simulator.history)
    # Runs in which an action is rare find no bugs in it.
    assert counts["fired"] > 900
    assert counts["rejected"] > 50
    assert counts["dead-lettered"] > counts["rejected"]
    assert counts["retried"] > 5
    assert min(counts[verdict] for verdict in VERDICTS if verdict != UNCHANGED) > 5  # only timers that repeat have it
    assert counts["chained"] > 5
    assert counts["forwarded"] > 100
    assert counts["promoted"] > 100
    assert counts["tombstones"] > 60
    assert counts["copies"] > 1
    happened = {
        "crash",
        "rebalance",
        "take_over",
        "flap",
        "read_ahead",
        "step_clock",
        "jump_clock",
        "lose_fetch",
        "read_again",
        "arm",
    }
    assert all(faults[fault] > 20 for fault in happened), faults


@pytest.mark.parametrize(
    "seeds", [range(UPGRADE_SEEDS), pytest.param(range(UPGRADE_SEEDS, 400), marks=pytest.mark.long)], ids=str
)
def test_no_run_with_an_upgrade_breaks_a_promise(seeds: range) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        simulator = Simulator(seed, worker=UpgradedWorker)
        simulator.run()
        counts += simulator.checkers.counts
    assert counts["raised"] > len(seeds) // 5
    assert counts["fired"] > 10 * len(seeds)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 600), marks=pytest.mark.long)], ids=str)
def test_no_run_with_slow_openings_breaks_a_promise(seeds: range) -> None:
    faults: Counter[str] = Counter()
    for seed in seeds:
        simulator = Simulator(seed, worker=SlowWorker)
        simulator.run()
        faults.update(step.split()[1].rstrip(":") for step in simulator.history)
    assert all(faults[fault] > len(seeds) for fault in ("let_go", "open_slowly", "end_pauses"))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 2000), marks=pytest.mark.long)], ids=str)
def test_no_run_with_pauses_breaks_a_promise(seeds: range) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        simulator = Simulator(seed, worker=PausingWorker)
        simulator.run()
        counts += simulator.checkers.holds.counts
    assert min(counts[each] for each in ("pauses", "resumes", "held", "released")) > len(seeds)
    assert min(counts[each] for each in ("changed pauses", "noisy", "other paces")) >= len(seeds) // 10


@pytest.mark.slow
@pytest.mark.parametrize("steps", [500, pytest.param(2000, marks=pytest.mark.long)])
def test_a_long_run(steps: int) -> None:
    simulator = Simulator(seed=71, steps=steps)
    simulator.run()
    assert simulator.checkers.counts["fired"] > steps // 7
    assert simulator.checkers.counts["replaced"] > steps // 50


def test_a_seed_repeats_its_run() -> None:
    first, second, other = Simulator(7), Simulator(7), Simulator(8)
    for simulator in (first, second, other):
        simulator.run()
    assert first.history == second.history
    assert first.history != other.history


def test_a_failure_names_its_seed_and_replays_from_it() -> None:
    with edits.applied(mutations.CHANGED["[I13] offsets are counted as records"].changes):
        seed = next(seed for seed in range(50) if fails(seed))
        with pytest.raises(SimulationFailed) as first:
            Simulator(seed).run()
        with pytest.raises(SimulationFailed) as again:
            Simulator(first.value.seed).run()
    assert str(first.value) == str(again.value)
    assert f"python -m tests.simulation {seed}" in str(first.value)
    assert first.value.history == again.value.history


def fails(seed: int) -> bool:
    try:
        Simulator(seed).run()
    except SimulationFailed:
        return True
    return False
