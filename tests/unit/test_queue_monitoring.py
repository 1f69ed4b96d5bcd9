"""Metrics and health of a queue's process, and the figures of a partition. No brokers."""

import json
import re
import socket
from collections.abc import Iterator
from queue import SimpleQueue
from time import monotonic
from typing import Any

import pytest

from tests.harness.scrape import get
from timers.errors import QueueError, SettingsError
from timers.kafka import topic_admin
from timers.process.config.settings import Settings
from timers.queue import Queue, monitoring
from timers.queue.inspection import PartitionStats, partition_stats
from timers.queue.ledger import Ledger
from timers.queue.metadata import BrokersClock, Commit, Saved, Start, encode
from timers.queue.monitoring import METRICS, Monitor

JOBS = ("jobs", 0)


@pytest.fixture
def queue() -> Any:
    return Queue("jobs", name="invoices", brokers="localhost:1")


@pytest.fixture
def monitor(queue: Queue) -> Iterator[Monitor]:
    with Monitor(queue, port=0) as monitor:
        yield monitor


def test_the_metrics_page_has_each_metric_with_the_name_of_the_queue(queue: Any, monitor: Monitor) -> None:
    queue.driver.member.settler.totals.acked = 7
    queue.driver.member.settler.totals.dead["rejected"] = 2
    status, page = get(monitor.port, "/metrics")
    assert status == 200
    missing = {"timers_queue_delayed", "timers_queue_group_taken"}
    always = [entry.name for entry in METRICS if entry.name not in missing]
    assert [name for name in always if f"\n{name}{{" not in page] == []
    assert 'timers_queue_acked_total{queue="invoices"} 7.0' in page
    assert 'timers_queue_dead_total{code="rejected",queue="invoices"} 2.0' in page
    assert "process_resident_memory_bytes" in page
    assert not any(f"\n{name}{{" in page for name in missing), "they are not known yet"


def test_a_process_is_ready_when_it_is_a_member_and_commits(queue: Any, monitor: Monitor) -> None:
    driver = queue.driver
    member = driver.member
    assert get(monitor.port, "/health/live") == (200, '{"live": true, "reasons": []}')
    status, page = get(monitor.port, "/health/ready")
    assert status == 503 and "has not given this process partitions yet" in json.loads(page)["reasons"][0]
    member.joined, driver._round_began_s, member.settled_s = True, monotonic(), monotonic()
    assert get(monitor.port, "/health/ready") == (200, '{"ready": true, "reasons": []}')
    member.new.add([JOBS, ("jobs", 1)])
    assert "partitions are being loaded: 2 to go" in get(monitor.port, "/health/ready")[1]
    member.new.load_error = "transaction"
    assert "cannot be loaded (transaction)" in get(monitor.port, "/health/ready")[1]
    driver.strangers = "another program is in the group"
    assert get(monitor.port, "/health/ready")[1] == '{"ready": false, "reasons": ["another program is in the group"]}'
    assert 'timers_queue_group_taken{queue="invoices"} 1.0' in get(monitor.port, "/metrics")[1]
    driver.strangers = ""
    assert 'timers_queue_group_taken{queue="invoices"} 0.0' in get(monitor.port, "/metrics")[1]
    member.leave()
    member.settled_s = monotonic() - 30
    said = get(monitor.port, "/health/ready")[1]
    assert re.search(r"not all that was settled could be committed for [34]\d s", said), said
    driver._round_began_s = monotonic() - 100
    assert get(monitor.port, "/health/live")[0] == 503
    driver.failure = QueueError("messages were lost")
    assert "messages were lost" in get(monitor.port, "/health/live")[1]


def test_delayed_messages_are_counted_on_the_queues_cluster(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment may name another one."""
    asked: SimpleQueue[str] = SimpleQueue()
    monkeypatch.setenv("TIMERS_BROKERS", "elsewhere:1")

    def ask(settings: Settings, *_: Any) -> tuple[int, bool]:
        asked.put(settings.brokers)
        return 5, False

    monkeypatch.setattr(topic_admin, "cluster_id", ask)
    monkeypatch.setattr(monitoring, "count_delayed", ask)
    with Monitor(queue, port=0):
        assert [asked.get(timeout=60), asked.get(timeout=60)] == ["localhost:1", "localhost:1"]


def test_other_pages_do_not_exist(monitor: Monitor) -> None:
    assert get(monitor.port, "/")[0] == 404


def test_a_port_in_use_is_said(queue: Queue) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(SettingsError, match=f"127.0.0.1:{port} cannot be listened on"):
            Monitor(queue, port)


def test_the_depth_counts_what_is_not_done() -> None:
    metadata = encode(Saved(4, ((5, 8), (10, 20))), "log") or ""
    assert partition_stats(JOBS, Commit(4, metadata), None, "log", 0, 20) == PartitionStats(
        "jobs", 0, 4, 20, 3, len(metadata)
    )
    assert partition_stats(JOBS, Commit(4, metadata), None, "log", 9, 15).depth == 1, "retention deleted some"
    running = encode(Saved(4, ((5, 8), (10, 20)), start=Start(0, 9)), "log") or ""
    assert partition_stats(JOBS, Commit(4, running), None, "log", 0, 20).may_run == 2, "4 and 8"
    assert partition_stats(JOBS, Commit(4, metadata), None, "other", 0, 20).depth == 20, "of a deleted topic"
    assert partition_stats(JOBS, Commit(4, "foreign"), None, "log", 0, 20).depth == 16
    assert partition_stats(JOBS, None, None, "log", 5, 20).depth == 15
    copied = partition_stats(JOBS, None, Commit(4, metadata), "log", 0, 20)
    assert copied == partition_stats(JOBS, Commit(4, metadata), None, "log", 0, 20), "the group has lost its offset"
    with pytest.raises(QueueError, match="jobs/0: metadata of version 9"):
        partition_stats(JOBS, Commit(4, "q9.log.4"), None, "log", 0, 20)


NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("before_ms", "time_ms", "came_ms"),
    [
        (NOW_MS - 5000, -1, NOW_MS - 5000),
        (NOW_MS - 5000, 0, NOW_MS - 5000),
        (NOW_MS - 5000, 10**15, NOW_MS - 5000),
        (NOW_MS - 5000, NOW_MS - 3000, NOW_MS - 3000),
        (-1, -86_400_000, NOW_MS),
        (10**15, 10**15, NOW_MS),
    ],
)
def test_a_producers_time_says_how_old_a_message_is_if_it_can(before_ms: int, time_ms: int, came_ms: int) -> None:
    """A client that sends none gives -1, another one 0: the message would be the oldest one by 56 years."""
    clock = BrokersClock()
    ledger = Ledger(Saved(0), clock=clock)
    assert ledger.came_ms(10**15, 7.0, is_brokers=False) == 10**15, "before the brokers' time is known"
    clock.note(NOW_MS / 1000, 7.001, 7.001)
    ledger.came_ms(before_ms, 7.0, is_brokers=False)
    assert ledger.came_ms(time_ms, 7.0, is_brokers=False) == came_ms
    assert ledger.came_ms(17, 7.0, is_brokers=True) == 17


def test_a_process_knows_its_depth_and_its_oldest_message() -> None:
    ledger = Ledger(Saved(4, ((5, 8), (10, 20))))
    assert (ledger.undone_count(25), ledger.oldest_ms) == (8, 0)
    ledger.read(4, "first", came_ms=17)
    ledger.read(8, "second", came_ms=18)
    assert (ledger.undone_count(25), ledger.oldest_ms) == (8, 17)
    assert ledger.undone_count(0) == 2, "the end of the log is not known"
