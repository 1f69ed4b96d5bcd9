"""A queue on a real broker: acknowledged messages stay done, all others come back, however the process ends."""

import contextlib
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from tests.harness.process import Process, clean_environment, python
from tests.harness.queue_calls import PATIENT, receive
from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.queue import Backoff, LeaseLostError, Queue, QueueError
from timers.queue.inspection import Inspection

pytestmark = pytest.mark.broker

MESSAGES = 600


def test_after_a_kill_only_unsettled_messages_come_back(here: System, tmp_path: Path) -> None:
    topic = here.target(partitions=4)
    with Queue(topic, timeout_s=60) as queue:
        sources = queue.send_many((b"k%d" % (number % 50), b"%d" % number, ()) for number in range(MESSAGES))
    assert len(set(sources)) == MESSAGES
    environment = clean_environment(**here.environment)
    log = tmp_path / "consumer.log"
    consumer = Process(
        "consumer", python("tests.harness.queue_consumer", topic, str(MESSAGES)), environment, tmp_path, log
    )
    try:
        consumer.start().wait_for("^settled$", 2 * DEADLINE_S)
    finally:
        consumer.clean_up()
    numbers = range(MESSAGES)
    acked = {b"%d" % number for number in numbers if number % 3 == 0 and number % 10}
    retried = {b"%d" % number for number in numbers if number % 10 == 0 and number % 20}
    rejected = {b"%d" % number for number in numbers if number % 20 == 0}
    left = {b"%d" % number for number in numbers} - acked - rejected
    with Queue(topic, **PATIENT) as queue:
        messages = receive(queue, len(left), ack=True)
        assert {message.value for message in messages} == left
        assert {message.value for message in messages if message.attempt == 2} == retried
        assert {message.source for message in messages} <= set(sources)
        queue.settle()
        assert queue.receive(1, wait_s=0.5) == []
    letters = [each for each in here.dead_letters().rest() if each.text("timer-source") in sources]
    assert [each.text("timer-error") for each in letters] == ["rejected"] * len(rejected)


def test_a_message_is_retried_after_its_delay_and_then_given_up(here: System) -> None:
    topic = here.target()
    with Queue(topic, backoff=Backoff(first_s=1, retries=1), **PATIENT) as queue:
        source = queue.send(
            b"\xff\x00", key=b"\xfe", headers=[("trace", b"1"), ("retry-attempt", b"7"), ("null", None)]
        )
        (first,) = receive(queue, 1)
        assert (first.attempt, first.source) == (1, source)
        first.retry(error="no answer")
        with pytest.raises(LeaseLostError):
            first.ack()
        (second,) = receive(queue, 1)
        assert (second.attempt, second.source, second.sent_ms) == (2, source, first.sent_ms)
        assert (second.key, second.value) == (b"\xfe", b"\xff\x00")
        assert second.headers == [("trace", b"1"), ("null", None)]
        second.retry(error="again")
        queue.settle()
    (letter,) = [each for each in here.dead_letters().rest() if each.text("timer-source") == source]
    assert letter.text("timer-error") == "attempts-exhausted"
    assert "again" in letter.text("timer-error-message")
    (returned,) = here.reader(f"queue.{topic}-returns").rest()
    assert returned.append_ms - first.sent_ms >= 1000
    with Queue(topic, **PATIENT) as queue:
        queue.send(b"later", key=b"\xfe")
        (later,) = receive(queue, 1)
        assert later.value == b"later", "the message before it is done"


@pytest.mark.long
def test_an_ordered_queue_keeps_the_order_of_a_key_through_retries(here: System) -> None:
    topic = here.target(partitions=2)
    with Queue(topic, ordered=True, backoff=Backoff(first_s=0.2, retries=5), **PATIENT) as queue:
        queue.send_many((b"k%d" % (number % 3), b"%d" % number, ()) for number in range(30))
        done: dict[bytes | None, list[int]] = {}
        failed = set()
        while sum(map(len, done.values())) < 30:
            for message in queue.receive(7, wait_s=DEADLINE_S):
                number = int(message.value or b"")
                if number % 4 == 0 and number not in failed:
                    failed.add(number)
                    message.retry(error="the first attempt")
                else:
                    assert message.attempt == 1 + (number in failed)
                    done.setdefault(message.key, []).append(number)
                    message.ack()
        assert done == {b"k%d" % key: list(range(key, 30, 3)) for key in range(3)}


@pytest.mark.long
def test_a_delay_in_an_ordered_queue_goes_on_in_the_next_process(here: System) -> None:
    topic = here.target()
    with Queue(topic, ordered=True, **PATIENT) as first:
        first.send_many((key, key + b"%d" % number, ()) for number, key in enumerate([b"a", b"a", b"b", b"c"]))
        for message in receive(first, 3):
            if message.key != b"b":
                message.retry(after={b"a": 3600, b"c": 1}[message.key or b""])
        first.settle()
    with Queue(topic, ordered=True, **PATIENT) as second:
        found = {(message.value, message.attempt) for message in receive(second, 2)}
        assert found == {(b"b2", 1), (b"c3", 2)}
        assert second.receive(1, wait_s=1) == []


