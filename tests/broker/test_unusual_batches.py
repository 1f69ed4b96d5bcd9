"""Batches that brokers take and no usual client writes are read by a worker as by Java's consumer."""

from pathlib import Path

import pytest

from tests.harness import raw_batches
from tests.harness.ids import Ids
from tests.harness.java_consumer import consume_by_console
from tests.harness.records import Request
from tests.harness.red_partitions import red, red_sentence, taken, way_on
from tests.harness.system import PARTITIONS, System
from tests.harness.waiting import due_in, wait_until
from timers.wire import key_partition

pytestmark = pytest.mark.broker


def test_worker_and_other_consumers_read_the_same_requests(system: System) -> None:
    system.worker().start().ready()
    target, due_s = system.target(), due_in(1)
    wanted = []
    for name, unusual in raw_batches.READABLE.items():
        batch = unusual.batch(raw_batches.requests(name, target, due_s), due_s * 1000)
        assert raw_batches.produce(system.address, system.request_topic, 0, batch) == 0, name
        wanted += [f"{name}/{at}" for at in unusual.read]
    fired = [(record.value or b"").decode() for record in system.reader(target).take(len(wanted))]
    assert sorted(fired) == sorted(wanted)
    by_java = consume_by_console(system.address, system.request_topic, 0, len(wanted))
    assert [value for _, value in by_java] == wanted


def test_a_batch_that_no_consumer_can_read_is_passed_over(system: System) -> None:
    worker = system.worker().start().ready()
    target, due_s = system.target(), due_in(1)
    callbacks, letters = system.reader(target), system.dead_letters()
    partition = f"{system.request_topic}/0"
    before = Request(target, due_in(8), "", b"before", partition=0)
    system.send(before)
    sent = {}
    for number, (name, unusual) in enumerate(raw_batches.UNREADABLE.items()):
        sent[name] = unusual.batch(raw_batches.requests(str(number), target, due_s), due_s * 1000)
        assert raw_batches.produce(system.address, system.request_topic, 0, sent[name]) == 0
    system.send(Request(target, due_s, "", b"after", partition=0))
    sentence = red_sentence(worker, partition)
    assert f"{partition}: the record batch with the offsets 4 to 10 (compression: zstd) cannot be read: " in sentence
    assert "timers that were accepted before it fire on" in sentence
    assert taken(callbacks, 4) == ["0/0", "0/1", "0/2", "before"], "the one that was accepted before fires at its time"
    accepted = []
    for number, name in enumerate(raw_batches.UNREADABLE):
        accepted.append(way_on(worker, partition))
        assert accepted[-1].endswith(f"{partition}:{4 + 10 * number}-{10 + 10 * number}")
        worker.stop()
        worker = system.worker()  # with an empty disk
        worker.start(TIMERS_ACCEPT_LOSS=accepted[-1]).ready()
        (letter,) = letters.take(1)
        assert letter.text("timer-error") == "batch-unreadable"
        assert letter.text("timer-source") == f"{partition}/{4 + 10 * number}"
        assert letter.key is None and letter.value is not None
        # The broker sets base offset, leader epoch and times.
        assert letter.value[raw_batches.HEADER_BYTES :] == sent[name][raw_batches.HEADER_BYTES :]
        if number < 2:
            assert taken(callbacks, 3) == [f"{number + 1}/{index}" for index in range(3)]
    assert taken(callbacks, 1) == ["after"]
    wait_until(lambda: not red(worker), "all is green")
    worker.stop()
    worker = system.worker().start().ready()  # with an empty disk, and without the setting
    system.send(Request(target, due_s, "", b"last", partition=0))
    assert taken(callbacks, 1) == ["last"]
    assert not red(worker) and not letters.rest() and not callbacks.rest()


def test_timers_with_an_id_wait_for_what_may_cancel_them(broker_address: str, tmp_path: Path) -> None:
    ids = Ids(broker_address, tmp_path)
    try:
        worker = ids.system.worker().start().ready()
        due_s = due_in(3)
        ids.set("a", due_s, "waits")
        ids.flush()
        index = key_partition.partition_of(b"a", PARTITIONS)
        claims_more = raw_batches.UNREADABLE["a record that claims to be longer"]
        batch = claims_more.batch([(b"b", None, [])] * 10, due_s * 1000)
        assert raw_batches.produce(broker_address, ids.topic, index, batch) == 0
        partition = f"{ids.topic}/{index}"
        assert "its timers wait, because a cancel or an update" in red_sentence(worker, partition)
        ids.cancel("a")
        ids.flush()
        other = next(id for id in "cdefgh" if key_partition.partition_of(id.encode(), PARTITIONS) != index)
        ids.set(other, due_s, "fires")
        ids.flush()
        assert taken(ids.fired, 1) == ["fires"]
        accepted = way_on(worker, partition)
        worker.stop()
        worker = ids.system.worker()
        worker.start(TIMERS_ACCEPT_LOSS=accepted).ready()
        wait_until(lambda: not red(worker), "all is green")
        ids.wait_past(due_s)
        assert not ids.fired.rest(), "the cancel after the batch counts"
    finally:
        ids.system.close()
