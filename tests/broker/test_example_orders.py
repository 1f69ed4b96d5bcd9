"""examples/orders.py does what it says, on a real broker with a real worker."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from timers.cli.broker.embedded import free_port
from timers.kafka.admin_client import AdminClient

pytestmark = pytest.mark.broker

ROOT = Path(__file__).parents[2]
PAY_WITHIN_S = 3
DEADLINE_S = 60.0


@contextmanager
def running(command: list[str], env: dict[str, str], log: Path) -> Iterator[None]:
    """A process for the length of the block; its log is printed if the test fails, by pytest's capture."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(DEADLINE_S)
        finally:
            process.kill()
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-5000:]}")


def until_topics_exist(broker: str, names: set[str]) -> None:
    admin = AdminClient({"bootstrap.servers": broker})
    deadline = time.monotonic() + DEADLINE_S
    while not names <= admin.list_topics(timeout=DEADLINE_S).topics.keys():
        assert time.monotonic() < deadline, f"{names} were not all created"
        time.sleep(0.1)


def results(broker: str, count: int) -> dict[str, tuple[bytes, int]]:
    """Value and append time of the result of each order, once there are ``count``."""
    consumer = Consumer({"bootstrap.servers": broker, "group.id": "test", "isolation.level": "read_committed"})
    partitions = consumer.list_topics("order-results", timeout=DEADLINE_S).topics["order-results"].partitions
    consumer.assign([TopicPartition("order-results", partition, OFFSET_BEGINNING) for partition in partitions])
    found: dict[str, tuple[bytes, int]] = {}
    deadline = time.monotonic() + DEADLINE_S
    try:
        while len(found) < count:
            assert time.monotonic() < deadline, f"only {found}"
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                key, value = message.key(), message.value()
                assert key is not None and value is not None
                assert key.decode() not in found, f"two results for {key!r}"
                found[key.decode()] = (value, message.timestamp()[1])
    finally:
        consumer.close()
    return found


def test_unpaid_orders_expire_and_paid_ones_do_not(broker_address: str, tmp_path: Path) -> None:
    env = {
        **os.environ,
        "TIMERS_BROKERS": broker_address,
        "TIMERS_APP_ID": "orders-example-timers",
        "TIMERS_REQUEST_TOPIC": "orders-example-request",
        "TIMERS_OSCILLATOR_TOPIC": "orders-example-oscillator",
        "TIMERS_DEAD_LETTER_TOPIC": "orders-example-dead-letter",
        "TIMERS_DATA_DIR": str(tmp_path / "data"),
        "TIMERS_WEB_PORT": str(free_port()),
        "ORDERS_WEB_PORT": str(free_port()),
        "PAY_WITHIN_S": str(PAY_WITHIN_S),
    }
    with ExitStack() as processes:
        worker = [sys.executable, "-m", "timers.cli.main", "worker"]
        processes.enter_context(running(worker, env, tmp_path / "worker.log"))
        until_topics_exist(broker_address, {"orders-example-request"})
        example = [sys.executable, "-m", "examples.orders", "--datadir", str(tmp_path), "worker", "-l", "info"]
        processes.enter_context(running(example, env, tmp_path / "orders.log"))
        until_topics_exist(broker_address, {"orders", "order-timeouts", "order-results"})

        producer = Producer({"bootstrap.servers": broker_address, "acks": "all", "partitioner": "murmur2_random"})
        placed_ms = time.time_ns() // 10**6
        events = [
            ("o-1", "placed"),
            ("o-2", "placed"),
            ("o-3", "placed"),
            ("o-1", "paid"),
            ("o-2", "paid"),
            ("o-2", "paid"),
        ]
        for order_id, state in events:
            producer.produce("orders", json.dumps({"state": state}), order_id)
        assert producer.flush(DEADLINE_S) == 0
        found = results(broker_address, 3)

    assert {order_id: value for order_id, (value, _) in found.items()} == {
        "o-1": b"paid",
        "o-2": b"paid",
        "o-3": b"expired",
    }
    assert found["o-3"][1] >= placed_ms + PAY_WITHIN_S * 1000, "expired before its time"
