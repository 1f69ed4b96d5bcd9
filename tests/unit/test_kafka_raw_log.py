"""Which records of a log are committed, by the markers of their own producer [I14]."""

import random
from struct import Struct
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from confluent_kafka import KafkaException

from tests.harness.compiled import forms
from tests.harness.raw_batches import Fields, encoded
from timers.errors import LogMismatch
from timers.kafka.aiokafka_internals import record_starts
from timers.kafka.aiokafka_internals.leader_client import NewestCommitted
from timers.kafka.progress_log import ProgressLog
from timers.process.config.settings import Settings
from timers.wire import progress

MINE, OTHER = 7, 8
KEYS = (b"mine", b"too")
CONTROL = 0x20
_BASE, _CRC, _ATTRIBUTES = Struct(">q"), Struct(">I"), Struct(">h")
_CRC_AT, _ATTRIBUTES_AT = 17, 21


def batch(offset: int, *records: tuple[bytes, bytes], producer: int | None = MINE, control: bool = False) -> bytes:
    """A record batch as a broker keeps it; ``producer`` None: not in a transaction."""
    is_transactional = producer is not None
    builder = DefaultRecordBatchBuilder(2, 0, is_transactional, producer if producer is not None else -1, 0, 0, 10**6)
    for number, (key, value) in enumerate(records):
        builder.append(number, 1, key, value, [])
    raw = bytearray(builder.build())
    _BASE.pack_into(raw, 0, offset)
    if control:
        (attributes,) = _ATTRIBUTES.unpack_from(raw, _ATTRIBUTES_AT)
        _ATTRIBUTES.pack_into(raw, _ATTRIBUTES_AT, attributes | CONTROL)
        _CRC.pack_into(raw, _CRC_AT, calc_crc32c(bytes(raw[_ATTRIBUTES_AT:])))
    return bytes(raw)


def marker(offset: int, *, commit: bool, producer: int = MINE) -> bytes:
    return batch(offset, (Struct(">hh").pack(0, int(commit)), b"\0" * 6), producer=producer, control=True)


def test_a_record_counts_when_the_marker_of_its_producer_says_so() -> None:
    newest = NewestCommitted(KEYS, 0)
    newest.add(batch(0, (b"mine", b"1"), (b"else", b"x")) + marker(2, commit=True) + batch(3, (b"mine", b"2")))
    assert (newest.values, newest.undecided, newest.position) == ({b"mine": b"1"}, {b"mine"}, 4)
    newest.add(marker(4, commit=False))
    assert (newest.values, newest.undecided) == ({b"mine": b"1"}, set())
    newest.add(batch(5, (b"mine", b"3")) + marker(6, commit=True))
    assert newest.values == {b"mine": b"3"}


def test_an_open_transaction_of_another_producer_hides_nothing() -> None:
    newest = NewestCommitted(KEYS, 0)
    newest.add(batch(0, (b"other", b"1"), producer=OTHER) + batch(1, (b"mine", b"1")) + marker(2, commit=True))
    assert (newest.values, newest.undecided, newest.position) == ({b"mine": b"1"}, set(), 3)


def test_markers_of_another_producer_decide_nothing() -> None:
    newest = NewestCommitted(KEYS, 0)
    newest.add(batch(0, (b"mine", b"1")) + marker(1, commit=True, producer=OTHER))
    assert (newest.values, newest.undecided) == ({}, {b"mine"})


def test_records_outside_of_transactions_count_at_once() -> None:
    newest = NewestCommitted(KEYS, 0)
    newest.add(batch(0, (b"mine", b"1"), (b"too", b"2"), producer=None))
    assert newest.values == {b"mine": b"1", b"too": b"2"}


def test_batches_before_the_position_and_parts_of_batches_are_left_out() -> None:
    newest = NewestCommitted(KEYS, 3)
    whole = batch(0, (b"mine", b"1"), producer=None) + batch(3, (b"mine", b"2"), producer=None)
    newest.add(whole + batch(4, (b"mine", b"3"), producer=None)[:-1])
    assert (newest.values, newest.position) == ({b"mine": b"2"}, 4)


