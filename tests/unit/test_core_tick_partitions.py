"""Which partitions ticks go to."""

from __future__ import annotations

from timers.core.ticking import TRY_AGAIN_S, TickPartitions

LEADERS = {0: 1, 1: 2, 2: 1, 3: 3}


def test_ticks_take_turns_over_all_partitions_with_a_leader() -> None:
    assert [TickPartitions().order(second, LEADERS)[0] for second in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert TickPartitions().order(5, {}) == []


def test_the_next_choice_is_a_partition_of_another_broker() -> None:
    assert TickPartitions().order(0, LEADERS) == [0, 1, 3]
    assert TickPartitions().order(2, LEADERS) == [2, 3, 1]


def test_a_broker_that_does_not_answer_comes_last_until_it_answers() -> None:
    partitions = TickPartitions()
    partitions.note_silent(1, 10)
    assert [partitions.order(second, LEADERS) for second in range(3)] == [[1, 3, 0], [1, 3, 2], [3, 1, 2]]
    partitions.note_answer(1)
    assert partitions.order(0, LEADERS) == [0, 1, 3]


def test_if_no_broker_answers_ticks_go_on_taking_turns() -> None:
    partitions = TickPartitions()
    for broker in (1, 2, 3):
        partitions.note_silent(broker, 10)
    assert partitions.order(1, LEADERS) == [1, 2, 3]


def test_a_broker_that_did_not_answer_is_probed_now_and_then() -> None:
    partitions = TickPartitions()
    partitions.note_silent(3, 10)
    assert partitions.probe(LEADERS, 10) is None
    assert partitions.probe(LEADERS, 10 + TRY_AGAIN_S) == 3
    assert partitions.probe(LEADERS, 11 + TRY_AGAIN_S) is None
