"""Transactions of both versions keep their promises in simulated runs, and each broken rule is found."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.edits import TRANSACTION_ROOMS, Change, applied
from tests.simulation.transaction_simulator import OWNERS, Faults, TransactionSimulator

SEEDS = 3
"""Later seeds run in ``make test-all``."""

OF_MUTATIONS = 60
"""Seeds that try to find a broken rule, before it counts as not found."""

FOUND_BY = {"an end of version 1 without an answer is sent again": 67}
"""Seed that is tried first; else 0."""

MUTATIONS: dict[str, Change] = {
    "an end of version 1 without an answer is sent again": (
        "end(producer, request, committed=True, repeats=False)",
        "end(producer, request, committed=True, repeats=True)",
    ),
    "an end without an answer counts as a commit": (
        "raise errors.RequestTimedOutError('the coordinator did not answer the end of a transaction')",
        "break",
    ),
    "id and epoch stay after an end": ("manager._pid_and_epoch = PidAndEpoch(id, epoch)", "pass"),
    "the id stays after an end": ("PidAndEpoch(id, epoch)", "PidAndEpoch(manager.producer_id, epoch)"),
    "numbers of batches go on after an end": ("manager._sequence_numbers.clear()", "pass"),
    "a busy coordinator fails the machine": ("does is Does.AGAIN", "False"),
    "offsets without an answer count as sent": (
        "{effect_of(code): code for code in codes} or {Does.LOOK: 0}",
        "{effect_of(code): code for code in codes} or {Does.DONE: 0}",
    ),
    "a rollback commits": ("_end(producer, committed=False)", "_end(producer, committed=True)"),
    "a change of the version needs no opening": (
        "road, held_from = self._road, self.held_from",
        "self._road = road = self._present_road; held_from = self.held_from",
    ),
    "offsets that were not taken are sent with the next transaction": (
        "answers.note_offsets(group, began_s, error)",
        "pass",
    ),
    "a rollback goes on after another opening": ("self.opening != (id, epoch + 1)", "False"),
}


def run(seed: int, faults: Faults | None = None, version: int | None = None) -> Counter[str]:
    """What happened in a run."""
    simulator = TransactionSimulator(seed, faults, version)
    simulator.run()
    if faults == Faults() and version is not None:
        without_reason = simulator.counts["reopened"] - simulator.counts["fenced"]
        assert 0 <= without_reason <= OWNERS * simulator.counts["without offsets"], "opened anew without a reason"
    return Counter(simulator.counts)


def test_no_run_breaks_a_promise_and_without_faults_nothing_is_opened_anew() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        for version in (1, 2, None):
            counts += run(seed, None, version) + run(seed, Faults(), version)
    assert (
        min(
            counts[name]
            for name in (
                "committed",
                "reopened",
                "fenced",
                "refused",
                "versions",
                "offsets",
                "between",
                "without offsets",
            )
        )
        > SEEDS
    ), counts


@pytest.mark.long
@pytest.mark.parametrize("first", range(SEEDS, 2_000, 200))
def test_no_later_run_breaks_a_promise(first: int) -> None:
    for seed in range(first, first + 200):
        for version in (1, 2, None):
            run(seed, None, version)


@pytest.mark.slow
@pytest.mark.parametrize("rule", MUTATIONS)
def test_a_broken_rule_of_transactions_is_found(rule: str) -> None:
    with applied([MUTATIONS[rule]], TRANSACTION_ROOMS):
        for seed in (FOUND_BY.get(rule, 0), *range(OF_MUTATIONS)):
            for version in (1, 2, None):
                try:
                    run(seed, None, version)
                    run(seed, Faults(), version)
                except AssertionError:
                    return
    pytest.fail("no run found it")
