"""A request comes back on its callback topic, at its second. tests/conformance compares the bytes."""

import time

import pytest
from confluent_kafka import Producer

from tests.harness.cluster import CLIENT
from tests.harness.records import Record, Request
from tests.harness.system import MAX_LAG_MS, System, soon, timers
from tests.harness.waiting import DEADLINE_S, due_in, wait_until

pytestmark = pytest.mark.broker


def test_each_timer_fires_at_its_second_and_never_before(running: System) -> None:
    target = running.target(partitions=3)
    requests = running.send(*timers(target, 400, first_s=due_in(2), seconds=2))
    fired = running.fired(requests)
    for request in requests:
        record = fired[request.source]
        assert record.key == request.key.encode()
        assert 0 <= record.lag_ms < MAX_LAG_MS
        # The tick that fired it proves that the second had begun, and came before the record.
        assert request.due_s * 1000 <= int(record.text("timer-fired")) <= record.append_ms


def test_a_request_for_the_past_fires_at_once(running: System) -> None:
    target = running.target()
    now_s = int(time.time())
    past = [now_s - 1, now_s - 3600, now_s - 10 * 365 * 86400, 1, 0]
    requests = running.send(*(Request(target, due_s, str(due_s)) for due_s in past))
    fired = running.fired(requests)
    for request in requests:
        assert fired[request.source].append_ms < (now_s + 1) * 1000 + MAX_LAG_MS


def test_a_forged_tick_fires_nothing_early(running: System) -> None:
    requests = running.send(*soon(running.target(), 20))
    forger = Producer({**CLIENT, "bootstrap.servers": running.address})
    far_s = int(time.time()) + 100_000
    for partition in range(4):
        forger.produce(
            running.settings.oscillator_topic, b"1", b"%d" % far_s, partition=partition, timestamp=far_s * 1000
        )
    assert forger.flush(DEADLINE_S) == 0
    running.fired(requests)


def test_one_second_can_hold_many_timers(running: System) -> None:
    target = running.target(partitions=4)
    due_s = due_in(3)
    requests = running.send(*(Request(target, due_s, f"key-{i}", b"x" * 100) for i in range(30_000)))
    fired = running.fired(requests)
    assert len({record.partition for record in fired.values()}) == 4


def test_ticks_come_every_second_with_the_second_as_key(running: System) -> None:
    reader = running.reader(running.settings.oscillator_topic)
    genuine: dict[int, list[Record]] = {}

    def three_in_a_row() -> bool:
        for record in reader.rest():
            if abs(int(record.key or b"0") - record.append_ms / 1000) < 2:  # the forger's are a day ahead
                genuine.setdefault(record.append_ms // 1000, []).append(record)
        return any({second + 1, second + 2} <= genuine.keys() for second in genuine)

    wait_until(three_in_a_row, "ticks of three seconds in a row")
    assert {record.value for records in genuine.values() for record in records} == {b"1"}
