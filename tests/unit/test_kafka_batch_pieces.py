"""A batch that is read in pieces has the records that aiokafka reads from the whole batch, for any unpacked size."""

import gc
import hashlib
import random
import tracemalloc
import weakref
import zlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition, codec
from aiokafka.consumer import fetcher
from aiokafka.consumer.fetcher import READ_COMMITTED
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c, encode_varint
from backports import zstd

from tests.harness import raw_batches
from tests.harness.constants import Constants
from timers.core.timer import CUT_VALUE_BYTES, CutValue
from timers.kafka.aiokafka_internals import batch_pieces, fetch
from timers.kafka.aiokafka_internals.batch_pieces import UnreadableBatch
from timers.kafka.aiokafka_internals.fetch import InPieces, RecordsWithData, UncopiedRecords

TP = TopicPartition("requests", 0)
CODECS: dict[str, tuple[int, Callable[[bytes], Any]]] = {
    "none": (0, lambda data: data),
    "gzip": (1, codec.gzip_encode),
    "snappy": (2, codec.snappy_encode),
    "raw snappy": (2, lambda data: codec.snappy_encode(data, xerial_compatible=False)),
    "lz4": (3, codec.lz4_encode),
    "zstd": (4, codec.zstd_encode),
}
EVERY_CODEC = pytest.mark.parametrize("name", CODECS)

THEIRS = ("FetchResult", "PartitionRecords", "MemoryRecords")
"""Classes that aiokafka's fetcher looks up by these names."""

