"""What counts as an answer about a snapshot, and what is waited for. The broker tests read real ones."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.harness.constants import Constants
from tests.harness.sim_consumer import SimConsumer
from timers.core.ports import Lost
from timers.core.progress import NamedSnapshot
from timers.core.snapshots import Footer, Place, Unreadable
from timers.kafka import snapshot_log
from timers.kafka.snapshot_log import SnapshotLog, _Sending
from timers.process.config.settings import Settings
from timers.wire import snapshot

NAMED = NamedSnapshot(b"id", 7, 0, 5, 0, 0, 0, b"")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> Iterator[Any]:
    constants(snapshot_log, _AGAIN_S=0.0)
    monkeypatch.setattr(snapshot_log, "topic_id", lambda *_: b"id")
    monkeypatch.setattr(snapshot_log, "identity", lambda *_: (b"id", 1), raising=False)
    log: Any = SnapshotLog(Settings(brokers="localhost:1"), "t", 0, lambda: None)

    def read(consumer: SimConsumer, *_: object, **__: object) -> Iterator[Any]:
        consumer.fail()
        value = snapshot.record_key(7, 4)
        yield SimpleNamespace(key=lambda: value, offset=lambda: 4, timestamp=lambda: (1, 99))

    monkeypatch.setattr(snapshot_log, "read", read)
    log._consumer.close()
    yield log
    log.close()


@pytest.mark.parametrize(
    "code",
    [
        *(KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN, KafkaError._UNKNOWN_PARTITION),
        *(KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED),
    ],
)
def test_silence_a_missing_leader_and_a_missing_right_are_waited_for(code: int, log: Any) -> None:
    log._consumer = SimConsumer(code, code)
    assert log.written_ms(NAMED) == 99
    assert log._consumer.codes == []


@pytest.mark.parametrize("code", [KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._BAD_MSG])
def test_deleted_and_damaged_records_are_an_answer(code: int, log: Any) -> None:
    log._consumer = SimConsumer()
    log._consumer.get_watermark_offsets = lambda *_, **__: (0, 5)
    log._consumer.codes = [code]
    with pytest.raises(Unreadable, match=r"^t/0 has "):
        log.written_ms(NAMED)


def record(offset: int, number: int, index: int, value: bytes = snapshot.DATA) -> Any:
    key = snapshot.record_key(number, index)
    return SimpleNamespace(key=lambda: key, value=lambda: value, offset=lambda: offset)


END = Footer(Place("cluster", "app", b"topic id", 0, "future"), 9, (1, 2), (), b"h", 3, 2, b"digest")


def test_snapshots_are_found_by_their_footers(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those of which all records are there, also if the records of several attempts lie in one another."""
    whole = snapshot.encode_footer(END)
    records = [
        *(record(10, 1, 1, whole), record(11, 2, 0), record(12, 3, 0), record(13, 2, 1), record(14, 4, 0)),
        *(record(15, 2, 2, whole), record(16, 3, 2, whole), record(17, 4, 1, whole[:-1]), record(18, 5, 0, whole)),
    ]
    monkeypatch.setattr(snapshot_log, "read", lambda *_, **__: iter(records))
    log._consumer = SimConsumer(KafkaError._TRANSPORT)
    assert list(log.whole()) == [
        (NamedSnapshot(b"id", 2, 11, 16, 9, 3, 2, b"digest"), END),
        (NamedSnapshot(b"id", 5, 18, 19, 9, 3, 2, b"digest"), END),
    ]
    assert not log.damaged
    monkeypatch.setattr(snapshot_log, "identity", lambda *_: None)
    assert list(log.whole()) == []


def test_a_partition_that_was_added_to_the_request_topic_has_no_snapshot(log: Any) -> None:
    """The brokers do not know it, so a wait for its leader would have no end."""
    asked: list[object] = []

    class NoPartition(SimConsumer):
        def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
            asked.append(1)
            assert len(asked) < 3, "it waits for it"
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))

    log._consumer, log.partition = NoPartition(), 1
    assert (list(log.whole()), log.damaged, asked) == ([], False, [])


