"""Encodes and decodes the records of a snapshot (layout version 1).

::

    number (8) | index (4)  ->  0x01 "d" | the next 512 KB of the stream
    number (8) | last index ->  0x01 "f" | footer, as protobuf

The stream is the keys and values of a store in the order of keys (:mod:`timers.machines.store.layout`), each with the
length of the key (4), the length of the value (4), key, and value. Records are cut wherever that falls: a row, or a
batch of the index journal, may be larger than any record. Numbers are big-endian.

Each later version of the project must read this layout: the request log below a snapshot may be gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from struct import Struct

from google.protobuf.message import DecodeError

from timers.core.keys import NOTHING_FIRED
from timers.core.ports import Page
from timers.core.progress import NamedSnapshot, SettingChange
from timers.core.snapshots import SNAPSHOT_CHUNK_BYTES, Footer, Place, Unreadable
from timers.v1 import snapshot_pb2
from timers.wire.progress import fired_through_of, has_checksum, with_checksum
from timers.wire.snapshot_entries import LENGTHS_BYTES, cut

DATA, FOOTER = b"\1d", b"\1f"
"""The first bytes of a value: version of the layout, and what follows."""

MOST_BYTES = 1 << 30
"""Maximum size of a key or a value. So a damaged length does not let a reader keep a whole snapshot in memory."""

_KEY = Struct(">QI")
_LENGTHS = Struct(">II")


def record_key(number: int, index: int) -> bytes:
    return _KEY.pack(number, index)


class Encoder:
    """Cuts the keys and values of a store into the values of records. Iterate once."""

    def __init__(self, items: Iterable[tuple[bytes, bytes]], chunk_bytes: int = SNAPSHOT_CHUNK_BYTES) -> None:
        self.keys = 0
        self._items = items
        self._chunk_bytes = chunk_bytes
        self._hash = sha256()

    def __iter__(self) -> Iterator[bytes]:
        left, pack, chunk_bytes = bytearray(), _LENGTHS.pack, self._chunk_bytes
        for key, value in self._items:
            self.keys += 1
            left += pack(len(key), len(value))
            left += key
            left += value
            while len(left) >= chunk_bytes:
                yield self._noted(left[:chunk_bytes])
                del left[:chunk_bytes]
        if left:
            yield self._noted(left)

    def _noted(self, part: bytearray) -> bytes:
        value = DATA + part
        self._hash.update(value)
        return value

    @property
    def digest(self) -> bytes:
        """Of all values so far."""
        return self._hash.digest()


def pages(records: Iterable[tuple[bytes | None, bytes | None]], named: NamedSnapshot) -> Iterator[Page]:
    """Yields the keys and values in the records of a snapshot, those of one record together. Inverse of
    :class:`Encoder`.

    Args:
        records: key and value of each record between its first and its last one. Those of other snapshots are skipped.
        named: what the progress says of it.

    Raises:
        Unreadable: a record is missing, stands there twice, or is damaged. What was yielded then counts for nothing.
    """
    hashed, keys, left = sha256(), 0, b""
    for value in _values(records, named.number):
        hashed.update(value)
        page, left = cut(left + value[len(DATA) :])
        if len(left) >= LENGTHS_BYTES and max(lengths := _LENGTHS.unpack_from(left)) > MOST_BYTES:
            raise Unreadable(f"it has an entry of {sum(lengths)} bytes, so it is damaged")
        keys += len(page)
        yield page
    if left:
        raise Unreadable(f"it ends with {len(left)} bytes that are no entry")
    if (keys, hashed.digest()) != (named.keys, named.digest):
        raise Unreadable(f"it has {keys} keys, and not the digest of the {named.keys} keys that were written")


def _values(records: Iterable[tuple[bytes | None, bytes | None]], number: int) -> Iterator[bytes]:
    """Yields the values of the records of one snapshot, without the footer, which must be the last one."""
    expected = 0
    for key, value in records:
        found = parse_key(key)
        if found is None or found[0] != number:
            continue
        index = found[1]
        if index != expected:
            raise Unreadable(f"record {expected} is missing: record {index} follows")
        kind = (value or b"")[: len(DATA)]
        if kind == FOOTER:
            return
        if kind != DATA:
            raise Unreadable(f"record {index} begins with {kind!r}, which this version of timers does not read")
        expected += 1
        yield value or b""
    raise Unreadable(f"record {expected} is missing: there is no footer")


def parse_key(key: bytes | None) -> tuple[int, int] | None:
    """Returns number and index of a record; None if it has another key."""
    return _KEY.unpack(key) if key is not None and len(key) == _KEY.size else None


# ---- the footer ------------------------------------------------------------------------------------------------------


def encode_footer(footer: Footer) -> bytes:
    """Returns the value of the last record of a snapshot. Inverse: :func:`decode_footer`."""
    message = snapshot_pb2.SnapshotFooter(
        **footer.place._asdict(),
        **{name: getattr(footer, name) for name in ("applied", "history_hash", "keys", "rows", "digest")},
    )
    if footer.fired_through != NOTHING_FIRED:
        message.fired_due_s, message.fired_offset = footer.fired_through
    for change in footer.history:
        message.history.add(name=change.name, from_offset=change.from_offset, value=str(change.value))
    return FOOTER + with_checksum(message)


def is_footer(value: bytes | None) -> bool:
    """Whether a value is that of the last record of a snapshot."""
    return value is not None and value.startswith(FOOTER)


def decode_footer(value: bytes | None) -> Footer:
    """Returns the footer in a value.

    Raises:
        Unreadable: it is none, or is damaged.
    """
    kind, encoded = (value or b"")[: len(FOOTER)], (value or b"")[len(FOOTER) :]
    if kind != FOOTER:
        raise Unreadable(f"its last record begins with {kind!r}, so it is no footer that this version of timers reads")
    try:
        if not has_checksum(encoded):
            raise DecodeError
        found = snapshot_pb2.SnapshotFooter.FromString(encoded)
        history = tuple(SettingChange(each.name, each.from_offset, int(each.value)) for each in found.history)
    except (DecodeError, ValueError):
        raise Unreadable("its footer is damaged") from None
    place = Place(*(getattr(found, name) for name in Place._fields))
    return Footer(
        place, found.applied, fired_through_of(found), history, found.history_hash, found.keys, found.rows, found.digest
    )