Fields = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def packed(records: Sequence[Fields]) -> tuple[bytes, bytes]:
    """Header and data of a batch without a codec."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
    for index, (key, value, headers) in enumerate(records):
        assert builder.append(index, 1_800_000_000_000 + index, key, value, headers) is not None
    built = bytes(builder.build())
    return built[:61], built[61:]


def batch(header: bytes, data: bytes, name: str, *, count: int | None = None, compressed: bytes | None = None) -> bytes:
    """A whole batch: ``data`` packed with a codec, under a header with a correct checksum."""
    number, encode = CODECS[name]
    body = bytes(encode(data)) if compressed is None else compressed
    whole = bytearray(header) + body
    whole[8:12] = (len(whole) - 12).to_bytes(4, "big")
    whole[22] = number
    if count is not None:
        whole[57:61] = count.to_bytes(4, "big")
    whole[17:21] = calc_crc32c(bytes(whole[21:])).to_bytes(4, "big")
    return bytes(whole)


def read(data: bytes, start: int = 0) -> list[fetch.Records]:
    """All pieces of a fetch."""
    reader = UncopiedRecords(TP, RecordsWithData(data), [], start, InPieces(), None, True, READ_COMMITTED)
    found = []
    while not reader.finished:
        found.append(reader.piece())
    return found


def read_on(data: bytes) -> tuple[list[Any], UnreadableBatch | None]:
    """All records of a fetch up to one that cannot be read, and why it cannot be read."""
    reader = UncopiedRecords(TP, RecordsWithData(data), [], 0, InPieces(), None, True, READ_COMMITTED)
    found: list[Any] = []
    try:
        while not reader.finished:
            found += reader.piece()
    except UnreadableBatch as error:
        return found, error
    return found, None


def fields(records: Sequence[Any]) -> list[tuple[Any, ...]]:
    return [(each.offset, each.key, each.value, list(each.headers), each.timestamp) for each in records]


def expected(header: bytes, data: bytes) -> list[tuple[Any, ...]]:
    return fields(list(DefaultRecordBatch(batch(header, data, "none"))))


def drawn(seed: int, count: int, largest: int) -> list[Fields]:
    draw = random.Random(seed)
    return [
        (
            draw.choice([None, draw.randbytes(draw.randint(0, 20))]),
            draw.choice([None, draw.randbytes(draw.choice([0, 3, 63, 64, draw.randint(0, largest)]))]),
            [(f"h{index}", draw.choice([None, draw.randbytes(5)])) for index in range(draw.randint(0, 3))],
        )
        for _ in range(count)
    ]


@pytest.fixture
def small(constants: Constants) -> None:
    """Pieces of 1000 bytes and 50 records."""
    for module in (batch_pieces, fetch):
        constants(module, PIECE_BYTES=1000, PIECE_RECORDS=50)
    constants(batch_pieces, STEP_BYTES=700, ROOM_BYTES=300)


@pytest.fixture
def limit(constants: Constants) -> int:
    """Values of more than 5000 bytes are cut."""
    constants(fetch, MAX_VALUE_BYTES=5000)
    return 5000


def test_the_bytes_of_a_fetch_are_freed_without_the_garbage_collector() -> None:
    """The collector of a worker runs seldom: 1,000,000 timers of 100 bytes took 160 MB more."""
    header, data = packed(drawn(0, 10, 100))
    gc.disable()
    try:
        reader = UncopiedRecords(
            TP, RecordsWithData(batch(header, data, "none")), [], 0, InPieces(), None, True, READ_COMMITTED
        )
        assert sum(map(len, iter(reader.piece, []))) == 10
        freed = weakref.ref(reader)
        del reader
        assert freed() is None
    finally:
        gc.enable()


@EVERY_CODEC
@pytest.mark.parametrize("seed", range(6))
def test_pieces_have_the_records_of_the_whole(name: str, seed: int, small: None) -> None:
    header, data = packed(drawn(seed, 400, 4000))
    found = read(batch(header, data, name))
    assert fields([record for piece in found for record in piece]) == expected(header, data)
    assert len(found) > 5
    assert max(map(len, found)) <= 99
    assert max(piece.size for piece in found) < 1000 + 5000
    assert sum(piece.size for piece in found) == len(data)


@EVERY_CODEC
def test_reading_begins_inside_a_batch(name: str, small: None) -> None:
    header, data = packed(drawn(1, 300, 100))
    found = read(batch(header, data, name), start=177)
    assert fields([record for piece in found for record in piece]) == expected(header, data)[177:]


@EVERY_CODEC
def test_a_value_above_the_limit_is_cut_and_all_others_are_whole(name: str, small: None, limit: int) -> None:
    records = drawn(3, 60, 3000)
    zeros, noise = bytes(300_000), random.Random(1).randbytes(50_001)
    allowed = bytes(limit)
    headers: list[tuple[str, bytes | None]] = [("a", b"1"), ("null", None)]
    records[10:10] = [(b"zeros", zeros, headers), (None, allowed, headers), (b"noise", noise, [])]
    header, data = packed(records)
    found = [record for piece in read(batch(header, data, name)) for record in piece]
    want = expected(header, data)
    assert fields(found[:10]) + fields(found[13:]) == want[:10] + want[13:]
    assert fields(found[11:12]) == want[11:12]
    for record, whole in ((found[10], zeros), (found[12], noise)):
        assert isinstance(record.value, CutValue)
        assert (len(record.value), record.value.sha256) == (len(whole), hashlib.sha256(whole).digest())
        assert record.value[:CUT_VALUE_BYTES] == whole[:CUT_VALUE_BYTES]
    assert [(r.offset, r.key, list(r.headers), r.timestamp) for r in found[10:13]] == [
        (*one[:2], *one[3:]) for one in want[10:13]
    ]


BOMB_BYTES = 32 * 1024 * 1024


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CODECS.keys() - {"none"}))
def test_a_bomb_is_read_within_bounds(name: str, limit: int) -> None:
    header, data = packed([(b"1", b"before", []), (b"2", bytes(BOMB_BYTES), []), (b"3", b"after", [])])
    packed_batch = batch(header, data, name)
    del data
    tracemalloc.start()
    try:
        found = [record for piece in read(packed_batch) for record in piece]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [record.value for record in (found[0], found[2])] == [b"before", b"after"]
    assert len(found[1].value) == BOMB_BYTES
    # A raw snappy block cannot be unpacked in parts.
    assert peak < (100 if name == "raw snappy" else 24) * 1024 * 1024


@pytest.fixture(scope="module")
def many_empty() -> tuple[bytes, bytes]:
    return packed([(None, None, [])] * 35_000)


@EVERY_CODEC
def test_many_empty_records_come_in_pieces(name: str, many_empty: tuple[bytes, bytes]) -> None:
    header, data = many_empty
    found = read(batch(header, data, name))
    assert [len(piece) for piece in found if piece] == [10_000, 10_000, 10_000, 5_000]
    assert [record.offset for piece in found for record in piece] == list(range(35_000))


@EVERY_CODEC
@pytest.mark.parametrize("large", [False, True])
def test_damage_is_an_error_after_the_records_before_it(name: str, large: bool, small: None, limit: int) -> None:
    """Cut short, flipped, and with numbers of records and lengths that are wrong: nothing but one kind of error."""
    records = drawn(5, 200 if large else 5, 100)
    records[2:2] = [(b"k", bytes(20_000), [])] if large else []
    header, data = packed(records)
    want = expected(header, data)
    draw = random.Random(name)
    compressed = bytes(CODECS[name][1](data))
    cases = [batch(header, data, name, count=len(records) + 1)]
    cases += [
        batch(header, data, name, compressed=compressed[: draw.randrange(len(compressed) - 8)]) for _ in range(30)
    ]
    for damaged in cases:
        found, damage = read_on(damaged)
        assert damage is not None
        offsets = [record.offset for record in found]
        assert offsets == list(range(damage.from_offset))
        assert damage.end_offset == len(want)
    for _ in range(150):
        flipped = bytearray(compressed)
        flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
        found, damage = read_on(batch(header, data, name, compressed=bytes(flipped)))
        offsets = [record.offset for record in found]
        # Compaction leaves gaps, so a changed offset is seen only where it goes back.
        assert offsets == sorted(set(offsets))
        assert set(offsets) <= set(range(len(want) if damage is None else damage.from_offset))


@pytest.mark.parametrize("size", [-1, 0, 3, 10**6, 2**31 - 1, 2**40])
@pytest.mark.parametrize("where", ["record", "key", "value"])
def test_lengths_that_lie(size: int, where: str, small: None, limit: int) -> None:
    """A length inside a large record that does not agree with the others."""
    zeros = bytes(20_000)

    def number(value: int) -> bytes:
        out = bytearray()
        encode_varint(value, out.append)
        return bytes(out)

    lengths = {"record": len(zeros) + 12, "key": 1, "value": len(zeros), where: size}
    if where != "record" and size == -1:
        lengths["record"] -= 1  # a null field is one byte shorter, which is no lie
    record = b"".join(
        [number(lengths["record"]), b"\0\0\0", number(lengths["key"]), b"k", number(lengths["value"]), zeros, b"\0"]
    )
    header, _ = packed([(None, None, [])])
    with pytest.raises(CorruptRecordException):
        read(batch(header, record + record, "zstd", count=2))


def test_a_window_larger_than_brokers_allow_is_damage() -> None:
    header, data = packed([(None, bytes(1000), [])])
    compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 28})
    compressed = compressor.compress(data, zstd.ZstdCompressor.FLUSH_BLOCK) + compressor.flush()
    with pytest.raises(CorruptRecordException, match="requires too much memory"):
        read(batch(header, data, "zstd", compressed=compressed))


def test_a_header_name_that_is_not_utf8_in_a_large_batch(small: None) -> None:
    header, data = packed([(b"k", bytes(500), [("mark", b"x")])] * 40)
    found = [record for piece in read(batch(header, data.replace(b"mark", b"m\xff\xfek"), "zstd")) for record in piece]
    assert [record.headers for record in found] == [[("m\ufffd\ufffdk", b"x")]] * 40


def test_data_after_the_last_frame_is_ignored_as_in_java() -> None:
    header, data = packed(drawn(9, 20, 100))
    for name in ("gzip", "lz4", "zstd"):
        body = bytes(CODECS[name][1](data)) + b"rest"
        assert fields(read(batch(header, data, name, compressed=body))[0]) == expected(header, data)


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_many_empty_frames_are_not_copied_again_and_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decompressor copies what follows the end of its frame: a batch of 1 MB took 23 s, in which nothing else ran."""
    taken = 0

    class Counting:
        def __init__(self, real: Any) -> None:
            self._real = real

        def decompress(self, packed: Any, *limit: int, **limits: int) -> bytes:
            nonlocal taken
            taken += len(packed)
            return bytes(self._real.decompress(packed, *limit, **limits))

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

    zlib_object = zlib.decompressobj
    monkeypatch.setattr(batch_pieces, "ZstdDecompressor", lambda: Counting(zstd.ZstdDecompressor()))
    monkeypatch.setattr(zlib, "decompressobj", lambda wbits: Counting(zlib_object(wbits=wbits)))
    header, data = packed(drawn(9, 20, 100))
    encode = CODECS[name][1]
    body = bytes(encode(b"")) * 2000 + bytes(encode(data))
    assert fields(read(batch(header, data, name, compressed=body))[0]) == expected(header, data)
    assert taken < 20 * len(body)


