"""Topics of kafka-message-scheduler with its records; the worker does not change the topics."""

import math
import random
import re
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import NewPartitions

from tests.harness.java_producer import produce_lines
from tests.harness.race import race
from tests.harness.records import Headers
from tests.harness.schedules import PARTITIONS, Schedules, id_of
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from timers.errors import TopicConfigError
from timers.kafka import topics
from timers.machines.opener import LEAST_AHEAD
from timers.process.config.settings import Settings
from timers.wire.formats import schedule

pytestmark = pytest.mark.broker

CATCH_UP_PER_S = 100


@pytest.fixture(scope="module")
def schedules(broker_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Schedules]:
    """With a worker."""
    directory = tmp_path_factory.mktemp("schedules")
    settings = {"TIMERS_CATCH_UP_PER_S": str(CATCH_UP_PER_S), "TIMERS_SNAPSHOT_RECORDS": "200"}
    schedules = Schedules(broker_address, directory, **settings)
    schedules.system.worker().start().ready()
    yield schedules
    schedules.system.close()


def test_the_records_of_kafka_message_scheduler_give_the_same_callbacks(schedules: Schedules) -> None:
    """The records are those of the article about it. Tests without a broker use its epoch, 1893456000."""
    due_s = due_in(4)
    customer: Headers = [("customer-header", b"dummy")]
    schedules.set(b"vid1-online", due_s + 90, b'"video 0"', key=b"vid1")
    schedules.set(b"vid1-online", due_s, b'"video 1"', key=b"vid1", headers=customer, timestamp_s=1607918336)
    schedules.set(b"vid2-online", due_s, b"deleted")
    schedules.delete(b"vid2-online")
    schedules.set(b"\xff\xfe", due_s, b"", key=b"\x80")
    schedules.set(b"no-key", due_s, b"v", key=None)
    schedules.set(b"elsewhere", due_s, b"v", topic=schedules.topics[1])
    schedules.set(b"nowhere", due_s, b"v", target="no-such-topic")
    schedules.set(b"overdue", due_s - 3600, b"v")
    schedules.set(b"broken", due_s, b"never: what follows takes its place")
    schedules.send(b"broken", b"v", [("scheduler-epoch", b"soon")])
    schedules.flush()
    headers = f"customer-header:dummy,scheduler-target-topic:{schedules.target}"
    later_s = due_s + 3600  # on a busy machine Java may send them after the due second
    lines = [
        f"{headers},scheduler-epoch:{later_s},scheduler-target-key:vid3\tjava\tlost".encode(),
        f"{headers},scheduler-epoch:{due_s},scheduler-target-key:vid3\tjava\tvideo 3".encode(),
        f"{headers},scheduler-epoch:{later_s}\tjava-deleted\tvideo 4".encode(),
        b"NULL\tjava-deleted\tNULL",
    ]
    properties = ["parse.headers=true", "parse.key=true", "null.marker=NULL"]
    produce_lines(schedules.system.address, schedules.topic, lines, *properties)

    by_id = {id_of(record): record for record in schedules.fired.take(6)}
    assert by_id.keys() == {b"vid1-online", b"\xff\xfe", b"no-key", b"elsewhere", b"overdue", b"java"}
    video = by_id[b"vid1-online"]
    assert (video.key, video.value) == (b"vid1", b'"video 1"')
    assert video.headers[:4] == [
        ("customer-header", b"dummy"),
        ("scheduler-timestamp", b"1607918336"),
        ("scheduler-key", b"vid1-online"),
        ("scheduler-topic", schedules.topic.encode()),
    ]
    assert [name for name, _ in video.headers[4:]] == ["timer-source", "timer-id", "timer-due", "timer-fired"]
    assert video.text("timer-id") == "vid1-online"
    assert video.text("timer-source").startswith(f"{schedules.topic}/")
    assert (by_id[b"java"].key, by_id[b"java"].value) == (b"vid3", b"video 3")
    assert by_id[b"java"].headers[0] == ("customer-header", b"dummy")
    assert (by_id[b"\xff\xfe"].key, by_id[b"\xff\xfe"].value) == (b"\x80", b"")
    assert dict(by_id[b"\xff\xfe"].headers)["timer-id"] == b"\xff\xfe"
    assert by_id[b"no-key"].key is None
    assert by_id[b"elsewhere"].text("scheduler-topic") == schedules.topics[1]
    assert all(record.due_s == due_s for id, record in by_id.items() if id != b"overdue")
    assert all(record.lag_ms >= 0 for record in by_id.values())
    letters = {letter.text("timer-error"): letter for letter in schedules.system.dead_letters().take(2)}
    assert letters.keys() == {"topic-unknown", "key-not-a-number"}
    nowhere = letters["topic-unknown"]
    assert (nowhere.key, nowhere.value) == (b"nowhere", b"v")
    assert nowhere.headers[:3] == schedule.encode_headers(due_s, "no-such-topic", b"key")
    assert letters["key-not-a-number"].headers[:1] == [("scheduler-epoch", b"soon")]
    schedules.wait_past(due_s)
    schedules.delete(b"broken")
    schedules.flush()
    assert schedules.fired.rest() == []
    for topic in schedules.topics:
        schedules.check_all_ended(topic)