@pytest.mark.long
def test_outputs_are_visible_once_when_the_message_is_done(here: System) -> None:
    topic, results = here.target(), here.target()
    with Queue(topic, **PATIENT) as queue:
        queue.send_many((None, b"%d" % number, ()) for number in range(4))
        retried, missing, *others = receive(queue, 4)
        retried.output(results, b"discarded")
        retried.retry(after=0)
        for value in (b"never", b"never either"):
            missing.output(f"{results}-missing", value)
        missing.ack()
        for message in others:
            message.output(results, message.value, key="k")
            message.ack()
        queue.settle()
        (again,) = receive(queue, 1)
        again.output(results, again.value, key="k", headers={"a": b"1"})
        again.ack()
        queue.settle()
    written = here.reader(results).rest()
    assert {each.value for each in written} == {b"%d" % number for number in range(4)} - {missing.value}
    assert len(written) == 3
    (letter,) = [each for each in here.dead_letters().rest() if each.text("timer-source") == missing.source]
    assert letter.text("timer-error") == "rejected"
    assert letter.key is not None and letter.value, "it contains the message, so that it can be put back"


@pytest.mark.long
def test_processes_that_join_and_leave_share_the_messages(here: System) -> None:
    topic = here.target(partitions=4)
    done: list[bytes | None] = []

    def work(queue: Queue) -> None:
        for message in queue.receive(20, wait_s=0.5):
            try:
                number = int(message.value or b"")
                message.retry(after=0) if number % 10 == 0 and message.attempt == 1 else message.ack()
            except LeaseLostError:
                continue
            if message.attempt > 1 or number % 10:
                done.append(message.value)

    with Queue(topic, **PATIENT) as first:
        first.send_many((None, b"%d" % number, ()) for number in range(600))
        work(first)
        with Queue(topic, **PATIENT) as second:

            def both() -> bool:
                work(first)
                work(second)
                return second.counters().partitions > 0

            wait_until(both, "partitions of the second process")
            first.send_many((None, b"%d" % number, ()) for number in range(600, 1200))
            for _ in range(5):
                both()

        def all_done() -> bool:
            work(first)
            return len(set(done)) == 1200

        wait_until(all_done, "all messages", 2 * DEADLINE_S)
        assert len(done) < 1200 + 100, "only what was not settled before a partition moved is repeated"


@pytest.mark.long
def test_an_offset_that_a_tool_moved_back_is_said(here: System, caplog: pytest.LogCaptureFixture) -> None:
    topic = here.target()
    with Queue(topic, **PATIENT) as queue:
        queue.send_many((None, b"%d" % number, ()) for number in range(10))
        for message in receive(queue, 10):
            message.ack()
        queue.settle()
    group = ConsumerGroupTopicPartitions(f"queue.{topic}", [TopicPartition(topic, 0, 4)])
    (moved,) = here.admin.alter_consumer_group_offsets([group]).values()
    moved.result(DEADLINE_S)
    with Queue(topic, **PATIENT) as queue:
        assert [message.value for message in receive(queue, 6)] == [b"%d" % number for number in range(4, 10)]
    assert "metadata of the committed offset" in caplog.text


@pytest.mark.long
def test_deleted_messages_are_never_skipped_in_silence(here: System) -> None:
    topic = here.target()
    with Queue(topic, **PATIENT) as queue:
        queue.send_many((None, b"%d" % number, ()) for number in range(10))
        first, *_ = receive(queue, 10)
        first.ack()
        queue.settle()
    here.cluster.delete_records(topic, {0: 5})
    with Queue(topic, **PATIENT) as queue, pytest.raises(QueueError, match="messages from 1 on are not done"):
        wait_until(lambda: queue.receive(1), "the error")
    with Queue(topic, accept_loss=True, **PATIENT) as queue:
        assert [message.value for message in receive(queue, 5)] == [b"%d" % number for number in range(5, 10)]


@pytest.mark.long
@pytest.mark.parametrize("accept_loss", [False, True])
def test_messages_that_are_deleted_before_they_are_received_are_said(
    here: System, caplog: pytest.LogCaptureFixture, accept_loss: bool
) -> None:
    topic = here.target()
    with Queue(topic, accept_loss=accept_loss, **PATIENT) as queue:
        queue.send_many((None, b"%d" % number, ()) for number in range(3))
        first, *_ = receive(queue, 3)
        transport = queue.driver._transport
        transport.pause([(topic, 0)])
        queue.send_many((None, b"%d" % number, ()) for number in range(3, 10))
        here.cluster.delete_records(topic, {0: 8})
        with contextlib.suppress(RuntimeError):  # a fetch that was under way may have ended the queue already
            transport.resume([(topic, 0)])
        if accept_loss:
            assert [message.value for message in receive(queue, 2, ack=True)] == [b"8", b"9"]
            assert f"{topic}/0: retention deleted messages from 3 to 7 before they were received" in caplog.text
            first.ack()
            queue.settle()
        else:
            with pytest.raises(QueueError, match="cannot be read at its position"):
                wait_until(lambda: queue.receive(1), "the error")


@pytest.mark.long
def test_a_group_whose_offsets_have_expired_is_continued_from_its_copy(
    here: System, caplog: pytest.LogCaptureFixture
) -> None:
    topic = here.target()
    with Queue(topic, name=f"{topic}-q", **PATIENT) as queue:
        queue.send_many((None, b"%d" % number, ()) for number in range(5))
        _, *others = receive(queue, 5)
        for message in others:
            message.ack()
        queue.settle()
    (deleted,) = here.admin.delete_consumer_groups([f"queue.{topic}-q"]).values()
    deleted.result(DEADLINE_S)
    inspection = Inspection(here.settings)
    assert inspection.topic_of(f"{topic}-q") == topic
    stats = inspection.stats(f"{topic}-q", with_delayed=False)
    assert (stats.depth, stats.partitions[-1].committed) == (1, 0)
    with Queue(topic, name=f"{topic}-q", **PATIENT) as queue:
        assert [message.value for message in receive(queue, 1, ack=True)] == [b"0"]
        queue.settle()
        assert queue.receive(1, wait_s=0.5) == []
    assert "the group has no offset" in caplog.text
