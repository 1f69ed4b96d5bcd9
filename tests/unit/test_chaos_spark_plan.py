"""The plan of a storm over the engine on Spark: one seed always makes the same."""

from random import Random

import pytest

pytest.importorskip("pyspark", reason="needs the extra 'spark'")

from tests.chaos import spark


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_has_all_kills_and_each_change_once(seed: int) -> None:
    steps = spark.plan(Random(seed), 5, spark.CHANGES)
    assert steps == spark.plan(Random(seed), 5, spark.CHANGES)
    assert [steps.count(change) for change in spark.CHANGES] == [1, 1, 1]
    assert sum(step in spark.KILLS for step in steps) == 5
    assert spark.length_s(steps) == (8 + 2) * spark.KILL_S and spark.length_s(steps[:0]) == 0


def test_changes_come_at_any_place() -> None:
    places = {spark.plan(Random(seed), 3, ["workers"]).index("workers") for seed in range(50)}
    assert places == {0, 1, 2, 3}


def test_an_unknown_change_is_refused() -> None:
    with pytest.raises(SystemExit):
        spark.main(["--changes", "bucket"])