def test_a_damaged_batch_is_not_passed_over() -> None:
    """After the error, the fetch begins again at the first record that was not returned."""
    header, data = packed(drawn(9, 20, 100))
    good, bad = batch(header, data, "zstd"), batch(header, data, "zstd", compressed=b"not zstd")
    bad = (20).to_bytes(8, "big") + bad[8:]
    reader = UncopiedRecords(TP, RecordsWithData(good + bad), [], 0, InPieces(), None, True, READ_COMMITTED)
    state = SimpleNamespace(paused=False, position=0)
    state.consumed_to = lambda offset: setattr(state, "position", offset)
    assignment = SimpleNamespace(active=True, state_value=lambda tp: state)
    result = fetch.PieceResult(TP, assignment=assignment, partition_records=reader, backoff=0)
    assert len(result.getall()) == state.position == 20
    with pytest.raises(CorruptRecordException):
        result.getall()
    assert state.position == 20
    assert not result.has_more() and result.getall() == []


def test_batches_that_compaction_has_emptied_are_passed_over_at_once() -> None:
    header, data = packed(drawn(9, 3, 100))
    empty = batch(header, b"", "none", count=0)
    after = (150).to_bytes(8, "big") + batch(header, data, "none")[8:]
    (found,) = read(empty * 50 + after)
    assert [record.offset for record in found] == [150, 151, 152]


