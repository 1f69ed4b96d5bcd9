"""What a worker keeps of its own figures of the last day, in memory and in its file."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.waiting import wait_until
from timers.core.counters import WAITED, Counters, lag_of
from timers.process import past_figures
from timers.process.past_figures import DAY_S, FIGURES_STEP_S, KEPT_BYTES, MOST_BYTES, PastFigures

STATE = {"pending": 7, "overdue_s": 0.0, "memory_bytes": 1}


class Worker:
    """A worker that fires 10 timers in each step, 20 ms late."""

    def __init__(self, path: Path, now_s: float = 1_900_000_000) -> None:
        self.now_s = now_s
        self.counters = Counters()
        self.figures = PastFigures(path, lambda: self.now_s)
        self.figures.note(self.counters.numbers(), STATE)

    def step(self, count: int = 1, **state: float) -> None:
        for _ in range(count):
            self.now_s += FIGURES_STEP_S
            self.counters.fired += 10
            self.counters.lag[WAITED].observe(0.02, 10)
            self.figures.note(self.counters.numbers(), {**STATE, **state})

    def points(self, since_s: float = 0) -> list[dict[str, Any]]:
        said = json.loads(self.figures.page(since_s, {"app": "a"}))
        assert said["app"] == "a" and said["bounds_s"][0] == 0.005
        points: list[dict[str, Any]] = said["points"]
        return points


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "figures.jsonl"


def lines_of(path: Path) -> Callable[[], int]:
    return lambda: len(path.read_bytes().split(b"\n")) - 1 if path.exists() else 0


def test_a_point_has_what_was_counted_in_its_time(path: Path) -> None:
    worker = Worker(path)
    worker.step(2, pending=9)
    first, second = worker.points()
    assert first["at"] + FIGURES_STEP_S == second["at"] == worker.now_s
    assert first["counts"]["fired"] == second["counts"]["fired"] == 10 and second["pending"] == 9
    assert sum(lag_of(second["counts"], WAITED).counts) == 10
    assert worker.points(first["at"]) == [second]


def test_the_last_hour_has_steps_and_the_day_before_it_minutes(path: Path) -> None:
    worker = Worker(path)
    worker.step(2 * 3600 // FIGURES_STEP_S)
    points = worker.points()
    assert {each["s"] for each in points[:59]} == {60} and {each["s"] for each in points[60:]} == {5}
    assert 7130 <= sum(each["s"] for each in points) <= 7200, "no gap, and nothing twice"
    assert points[0]["counts"]["fired"] == 120


def test_a_restart_goes_on_with_the_minutes_of_the_file(path: Path) -> None:
    worker = Worker(path)
    for minutes in (1, 2):
        worker.step(12, overdue_s=3.0)
        wait_until(lambda minutes=minutes: lines_of(path)() == minutes, "the minute is written")  # type: ignore[misc]
    again = Worker(path, worker.now_s + 30)
    again.figures.load()
    again.step()
    minute, _, last = again.points()
    assert (minute["s"], minute["counts"]["fired"], minute["overdue_s"]) == (60, 120, 3.0)
    assert (last["s"], last["counts"]["fired"]) == (5, 10)
    later = Worker(path, worker.now_s + DAY_S + 1)
    later.figures.load()
    assert later.points() == [], "older than a day"


def test_a_worker_that_ends_writes_the_minute_that_is_not_over(path: Path) -> None:
    worker = Worker(path)
    assert worker.figures.end() is None, "there is nothing to write"
    worker.step(14)
    wait_until(lambda: lines_of(path)() == 1, "the minute is written")
    writing = worker.figures.end()
    assert writing is not None
    writing.result(30)
    again = Worker(path, worker.now_s + 30)
    again.figures.load()
    assert [(point["s"], point["counts"]["fired"]) for point in again.points()] == [(60, 120), (10, 20)]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\x00\n{",
        b"[]\n",
        b'{"at": "x"}\n',
        b'{"at": 1900000000, "s": 5}\n',
        b'{"at": 1900000000, "s": 5, "counts": {"fired": NaN}, "pending": 1, "overdue_s": 0, "memory_bytes": 1}\n',
        b'{"at": 1900000000, "s": 5, "counts": {"fired": "x"}, "pending": 1, "overdue_s": 0, "memory_bytes": 1}\n',
        b'{"at": 1900000000, "s": 5, "counts": {}, "pending": null, "overdue_s": 0, "memory_bytes": 1}\n',
        b"[" * 100_000,
        b"1\n",
    ],
)
def test_a_damaged_file_is_as_an_empty_one(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    worker = Worker(path)
    worker.figures.load()
    assert worker.points() == []
    worker.step(12)
    assert len(worker.points()) == 12


def test_a_file_that_cannot_be_read_or_written_is_no_trouble(path: Path) -> None:
    path.mkdir()
    worker = Worker(path)
    worker.figures.load()
    worker.step(24)
    assert len(worker.points()) == 24


def test_a_disk_that_stalls_holds_one_thread_and_no_other(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, goes_on = Worker(path), threading.Event()
    append, begun, written = worker.figures._append, list[int](), list[int]()

    def slow(path: Path, lines: Any, kept: Any) -> None:
        begun.append(len(lines))
        assert goes_on.wait(30)
        written.append(len(lines))
        append(path, lines, kept)

    monkeypatch.setattr(worker.figures, "_append", slow)
    worker.step(12 * 5)
    goes_on.set()
    wait_until(lambda: written == [1], "the first line is written")
    wait_until(lambda: worker.figures._writing is not None and worker.figures._writing.done(), "the thread ends")
    worker.step(12)
    wait_until(lambda: lines_of(path)() == 6, "the others follow")
    assert begun == [1, 5], "while the first thread was held, no other one began"


def test_memory_and_file_are_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(b"x" * MOST_BYTES)
    worker = Worker(path)
    monkeypatch.setattr(past_figures, "call_in_thread", lambda _name, call, *args: call(*args))
    monkeypatch.setattr(worker.figures, "_writing", None)
    monkeypatch.setattr(PastFigures, "_write", lambda self, line: self._append(path, [line], [*self._coarse.kept]))
    for _ in range(DAY_S // FIGURES_STEP_S // 10):
        for way in worker.counters.lag.values():
            way.observe_all([(bound, 1_000_000) for bound in way.bounds])
        worker.step()
        assert not path.exists() or path.stat().st_size <= MOST_BYTES
    kept = sum(len(line) for of in (worker.figures._fine, worker.figures._coarse) for _, line in of.kept)
    assert kept + 10_000 > MOST_BYTES and kept <= 2 * KEPT_BYTES
    assert len(worker.figures.page(0, {})) < 2 * MOST_BYTES


def test_steps_of_other_lengths_are_said_and_a_page_begins_where_it_is_told_to() -> None:
    now_s = 1_900_000_000.0
    figures = PastFigures(None, lambda: now_s)
    figures.load()
    for fired, seconds in ((0, 5), (10, 7), (30, 1), (31, 400)):
        now_s += seconds
        figures.note({"fired": fired}, STATE)
    points = json.loads(figures.page(past_figures.since("x"), {}))["points"]
    assert [(each["s"], each["counts"]["fired"]) for each in points] == [(7, 10), (1, 20), (60, 1)]
    assert len(json.loads(figures.page(past_figures.since(str(points[0]["at"])), {}))["points"]) == 2
    for wrong in ("", "-1", "1" * 12, "\u0663", "nan"):
        assert past_figures.since(wrong) == 0


def test_a_clock_that_goes_back_leaves_no_point_in_the_future(path: Path) -> None:
    worker = Worker(path)
    worker.step(3)
    worker.now_s -= 3600
    worker.step(2)
    assert [each["at"] for each in worker.points()] == [int(worker.now_s) - 5, int(worker.now_s)]
