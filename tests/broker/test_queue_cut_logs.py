"""A queue whose topic lost its end and grew again, as after an unclean election or on a disk that lost its last writes.

The new messages have offsets that the queue knows as done. They are all delivered, after the loss is accepted.
"""

import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import NewTopic

from tests.chaos.logs.broker_disk import restart_without_end
from tests.harness.queue_calls import PATIENT, receive
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.cli.broker import EmbeddedBroker
from timers.kafka.admin_client import AdminClient
from timers.queue import LeaseLostError, Message, Queue, QueueError

pytestmark = pytest.mark.broker

OLD, CUT = 300, 150


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("cut") / "broker", 0) as broker:
        yield broker


@pytest.fixture
def jobs(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> str:
    """A topic of the test."""
    address, topic = broker.start(), f"jobs-{time.time_ns()}"
    monkeypatch.setenv("TIMERS_BROKERS", address)
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(DEADLINE_S)
    return topic


def send(queue: Queue, kind: str, count: int) -> list[str]:
    """Send messages, each in a batch of its own."""
    return [queue.send(b"%b %d" % (kind.encode(), number)) for number in range(count)]


def values(messages: list[Message]) -> set[str]:
    return {(message.value or b"").decode() for message in messages}


def numbered(kind: str, first: int, end: int) -> set[str]:
    return {f"{kind} {number}" for number in range(first, end)}


@pytest.mark.long
@pytest.mark.parametrize("new", [50, 400])
def test_a_queue_that_is_opened_again_delivers_what_its_log_holds_now(
    broker: EmbeddedBroker, jobs: str, new: int
) -> None:
    with Queue(jobs, **PATIENT) as queue:
        send(queue, "old", OLD)
        messages = receive(queue, OLD)
        for message in messages:
            if not message.source.endswith("/100"):
                message.ack()
    restart_without_end(broker, jobs, 0, CUT)
    with Queue(jobs, **PATIENT) as queue:
        send(queue, "new", new)
    with Queue(jobs, **PATIENT) as queue, pytest.raises(QueueError, match=f"{jobs}/0: from {CUT} on, the log is not"):
        receive(queue, 1)
    with Queue(jobs, accept_loss=True, **PATIENT) as queue:
        messages = receive(queue, 1 + new, ack=True)
        assert values(messages) == {"old 100"} | numbered("new", 0, new)
        by_offset = {message.source.partition("~")[0]: message.source for message in messages}
        assert by_offset[f"{jobs}/0/100"] == f"{jobs}/0/100"
        assert by_offset[f"{jobs}/0/{CUT}"] == f"{jobs}/0/{CUT}~1", "it is not the message that had this offset before"
        queue.settle()
    with Queue(jobs, **PATIENT) as queue:
        (last,) = (queue.send(b"last"),)
        (message,) = receive(queue, 1, ack=True)
        assert (message.value, message.source) == (b"last", f"{last}~1")


@pytest.mark.parametrize("accept_loss", [False, True])
def test_a_running_queue_notices_that_its_log_was_cut(broker: EmbeddedBroker, jobs: str, accept_loss: bool) -> None:
    with Queue(jobs, accept_loss=accept_loss, **PATIENT | {"session_timeout_s": 10.0}) as queue:
        send(queue, "old", OLD)
        messages = receive(queue, OLD)
        for message in messages[:-1]:
            message.ack()
        queue.settle()
        restart_without_end(broker, jobs, 0, CUT)
        with Queue(jobs, **PATIENT) as sender:  # the producer from before has lost records, too
            send(sender, "new", 400)
        if not accept_loss:
            with pytest.raises(QueueError, match=f"{jobs}/0: from {CUT} on, the log is not the one of before"):
                wait_until(lambda: queue.receive(1, wait_s=1) and None, "the loss", 2 * DEADLINE_S)
            assert any(f"from {CUT} on" in reason for reason in queue.unready())
            return
        assert values(receive(queue, 400, ack=True)) == numbered("new", 0, 400)
        with pytest.raises(LeaseLostError):
            messages[-1].ack()
        queue.settle()
        assert queue.receive(1, wait_s=0.5) == []


@pytest.mark.long
def test_a_broker_that_restarts_with_all_records_is_no_other_log(
    broker: EmbeddedBroker, jobs: str, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(2):
        with Queue(jobs, **PATIENT) as queue:
            send(queue, f"old{number}", 20)
            assert values(receive(queue, 20, ack=True)) == numbered(f"old{number}", 0, 20)
            broker.stop()
            broker.start()
            send(queue, f"new{number}", 20)
            assert values(receive(queue, 20, ack=True)) == numbered(f"new{number}", 0, 20)
            queue.settle()
    assert "is not the one of before" not in caplog.text
