"""Requests may come from producers with any partitioner, any compression, and transactions."""

import pytest

from tests.harness.java_producer import produce_by_console
from tests.harness.records import Publisher, Request
from tests.harness.system import PARTITIONS, System, timers
from tests.harness.waiting import DEADLINE_S, due_in

pytestmark = pytest.mark.broker

EXPLICIT = "an explicit partition"
JAVA = "java's console producer"
PARTITIONERS = ["librdkafka's default", "murmur2_random", "murmur2", "random", EXPLICIT, JAVA]
CODECS = ["lz4", "zstd", "snappy", "gzip"]


@pytest.fixture(scope="module")
def partitioned(running: System) -> dict[str, tuple[str, list[Request]]]:
    """The same timers from producers with different partitioners, sent together."""
    sent = {}
    for style in PARTITIONERS:
        target = running.target()
        requests = timers(target, 24, due_in(2), 4, b"hello")
        if style == JAVA:
            produce_by_console(running.address, running.request_topic, requests)
        else:
            options = {} if style in (PARTITIONERS[0], EXPLICIT) else {"partitioner": style}
            for index, request in enumerate(requests):
                request.partition = index % PARTITIONS if style == EXPLICIT else None
            running.publisher(**options).send(requests)
        sent[style] = (target, requests)
    return sent


@pytest.mark.parametrize("style", PARTITIONERS)
def test_requests_of_all_partitioners_fire(
    running: System, partitioned: dict[str, tuple[str, list[Request]]], style: str
) -> None:
    target, requests = partitioned[style]
    reader = running.reader(target)
    fired = reader.take(len(requests))
    running.wait_past(max(request.due_s for request in requests))
    fired += reader.rest()
    assert sorted((record.key, record.due_s) for record in fired) == sorted(
        (request.key.encode(), request.due_s) for request in requests
    )
    assert all(record.lag_ms >= 0 and record.value == b"hello" for record in fired)


def test_a_callback_goes_to_the_partition_that_javas_producer_chooses(running: System) -> None:
    partitions = 7
    target, plain = running.target(partitions), running.target(partitions)
    keys = ["", "a", "ab", "abc", "abcd", "ключ", "x" * 1001, *(f"order-{number}" for number in range(100))]
    due_s = due_in(2)
    requests = running.send(*(Request(target, due_s, key, b"v") for key in keys))
    java = Publisher(running.address, plain, partitioner="murmur2").producer
    for key in keys:
        java.produce(plain, b"v", key.encode())
    assert java.flush(DEADLINE_S) == 0
    expected = {record.key: record.partition for record in running.reader(plain).take(len(keys))}
    assert len(set(expected.values())) == partitions
    fired = running.fired(requests)
    assert {record.key: record.partition for record in fired.values()} == expected


def test_requests_in_compressed_batches_fire(running: System) -> None:
    target = running.target()
    first_s = due_in(2)
    requests: list[Request] = []
    for codec in CODECS:
        batch = timers(target, 200, first_s, 2, b"compressible " * 50)
        publisher = running.publisher(compression_type=codec, linger_ms=200)
        requests += publisher.send(batch)
    assert len(running.fired(requests)) == len(CODECS) * 200


def test_only_requests_of_committed_transactions_fire(running: System) -> None:
    """Aborted requests are before, between and after them, so offsets have holes."""
    target = running.target()
    due_s = due_in(2)
    publisher = running.publisher(transactional_id=f"sender-{target}", linger_ms=0)
    publisher.producer.init_transactions(DEADLINE_S)
    committed: list[Request] = []
    for number, commit in enumerate([False, True, False, False, True, True, False]):
        publisher.producer.begin_transaction()
        batch = [Request(target, due_s, f"{number}-{i}", partition=i % PARTITIONS) for i in range(4 * PARTITIONS)]
        publisher.send(batch)
        if commit:
            publisher.producer.commit_transaction(DEADLINE_S)
            committed += batch
        else:
            publisher.producer.abort_transaction(DEADLINE_S)
    fired = running.fired(committed)
    assert {(record.key or b"").decode()[0] for record in fired.values()} == {"1", "4", "5"}


def test_a_partition_with_only_an_aborted_request_goes_on(running: System) -> None:
    target = running.target()
    publisher = running.publisher(transactional_id=f"sender-{target}")
    publisher.producer.init_transactions(DEADLINE_S)
    publisher.producer.begin_transaction()
    publisher.send([Request(target, 1, "aborted", partition=partition) for partition in range(PARTITIONS)])
    publisher.producer.abort_transaction(DEADLINE_S)
    running.wait_past(due_in(1))
    reader = running.reader(target)
    assert reader.rest() == []
    (request,) = running.send(Request(target, due_in(1), "after"))
    assert [record.timer_id for record in reader.take(1)] == [request.source]
