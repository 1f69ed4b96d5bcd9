"""Computed metrics. The broker tests check those of a running worker."""

import time
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition

from tests.harness.constants import Constants
from timers.core.counters import Counters, Histogram
from timers.core.progress import NamedSnapshot, Progress
from timers.core.snapshots import bytes_of_snapshot
from timers.kafka.aiokafka_internals import fetch
from timers.process.partition_metrics import PartitionMetrics
from timers.worker import metrics as module


def test_the_newest_snapshot_of_a_partition_has_a_position_a_size_and_an_age() -> None:
    named = NamedSnapshot(b"", 7, 10, 13, 40, 5, 5, b"")
    with_one, without, unknown = (("requests", partition) for partition in range(3))
    progress = {with_one: Progress(50, snapshot=named), without: Progress(50), unknown: Progress(50, snapshot=named)}
    metrics = {tp: PartitionMetrics() for tp in progress}
    metrics[with_one].snapshot_ms = 90_500
    runners = {tp: SimpleNamespace(machine=SimpleNamespace(progress=each)) for tp, each in progress.items()}
    pool = SimpleNamespace(owned=runners, partition_metrics=metrics)
    clock = SimpleNamespace(broker_now_s=lambda: 100.0)
    status: Any = SimpleNamespace(pool=pool, tick_scheduler=clock)
    assert dict(module.newest_snapshot(lambda each: each.applied, status)) == {
        ("requests", "0"): 40,
        ("requests", "2"): 40,
    }
    assert bytes_of_snapshot(named) == 3 * 2**19
    assert list(module.owned(module.snapshot_age, status)) == [(("requests", "0"), 9.5)]
    clock.broker_now_s = lambda: None
    assert not list(module.owned(module.snapshot_age, status))


def test_a_partition_that_is_read_ahead_is_counted_as_being_opened_and_its_recovery_is_shown() -> None:
    """Its former worker fires it and counts its timers. If that one is lost, the partition waits for this worker."""
    machine = SimpleNamespace(pending=7, recovering=True, left_to_replay=3)
    owned, ahead = (SimpleNamespace(machine=machine) for _ in range(2))
    runners = {("requests", 0): owned, ("requests", 1): ahead}
    metrics = {tp: PartitionMetrics() for tp in runners}
    pool = SimpleNamespace(runners=runners, owned={("requests", 0): owned}, opening=2, partition_metrics=metrics)
    status: Any = SimpleNamespace(pool=pool, tick_scheduler=SimpleNamespace(broker_now_s=lambda: 100.0))
    entries = {entry.name: entry for entry in module.METRICS}
    assert list(entries["timers_pending"].read(status)) == [(("requests", "0"), 7)]
    assert list(entries["timers_partitions"].read(status)) == [((), 1)]
    assert list(entries["timers_partitions_opening"].read(status)) == [((), 3)]
    assert [labels for labels, _ in entries["timers_recovering"].read(status)] == [("requests", "0"), ("requests", "1")]
    assert module.present(status)["pending"] == 7


def test_the_waits_of_takeovers_are_shown_before_the_first_one() -> None:
    """So that the increase by the first one is seen."""
    status: Any = SimpleNamespace(pool=SimpleNamespace(partition_metrics={}))
    (entry,) = [entry for entry in module.METRICS if entry.name == "timers_takeover_wait_seconds"]
    ((_, empty),) = entry.read(status)
    assert isinstance(empty, Histogram) and sum(empty.counts) == 0


def test_an_open_transaction_is_not_blamed_for_a_broker_that_does_not_answer() -> None:
    now_ms = 1000 * time.time()
    old, new = now_ms - 2000 * module.UNSTABLE_S, now_ms
    states = {
        TopicPartition("requests", number): SimpleNamespace(highwater=10, lso=7, timestamp=at)
        for number, at in enumerate((old, new))
    }
    states[TopicPartition("requests", 2)] = SimpleNamespace(highwater=None, lso=None, timestamp=None)
    assignment = SimpleNamespace(tps=states.keys(), state_value=states.__getitem__)
    subscription = SimpleNamespace(subscription=SimpleNamespace(assignment=assignment))
    read: Any = SimpleNamespace(_subscription=subscription)

    def watermarks(within_s: float = inf) -> Any:
        return {(tp.topic, tp.partition): marks for tp, marks in fetch.watermarks(read, within_s).items()}

    status: Any = SimpleNamespace(consumer=SimpleNamespace(watermarks=watermarks))
    assert dict(module.unstable(status)) == {("requests", "0"): 0, ("requests", "1"): 3}
    assert dict(module.last_stable(status)) == {("requests", "0"): 7, ("requests", "1"): 7}


def test_callbacks_and_lags_are_shown_by_topic_and_a_topic_keeps_its_label(constants: Constants) -> None:
    constants(module, MAX_COUNTED_TOPICS=2)
    first, second = Counters(), Counters()
    parts = {("requests", number): SimpleNamespace(counters=each) for number, each in enumerate((first, second))}
    status: Any = SimpleNamespace(pool=SimpleNamespace(partition_metrics=parts), shown_topics=set())

    def fire(counters: Counters, topic: str, count: int) -> None:
        counters.transaction.fire(topic, [(10, [(0, topic, None, b"", None, None)] * count)])
        counters.transaction.ended_ms = 10_200
        counters.count_committed(Progress(0))

    fire(first, "orders", 3)
    fire(second, "mails", 2)
    assert dict(module.fired_by_topic(status)) == {("orders",): 3, ("mails",): 2}
    fire(first, "late-comer", 5)
    fire(second, "orders", 4)
    assert dict(module.fired_by_topic(status)) == {("orders",): 7, ("mails",): 2, ("(other)",): 5}
    lags = dict(module.lag_by_topic(status))
    assert isinstance(lags["orders",], Histogram)
    assert lags["orders",].counts[2] == 7
    assert lags["orders",].sum == pytest.approx(7 * 0.2)
