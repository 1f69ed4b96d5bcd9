"""How many timers fire in one transaction, after time-outs and after successes."""

import pytest

from timers.core.limits import (
    LARGEST_CHUNK,
    LONG_PART_S,
    LONG_TRANSACTION_S,
    QUICK_TRANSACTION_S,
    SHORT_S,
    SMALL_CHUNK,
    ChunkSize,
)


def transaction(chunk: ChunkSize, timers: int, seconds: float | None) -> None:
    """One transaction; ``seconds`` None: it failed."""
    chunk.begun = timers
    if seconds is None:
        chunk.failed()
    else:
        chunk.committed(seconds, chunk.since_tick_s + seconds)


def test_only_the_setting_limits_a_chunk_while_all_is_well() -> None:
    chunk = ChunkSize()
    transaction(chunk, 20_000, QUICK_TRANSACTION_S / 2)
    assert (min(chunk.timers, 20_000), chunk.timers) == (20_000, LARGEST_CHUNK)


def test_a_chunk_shrinks_after_a_time_out_and_grows_after_each_success() -> None:
    chunk = ChunkSize()
    transaction(chunk, 20_000, None)
    assert min(chunk.timers, 20_000) == SMALL_CHUNK
    sizes = []
    while min(chunk.timers, 20_000) < 20_000:
        transaction(chunk, chunk.timers, QUICK_TRANSACTION_S / 2)
        sizes.append(chunk.timers)
    assert sizes[:3] == [2 * SMALL_CHUNK, 4 * SMALL_CHUNK, 8 * SMALL_CHUNK]
    assert len(sizes) == 8


def test_a_chunk_shrinks_until_one_timer_stands_alone() -> None:
    chunk = ChunkSize()
    sizes = []
    for _ in range(6):
        transaction(chunk, min(chunk.timers, 20_000), None)
        sizes.append(chunk.timers)
    assert sizes == [SMALL_CHUNK, SMALL_CHUNK // 4, SMALL_CHUNK // 16, 1, 1, 1]


def test_a_small_chunk_grows_also_after_slow_transactions() -> None:
    chunk = ChunkSize()
    for _ in range(3):
        transaction(chunk, min(chunk.timers, 40), None)
    sizes = []
    for _ in range(9):
        transaction(chunk, chunk.timers, LONG_TRANSACTION_S + 1)
        sizes.append(chunk.timers)
    assert sizes == [2, 4, 8, 16, 32, 64, SMALL_CHUNK, SMALL_CHUNK, SMALL_CHUNK], (
        "else each of few timers waits for seconds"
    )


def test_a_long_transaction_makes_the_next_one_smaller_before_it_times_out() -> None:
    chunk = ChunkSize()
    transaction(chunk, 4_000, LONG_TRANSACTION_S + 1)
    assert chunk.timers == 2_000
    transaction(chunk, 2_000, (QUICK_TRANSACTION_S + LONG_TRANSACTION_S) / 2)
    assert chunk.timers == 2_000
    transaction(chunk, SMALL_CHUNK + 2, LONG_TRANSACTION_S + 1)
    transaction(chunk, 10, LONG_TRANSACTION_S + 1)
    assert chunk.timers == SMALL_CHUNK, "so few timers are not the cause"


def test_parts_of_a_release_are_short_after_a_tick_and_before_the_next() -> None:
    """Others of other partitions come due with the tick too, and each part waits for the same processor."""
    chunk = ChunkSize()
    transaction(chunk, 1000, 0.1)
    chunk.since_tick_s = 0.0
    transaction(chunk, 10, 0.01)
    parts_s = []
    while chunk.since_tick_s < 1:
        parts_s.append(chunk.part / 10_000)
        transaction(chunk, chunk.part, parts_s[-1])
    longest = parts_s.index(max(parts_s))
    assert (parts_s[0], parts_s[-1]) == pytest.approx((SHORT_S, SHORT_S), rel=0.01)
    assert parts_s[longest] > LONG_PART_S * 0.9
    assert parts_s[: longest + 1] == sorted(parts_s[: longest + 1])


def test_a_transaction_without_timers_changes_nothing() -> None:
    chunk = ChunkSize()
    transaction(chunk, 1_000, None)
    transaction(chunk, 0, None)
    transaction(chunk, 0, QUICK_TRANSACTION_S / 2)
    assert chunk.timers == SMALL_CHUNK


def test_a_part_of_a_release_takes_also_the_time_in_which_its_timers_are_read() -> None:
    """Else the part that the others wait for, when they come due with the next tick, would take longer than it may."""
    chunk = ChunkSize()
    transaction(chunk, 0, 0.01)
    chunk.since_tick_s = 0.0
    chunk.begun = 1000
    chunk.committed(0.1, 0.2)
    chunk.since_tick_s = 0.0
    assert chunk.part == 1000 / 0.2 * SHORT_S
