"""A queue whose topic has a batch that brokers and workers read, and librdkafka does not."""

import time

import pytest
from confluent_kafka.admin import NewTopic

from tests.harness import raw_batches
from tests.harness.queue_calls import PATIENT, receive
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.kafka.admin_client import AdminClient
from timers.process.config.settings import Settings
from timers.queue import Queue, QueueError
from timers.queue.inspection import Inspection

pytestmark = pytest.mark.broker


def test_a_batch_that_cannot_be_read_is_named_and_passed_over(
    broker_address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TIMERS_BROKERS", broker_address)
    jobs = f"jobs-{time.time_ns()}"
    AdminClient({"bootstrap.servers": broker_address}).create_topics([NewTopic(jobs, 1, 1)])[jobs].result(DEADLINE_S)
    with Queue(jobs, **PATIENT) as queue:
        queue.send_many([b"before-%d" % number for number in range(3)])
        unusual = raw_batches.READABLE["two streams of xerial"]
        batch = unusual.batch([(None, b"unread", [])] * 10, int(time.time() * 1000))
        assert raw_batches.produce(broker_address, jobs, 0, batch) == 0
        queue.send_many([b"after-%d" % number for number in range(5)])
        for message in receive(queue, 3):
            message.ack()
        queue.settle()
        with pytest.raises(QueueError, match=rf"{jobs}/0: the record batch at offset 3 cannot be read .*accept-loss"):
            wait_until(lambda: bool(queue.receive(1, wait_s=0.1)), "the queue has stopped")
    stats = Inspection(Settings.load()).stats(jobs, with_delayed=False)
    assert (stats.depth, stats.oldest_age_s) == (15, None)
    with Queue(jobs, accept_loss=[f"{jobs}/0"], **PATIENT) as queue:
        found = receive(queue, 5)
        assert [message.value for message in found] == [b"after-%d" % number for number in range(5)]
    assert f"{jobs}/0: the messages from 3 to 12 cannot be read, and are passed over" in caplog.text