def test_missed_schedules_fire_at_the_start_with_the_same_headers_also_by_the_retry_topic(schedules: Schedules) -> None:
    (worker,) = schedules.system.workers
    worker.kill()
    due_s = due_in(-60)
    ids = [b"missed-%d\xff" % number for number in range(3 * CATCH_UP_PER_S)]
    for id in ids:
        schedules.set(id, due_s, b"value of " + id, key=id, headers=[("a", None)], timestamp_s=due_s - 100)
    schedules.flush()
    worker.start().ready()
    fired = schedules.fired.take(len(ids), 2 * DEADLINE_S)
    schedules.wait_past(due_in(1))
    assert schedules.fired.rest() == []
    assert sorted(id_of(record) for record in fired) == sorted(ids)
    for record in fired:
        id = id_of(record)
        assert (record.key, record.value, record.due_s) == (id, b"value of " + id, due_s)
        assert record.headers[:4] == [
            ("a", None),
            ("scheduler-timestamp", b"%d" % (due_s - 100)),
            ("scheduler-key", id),
            ("scheduler-topic", schedules.topic.encode()),
        ]
        assert record.text("timer-source").startswith(f"{schedules.topic}/")
    schedules.check_all_ended()


@pytest.mark.long
def test_schedules_survive_kills_compaction_and_a_lost_disk(schedules: Schedules) -> None:
    """A third is replaced, a third deleted: before, while the worker is down, and on an empty disk, over a log that
    brokers have compacted meanwhile."""
    (worker,) = schedules.system.workers
    dice = random.Random(8)
    first_s = due_in(10 + math.ceil(5 * worker.ready_s))
    latest: dict[bytes, tuple[bytes, int]] = {}

    def set(id: bytes) -> None:
        latest[id] = (b"%s-%f" % (id, dice.random()), first_s + dice.randrange(4))
        schedules.set(id, latest[id][1], latest[id][0])

    def change(id: bytes) -> None:
        if dice.random() < 0.5:
            set(id)
        else:
            latest.pop(id, None)
            schedules.delete(id)

    names = [b"storm-%d" % number for number in range(2000)]
    for name in names:
        set(name)
    for name in names[:700]:
        change(name)
    schedules.flush()
    worker.wait_for(rf"{schedules.topic}/\d: a snapshot of")
    worker.kill()
    for name in names[700:1000]:
        change(name)
    schedules.flush()
    replaced = Counter(record.key for record in schedules.log() if (record.key or b"").startswith(b"storm-"))

    def compacted() -> bool:
        for partition in range(PARTITIONS):  # a segment is closed by what comes after it
            schedules.producer.produce(schedules.topic, None, b"filler", partition)
        schedules.flush()
        left = Counter(record.key for record in schedules.log() if (record.key or b"").startswith(b"storm-"))
        time.sleep(0.5)
        return left.total() < replaced.total() - 500

    wait_until(compacted, "brokers have compacted the topic", 3 * DEADLINE_S)
    worker.start().ready()
    worker.kill()
    shutil.rmtree(worker.data_dir)
    for name in names[1000:1300]:
        change(name)
    schedules.flush()
    worker.start().ready()
    assert f"restored {schedules.topic}/" in worker.log
    seen = schedules.fired.take(100, 2 * DEADLINE_S)
    worker.kill()
    worker.start().ready()
    schedules.wait_past(first_s + 4)
    # More schedules may be late than the rate allows; these come by the retry topic.
    records = seen + schedules.fired.take(len(latest) - len(seen), 2 * DEADLINE_S)
    assert schedules.fired.rest() == []
    assert max(Counter(id_of(record) for record in records).values()) == 1
    assert {id_of(record): (record.value, record.due_s) for record in records} == latest
    assert all(record.lag_ms >= 0 for record in records)
    schedules.check_all_ended()


