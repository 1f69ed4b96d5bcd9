"""When a worker asks for a rebalance because partitions have no owner, and when such a partition is red."""

from __future__ import annotations

from itertools import pairwise

from timers.worker.consumer.group_watch import PAUSES, REBALANCE_S, RED_S, UnownedPartitions

TP = ("timer-by-id", 0)


class Watch:
    """Several workers that see the same partitions, on a clock of their own."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.workers = {name: UnownedPartitions(lambda: self.now) for name in "abc"}

    def pass_(self, seconds: float, readers: str | None) -> list[tuple[str, int]]:
        """(worker, seconds from now) of each request for a rebalance; ``readers`` read the partition without owner."""
        asked = []
        for step in range(int(seconds)):
            self.now += 1
            unowned = {} if readers is None else {TP: list(readers)}
            asked += [(name, step) for name, worker in self.workers.items() if worker.note(unowned, name)]
        return asked


def test_the_lowest_reader_asks_after_ten_seconds_and_the_next_one_later() -> None:
    watch = Watch()
    assert watch.pass_(REBALANCE_S, "bc") == []
    assert watch.pass_(1, "bc") == [("b", 0)]
    asked = watch.pass_(2 * REBALANCE_S, "bc")
    assert {name for name, _ in asked} == {"b", "c"}, "c asks too, as the request of b did not help"
    assert min(second for name, second in asked if name == "c") >= REBALANCE_S - 1


def test_a_partition_that_gets_an_owner_in_time_causes_no_rebalance() -> None:
    watch = Watch()
    for _ in range(5):
        assert watch.pass_(REBALANCE_S - 1, "abc") == []
        assert watch.pass_(1, None) == []


def test_rebalances_that_do_not_help_become_rare() -> None:
    watch = Watch()
    seconds = [second for name, second in watch.pass_(10_000, "a") if name == "a"]
    pauses = [later - earlier for earlier, later in pairwise(seconds)]
    assert pauses == sorted(pauses) and pauses[0] == REBALANCE_S and pauses[-1] == PAUSES.longest_s
    watch.pass_(1, None)
    assert watch.pass_(PAUSES.longest_s, None) == []
    assert ("a", REBALANCE_S) in watch.pass_(REBALANCE_S + 1, "a"), "later trouble is handled as quickly as the first"


def test_a_worker_that_does_not_read_the_topic_leaves_it_to_others() -> None:
    watch = Watch()
    assert {name for name, _ in watch.pass_(100, "c")} == {"c"}


def test_a_partition_is_red_until_it_has_an_owner() -> None:
    watch = Watch()
    watch.pass_(RED_S, "c")
    red = watch.workers["a"].red
    assert red() == {}
    watch.pass_(1, "c")
    assert red() == {TP: RED_S}
    watch.pass_(1, None)
    assert red() == {}


def test_a_look_without_an_answer_leaves_no_good_one() -> None:
    found = UnownedPartitions(lambda: 1000.0)
    assert found.count is None, "nothing was asked yet"
    found.note({}, "a")
    assert found.count == 0
    found.is_known = False
    assert found.count is None
    watch = Watch()
    watch.pass_(RED_S + 1, "c")
    red = watch.workers["a"]
    red.is_known = False
    assert red.count == 1, "a bad one stays until it is known to be better"
