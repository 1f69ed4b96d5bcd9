"""What an interrupted export has moved out of an app is never forgotten."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from timers.core.progress import Progress
from timers.errors import TimersError
from timers.offline import pending
from timers.offline.pending import Moves, export
from timers.process.config.settings import Settings

TPS = [("timer-request", partition) for partition in range(3)]
CLUSTER: Any = SimpleNamespace(topic_ids={"timer-request": b"0123456789abcdef"}, partitions={}, cluster_id="cluster")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the moves. Each machine has committed something."""

    def commit(settings: Any, cluster: Any, tp: Any, change: Any) -> None:
        change(Progress(10 + tp[1]))

    monkeypatch.setattr(pending, "commit_change", commit)
    (tmp_path / "pending.part").mkdir()
    return tmp_path / "pending.part" / "moves"


def begun(path: Path) -> Moves:
    moves = Moves(path)
    moves.begin()
    moves.move(Settings(), CLUSTER, TPS[0])
    return moves


@pytest.mark.parametrize("cut", [1, 5, 60])
def test_a_line_that_was_not_written_whole_is_taken_away_before_the_next_one(path: Path, cut: int) -> None:
    begun(path).move(Settings(), CLUSTER, TPS[1])
    path.write_bytes(path.read_bytes()[:-cut])
    again = Moves(path)
    assert again.former == {TPS[0]: Progress(10)}
    again.move(Settings(), CLUSTER, TPS[2])
    assert Moves(path).former == {TPS[0]: Progress(10), TPS[2]: Progress(12)}


def test_a_number_that_was_not_written_whole_is_chosen_again(path: Path) -> None:
    path.write_bytes(b"123")
    moves = Moves(path)
    assert moves.number == 0
    moves.begin()
    assert Moves(path).number == moves.number > 0


def test_another_export_does_not_delete_what_was_moved(path: Path) -> None:
    """The app fires these timers no more, and no file has them yet."""
    begun(path)
    (path.parent / "timers").touch()
    target = path.parent.with_name("pending")
    with pytest.raises(TimersError, match="is the only place of timers that an interrupted export has moved"):
        export(Settings(), CLUSTER, target, move=False, check=lambda: None, report=lambda _: None)
    assert Moves(path).former == {TPS[0]: Progress(10)}
