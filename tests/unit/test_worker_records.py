"""Broken header names do not stop the fetcher: they are read as Java reads them."""

from __future__ import annotations

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import READ_COMMITTED
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from timers.worker.consumer.records import KeptRecords, LeanRecords

MARK = "mark"


def batch(first_offset: int, names: list[str], *, compression: int = 0) -> bytes:
    builder = DefaultRecordBatchBuilder(2, compression, False, -1, -1, -1, 1 << 20)
    for index, name in enumerate(names):
        builder.append(index, 1_800_000_000_000, b"key", b"value", [(name, b"x"), ("null", None)])
    data = bytearray(builder.build())
    data[0:8] = first_offset.to_bytes(8, "big")
    return bytes(data)


def read(data: bytes, start: int) -> tuple[list[tuple[int, str]], int]:
    tp = TopicPartition("requests", 0)
    records = LeanRecords(tp, KeptRecords(data), [], start, None, None, False, READ_COMMITTED)
    return [(record.offset, record.headers[0][0]) for record in records], records.next_fetch_offset


def test_a_broken_name_is_replaced_and_everything_around_it_is_read() -> None:
    broken = batch(2, ["good", MARK, "after"]).replace(MARK.encode(), b"m\xff\xfek")
    data = batch(0, ["a", "b"]) + broken + batch(5, ["c"])
    assert read(data, 0) == (
        [(0, "a"), (1, "b"), (2, "good"), (3, "m\ufffd\ufffdk"), (4, "after"), (5, "c")],
        6,
    )


@pytest.mark.parametrize("start", range(6))
def test_reading_may_begin_anywhere(start: int) -> None:
    broken = batch(2, ["good", MARK, "after"]).replace(MARK.encode(), b"m\xff\xfek")
    first = batch(0, ["a", "b"]) if start < 2 else b""  # a broker answers from the batch that holds the start
    offsets, end = read(first + (broken if start < 5 else b"") + batch(5, ["c"]), start)
    assert ([offset for offset, _ in offsets], end) == (list(range(start, 6)), 6)


def test_sound_batches_are_read_as_they_are() -> None:
    assert read(batch(0, ["ä", "b"]), 0) == ([(0, "ä"), (1, "b")], 2)


def test_broken_names_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    broken = batch(0, [MARK]).replace(MARK.encode(), b"m\xff\xfek")
    LeanRecords._told.clear()
    for _ in range(5):
        read(broken, 0)
    (line,) = caplog.messages
    assert line.startswith("requests/0: a header name near offset 0 is not UTF-8")
