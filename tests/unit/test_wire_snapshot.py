"""The records of a snapshot: what is encoded is decoded again, and what is not whole is refused with a sentence."""

import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest

from tests.harness.constants import Constants
from tests.harness.snapshots import CHUNK_BYTES, NUMBER, PLACE, Records, records_of
from timers.core.keys import NOTHING_FIRED
from timers.core.lineage import Batch, Lineage, RecordCount
from timers.core.operation import Entry
from timers.core.progress import COLD_SEAL, FEATURE_LEVEL, NamedSnapshot, Progress, SettingChange
from timers.core.snapshots import Footer, Unreadable
from timers.core.timer import Origin, Row
from timers.machines.store import layout, memory_limit
from timers.machines.store.memory_limit import RocksMemory
from timers.machines.store.rocks import RocksStore
from timers.wire import progress, snapshot
from timers.wire.snapshot import Encoder, decode_footer, encode_footer, pages

GOLDEN = Path(__file__).parent / "golden" / "snapshot-1.json"
"""Records of layout version 1, in hexadecimal digits. Never change or delete this file: the log below such a snapshot
may be gone."""

MEMORY = RocksMemory(2**22)
STREAM = [(b"\0" * 15 + bytes([at]), b"value-%d" % at * at) for at in range(40)]
HISTORY = (
    SettingChange("TIMERS_MAX_REQUEST_BYTES", 0, 1_000_000),
    SettingChange(COLD_SEAL, 1, 2**63),
    SettingChange("TIMERS_HOT_HORIZON_S", 4, 86_400),
    SettingChange("TIMERS_HOT_HORIZON_S", 99, 60),
)
FOOTER = Footer(PLACE, 7, (5, 2**64 - 1), (HISTORY[0], HISTORY[2]), b"h" * 32, 9, 4, b"d" * 32)


def encoded(stream: list[tuple[bytes, bytes]]) -> tuple[Records, NamedSnapshot]:
    encoder = Encoder(stream, CHUNK_BYTES)
    values = [*encoder, encode_footer(FOOTER)]
    records: Records = [(snapshot.record_key(NUMBER, index), value) for index, value in enumerate(values)]
    return records, NamedSnapshot(b"", NUMBER, 0, len(records), 7, encoder.keys, 0, encoder.digest)


@pytest.mark.parametrize("stream", [[], [(b"k", b"")], [(b"k", b"x" * 1000)], STREAM, [(b"k", b"x" * 53)]])
def test_what_is_encoded_is_decoded(stream: list[tuple[bytes, bytes]]) -> None:
    records, named = encoded(stream)
    assert items(records, named) == stream
    assert all(len(value or b"") <= CHUNK_BYTES + 2 for _, value in records[:-1])
    assert named.keys == len(stream)


def test_records_of_other_attempts_lie_in_between() -> None:
    records, named = encoded(STREAM)
    others: Records = [
        (snapshot.record_key(8, 2), b"\1dx"),
        (None, None),
        (b"k", b"v"),
        (snapshot.record_key(8, 9), None),
    ]
    mixed = [each for record in records for each in (*others, record)]
    assert items(mixed, named) == STREAM


def items(records: Records, named: NamedSnapshot) -> list[tuple[bytes, bytes]]:
    return [*chain.from_iterable(pages(records, named))]


def replaced(records: Records, index: int, change: Callable[[bytes], bytes]) -> Records:
    key, value = records[index]
    return [*records[:index], (key, change(value or b"")), *records[index + 1 :]]


