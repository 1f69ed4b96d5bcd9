"""Failing targets: their timers become dead letters, and timers of other targets are not delayed."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclOperation,
    NewPartitions,
    ResourceType,
)

from tests.harness import acls
from tests.harness.letters import await_letters
from tests.harness.records import Headers, Request
from tests.harness.system import MAX_LAG_MS, PARTITIONS, System, timers
from tests.harness.waiting import DEADLINE_S, due_in
from timers.cli.broker import EmbeddedBroker
from timers.wire import future

pytestmark = pytest.mark.broker

UNKNOWN_FIELD = b"\x7a\x01x"
FORGED: Headers = [("timer-id", b"forged"), ("trace", None)]


def test_many_timers_to_an_unknown_topic_delay_no_other_timer(running: System) -> None:
    """Each of its dead letters has the key, value and headers of the request as they were sent."""
    count = 5_000
    target, due_s = running.target(partitions=4), due_in(8)
    kept = timers(target, 100, due_s, 3)
    publisher = running.publisher()
    bad, sent = [], {}
    value = future.encode("no-such-topic", "k", b"v" * 50) + UNKNOWN_FIELD
    for index in range(count):
        key = b"0%d" % (due_s + index % 2)
        headers: Headers = [*FORGED, ("n", b"%d" % index)]
        bad.append(publisher.queue_raw(key, value, headers, index % PARTITIONS))
        sent[b"%d" % index] = (key, value, headers)
        if index % (count // 100) == 0:
            publisher.queue([kept[index // (count // 100)]])
    publisher.flush()
    fired = running.fired(kept)
    assert all(record.lag_ms < MAX_LAG_MS for record in fired.values())
    letters = await_letters(running, {request.source for request in bad})
    for request in bad:
        letter = letters[request.source]
        assert letter.text("timer-error") == "topic-unknown"
        number = letter.text("n").encode()
        assert (letter.key, letter.value, letter.headers[:3]) == sent[number]


def test_a_size_limit_that_is_lowered_takes_effect_at_once(running: System) -> None:
    target, other = running.target(), running.target()
    first = running.send(Request(target, due_in(1), "before", b"x" * 3000))
    assert running.fired(first)
    running.configure(target, max_message_bytes="2000")
    due_s = due_in(2)
    small = timers(target, 100, due_s, 3, b"x" * 100)
    edge = Request(target, due_s + 3, "edge", b"x" * 1700)
    big = timers(target, 5, due_s, 3, b"x" * 3000)
    beside = timers(other, 100, due_s, 3)
    running.send(*small, *big, *beside, edge)
    assert all(record.lag_ms < MAX_LAG_MS for record in running.fired(beside).values())
    assert set(running.fired([*first, *small, edge])) >= {edge.source}
    letters = await_letters(running, {request.source for request in big})
    assert {letters[request.source].text("timer-error") for request in big} == {"message-too-large"}
    assert all("2000" in letters[request.source].text("timer-error-message") for request in big)


def test_a_target_that_is_created_again_may_have_other_partitions(running: System) -> None:
    """It has first more and then fewer partitions."""
    grows, shrinks, other = running.target(1), running.target(4), running.target()
    running.send(*timers(grows, 20, due_in(1), 1), *timers(shrinks, 20, due_in(1), 1))
    running.reader(grows).take(20)
    running.reader(shrinks).take(20)
    running.admin.create_partitions([NewPartitions(grows, 4)])[grows].result(DEADLINE_S)
    running.create_anew(shrinks, 1)
    due_s = due_in(2)
    more, fewer, beside = (timers(topic, 60, due_s, 3) for topic in (grows, shrinks, other))
    running.send(*more, *fewer, *beside)
    assert all(record.lag_ms < MAX_LAG_MS for record in running.fired(beside).values())
    assert len(running.fired(fewer)) == 60
    found = {record.timer_id for record in running.reader(grows).take(80)}
    assert {request.source for request in more} <= found


def test_a_target_deleted_under_load_is_created_again_if_so_configured(broker_address: str, tmp_path: Path) -> None:
    system = System(broker_address, tmp_path, TIMERS_CREATE_TARGET_TOPICS="1")
    try:
        system.worker().start().ready()
        doomed, other = system.target(), system.target()
        first_s = due_in(2)
        lost, kept = timers(doomed, 480, first_s, 8), timers(other, 480, first_s, 8)
        before = system.reader(doomed)
        system.send(*(request for pair in zip(lost, kept, strict=True) for request in pair))
        before.take(60)
        system.delete_topic(doomed)
        last = {request.source for request in system.send(*timers(doomed, 60, due_in(2), 1))}
        fired = system.fired(kept)
        assert all(record.lag_ms < 2 * MAX_LAG_MS for record in fired.values())
        reader = system.reader(doomed, append_time=False)
        found: set[str] = set()
        while not last <= found:
            found |= {record.timer_id for record in reader.take(1)}
        assert system.dead_letters().rest() == []
    finally:
        system.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """A system on a broker with ACLs; its worker retries a failing target once."""
    directory = tmp_path_factory.mktemp("guarded")
    with EmbeddedBroker(directory / "broker", port=0, properties=acls.OPEN_AUTHORIZER) as broker:
        system = System(broker.start(), directory, TIMERS_RETRY_ATTEMPTS="1")
        try:
            yield system
        finally:
            system.close()


@pytest.mark.long
def test_a_target_without_write_permission_is_retried_and_then_dead_lettered(guarded: System) -> None:
    """The worker retries after half a minute; the timer then fires or becomes a dead letter."""
    worker = guarded.worker().start().ready()
    other = guarded.target(partitions=4)
    denied, allowed_later = guarded.target(), guarded.target()
    walls = {
        topic: [
            *acls.acl(ResourceType.TOPIC, topic, AclOperation.DESCRIBE),
            *acls.acl(ResourceType.TOPIC, topic, AclOperation.WRITE, deny=True),
        ]
        for topic in (denied, allowed_later)
    }
    acls.add(guarded.admin, [entry for wall in walls.values() for entry in wall])
    publisher = guarded.publisher()
    due_s = due_in(2)
    asked: dict[str, str] = {}
    for number, topic in enumerate((denied, allowed_later)):
        value = future.encode(topic, "k", b"v") + UNKNOWN_FIELD
        asked[topic] = publisher.send_raw(b"0%d" % (due_s + number % 2), value, FORGED, number)
    early = timers(other, 200, due_s, 5)
    guarded.send(*early)
    # ... each with a good one behind it on the same partition.
    assert all(record.lag_ms < MAX_LAG_MS for record in guarded.fired(early).values())

    acls.remove(guarded.admin, walls[allowed_later])
    calm = guarded.target(partitions=4)
    later = timers(calm, 400, due_in(2), 40)
    guarded.send(*later)
    letter = await_letters(guarded, {asked[denied]}, 2 * DEADLINE_S)[asked[denied]]
    assert letter.text("timer-error") == "topic-denied"
    assert "not authorized to write" in letter.text("timer-error-message")
    assert letter.text("timer-error-message").endswith("(1 tries)")
    assert (letter.key, letter.value) == (b"0%d" % due_s, future.encode(denied, "k", b"v") + UNKNOWN_FIELD)
    assert letter.headers[: len(FORGED)] == FORGED
    (record,) = guarded.reader(allowed_later).take(1)
    assert record.timer_id == asked[allowed_later]
    # Nothing of another target's has waited while these were tried again.
    assert all(record.lag_ms < MAX_LAG_MS for record in guarded.fired(later, 2 * DEADLINE_S).values())
    for topic in (denied, allowed_later):
        assert len(re.findall(rf"target {topic} fails", worker.log)) == 1, worker.tail()
    worker.wait_for(rf"target {allowed_later} works again")
    assert len(re.findall(r"works again", worker.log)) == 1
