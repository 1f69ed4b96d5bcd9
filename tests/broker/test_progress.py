"""The progress record decides where a machine goes on; the group's offsets are a copy for tools."""

import shutil

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition

from tests.harness.records import Publisher, Request
from tests.harness.system import PARTITIONS, System, soon
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from tests.harness.worker import READY
from timers.core.progress import Progress
from timers.wire import progress

pytestmark = pytest.mark.broker


def progress_of(system: System) -> dict[str, Progress]:
    """Newest progress of each machine, as a new owner reads it."""
    newest = {}
    for record in system.reader(system.settings.progress_topic, append_time=False).rest():
        assert record.key is not None and record.value is not None
        if record.key == progress.APP_KEY:
            continue
        newest[record.key.decode()], topic_id = progress.decode(record.value)
        assert len(topic_id) == 16
    return newest


def committed(system: System) -> dict[int, int]:
    """The group's offsets of the request topic."""
    partitions = [TopicPartition(system.request_topic, partition) for partition in range(PARTITIONS)]
    asked = ConsumerGroupTopicPartitions(system.app_id, partitions)
    answer = system.admin.list_consumer_group_offsets([asked])[system.app_id].result(DEADLINE_S)
    return {found.partition: found.offset for found in answer.topic_partitions}


def on_all_partitions(system: System, due_s: int, count: int) -> list[Request]:
    target = system.target()
    return [Request(target, due_s, f"key-{i}", partition=i % PARTITIONS) for i in range(count)]


def test_progress_and_group_offsets_follow_what_was_accepted_and_fired(running: System) -> None:
    requests = running.send(*on_all_partitions(running, due_in(2), 40))
    running.fired(requests)
    next_offsets: dict[int, int] = {}
    for request in requests:
        partition, offset = map(int, request.source.split("/")[1:])
        next_offsets[partition] = max(next_offsets.get(partition, 0), offset + 1)

    def copied() -> bool:
        return all(committed(running)[partition] >= offset for partition, offset in next_offsets.items())

    wait_until(copied, "the group's offsets pass the requests")
    machines = progress_of(running)
    for partition, offset in next_offsets.items():
        machine = machines[f"{running.request_topic}/{partition}"]
        assert machine.next_offset >= offset
        assert machine.fired_through[0] >= requests[0].due_s


def test_no_timer_fires_twice_if_the_groups_offsets_are_deleted(system: System) -> None:
    worker = system.worker().start().ready()
    system.send(*on_all_partitions(system, due_in(3600), 20))
    fired = system.send(*on_all_partitions(system, due_in(1), 40))
    assert len(system.fired(fired)) == 40
    worker.stop()

    def delete() -> bool:
        try:
            system.admin.delete_consumer_groups([system.app_id])[system.app_id].result(DEADLINE_S)
        except KafkaException:  # not before the stopped worker's membership has run out
            return False
        return True

    wait_until(delete, "the group can be deleted")
    assert int(worker.start().wait_for(READY)[2]) == 20
    fresh = system.send(*on_all_partitions(system, due_in(1), 40))
    assert len(system.fired(fresh)) == 40, "nothing new is swallowed"
    assert len(system.reader(fired[0].target).rest()) == 40, "what has fired stays fired"


def test_a_partition_with_lost_progress_does_not_start_again(system: System) -> None:
    worker = system.worker().start().ready()
    fired = system.send(*on_all_partitions(system, due_in(1), 40))
    system.fired(fired)
    wait_until(lambda: min(committed(system).values()) > 0, "the group has offsets")
    worker.stop()
    system.delete_topic(system.settings.progress_topic)

    worker.start()
    for partition in range(PARTITIONS):
        worker.wait_for(f"TIMERS_ACCEPT_LOSS={system.request_topic}/{partition}")
    worker.stop()

    names = ",".join(f"{system.request_topic}/{partition}" for partition in range(PARTITIONS))
    worker.start(TIMERS_ACCEPT_LOSS=names).ready()
    requests = system.send(*soon(system.target(), 20))
    assert len(system.fired(requests)) == 20
    assert len(system.reader(fired[0].target).rest()) == 40, "what has fired stays fired"


