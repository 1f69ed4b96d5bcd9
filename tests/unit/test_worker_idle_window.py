"""Listings wait for the part of each second in which few timers fire."""

from __future__ import annotations

import pytest

from timers.worker.queries.idle_window import END, START, IdleWindow

NOW_S = 1_800_000_000


@pytest.mark.parametrize(
    ("now_s", "wait_s"),
    [
        (NOW_S, START),
        (NOW_S + START / 2, START / 2),
        (NOW_S + START, 0),
        (NOW_S + END - 0.01, 0),
        (NOW_S + END + 0.01, 0.99 - END + START),
        (NOW_S + 0.99, 0.01 + START),
        (None, 0),
    ],
)
def test_the_idle_window_comes_once_a_second(now_s: float | None, wait_s: float) -> None:
    assert IdleWindow(lambda: now_s).wait_s == pytest.approx(wait_s, abs=1e-6)


async def test_the_wait_ends_when_the_window_begins() -> None:
    now = iter([NOW_S + START - 0.02, NOW_S + START])
    idle_window = IdleWindow(lambda: next(now))
    await idle_window.wait()
    assert idle_window.wait_s == 0