TEN: list[Fields] = [(b"key-%d" % index, b"value-%d" % index, [("name", b"%d" % index)]) for index in range(10)]


@pytest.mark.parametrize("cut", [False, True], ids=["at once", "cut"])
@pytest.mark.parametrize("name", raw_batches.READABLE)
def test_what_brokers_take_is_read_as_java_reads_it(name: str, cut: bool, request: pytest.FixtureRequest) -> None:
    if cut:
        request.getfixturevalue("small")
    unusual = raw_batches.READABLE[name]
    found, damage = read_on(unusual.batch(TEN, 1_800_000_000_000))
    assert damage is None
    assert [(record.key, record.value, list(record.headers)) for record in found] == [TEN[at] for at in unusual.read]
    assert {record.timestamp for record in found} == {1_800_000_000_000}


@pytest.mark.parametrize("name", raw_batches.UNREADABLE)
def test_records_before_one_that_no_consumer_can_read_are_read(name: str) -> None:
    unusual = raw_batches.UNREADABLE[name]
    found, damage = read_on(unusual.batch(TEN, 1_800_000_000_000))
    assert [record.offset for record in found] == list(unusual.read)
    assert damage is not None and (damage.from_offset, damage.end_offset) == (3, 10)
    assert str(damage).startswith(
        "[Error 2] UnreadableBatch: requests/0: the record batch with the offsets 3 to 9 (compression: "
    )


def test_the_end_of_a_damaged_batch_is_not_taken_from_damaged_bytes() -> None:
    header, data = packed(TEN)
    whole = batch(header, data, "gzip")
    after = (15).to_bytes(8, "big") + batch(header, data, "none")[8:]  # compaction has removed what was between
    for at in (23, 26, 57, 60):  # the last offset, and the number of records
        flipped = bytearray(whole)
        flipped[at] ^= 0x40
        for rest, end in ((after, 15), (after[:40], 15), (after[:16], 0), (b"", 0)):
            found, damage = read_on(bytes(flipped) + rest)
            assert damage is not None and not found
            assert (damage.from_offset, damage.end_offset) == (0, end)
            named = "with the offsets 0 to 14 (" if end else "at 0 ("
            assert f"requests/0: the record batch {named}" in str(damage)
    flipped = bytearray(whole)
    flipped[-1] ^= 0x40  # the header is sound
    assert read_on(bytes(flipped) + after)[1].end_offset == 10  # type: ignore[union-attr]


