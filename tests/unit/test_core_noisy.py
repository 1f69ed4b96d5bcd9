"""A burst of one target does not delay the others [I36]."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.harness.held import DiskRig, Rig
from tests.harness.machines import LIMITS
from tests.harness.memory_store import MemoryStore
from timers.core.chunk import OCCURRENCE_COST
from timers.core.counters import TopicCounters
from timers.core.fired import NOISY, PAUSE, Hold, Holds, Moment
from timers.core.held import HeldRows
from timers.core.keys import NOTHING_FIRED
from timers.core.limits import ChunkSize
from timers.core.progress import Progress
from timers.core.repeating import NOMINAL, REPEAT, VERSION
from timers.core.timer import Origin, Row


def test_a_noisy_target_waits_for_the_others() -> None:
    rig = Rig(limits=LIMITS)
    rig.machine.counters.topics["sms"] = TopicCounters()
    rig.at(10)
    rig.set("mail", *[11] * 3000)
    rig.set("sms", 11, 11)
    fired = rig.at(11)
    assert sorted(fired) == [(11, offset) for offset in range(3002)]
    assert rig.holds == []
    rig.set("mail", *[12] * 3000)
    rig.set("sms", 12, 12)
    fired = rig.at(12)
    assert {fired.index((12, offset)) for offset in (6002, 6003)} < set(range(1100)), "before most of them"
    rig.set("mail", 13)
    assert rig.at(13) == [(13, 6004)]


@pytest.mark.parametrize("is_slow", [True, False], ids=["brokers are slow", "a setting"])
def test_a_target_is_noisy_also_in_small_chunks(is_slow: bool) -> None:
    rig = Rig(limits=LIMITS if is_slow else replace(LIMITS, chunk_timers=100))
    rig.machine.counters.topics["sms"] = TopicCounters()
    rig.at(10)
    for second in (11, 12):
        rig.set("mail", *[second] * 2000)
    rig.set("sms", 12)
    rig.outbox.chunk.timers = 100 if is_slow else rig.outbox.chunk.timers
    fired = rig.at(12)
    assert fired.index((12, 4000)) < 200, "it does not wait for thousands"
    assert len(fired) == 4001


@pytest.mark.parametrize(("rows", "is_noisy"), [(999, False), (1_000, True)])
def test_timers_that_came_one_by_one_are_counted_one_by_one(rows: int, is_noisy: bool) -> None:
    rig = Rig(limits=replace(LIMITS, chunk_timers=4_000))
    rig.machine.counters.topics["sms"] = TopicCounters()
    rig.at(10)
    for number in range(4_100):
        rig.set(f"other-{number % 12}" if number >= rows else "mail", 11)
    rig.observe(11)
    assert rig.machine.fire_chunk()
    assert [name for name, _ in rig.holds] == (["mail"] if is_noisy else [])


def test_a_chunk_of_few_timers_makes_no_target_noisy() -> None:
    rig = Rig(limits=LIMITS)
    rig.machine.counters.topics["sms"] = TopicCounters()
    rig.at(10)
    rig.set("mail", *[11] * 40)
    rig.outbox.chunk.timers = 20
    rig.observe(11)
    assert rig.machine.fire_chunk()
    assert rig.holds == []


def test_the_others_wait_for_the_first_rows_of_a_burst_only(tmp_path: Path) -> None:
    limits = replace(LIMITS, chunk_timers=5000, chunk_bytes=10**8)
    rig = DiskRig(tmp_path, limits=limits)
    rig.machine.counters.topics["sms"] = TopicCounters()
    rig.at(10)
    for target in (*["mail"] * (limits.chunk_timers // 500), "sms", *["mail"] * 4):
        rig.set(target, *[11] * 500)
    rig.observe(11)
    assert rig.machine.fire_chunk()
    assert limits.noisy_rows <= len(rig.outbox.fired) < 3 * limits.noisy_rows
    assert rig.holds == [("mail", NOISY)]
    rig.machine.fire_chunk()
    assert [offset // 500 - limits.chunk_timers // 500 for _, offset in rig.outbox.fired[-500:]] == [0] * 500
    rig.fire()
    while rig.machine.release_chunk():
        pass
    assert sorted(rig.outbox.fired) == [(11, offset) for offset in range(limits.chunk_timers + 2500)]


def test_a_release_of_timers_that_repeat_is_as_short_as_a_chunk_of_them() -> None:
    """Each next occurrence is found and written while the machines of the other partitions wait."""
    headers = [(REPEAT, b"every=10; from=0"), (VERSION, b"t/0/1"), (NOMINAL, b"11")]
    store, hold = MemoryStore(), Hold("mail", PAUSE, 1, Moment(0, NOTHING_FIRED, 0), 10, Moment(9_000, (12, 0), 0))
    rows: list[Row] = [(offset, "mail", None, b"", headers, Origin(f"{offset}", 11, 0)) for offset in range(3_000)]
    rows += [(offset, "mail", None, b"", None, None) for offset in range(3_000, 9_000)]
    store.write({}, 9_000, {}, held={11: rows})
    progress = Progress(9_000, (12, 0), holds=Holds((hold,)))
    sizes = []
    limits = replace(LIMITS, chunk_timers=20_000, chunk_bytes=10**9)
    while hold is not None:
        release = HeldRows(store, 0).next_release(progress, hold, 12, ChunkSize(), limits)
        sizes.append(release.number)
        store.replace(release.left)
        if release.hold is None or release.is_end:
            break
        progress, hold = replace(progress, holds=Holds((release.hold,))), release.hold
    assert sum(sizes) == len(rows)
    occurrences = [min(size, max(0, 3_000 - sum(sizes[:at]))) for at, size in enumerate(sizes)]
    costs = [size + (OCCURRENCE_COST - 1) * number for size, number in zip(sizes, occurrences, strict=True)]
    assert all(20_000 <= cost < 20_000 + OCCURRENCE_COST for cost in costs[:-1])
    assert len(costs) > 1
