"""Header names that are not UTF-8 are read as in Java, and do not stop the fetcher."""

from collections.abc import Sequence

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import READ_COMMITTED
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from timers.kafka.aiokafka_internals import batch_pieces
from timers.kafka.aiokafka_internals.fetch import InPieces, RecordsWithData, UncopiedRecords

MARK = "mark"


def batch(first_offset: int, names: list[str], *, producer: int = -1) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, producer >= 0, producer, 0, 0, 1 << 20)
    for index, name in enumerate(names):
        builder.append(index, 1_800_000_000_000, b"key", b"value", [(name, b"x"), ("null", None)])
    data = bytearray(builder.build())
    data[0:8] = first_offset.to_bytes(8, "big")
    return bytes(data)


def read(data: bytes, start: int, aborted: Sequence[tuple[int, int]] = ()) -> tuple[list[tuple[int, str]], int]:
    tp = TopicPartition("requests", 0)
    reader = UncopiedRecords(tp, RecordsWithData(data), aborted, start, InPieces(), None, False, READ_COMMITTED)
    found = [(record.offset, record.headers[0][0]) for record in reader.piece()]
    assert reader.finished
    return found, reader.next_fetch_offset


def test_an_invalid_header_name_is_replaced_and_the_rest_is_read() -> None:
    broken = batch(2, ["good", MARK, "after"]).replace(MARK.encode(), b"m\xff\xfek")
    data = batch(0, ["a", "b"]) + broken + batch(5, ["c"])
    assert read(data, 0) == (
        [(0, "a"), (1, "b"), (2, "good"), (3, "m\ufffd\ufffdk"), (4, "after"), (5, "c")],
        6,
    )


@pytest.mark.parametrize("start", range(6))
def test_reading_may_begin_at_any_offset(start: int) -> None:
    broken = batch(2, ["good", MARK, "after"]).replace(MARK.encode(), b"m\xff\xfek")
    first = batch(0, ["a", "b"]) if start < 2 else b""  # a broker answers from the batch that holds the start
    offsets, end = read(first + (broken if start < 5 else b"") + batch(5, ["c"]), start)
    assert ([offset for offset, _ in offsets], end) == (list(range(start, 6)), 6)


def test_valid_batches_are_read_unchanged() -> None:
    assert read(batch(0, ["ä", "b"]), 0) == ([(0, "ä"), (1, "b")], 2)


def control(offset: int, producer: int, *, committed: bool) -> bytes:
    """A marker that ends a transaction."""
    builder = DefaultRecordBatchBuilder(2, 0, True, producer, 0, -1, 1 << 20)
    builder.append(0, 1_800_000_000_000, b"\0\0\0%c" % committed, bytes(6), [])
    data = bytearray(builder.build())
    data[0:8] = offset.to_bytes(8, "big")
    data[22] |= 0x20  # the attribute of control batches
    return bytes(data)


def test_aborted_records_and_markers_are_left_out() -> None:
    data = (
        batch(0, ["a"], producer=1)
        + batch(1, ["aborted", "too"], producer=2)
        + control(3, 2, committed=False)
        + batch(4, ["b"], producer=2)
        + control(5, 2, committed=True)
        + batch(6, ["c"])
        + control(7, 1, committed=True)
    )
    assert read(data, 0, [(2, 1)]) == ([(0, "a"), (4, "b"), (6, "c")], 8)


def test_invalid_header_names_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    broken = batch(0, [MARK]).replace(MARK.encode(), b"m\xff\xfek")
    batch_pieces._warned.clear()
    for _ in range(5):
        read(broken, 0)
    (line,) = caplog.messages
    assert line.startswith("requests/0: a header name after offset 0 is not UTF-8")