def test_a_version_that_its_topic_takes_no_more_becomes_a_dead_letter_and_the_partition_goes_on(
    schedules: Schedules,
) -> None:
    """The worker must write it again, after the tombstone of the version before it; the limit was lowered meanwhile."""
    (worker,), topic, due_s = schedules.system.workers, schedules.topics[1], due_in(86_400)
    worker.kill()
    first = schedules.system.end(topic)
    for value in (b"former", b"x" * 5_000):
        schedules.set(b"shrunk", due_s, value, topic=topic)
    schedules.send(b"shrunk", None, schedule.tombstone_headers(first), topic)
    schedules.flush()
    schedules.system.configure(topic, max_message_bytes="2000")
    worker.start().ready()
    schedules.set(b"after", due_in(2), b"on time", topic=topic)
    schedules.flush()
    assert [(id_of(record), record.value) for record in schedules.fired.take(1)] == [(b"after", b"on time")]
    letters = {letter.key: letter for letter in schedules.system.dead_letters().rest()}
    letter = letters[b"shrunk"]
    assert (letter.text("timer-error"), letter.value) == ("message-too-large", b"x" * 5_000)
    assert letter.headers[:3] == schedule.encode_headers(due_s, schedules.target, b"key")
    schedules.system.configure(topic, max_message_bytes="1000000")
    schedules.check_all_ended(topic)


@pytest.mark.long
def test_a_change_in_the_due_second_either_takes_effect_or_comes_too_late(schedules: Schedules) -> None:
    due_s = due_in(5)
    names = [b"race-%d" % number for number in range(400)]
    for name in names:
        schedules.set(name, due_s, b"first")
    schedules.flush()

    def change(number: int, name: bytes) -> None:
        schedules.delete(name) if number % 2 else schedules.set(name, due_s + 3, b"second")

    seen = race(names, due_s, change, schedules.flush, schedules.fired)
    fired = Counter((id_of(record), record.value) for record in seen)

    def second_versions_fired() -> bool:  # a republished version that is late comes by the retry topic
        fired.update((id_of(record), record.value) for record in schedules.fired.rest())
        return {name for name in names if fired[name, b"second"]} == set(names[::2])

    wait_until(second_versions_fired, "each second version has fired, and no deleted one", 2 * DEADLINE_S)
    schedules.wait_past(due_s + 4)
    assert schedules.fired.rest() == []
    assert max(fired.values()) == 1
    assert 0 < sum(fired[name, b"first"] for name in names) < len(names), "the race had both outcomes"
    schedules.check_all_ended()


@pytest.mark.long
def test_a_worker_with_an_empty_disk_reads_a_long_topic_ahead(broker_address: str, tmp_path: Path) -> None:
    schedules = Schedules(broker_address, tmp_path, TIMERS_SNAPSHOT_FACTOR="0")
    try:
        worker = schedules.system.worker().start().ready()
        due_s = due_in(10 + math.ceil(2 * worker.ready_s))
        for number in range(PARTITIONS * LEAST_AHEAD * 4 // 3):  # keys are not spread evenly
            schedules.set(b"later-%d" % number, due_s + 86_400, b"")
        schedules.set(b"soon", due_s, b"on time")
        schedules.wait_past(1)  # all of them are accepted
        worker.kill()
        assert time.time() < due_s, "it is for the next start to fire"
        shutil.rmtree(worker.data_dir)
        worker.start().ready()
        assert len(re.findall(rf"{schedules.topic}/\d was read ahead", worker.log)) == PARTITIONS
        assert [record.value for record in schedules.fired.take(1)] == [b"on time"]
    finally:
        schedules.system.close()


@pytest.mark.long
def test_overdue_schedules_can_be_rejected_and_the_topics_stay_unchanged(broker_address: str, tmp_path: Path) -> None:
    missing = {"TIMERS_BROKERS": broker_address, "TIMERS_APP_ID": f"app-{uuid.uuid4().hex[:8]}"}
    with pytest.raises(
        TopicConfigError, match=r"TIMERS_SCHEDULE_TOPICS names 'no-such-schedules', which does not exist"
    ):
        topics.ensure(Settings.load({**missing, "TIMERS_SCHEDULE_TOPICS": "no-such-schedules"}))

    schedules = Schedules(broker_address, tmp_path, TIMERS_SCHEDULE_OVERDUE="reject")
    try:
        worker = schedules.system.worker(quick=True).start().ready()
        due_s = due_in(2)
        schedules.set(b"overdue", due_s, b"late", timestamp_s=due_s + 1)
        schedules.set(b"good", due_s, b"on time", timestamp_s=due_s)
        schedules.flush()
        (letter,) = schedules.system.dead_letters().take(1)
        assert (letter.text("timer-error"), letter.key, letter.value) == ("overdue", b"overdue", b"late")
        assert [record.value for record in schedules.fired.take(1)] == [b"on time"]
        schedules.wait_past(due_s + 1)
        assert schedules.fired.rest() == []
        schedules.check_all_ended()

        schedules.system.admin.create_partitions([NewPartitions(schedules.topic, 5)])[schedules.topic].result(
            DEADLINE_S
        )
        worker.wait_for(rf"{schedules.topic} has 5 partitions and had {PARTITIONS} when its timers were accepted")
        schedules.system.wait_past(due_in(1))
    finally:
        schedules.system.close()