def test_a_damaged_record_takes_only_its_own_snapshot(
    log: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = snapshot.encode_footer(END)
    records = {0: record(0, 1, 0), 3: record(3, 1, 3, whole), 4: record(4, 2, 0, whole)}  # 1 and 2 are damaged

    def read(consumer: Any, topic: str, partition: int, start: int, end: int, **_: object) -> Iterator[Any]:
        for offset in range(start, end):
            if offset not in records:
                raise KafkaException(KafkaError(KafkaError._BAD_MSG))
            yield records[offset]

    monkeypatch.setattr(snapshot_log, "read", read)
    log._consumer = SimConsumer()
    assert list(log.whole()) == [(NamedSnapshot(b"id", 2, 4, 5, 9, 3, 2, b"digest"), END)]
    assert log.damaged
    assert [each.message for each in caplog.records if "damaged" in each.message] == [
        "offset 1 or later: t/0 has a damaged record (Local: Bad message format); its snapshot is skipped"
    ]


def test_records_that_are_deleted_while_snapshots_are_looked_for_begin_the_search_again(log: Any) -> None:
    log._consumer = consumer = SimConsumer()
    consumer.get_watermark_offsets = lambda *_, **__: (0, 10**9)  # type: ignore[method-assign]
    consumer.codes = [KafkaError._AUTO_OFFSET_RESET]
    with pytest.raises(Lost, match=r"^t/0 has lost its records .* meanwhile$"):
        list(log.whole())


def test_a_restore_gives_its_place_back_if_no_record_comes(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = iter(range(0, 1000, 7))
    monkeypatch.setattr(snapshot_log, "monotonic", lambda: next(now_s))
    log._consumer, log._patience_s = SimConsumer(*[KafkaError.LEADER_NOT_AVAILABLE] * 100), 30.0
    with pytest.raises(Lost, match=r"^t/0 cannot be read for 30 s \("):
        list(log.whole())


def test_an_answer_without_a_record_ends_a_silence(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next error, of another snapshot, is the last one that is waited for."""
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(snapshot_log, "monotonic", lambda: clock.now_s)
    log._patience_s = 10
    for clock.now_s in (0.0, 70.0):
        log._consumer = SimConsumer(KafkaError._TIMED_OUT)
        assert not log.has_footer(NAMED._replace(end_offset=1_000))


def test_waiting_ends_when_it_is_told_to(log: Any) -> None:
    def stop() -> None:
        raise Lost("told to stop")

    log._consumer, log._check = SimConsumer(KafkaError._TRANSPORT), stop
    with pytest.raises(Lost, match="told to stop"):
        log.written_ms(NAMED)


@pytest.mark.parametrize("offset", [7, 3], ids=["again", "lower"])
def test_records_whose_offsets_were_given_again_are_not_all_there(offset: int) -> None:
    sending = _Sending(Settings.load({}), ("app-snapshot-requests", 0), 1, 1e9, lambda: None)
    message: Any = lambda offset: SimpleNamespace(offset=lambda: offset)  # noqa: E731
    sending._note(None, message(6))
    sending._note(None, message(7))
    sending._wait(0)
    sending._note(None, message(offset))
    with pytest.raises(KafkaException) as raised:
        sending._wait(0)
    assert raised.value.args[0].code() == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
    sending.end()


def test_a_record_that_a_broker_had_before_has_no_offset_and_names_no_snapshot() -> None:
    """Its offset would be taken for 0, and the snapshot would begin below the log."""
    sending = _Sending(Settings.load({}), ("app-snapshot-requests", 0), 1, 1e9, lambda: None)
    unplaced: Any = SimpleNamespace(offset=lambda: None)
    sending._note(None, unplaced)
    with pytest.raises(KafkaException):
        sending._wait(0)
    sending.end()
