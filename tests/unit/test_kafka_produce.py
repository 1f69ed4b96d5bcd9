"""What an answer to a produce request says about refused records. The broker tests see real answers."""

from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition
from aiokafka.protocol.produce import ProduceRequest, ProduceResponse_v8
from aiokafka.record.default_records import DefaultRecordBatch

from timers.kafka.aiokafka_internals import produce
from timers.kafka.aiokafka_internals.record_batch import RecordBatch
from timers.kafka.aiokafka_internals.refusals import INVALID_RECORD, RefusedRecord, refusals


def answer(version: int, *partitions: tuple[Any, ...]) -> Any:
    return SimpleNamespace(API_VERSION=version, topics=[("t", list(partitions))])


def test_refused_records_are_read_from_an_answer() -> None:
    listed = [(1, "no key"), (4, None)]
    (error,) = refusals(answer(8, (0, 0, 7, -1, 0, [], None), (3, 87, -1, -1, 0, listed, "bad"))).values()
    assert (error.topic, error.partition, error.code, error.why) == ("t", 3, INVALID_RECORD, "bad")
    assert error.records == (RefusedRecord(1, "no key"), RefusedRecord(4, ""))
    assert error.name == "INVALID_RECORD" and not error.retriable


def test_an_older_broker_lists_no_records_and_other_errors_are_left_to_aiokafka() -> None:
    (error,) = refusals(answer(7, (0, 32, -1, -1, 0), (1, 10, -1, -1, 0), (2, -1, -1, -1, 0))).values()
    assert (error.partition, error.records, error.why) == (0, (), "")


def test_a_sealed_batch_has_the_records_that_were_added() -> None:
    batch = RecordBatch(10_000)
    for index in range(3):
        batch.add(index, 1_000, b"k%d" % index, b"v", [("timer-id", b"%d" % index)])
        batch.offsets.append(None)
    batch.seal()
    batch._build()  # as aiokafka does before it sends
    assert [(each.key, each.headers) for each in DefaultRecordBatch(bytes(batch._buffer))] == [
        (b"k%d" % index, [("timer-id", b"%d" % index)]) for index in range(3)
    ]


def test_producers_speak_version_8_after_the_installation() -> None:
    """And the answer has the fields that :func:`refusals` reads."""
    produce.install()
    produce.install()
    assert [known.API_VERSION for known in ProduceRequest._CLASSES] == list(range(9))
    partition = ProduceResponse_v8.SCHEMA.fields[0].array_of.fields[1].array_of
    assert partition.names[:2] == ("partition", "error_code") and partition.names[-2:] == (
        "record_errors",
        "error_message",
    )
    assert TopicPartition("t", 3) in refusals(answer(8, (3, 87, -1, -1, 0, [], None)))
