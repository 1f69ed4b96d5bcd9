"""Records of snapshots, without brokers: what a view becomes, and a store that is restored from them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from timers.core.keys import OrderKey
from timers.core.ports import Page, View
from timers.core.progress import NamedSnapshot
from timers.core.snapshots import Footer, Place, Unreadable, footer_of
from timers.machines.store.memory_limit import RocksMemory
from timers.machines.store.rocks import RocksStore
from timers.wire import snapshot

PLACE = Place("cluster", "app", b"t" * 16, 3, "future-by-id")
NUMBER = 7
CHUNK_BYTES = 64
"""Small, so that each test has many records."""

Records = list[tuple[bytes | None, bytes | None]]


def records_of(view: View, fired_through: OrderKey = (5, 6), number: int = NUMBER) -> tuple[Records, NamedSnapshot]:
    """The records of a view, which is closed, and what a progress says of them."""
    encoder = snapshot.Encoder(view, CHUNK_BYTES)
    values = list(encoder)
    view.close()
    values.append(snapshot.encode_footer(footer_of(view, PLACE, fired_through, encoder.keys, encoder.digest)))
    records: Records = [(snapshot.record_key(number, index), value) for index, value in enumerate(values)]
    named = NamedSnapshot(b"s" * 16, number, 0, len(records), view.applied, encoder.keys, view.rows, encoder.digest)
    return records, named


def restored(path: Path, view: View, memory: RocksMemory, *, indexed: bool) -> RocksStore:
    """A new store that holds what a view holds."""
    records, named = records_of(view)
    store = RocksStore.open(path, "here", memory, indexed=indexed)
    store.restore(snapshot.pages(records, named), named.applied, view.history)
    return store


class SimSnapshots:
    """Snapshots of stores, by their numbers. Others cannot be read."""

    def __init__(self, stores: Mapping[int, Any], place: Place) -> None:
        self.views = {number: store.view() for number, store in stores.items()}
        self._place = place

    def footer(self, named: NamedSnapshot) -> Footer:
        if named.number not in self.views:
            raise Unreadable("out of range")
        return footer_of(self.views[named.number], self._place, (0, 0), named.keys, named.digest)

    def pages(self, named: NamedSnapshot) -> Iterator[Page]:
        return ([item] for item in self.views[named.number])
