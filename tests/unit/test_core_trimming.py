"""How much of a log may be deleted, and when an idle app gets a snapshot."""

import math
from dataclasses import replace

import pytest

from timers.core.levels import FIRST_LEVEL
from timers.core.progress import FEATURE_LEVEL, LOG_TRIMMED, Doubt, NamedSnapshot, Progress, Rescue
from timers.core.snapshots import SNAPSHOT_CHUNK_BYTES, is_outdated, trimmed_to

DAY_S = 86_400


def named(applied: int, rows: int = 3) -> NamedSnapshot:
    return NamedSnapshot(b"id", 1, 0, 1, applied, 7, rows, b"digest")


def progress_of(newest: int | None, older: int | None, *, trims: bool = True) -> Progress:
    names = [None if at is None else named(at) for at in (newest, older)]
    progress = Progress(100, snapshot=names[0], older_snapshot=names[1])
    return progress.with_setting(LOG_TRIMMED, 1) if trims else progress


def test_the_log_is_deleted_below_both_named_snapshots_and_what_is_kept() -> None:
    assert trimmed_to(progress_of(60, 40), None) == 40
    assert trimmed_to(progress_of(40, 60), None) == 40, "a new owner may have named a lower offset"
    assert trimmed_to(progress_of(60, 40), 30) == 30
    assert trimmed_to(progress_of(60, 40), 50) == 40


@pytest.mark.parametrize(("former", "kept_from"), [(5, 0), (6, 40), (7, 0), (8, 40)])
def test_former_levels_say_whether_the_log_of_a_raised_machine_begins_late(former: int, kept_from: int) -> None:
    raised = (
        progress_of(60, 40, trims=False).with_setting(FEATURE_LEVEL, former).with_setting(FEATURE_LEVEL, FIRST_LEVEL)
    )
    assert trimmed_to(raised, None) == kept_from


@pytest.mark.parametrize(
    "progress",
    [
        progress_of(60, None),
        progress_of(None, None),
        progress_of(60, 40, trims=False),
        replace(progress_of(60, 40), doubt=Doubt(20, "worker-1")),
        replace(progress_of(60, 40), rescues=(Rescue(70, 80, (5, 5)),)),
    ],
    ids=["one snapshot", "none", "not compared", "in doubt", "rescues"],
)
def test_nothing_is_deleted(progress: Progress) -> None:
    assert trimmed_to(progress, None) == 0


@pytest.mark.parametrize(
    ("pending", "next_offset", "age_s", "keep_s", "expected"),
    [
        (3, 100, 4 * DAY_S, 7 * DAY_S, False),
        (2, 100, 4 * DAY_S, 7 * DAY_S, True),
        (3, 101, 4 * DAY_S, 7 * DAY_S, True),
        (2, 100, 3 * DAY_S, 7 * DAY_S, False),
        (2, 100, 31, 60, True),
        (2, 100, 29, 60, False),
        (2, 100, 29, 0, False),
        (2, 100, 31, 0, True),
        (2, 100, 1e9, math.inf, False),
    ],
)
def test_an_idle_app_gets_a_snapshot_if_what_is_named_holds_more_than_is_pending(
    pending: int, next_offset: int, age_s: float, keep_s: float, expected: bool
) -> None:
    progress = replace(progress_of(100, 100), next_offset=next_offset)
    assert is_outdated(progress, pending, age_s, keep_s, 1e6) is expected


def test_an_app_without_snapshots_gets_its_first_ones_unless_it_is_empty() -> None:
    assert is_outdated(progress_of(None, None), 0, 40, 60, 1e6)
    assert is_outdated(progress_of(None, None), 0, 3601, 7 * DAY_S, 1e6), "a worker may be restarted every day"
    assert is_outdated(progress_of(100, None), 3, 40, 60, 1e6)
    assert not is_outdated(progress_of(100, None), 3, 3601, 7 * DAY_S, 1e6)
    assert not is_outdated(Progress(), 0, 40, 60, 1e6)


def test_a_large_snapshot_is_not_written_all_the_time() -> None:
    """Else the other machines of the worker get none."""
    newest = named(100)._replace(first_offset=0, end_offset=20)
    progress = replace(progress_of(100, 100), next_offset=200, snapshot=newest)
    written_s = 20 * SNAPSHOT_CHUNK_BYTES / 1e4
    assert not is_outdated(progress, 3, 10 * written_s - 1, 60, 1e4)
    assert is_outdated(progress, 3, 10 * written_s + 1, 60, 1e4)
