"""The records of a queue's ledger topic: copies of commits, and keys. No brokers."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import pytest
from confluent_kafka import KafkaError

from timers.queue import ledger_log, metadata
from timers.queue.ledger_log import read, signing
from timers.queue.metadata import Commit, layout, run_size
from timers.queue.records import Kept, decode_kept, encode_copy, encode_key

GROUP = "queue.jobs"
COMMIT = Commit(7, "q1.log-name.7....")
SECRET = bytes(range(32))


class SimRecord:
    """A record of the topic; with a code its end."""

    def __init__(self, offset: int, record: tuple[bytes | None, bytes | None], code: int = 0) -> None:
        self._offset, self._record, self._code = offset, record, code

    def error(self) -> KafkaError | None:
        return KafkaError(self._code) if self._code else None

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._record[0]

    def value(self) -> bytes | None:
        return self._record[1]


class SimTopic:
    """A ledger topic. ``others``: what another process writes at the same time as this one, before it."""

    def __init__(
        self, records: Iterable[tuple[bytes | None, bytes | None]] = (), others: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        self.records = list(records)
        self.others = list(others)

    def __call__(self, *_: Any, **__: Any) -> SimTopic:
        return self

    def assign(self, _: object) -> None:
        self._polled = iter(
            [
                *(SimRecord(offset, record) for offset, record in enumerate(self.records)),
                SimRecord(len(self.records), (None, None), KafkaError._PARTITION_EOF),
            ]
        )

    def poll(self, _: float) -> SimRecord | None:
        return next(self._polled, None)

    def close(self) -> None:
        pass

    def write(self, login: object, group: str, records: Iterable[tuple[bytes, bytes]]) -> None:
        self.records += [*self.others, *records]


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> SimTopic:
    made = SimTopic()
    monkeypatch.setattr(ledger_log, "reader", made)
    monkeypatch.setattr(ledger_log, "write", made.write)
    return made


def decoded(key: bytes, value: bytes, group: str = GROUP) -> Kept | None:
    kept = Kept({}, {})
    return kept if decode_kept(group, key, value, kept) else None


def test_copies_and_keys_are_read() -> None:
    assert decoded(*encode_copy(GROUP, ("jobs", 3), COMMIT)) == ({("jobs", 3): COMMIT}, {})
    assert decoded(*encode_copy(GROUP, ("jobs", 3), Commit(7, ""))) == ({("jobs", 3): Commit(7, "")}, {})
    assert decoded(*encode_key(GROUP, 2**63 - 1, SECRET)) == ({}, {2**63 - 1: SECRET})


@pytest.mark.parametrize("written", [encode_copy(GROUP, ("jobs", 3), COMMIT), encode_key(GROUP, 5, SECRET)])
def test_a_record_that_is_damaged_or_of_another_queue_does_not_count(written: tuple[bytes, bytes]) -> None:
    key, value = written
    assert decoded(key, value) is not None
    assert decoded(key, value, "queue.job") is None
    assert decoded(key + b"1", value) is None
    for at in range(len(value)):
        assert decoded(key, value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]) is None
        assert decoded(key, value[:at]) is None
    assert decoded(b"", b"") is None


def test_records_of_other_programs_are_said_and_do_not_count(topic: SimTopic, caplog: pytest.LogCaptureFixture) -> None:
    topic.records = [
        encode_key(GROUP, 5, SECRET),
        (None, None),
        (b"jobs/3", b"\xff"),
        encode_copy("queue.other", ("jobs", 3), COMMIT),
        encode_copy(GROUP, ("jobs", 3), COMMIT),
    ]
    assert read({}, GROUP) == ({("jobs", 3): COMMIT}, {5: SECRET})
    assert "queue.jobs-ledger: 3 records are damaged or not of this queue, the first at offset 1" in caplog.text


def test_the_first_start_of_a_queue_writes_a_key_and_the_next_one_uses_it(
    topic: SimTopic, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = signing({}, GROUP, is_new=True), signing({}, GROUP, is_new=False)
    assert len(topic.records) == 1
    assert first.sign("a/0/1", 1, 0, None, None) == second.sign("a/0/1", 1, 0, None, None)
    assert not caplog.records


def test_two_first_starts_sign_with_one_key(topic: SimTopic) -> None:
    topic.others = [encode_key(GROUP, 5, SECRET)]
    ours, theirs = signing({}, GROUP, is_new=True), signing({}, GROUP, is_new=True)
    assert len(topic.records) == 2
    signed = ours.sign("a/0/1", 1, 0, None, None)
    assert signed == theirs.sign("a/0/1", 1, 0, None, None)
    assert (dict(signed)["queue-signature"] or b"").startswith(b"5.")


def test_a_lost_key_is_said_with_the_way_on(topic: SimTopic, caplog: pytest.LogCaptureFixture) -> None:
    signing({}, GROUP, is_new=False)
    (said,) = caplog.records
    assert said.levelno == logging.ERROR
    assert "topic queue.jobs-ledger has no key" in said.getMessage()
    assert "`timers queue redrive jobs --code unsigned`" in said.getMessage()


# ---- metadata that are nearly full -----------------------------------------------------------------------------------


@pytest.mark.parametrize("left", range(4))
def test_a_partition_without_open_messages_is_read_on(left: int) -> None:
    """``left`` characters are free, and all messages that were read are done: only reading makes room."""
    ahead = [(110, 120)]
    parts = [(run_size(10, 10), 20)]
    room = layout(parts).characters + left
    assert metadata.read_limit([], 100, ahead, room) > 100