@pytest.mark.parametrize("is_passed_over", [True, False])
def test_a_batch_that_cannot_be_read_is_passed_over_or_stops_the_fetch(is_passed_over: bool) -> None:
    asked: list[tuple[int, int]] = []

    def on_unreadable(tp: TopicPartition, error: UnreadableBatch) -> bool:
        asked.append((error.from_offset, error.end_offset))
        return is_passed_over

    bad = raw_batches.UNREADABLE["a record that claims to be longer"].batch(TEN, 1_800_000_000_000)
    header, data = packed(TEN)
    broken = bytearray((10).to_bytes(8, "big") + batch(header, data, "gzip")[8:])
    broken[-1] ^= 1  # its checksum is wrong now
    after = (20).to_bytes(8, "big") + batch(header, data, "none")[8:]
    in_pieces = InPieces(on_unreadable=on_unreadable)
    fetched = RecordsWithData(bad + bytes(broken) + after)
    reader = UncopiedRecords(TP, fetched, [], 0, in_pieces, None, True, READ_COMMITTED)
    found: list[Any] = []
    while not reader.finished:
        found += reader.piece()
    offsets = [record.offset for record in found]
    if is_passed_over:
        assert (offsets, reader.next_fetch_offset) == ([0, 1, 2, *range(20, 30)], 30)
        assert asked == [(3, 10), (10, 20)]
    else:
        assert (offsets, reader.next_fetch_offset) == ([0, 1, 2], 3)
        assert asked == [(3, 10)]


def test_a_record_with_huge_headers_is_not_read(constants: Constants, limit: int) -> None:
    """A bomb: Java's consumer would need memory for all of it."""
    constants(batch_pieces, MAX_ROOM_BYTES=1_000_000)
    for key, headers in ((bytes(2_000_000), []), (b"k", [("h", bytes(2_000_000))])):
        header, data = packed([(b"first", b"v", []), (key, b"v", [*headers])])
        found, damage = read_on(batch(header, data, "zstd"))
        assert [record.key for record in found] == [b"first"]
        assert damage is not None and damage.from_offset == 1
        assert "the key or the headers of a record unpack to 20000" in str(damage)


@pytest.mark.parametrize("name", ["xerial", "lz4"])
def test_a_block_that_claims_too_much_takes_no_memory(name: str) -> None:
    header, _ = packed(TEN)
    lies = {
        "xerial": raw_batches.xerial() + b"\0\0\0\5\xff\xff\xff\xff\x07",
        "lz4": b"\x04\x22\x4d\x18\x60\x70\x73" + b"\xff" * 9,
    }
    tracemalloc.start()
    try:
        found, damage = read_on(batch(header, b"", "snappy" if name == "xerial" else name, compressed=lies[name]))
        assert not found and damage is not None
        assert tracemalloc.get_traced_memory()[1] < 10 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_a_block_that_needs_too_much_memory_is_not_read(constants: Constants) -> None:
    constants(batch_pieces, _MAX_BLOCK_BYTES=1000)
    header, data = packed([(b"k", bytes(2000), [])])
    found, damage = read_on(batch(header, data, "raw snappy"))
    assert not found and "a block of snappy unpacks to 2010 bytes; at most 1000 are read" in str(damage)


def _without_surrogates(name: bytes) -> str:
    header, data = packed([(b"k", b"v", [("mark", b"x")])])
    (record,) = read(batch(header, data.replace(b"mark", name), "none"))[0]
    found: str = record.headers[0][0]
    return found


@pytest.mark.parametrize(
    "name, text",
    [
        (b"\xed\xa0\x80a", "\ufffda"),
        (b"ab\xed\xa0", "ab\ufffd"),
        (b"\xf0\x9f\x98a", "\ufffda"),
        (b"a\xffb\xfe", "a\ufffdb\ufffd"),
    ],
)
def test_a_header_name_has_as_many_replacements_as_in_java(name: bytes, text: str) -> None:
    assert _without_surrogates(name) == text


def test_only_install_replaces_classes_of_aiokafka(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THEIRS:
        monkeypatch.setattr(fetcher, name, "theirs")
    InPieces()
    assert {getattr(fetcher, name) for name in THEIRS} == {"theirs"}
    fetch.install()
    assert "theirs" not in {getattr(fetcher, name) for name in THEIRS}
