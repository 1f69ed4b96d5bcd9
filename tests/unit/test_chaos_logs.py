"""The trial of logs finds each violation in made-up facts, and cuts a log at a batch."""

import struct
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.logs.broker_disk import compacted_to, cut, disk
from tests.chaos.logs.cells import CELLS, MEANINGS, TOPICS, choose
from tests.chaos.logs.judge import Facts, judge
from timers.cli.broker import EmbeddedBroker

RED = Facts(
    in_log={1, 2, 3},
    held={4, 5},
    fired_before={1},
    fired=Counter([1, 2, 3, 4, 5]),
    letters=Counter([4, 5]),
    red_after_s=2.0,
    sentence="why",
)
"""A cell that turned red, whose loss was accepted, and whose dead letters were sent again."""


def test_a_cell_passes_if_all_in_the_log_fire_once_and_each_held_timer_is_a_dead_letter() -> None:
    assert judge(RED).passed
    assert judge(Facts(in_log={1}, fired=Counter([1]))).passed


@pytest.mark.parametrize(
    "broken",
    [
        replace(RED, fired=Counter([1, 2, 4, 5])),
        replace(RED, fired=Counter([1, 1, 2, 3, 4, 5])),
        replace(RED, fired=Counter([1, 2, 3, 4])),
        replace(RED, letters=Counter([4])),
        replace(RED, letters=Counter([4, 4, 5])),
        replace(RED, letters=Counter([3, 4, 5])),
        replace(RED, red_after_s=31.0),
        replace(RED, failures=["the worker ended"]),
        Facts(in_log={1}, held={2}, fired=Counter([1])),
        Facts(in_log={1, 2}, fired=Counter([1])),
        Facts(in_log={1}, fired=Counter([1]), gone=1, must_be_red=True),
    ],
)
def test_a_cell_fails_if_a_timer_is_lost_doubled_or_forgotten_in_silence(broken: Facts) -> None:
    assert not judge(broken).passed


def test_only_what_had_fired_may_fire_again_and_only_if_a_sentence_says_so() -> None:
    again = replace(RED, fired=Counter([1, 1, 2, 3, 4, 5]), may_repeat={1})
    assert judge(again).passed
    assert not judge(replace(again, fired=Counter([1, 2, 2, 3, 4, 5]))).passed


def test_the_table_has_each_topic_and_fault() -> None:
    assert {cell.topic for cell in CELLS} == {*TOPICS}
    assert {cell.fault for cell in CELLS} == {*MEANINGS}
    assert [str(cell) for cell in choose(["request/cut/*"])] == ["request/cut/kept", "request/cut/wiped"]
    with pytest.raises(ValueError, match="matches no cell"):
        choose(["request/cut/kept", "nothing"])


def batch(base: int, records: int, size: int = 100) -> bytes:
    """A batch with its head: base offset, length, and the offset of its last record from the base."""
    return struct.pack(">qi11xi", base, size - 12, records - 1).ljust(size, b"\x01")


def test_a_cut_ends_a_log_before_a_batch_and_takes_later_segments(tmp_path: Path) -> None:
    first, second = tmp_path / f"{0:020}.log", tmp_path / f"{30:020}.log"
    first.write_bytes(batch(0, 10) + batch(10, 10) + batch(20, 10))
    second.write_bytes(batch(30, 5))
    for name in (f"{0:020}.index", f"{30:020}.index", f"{10:020}.snapshot", f"{30:020}.snapshot"):
        (tmp_path / name).touch()
    assert cut(tmp_path, 15) == 300
    assert first.read_bytes() == batch(0, 10)
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"{0:020}.log", f"{10:020}.snapshot"]
    assert cut(tmp_path, 10) == 0


def test_a_compaction_is_seen_in_the_files_of_the_broker(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path)
    assert compacted_to(broker, "schedules") == {}
    disk(broker).mkdir(parents=True)
    (disk(broker) / "cleaner-offset-checkpoint").write_text("0\n3\nschedules 0 17\nschedules 2 9\nother 0 4\n")
    assert compacted_to(broker, "schedules") == {0: 17, 2: 9}