def test_an_opening_does_not_wait_for_an_open_transaction_of_another_machine(system: System) -> None:
    """It began before the machines' own transactions on the same partitions of the progress topic, and stays open."""
    worker = system.worker().start().ready()
    fired = system.send(*on_all_partitions(system, due_in(1), 40))
    system.fired(fired)
    other = Producer(
        {
            "bootstrap.servers": system.address,
            "transactional.id": f"other-{system.app_id}",
            "transaction.timeout.ms": 15 * 60_000,
        }
    )
    other.init_transactions()
    other.begin_transaction()
    for partition in range(PARTITIONS):
        other.produce(system.settings.progress_topic, b"?", b"another/0", partition)
    assert other.flush(DEADLINE_S) == 0
    later = system.send(*on_all_partitions(system, due_in(1), 40))
    system.fired(later)
    worker.stop()
    shutil.rmtree(worker.data_dir)
    worker.start().ready()
    assert len(system.fired(system.send(*soon(system.target(), 20)))) == 20
    for requests in (fired, later):
        assert len(system.reader(requests[0].target).rest()) == 40, "what has fired stays fired"
    other.abort_transaction()  # it was open all the time: else this is an error


@pytest.mark.long
def test_an_older_progress_record_that_is_written_last_stops_the_partitions(system: System) -> None:
    """An owner with an empty disk would fire again what fired since then. The last seconds are known by the close."""
    worker = system.worker().start().ready()
    fired = system.send(*on_all_partitions(system, due_in(1), 40))
    system.fired(fired)
    records = system.reader(system.settings.progress_topic, append_time=False).rest()
    older = {record.key: record for record in records if record.key != progress.APP_KEY}
    later = system.send(*on_all_partitions(system, due_in(1), 40))
    system.fired(later)
    worker.stop()
    shutil.rmtree(worker.data_dir)
    publisher = Publisher(system.address, system.settings.progress_topic)
    for key, record in older.items():
        publisher.send_raw(key, record.value, [], record.partition)

    worker.start()
    for partition in range(PARTITIONS):
        name = f"{system.request_topic}/{partition}"
        worker.wait_for(f"the progress of {name} says .* or an older record was written .* TIMERS_ACCEPT_LOSS={name}")
    worker.stop()

    names = ",".join(f"{system.request_topic}/{partition}" for partition in range(PARTITIONS))
    worker.start(TIMERS_ACCEPT_LOSS=names).ready()
    assert len(system.fired(system.send(*soon(system.target(), 20)))) == 20
    for requests in (fired, later):
        assert len(system.reader(requests[0].target).rest()) == 40, "what has fired stays fired"
    worker.stop()
    assert int(worker.start().wait_for(READY)[2]) == 0, "it is green without the acceptance"


@pytest.mark.long
def test_a_request_topic_that_was_deleted_and_made_again_is_a_new_log(system: System) -> None:
    """Offsets of the new log were used in the old one too: by timers that have fired, and by some that never will."""
    with_disk, without_disk = system.worker().start(), system.worker().start()
    with_disk.ready()
    without_disk.ready()
    never = system.send(*on_all_partitions(system, due_in(3600), 2_000))
    before = system.send(*soon(system.target(), 100))
    system.fired(before)
    with_disk.stop()
    without_disk.stop()
    shutil.rmtree(without_disk.data_dir)
    system.delete_topic(system.request_topic)

    with_disk.start()
    without_disk.start()
    pending = [int(worker.wait_for(READY)[2]) for worker in (with_disk, without_disk)]
    assert pending == [0, 0], "what stood in the old log is gone with it"
    requests = system.send(*on_all_partitions(system, due_in(2), 1_000))
    assert len(system.fired(requests)) == 1_000, "nothing new is swallowed"
    assert system.reader(never[0].target).rest() == []
    assert len(system.reader(before[0].target).rest()) == 100, "what has fired stays fired"
