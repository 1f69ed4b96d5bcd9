"""Ids that are over are forgotten in short sweeps; a marker that comes too late changes nothing."""

from itertools import pairwise
from typing import Any

from tests.harness.list_outbox import ListOutbox
from tests.harness.machines import MARKERS, RandomRig
from tests.simulation.kit import SimClock, SimLog
from timers.core.index import MAX_SWEEP_ENTRIES, MIN_SWEEP_ENTRIES, Sweeper
from timers.core.operation import Entry, offset_of
from timers.core.ports import NO_OUTPUT, Output
from timers.core.progress import NamedSnapshot
from timers.machines.store.memory import MemoryStore
from timers.wire.formats import marker

COUNT = 40_000


def is_over(entry: Entry) -> bool:
    return offset_of(entry) >= 1000


def swept(over_from: int) -> tuple[list[int], int]:
    """Returns how many entries each of twelve sweeps removes, and how many are left. Those from ``over_from`` on are
    over, and no new one comes."""
    store = MemoryStore()
    entries = {b"%05d" % number: (5, 1000 if number >= over_from else 7, 5) for number in range(COUNT)}
    store.write({}, COUNT, entries)
    sweeper = Sweeper(store)
    left = [COUNT]
    for _ in range(12):
        sweeper.sweep(is_over)
        left.append(sum(entry is not None for entry in store.entries(entries).values()))
    return [before - after for before, after in pairwise(left)], left[-1]


def test_a_sweep_reads_up_to_twice_as_many_entries_as_the_last_one_while_most_of_them_are_over() -> None:
    removed, left = swept(over_from=0)
    assert removed[:6] == [500, 1000, 2000, 4000, 8000, 8000] and (sum(removed), left) == (COUNT, 0)
    assert (removed[0], max(removed)) == (MIN_SWEEP_ENTRIES, MAX_SWEEP_ENTRIES)


def test_a_sweep_reads_few_entries_while_most_of_them_are_remembered() -> None:
    removed, left = swept(over_from=COUNT - 1)
    assert (sum(removed), left) == (0, COUNT), "none of twelve sweeps has come to the last one"


def test_only_what_the_newest_snapshot_has_counts_as_forgotten_since() -> None:
    """Counting begins anew with each snapshot, also if it ends at the same offset."""
    store, named = MemoryStore(), NamedSnapshot(b"id", 7, 0, 1, 2000, 3, 0, b"digest")
    sweeper, later = Sweeper(store), named._replace(number=8)
    for snapshot, forgotten in [(None, 0), (named, 1), (named, 2), (later, 1)]:
        store.write({}, 10, {b"old": (5, 1000, 5), b"new": (5, 2000, 5)})
        sweeper.sweep(is_over, snapshot)
        assert not any(store.entries([b"old", b"new"]).values()), "both were removed"
        assert sweeper.swept.forgotten_since(snapshot) == forgotten
    assert sweeper.swept.forgotten_since(named) == 0


class MarkerOutbox(ListOutbox):
    """Appends an End marker for each row to the log when it commits, as the delivery policy does."""

    def __init__(self, log: SimLog) -> None:
        super().__init__()
        self.log, self.redelivered = log, 0

    def commit(self, progress: Any, output: Output = NO_OUTPUT) -> None:
        super().commit(progress, output)
        for key, value in marker.end_markers([row for _, rows in output.due for row in rows]):
            self.log.append("markers", key, value, partition=0)
            self.redelivered += 1


def test_a_keep_alive_that_is_readable_after_its_message_was_delivered_again_has_no_effect() -> None:
    log = SimLog(SimClock(0), partitions=1)
    rig = RandomRig(MARKERS, topic="markers", outbox=MarkerOutbox(log), log=log)
    log.append("markers", b"queue", marker.encode_start("0/1", b"queue", b"v", 2000), partition=0)
    rig.read()
    other = log.begin("other", log.new_epoch("other"))
    log.append("markers", None, b"of another producer", partition=0, transaction=other)
    log.append("markers", b"queue", marker.encode_keep_alive("0/1", 60_000), partition=0)
    log.clock.now_ms = 5000
    rig.observe(5)
    rig.read()
    rig.fire()
    assert rig.outbox.redelivered == 1
    log.finish(other, commit=False)
    rig.read_all()
    for store in (rig.store, rig.recovered(1)[1]):
        assert dict(store.entries_after(b"", 10).entries) == {}, "nothing is remembered"
    log.clock.now_ms = 100_000
    rig.observe(100)
    rig.read_all()
    rig.fire()
    assert (rig.outbox.redelivered, rig.store.pending) == (1, 0)