DAMAGES: dict[str, tuple[Callable[[Records], Records], str]] = {
    "the first is missing": (lambda records: records[1:], "record 0 is missing: record 1 follows"),
    "one is missing": (lambda records: [*records[:3], *records[4:]], "record 3 is missing: record 4 follows"),
    "one is doubled": (lambda records: [*records[:3], *records[2:]], "record 3 is missing: record 2 follows"),
    "two are exchanged": (lambda records: [*records[:2], records[3], records[2]], "record 2 is missing: record 3"),
    "no footer": (lambda records: records[:-1], "there is no footer"),
    "all are missing": (lambda records: [], "record 0 is missing: there is no footer"),
    "a later layout": (lambda records: replaced(records, 1, lambda value: b"\2d" + value[2:]), "record 1 begins with"),
    "no value": (lambda records: replaced(records, 1, lambda value: b""), "record 1 begins with b''"),
    "a changed byte": (lambda records: replaced(records, 1, lambda value: value[:-1] + b"#"), "not the digest"),
    "a long entry": (lambda records: replaced(records, 0, lambda value: value[:2] + b"\xff" * 8), "so it is damaged"),
    "an entry without an end": (
        lambda records: [
            *replaced(records, 0, lambda value: value[:10])[:1],
            (snapshot.record_key(NUMBER, 1), encode_footer(FOOTER)),
        ],
        "ends with 8 bytes that are no entry",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_snapshot_that_is_not_whole_is_refused(damage: str) -> None:
    records, named = encoded(STREAM)
    change, sentence = DAMAGES[damage]
    with pytest.raises(Unreadable, match=sentence):
        items(change(records), named)


def test_another_number_or_fewer_keys_are_refused() -> None:
    records, named = encoded(STREAM)
    for wrong in (named._replace(number=8), named._replace(keys=39), named._replace(digest=b"d" * 32)):
        with pytest.raises(Unreadable):
            items(records, wrong)


@pytest.mark.parametrize("footer", [FOOTER, FOOTER._replace(fired_through=NOTHING_FIRED, history=())])
def test_a_footer_is_decoded(footer: Footer) -> None:
    assert decode_footer(encode_footer(footer)) == footer


def test_a_damaged_footer_is_refused() -> None:
    sound = encode_footer(FOOTER)
    for at in range(len(sound)):
        with pytest.raises(Unreadable, match="its footer is damaged" if at > 1 else "its last record begins with"):
            decode_footer(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
    for value in (None, b"", sound[:-1], sound + b"x"):
        with pytest.raises(Unreadable):
            decode_footer(value)


def row(offset: int, origin: Origin | None = None, value: bytes = b"v") -> Row:
    return offset, "topic", "key", value, [("name", b"data"), ("null", None)], origin


ROWS = {5: [row(4), row(6, Origin("by-id/3/6", 5, 1, "id"))], 4: [row(5, value=b"large" * 40)]}
ENTRIES: dict[bytes, Entry] = {
    b"id": (5, 6, 1),
    b"cancelled": (-1, 3, 1),
    b"promoted": (5, 2, 1, 0),
    b"message": (5, 1, 1, b"key", b"body"),
}


def filled(path: Path) -> RocksStore:
    """A store with each kind of key and entry: the last ids are in the journal, the others in the index."""
    store = RocksStore.open(path, "here", MEMORY, indexed=True)
    store.note_history(HISTORY)
    lineage = Lineage(((2, 0), (3, 5)), Batch(5, 6, 1_800_000_000_000, 2**32 - 1), 7)
    store.write(ROWS, 7, ENTRIES, lineage)
    for number in range(3):
        store.write({}, 7, {b"later-%d" % number: (9, 7 + number, 2)})
    store.note_read_through(1_800_000_000)
    return store


def content(store: RocksStore) -> tuple[object, ...]:
    ids = [*ENTRIES, *(b"later-%d" % number for number in range(3))]
    numbers = store.applied, store.pending, store.lineage, store.read_through_s
    return *numbers, list(store.scan(NOTHING_FIRED, 9)), store.entries(ids), list(store.cancels_from(0))


def test_the_records_of_the_golden_file_are_written_and_restored(tmp_path: Path, constants: Constants) -> None:
    """Each later version must read the records of this one."""
    constants(memory_limit, JOURNAL_BYTES=100, MIN_JOURNAL_BYTES=100)
    golden = json.loads(GOLDEN.read_text())
    kept: Records = [(bytes.fromhex(key), bytes.fromhex(value)) for key, value in golden["records"]]
    store = filled(tmp_path / "filled")
    records, named = records_of(store.view())
    written = content(store)
    store.close()
    assert {key[:1] for key, _ in items(kept, named)} == {b"\0", b"\xfd", b"\xfe", b"\xff"}
    assert records == kept
    footer = decode_footer(kept[-1][1])
    assert footer.place == PLACE
    assert footer.history == (HISTORY[0], HISTORY[2]), "neither the seal, nor what applies from a later offset on"
    assert (footer.applied, footer.rows, footer.keys, footer.fired_through) == (7, 3, named.keys, (5, 6))
    again = RocksStore.open(tmp_path / "again", "here", MEMORY, indexed=True)
    again.restore(pages(kept, named), footer.applied, HISTORY[:3])
    assert (content(again), again.history) == (written, HISTORY[:3])
    again.close()
    once_more = RocksStore.open(tmp_path / "again", "here", MEMORY, indexed=True)
    assert (content(once_more), once_more.history) == (written, HISTORY[:3])
    once_more.close()


def test_the_count_of_a_log_has_the_same_bytes_in_each_version() -> None:
    """Each later version must read them: in stores, in snapshots and in progress."""
    lineage = Lineage(((2, 0),), Batch(890, 899, 1_800_000_000_000, 77), 900, RecordCount(3, 900, 850, 900))
    stored = {
        b"\xfflineage": "939192020094cd037acd0383cf000001a3185c50004dcd0384",
        b"\xffcount": "0000000000000003000000000000038400000000000003520000000000000384",
    }
    assert {key: value.hex() for key, value in layout.pack_lineage(lineage)} == stored
    values = [bytes.fromhex(value) for value in stored.values()]
    assert layout.unpack_lineage(values[0], values[1]) == lineage
    raised = "32150a0d666561747572652d6c6576656c1084071a0139"
    committed = f"08091208746f706963206964188407{raised}3a250a020802121208fa061083071880a0f1c2b134254d"
    record = bytes.fromhex(f"{committed}0000001884072208080310840718d206520761707020742f307deac87205")
    known = Progress(900, lineage=lineage).with_setting(FEATURE_LEVEL, 9)
    assert progress.encode(known, b"topic id", "app t/0") == record
    assert progress.decode(record, progress.ANY_LEVEL)[0].lineage == lineage
