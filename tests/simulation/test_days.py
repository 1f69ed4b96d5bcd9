"""Runs of some simulated days, what is forgotten between them, and shrinking."""

import json
import math
import re
from pathlib import Path

import pytest

from tests.simulation import edits, mutations
from tests.simulation.__main__ import signature
from tests.simulation.days import FAULTS, Days, DaysCluster, as_text, from_text
from tests.simulation.kinds import KINDS
from tests.simulation.kit import SimWorker, Violation
from tests.simulation.machine_mutations import UpgradedWorker
from tests.simulation.shrinking import shrunk
from tests.simulation.simulator import SimulationFailed, Simulator

KEPT = json.loads(Path(__file__).with_name("kept_seeds.json").read_text())
WORKERS = {each.__name__: each for each in (SimWorker, UpgradedWorker)}


@pytest.mark.parametrize("kept", KEPT["short"], ids=lambda kept: f"{kept['seed']}")
def test_short_runs_that_once_failed(kept: dict[str, str]) -> None:
    Simulator(int(kept["seed"]), worker=WORKERS[kept["worker"]]).run()


@pytest.mark.parametrize(("of", "seed"), [(of, each["seed"]) for of in ("losses", "queues") for each in KEPT[of]])
def test_runs_of_other_kinds_that_once_failed(of: str, seed: int) -> None:
    KINDS[of].simulator(seed).run()


@pytest.mark.slow
@pytest.mark.parametrize(
    "kept",
    [pytest.param(each, marks=[pytest.mark.long] if "long" in each else []) for each in KEPT["days"]],
    ids=lambda kept: f"{kept['seed']}",
)
def test_runs_of_days_that_once_failed(kept: dict[str, str]) -> None:
    only = from_text(kept["only"]) if "only" in kept else None
    Days(int(kept["seed"]), int(kept["days"]), only=only).run()


@pytest.mark.slow
def test_days_follow_each_other_on_the_same_logs() -> None:
    lines: list[str] = []
    run = Days(4, days=4, actions=60, tell=lines.append)
    run.run()
    assert lines[-1].startswith("day 3 ")
    assert len(lines) >= 4
    assert run.counts["fired"] > 20
    assert {"crash", "take_over", "night", "receive", "lose_log_ends"} <= run.faults_done.keys()


def test_a_run_repeats_itself_and_has_the_chosen_faults_only() -> None:
    runs = [Days(5, days=2, actions=40, faults=("takeover",)) for _ in range(2)]
    for run in runs:
        run.run()
    assert runs[0].counts == runs[1].counts
    assert runs[0].faults_done == runs[1].faults_done
    names = {name for kind, names in FAULTS.items() if kind != "takeover" for name in names}
    assert not runs[0].faults_done.keys() & (names | {"arm"})


@pytest.mark.slow
def test_days_have_pauses_that_last_through_idle_times_unless_they_are_left_out() -> None:
    runs = [Days(34, days=2, actions=60, faults=faults) for faults in (("hold",), ())]
    for run in runs:
        run.run()
    assert min(runs[0].counts[each] for each in ("pauses", "resumes", "held", "released", "paces in time")) > 0
    assert not runs[1].faults_done.keys() & set(FAULTS["hold"])


def test_what_is_forgotten_must_not_fire_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback of the first day comes again on the second one."""

    def night_and_again(cluster: DaysCluster) -> str:
        slept = night(cluster)
        record = next(each for each in cluster.log.committed if each.topic == "orders")
        cluster.log.append(record.topic, record.key, record.value, record.headers)
        return slept

    night = DaysCluster._night
    monkeypatch.setattr(DaysCluster, "_night", night_and_again)
    with pytest.raises(SimulationFailed, match="no reader of committed records can see") as failed:
        Days(4, days=2, actions=40).run()
    assert isinstance(failed.value.__cause__, Violation)


@pytest.mark.slow
def test_a_failing_run_is_shrunk_to_what_it_needs_and_repeated_by_its_command() -> None:
    changes = mutations.CHANGED["[I13] offsets are counted as records"].changes

    def failure(only: object) -> tuple[Days, SimulationFailed] | None:
        run = Days(3, days=5, only=only)  # type: ignore[arg-type]
        try:
            with edits.applied(changes):
                run.run()
        except SimulationFailed as found:
            return run, found
        return None

    first = failure(None)
    assert first is not None

    def fails(only: object) -> list[tuple[int, int]] | None:
        again = failure(only)
        return again[0].done if again is not None and signature(again[1]) == signature(first[1]) else None

    left = shrunk(first[0].done, fails, seconds=math.inf)
    assert len(left) <= 6
    assert f"--only {as_text(left)}" in first[0].options(left)
    again = failure(from_text(as_text(left)))
    assert again is not None
    assert re.fullmatch(r"timer-request/0/\d+ has an outcome, but is cold", str(again[1].__cause__))


def test_shrinking_takes_whole_days_first_and_then_single_actions() -> None:
    tried: list[int] = []

    def fails(only: object) -> list[tuple[int, int]] | None:
        places = list(only)  # type: ignore[call-overload]
        tried.append(len(places))
        return places if {(40, 3), (40, 17)} <= set(places) else None

    left = shrunk([(day, number) for day in range(41) for number in range(20)], fails, seconds=60)
    assert left == [(40, 3), (40, 17)]
    assert max(tried) <= 20


def test_the_text_of_actions_is_read_back() -> None:
    assert as_text([(1, 3), (1, 4), (1, 5), (2, 6)]) == "1.3-5,2.6"
    assert from_text("1.3-5,2.6") == {(1, 3), (1, 4), (1, 5), (2, 6)}