def test_a_damaged_batch_is_refused() -> None:
    damaged = bytearray(batch(7, (b"mine", b"1")))
    damaged[-1] ^= 1
    with pytest.raises(CorruptRecordException, match="the batch at offset 7 has a wrong checksum"):
        NewestCommitted(KEYS, 0).add(bytes(damaged))


TP = ("timer-request", 0)
KEY = progress.encode_key(*TP)


def reading(log: bytes, accept_loss: str) -> ProgressLog:
    """Return a reader of progress that waits for nothing. ``accept_loss``: the partitions whose loss is accepted."""
    newest = NewestCommitted((), 0)
    newest.add(log)
    of: Any = ProgressLog.__new__(ProgressLog)
    of._settings = Settings(brokers="127.0.0.1:1", accept_loss=accept_loss)
    of._cluster = SimpleNamespace(partitions={of._settings.progress_topic: 1})
    of._timeout_s = 0.0
    of._answer = lambda question, what: log
    of.ends = lambda *tp: (0, newest.position)
    made: ProgressLog = of
    return made


def test_a_machine_stops_if_the_log_lost_the_marker_of_its_newest_progress() -> None:
    cut = batch(0, (KEY, b"1")) + marker(1, commit=True) + batch(2, (KEY, b"2"))
    with pytest.raises(LogMismatch, match=r"in a transaction without an end: .*TIMERS_ACCEPT_LOSS=timer-request/0"):
        reading(cut, "").read([TP])
    assert reading(cut, "").read([TP], after_fence=False) == {TP: b"1"}, "who fenced nobody stops for nothing"
    assert reading(cut, "timer-request/0").read([TP]) == {TP: b"1"}
    assert reading(cut + marker(3, commit=True), "").read([TP]) == {TP: b"2"}
    other = cut + marker(3, commit=True) + batch(4, (b"other", b"1"), producer=OTHER)
    assert reading(other, "").read([TP]) == {TP: b"2"}, "the transaction of another machine stops no other"


# ---- compiled and Python form of record_starts -----------------------------------------------------------------------


FORMS = forms(record_starts)
RECORDS: list[Fields] = [(None, bytes(70), []), (b"k", None, [("h", b"x")]), (b"", b"v", [])]
DATA = b"".join(encoded(RECORDS, 1_800_000_000_000))


@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
def test_records_of_clients_are_plain(form: Any) -> None:
    assert form.are_plain(b"head" + DATA, 4, 3, -1, 2)
    assert not form.are_plain(DATA, 0, 4, -1, 9), "there are only three"
    assert not form.are_plain(DATA, 0, 3, 0, 2), "the first offset was read before"
    assert not form.are_plain(DATA, 0, 3, -1, 1), "the last offset is not in the batch"
    second = len(encoded(RECORDS, 0)[0])
    for at, byte in ((2, 0x80), (4, 2), (second + 3, 0), (second + 3, 1), (second, 1), (0, 0xFF)):
        changed = bytearray(DATA)
        changed[at] = byte
        assert not form.are_plain(bytes(changed), 0, 3, -1, 2), (at, byte)


def test_both_forms_decide_alike() -> None:
    draw = random.Random(1)
    seen = set()
    for _ in range(3000):
        data = bytearray(DATA)
        for _ in range(draw.randint(0, 2)):
            data[draw.randrange(len(data))] = draw.choice([0, 1, 2, 0x7F, 0x80, 0xFF, draw.randrange(256)])
        decided = {form.are_plain(bytes(data), 0, 3, -1, 2) for form in FORMS.values()}
        assert len(decided) == 1, bytes(data).hex()
        seen |= decided
    assert seen == {True, False}


def test_a_damaged_batch_of_the_progress_topic_is_named_with_the_way_on() -> None:
    """All machines whose progress is in the partition wait for a sound replica."""
    damaged = bytearray(batch(0, (KEY, b"1")))
    of = reading(bytes(damaged), "")
    damaged[-1] ^= 1
    made: Any = of
    made._answer = lambda question, what: bytes(damaged)
    with pytest.raises(KafkaException, match=r"-progress/0.* at offset 0 has.*let another broker lead the partition"):
        made._read_back(0, 0, 1, {KEY}, after_fence=True)
