"""An occurrence that is read quickly is read as the complete reader reads it."""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product
from typing import Any

import pytest

from tests.harness.compiled import forms
from timers.core.timer import Decoded
from timers.wire import future, occurrences
from timers.wire import headers as h
from timers.wire.formats import RequestRecord, future_by_id

NOW_S = 1_800_000_000
MOST = 20
DUE = b"%d" % (NOW_S + 10)

PARTS: dict[str, list[Any]] = {
    h.TIMER_TOPIC: [b"out", b"no topic", b"\xff", b"", None, "left out"],
    h.TIMER_KEY: ["left out", b"k", None],
    h.TIMER_DUE: [DUE, b"0" + DUE, b"%d" % (NOW_S + 13), b"-1", None, "left out"],
    h.TIMER_REPEAT: [
        b"every=10; from=%d" % NOW_S,
        b"every=10; from=%d; spread=7" % NOW_S,
        b"cron=0 9 * * *; zone=Europe/Paris",
        b"every=10",
        b"every=0",
        None,
        "left out",
    ],
    h.TIMER_FOLLOWS: [b"3", b"-1", b"9" * 30, None, "left out"],
    h.TIMER_VERSION: [b"by-id/0/2", b"by-id/0/2~1", b"by-id/2", b"\xff", None],
    h.TIMER_NOMINAL: [DUE, b"soon", None, "left out"],
    "key": [b"a", b"\xff", b"", None, b"i" * 600],
    "value": [b"x", b"", b"x" * (MOST + 1), None],
    "before": [
        [],
        [("user", None)],
        [("__value_schema_id", b"1")],
        [(h.TIMER_TOPIC, b"other")],
        [(h.TIMER_AGAIN, b"1")],
        [(h.TIMER_IF, b"absent")],
    ],
    "after": [
        [],
        [("user", b"1")],
        [(h.TIMER_LAST, b"1")],
        [(h.TIMER_LAST, None)],
        [(h.TIMER_LAST, b"1"), (h.TIMER_LAST, b"1")],
        [(h.TIMER_LAST, b"1"), ("user", b"1")],
        [(h.TIMER_OWED, DUE)],
        [(h.TIMER_OWED, DUE), (h.TIMER_LAST, b"1")],
        [(h.TIMER_WAYPOINT, b"5")],
    ],
    "kind": [1, 0, None],
    "renamed": ["", h.TIMER_FOLLOWS, h.TIMER_VERSION],
}


FUTURE = {h.TIMER_TOPIC: "left out", "value": future.encode("out", "k", b"x")}
"""What differs if the request is a ``Future``."""
FUTURES = [future.encode("no topic", "k", b"x"), future.encode("", "", b""), future.encode("out", "", b"x" * MOST)]


def record(changes: dict[str, Any]) -> RequestRecord:
    """Returns the record of an occurrence, as the engine appends it but for some parts."""
    parts = {name: each[0] for name, each in PARTS.items()} | changes
    own = [(name, parts[name]) for name in PARTS if name.startswith(h.PREFIX) and parts[name] != "left out"]
    own = [("user" if name == parts["renamed"] else name, content) for name, content in own]
    headers = [*parts["before"], *own, *parts["after"]]
    return RequestRecord(7, parts["key"], parts["value"], headers, NOW_S * 1000, parts["kind"])


def all_records() -> Iterator[RequestRecord]:
    """Yields records of which at most two parts are changed."""
    for base, parts in (({}, PARTS), (FUTURE, PARTS | {"value": [FUTURE["value"], *FUTURES, *PARTS["value"]]})):
        for names in combinations(PARTS, 2):
            for contents in product(*(parts[name] for name in names)):
                yield record(base | dict(zip(names, contents, strict=True)))


def decode(*records: RequestRecord) -> Decoded:
    return future_by_id.decode(records, MOST, repeats=True)


READERS = [module.read_occurrences for module in forms(occurrences).values()]


def decoded_by(reader: Callable[..., Any], *batches: Sequence[RequestRecord]) -> list[Decoded]:
    """Returns what is decoded of batches with this reader of plain occurrences before the complete one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(future_by_id, "read_occurrences", reader)
        return [decode(*batch) for batch in batches]


def none_is_plain(records: Iterator[RequestRecord], *_: object) -> RequestRecord | None:
    return next(records, None)


@pytest.mark.parametrize("reader", READERS)
def test_what_is_read_quickly_is_read_right(reader: Callable[..., Any]) -> None:
    records = [[each] for each in all_records()]
    pairs = zip(records, decoded_by(reader, *records), decoded_by(none_is_plain, *records), strict=True)
    for each, quickly, completely in pairs:
        assert quickly == completely, each


@pytest.mark.parametrize("reader", READERS)
def test_many_in_a_batch_are_read_as_each_one_alone(reader: Callable[..., Any]) -> None:
    records = [each._replace(offset=offset) for offset, each in enumerate(all_records())]
    batches = records, records[::-1]
    assert decoded_by(reader, *batches) == decoded_by(none_is_plain, *batches)


@pytest.mark.parametrize("reader", READERS)
def test_what_the_engine_appends_is_read_quickly(reader: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(future_by_id, "_decode_repeating")
    with_header = {"before": [("user", b"1")]}
    for changes in ({}, {h.TIMER_KEY: b"k"}, with_header, FUTURE, FUTURE | with_header):
        last = changes | {"after": [(h.TIMER_LAST, b"1")]}
        found = decoded_by(reader, [record(changes)], [record(last)])
        assert [each.follows for each in found] == [{7: (3, 2, False)}, {7: (3, 2, True)}]
